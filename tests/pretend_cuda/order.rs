//! The order of streams and the reuse of bytes, judged by the pretend driver's clocks; and that it judges at all.

use ndgc::{
    Cuda, DType, Device, Error, Tensor,
    bench::{CudaConfig, cuda_device},
    gc,
};

use crate::common::{Dice, cuda::Pretend};
use crate::pretend_cuda::{on_cuda, pretending};

/// Operations on all streams, whose operands and results wander between them; the values are those of one program.
fn wander(device: &Device, cuda: Cuda, seed: u64, rounds: usize) {
    let mut dice = Dice(seed);
    let mut arrays: Vec<(Tensor, f32)> =
        (0..8).map(|i| (Tensor::full(i as f32, 300, device).unwrap(), i as f32)).collect();
    for _ in 0..rounds {
        let (a, b, to) = (dice.below(8), dice.below(8), dice.below(8));
        let made = cuda.on_stream(dice.below(4), || match dice.below(3) {
            0 => ((&arrays[a].0 + &arrays[b].0).unwrap().affine(0.5, 0.).unwrap(), (arrays[a].1 + arrays[b].1) * 0.5),
            1 => (arrays[a].0.affine(1., 1.).unwrap(), arrays[a].1 + 1.),
            _ => (arrays[a].0.maximum(&arrays[b].0).unwrap(), arrays[a].1.max(arrays[b].1)),
        });
        arrays[to] = made;
    }
    for (array, expected) in &arrays {
        assert!(array.to_vec::<f32>().unwrap().iter().all(|value| value == expected));
    }
}

#[test]
fn programs_on_several_streams_and_threads_are_ordered() {
    on_cuda(|device, cuda| {
        let waits = || Pretend::get().map_or(0, |pretend| pretend.calls(Some("cuStreamWaitEvent")));
        let before = waits();
        wander(device, cuda, 7, 400);
        assert!(Pretend::get().is_none() || waits() > before, "streams did wait for each other");
        std::thread::scope(|scope| {
            for seed in 1..4 {
                scope.spawn(move || wander(device, cuda, seed, 150));
            }
        });
    });
}

/// What the pretend driver finds in a program on a device that leaves something out.
fn found(pretend: &Pretend, config: CudaConfig, program: impl FnOnce(&Device, Cuda)) -> Vec<String> {
    let device = cuda_device(0, config).unwrap();
    let Device::Cuda(cuda) = device else { unreachable!("it was just made") };
    program(&device, cuda);
    gc::collect();
    let _ = device.synchronize();
    let found = pretend.violations();
    pretend.clear();
    found
}

#[test]
fn a_missing_wait_between_streams_is_found() {
    pretending(|pretend, _, _| {
        let broken = CudaConfig { order_streams: false, ..CudaConfig::default() };
        let list = found(pretend, broken, |device, cuda| {
            let a = Tensor::full(1f32, 1000, device).unwrap();
            let b = cuda.on_stream(1, || a.affine(2., 0.).unwrap());
            drop(cuda.on_stream(2, || b.affine(2., 0.).unwrap()));
        });
        assert!(!list.is_empty(), "nothing was found");
        let sound = found(pretend, CudaConfig::default(), |device, cuda| {
            let a = Tensor::full(1f32, 1000, device).unwrap();
            let b = cuda.on_stream(1, || a.affine(2., 0.).unwrap());
            drop(cuda.on_stream(2, || b.affine(2., 0.).unwrap()));
        });
        assert_eq!(sound, [""; 0]);
    });
}

#[test]
fn a_reuse_that_does_not_wait_for_the_former_owner_is_found() {
    pretending(|pretend, _, _| {
        // The block is read on stream 1, dies, and is handed out again on stream 0.
        let program = |device: &Device, cuda: Cuda| {
            let a = Tensor::full(1f32, 1000, device).unwrap();
            let b = cuda.on_stream(1, || a.affine(2., 0.).unwrap());
            drop(a);
            gc::collect();
            let c = Tensor::full(3f32, 1000, device).unwrap();
            drop((b, c));
        };
        let broken = CudaConfig { order_reuse: false, ..CudaConfig::default() };
        assert!(!found(pretend, broken, program).is_empty(), "nothing was found");
        assert_eq!(found(pretend, CudaConfig::default(), program), [""; 0]);
    });
}

#[test]
fn a_driver_that_forgets_waits_or_records_is_found() {
    pretending(|pretend, device, cuda| {
        for what in ["skip_wait", "skip_record"] {
            device.synchronize().unwrap();
            pretend.mutate(what, true);
            let a = Tensor::full(1f32, 1000, device).unwrap();
            let b = cuda.on_stream(1, || a.affine(2., 0.).unwrap());
            device.synchronize().unwrap();
            pretend.mutate(what, false);
            drop((a, b));
            gc::collect();
            assert!(!pretend.violations().is_empty(), "{what} was not noticed");
            pretend.clear();
        }
    });
}

#[test]
fn two_devices_have_memory_of_their_own_and_never_mix() {
    on_cuda(|device, _| {
        let Ok(other) = Device::cuda(1) else { return };
        assert_ne!(device, &other);
        let before = other.memory().active;
        let here = Tensor::full(1f32, 100, device).unwrap();
        let there = Tensor::full(2f32, 100, &other).unwrap();
        assert_eq!(other.memory().active - before, 400);
        let error = here.add(&there).unwrap_err().to_string();
        assert!(error.contains("cuda:0") && error.contains("cuda:1"), "{error}");
        let moved = there.to_device(device).unwrap();
        assert_eq!(here.add(&moved).unwrap().to_vec::<f32>().unwrap(), [3.; 100]);
        // The other one on another thread, back and forth: the context follows.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(there.affine(2., 0.).unwrap().to_vec::<f32>().unwrap(), [4.; 100]);
                    assert_eq!(here.affine(2., 0.).unwrap().to_vec::<f32>().unwrap(), [2.; 100]);
                }
            });
        });
        drop((here, there, moved));
        gc::collect();
        assert_eq!(other.memory().active, before);
        crate::common::check(&other);
    });
}

#[test]
fn a_large_array_is_read_whole_while_another_thread_writes_it() {
    on_cuda(|device, _| {
        let x = Tensor::zeros(3 << 20, DType::F32, device).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..20 {
                    match x.affine_(1., 1.) {
                        Ok(_) | Err(Error::InUse { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            let mut reads = 0;
            while reads < 6 {
                // Who waited for long is told so.
                match x.to_vec::<f32>() {
                    Ok(seen) => {
                        assert!(seen.iter().all(|value| *value == seen[0]), "copied in parts, between writes");
                        reads += 1;
                    }
                    Err(Error::InUse { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            writer.join().unwrap();
        });
    });
}
