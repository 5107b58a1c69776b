//! What only a CUDA device has. Some of it needs the pretend driver of this folder: calls counted, failed and refused,
//! accesses checked; the rest runs on real devices too. Without a device these tests do nothing; `.ci/run` builds the
//! pretend driver and asks for them with `NDGC_REQUIRE_CUDA=1`.

mod audited;
mod calls;
mod facts;
mod failures;
mod missing;
mod nccl;
mod order;
mod replay;
mod workspace;

use ndgc::{Cuda, Device};

use crate::common::{
    self,
    cuda::{Pretend, device},
};

/// Runs `body` with the first device, alone; checks at the end that nothing was found.
fn on_cuda(body: impl FnOnce(&Device, Cuda)) {
    common::alone(|| {
        let Some(device) = device() else { return };
        let Device::Cuda(cuda) = &device else { return };
        body(&device, *cuda);
        common::check(&device);
    });
}

/// As [`on_cuda`], only with the pretend driver.
fn pretending(body: impl FnOnce(&Pretend, &Device, Cuda)) {
    on_cuda(|device, cuda| {
        if let Some(pretend) = Pretend::get() {
            pretend.clear();
            body(pretend, device, cuda);
        }
    });
}
