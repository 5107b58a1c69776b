//! Blocks sub-allocated from segments: few calls to the driver, right contents, memory that comes back.

use ndgc::{DType, Device, SimConfig, Tensor, gc};

use crate::device::support::{alone, finish, sim, values, vector};

fn device(segment_bytes: usize, memory_bytes: u64) -> Device {
    Device::sim(SimConfig { segment_bytes, memory_bytes, ..SimConfig::default() })
}

#[test]
fn many_arrays_share_one_segment() {
    alone(|| {
        let device = device(1 << 20, 1 << 30);
        let arrays: Vec<Tensor> = (0..1000).map(|i| vector(&[i as f32; 100], &device)).collect();
        assert_eq!(sim(&device).calls().allocations, 1);
        let sums: Vec<Tensor> = arrays.iter().map(|array| array.add(&arrays[1]).unwrap()).collect();
        assert_eq!(sim(&device).calls().allocations, 1);
        for (i, sum) in sums.iter().enumerate() {
            assert_eq!(values(sum), [i as f32 + 1.; 100]);
        }
        drop((arrays, sums));
        finish(&device);
    });
}

#[test]
fn memory_reports_add_up() {
    alone(|| {
        let device = device(1 << 20, 1 << 30);
        let x = vector(&[1.; 1000], &device);
        let memory = device.memory();
        assert_eq!((memory.active, memory.captured), (4000, 0));
        assert_eq!(memory.cached, (1 << 20) - 4096);
        drop(x);
        gc::collect();
        assert_eq!((device.memory().active, device.memory().cached), (0, 1 << 20));
        assert_eq!(device.clear_cache(), 1 << 20);
        finish(&device);
    });
}

#[test]
fn exhausted_memory_gives_whole_segments_back_and_takes_what_is_left() {
    alone(|| {
        let device = device(1 << 20, 3 << 20);
        let zeros = |kib: usize| Tensor::zeros(kib << 8, DType::F32, &device);
        let held = zeros(8).unwrap();
        drop([zeros(700).unwrap(), zeros(900).unwrap()]);
        gc::collect();
        assert_eq!(sim(&device).calls().allocations, 2);
        let large = zeros(2000).unwrap();
        assert_eq!(sim(&device).calls().frees, 1, "the segment that is not wholly free stays");
        assert!(zeros(1100).is_err());
        let rest = zeros(900).unwrap();
        assert_eq!(values(&rest).len(), 900 << 8);
        drop((held, large, rest));
        finish(&device);
    });
}

#[test]
fn a_limit_counts_what_was_asked_for() {
    alone(|| {
        let device = device(1 << 20, 1 << 30);
        device.set_limit(Some(1000));
        let a = vector(&[0.; 200], &device);
        assert!(Tensor::zeros(51, DType::F32, &device).is_err());
        let b = vector(&[0.; 50], &device);
        drop((a, b));
        finish(&device);
    });
}
