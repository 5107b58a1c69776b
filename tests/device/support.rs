//! What the tests share: devices in both forms of memory, and what has to hold when a test is over.

use ndgc::{Device, Sim, SimConfig, Tensor, gc};

pub(crate) use crate::common::alone;

/// Runs `body` on a simulated device whose blocks are the driver's, and on one that sub-allocates them from segments;
/// asks of each that the checker found nothing, and that all bytes come back to the driver.
pub(crate) fn both(body: impl Fn(&Device)) {
    alone(|| {
        for segment_bytes in [0, 1 << 20] {
            let config = SimConfig { segment_bytes, ..SimConfig::default() };
            let device = Device::sim(config);
            body(&device);
            finish(&device);
        }
    });
}

/// Everything is dropped: the checker found nothing, and the driver gets all bytes back.
pub(crate) fn finish(device: &Device) {
    gc::collect();
    device.synchronize().unwrap();
    assert_eq!(sim(device).violations(), []);
    let memory = device.memory();
    assert_eq!((memory.active, memory.captured), (0, 0));
    assert_eq!(device.clear_cache(), memory.cached);
    assert_eq!(device.memory().cached, 0);
    assert!(sim(device).calls().frees >= memory.misses, "each segment went");
}

pub(crate) fn sim(device: &Device) -> &Sim {
    match device {
        Device::Sim(sim) => sim,
        other => panic!("{other} is not simulated"),
    }
}

pub(crate) fn vector(values: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(values, values.len(), device).unwrap()
}

pub(crate) fn values(array: &Tensor) -> Vec<f32> {
    array.to_vec().unwrap()
}
