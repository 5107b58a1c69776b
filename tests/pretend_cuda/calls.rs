//! Driver calls, counted.

use ndgc::{DType, Device, Result, Tensor, gc};

use crate::pretend_cuda::{on_cuda, pretending};

type Operation = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>);

const OPERATIONS: [Operation; 12] = [
    ("add", |a, b| a.add(b)),
    ("mul of a view", |a, b| a.t()?.mul(&b.t()?)),
    ("exp", |a, _| a.exp()),
    ("affine", |a, _| a.affine(2., 1.)),
    ("sum", |a, _| a.sum_all()),
    ("mean along an axis", |a, _| a.mean(0)),
    ("argmax", |a, _| a.argmax(1)),
    ("softmax", |a, _| ndgc::nn::ops::softmax(a, 1)),
    ("matmul", |a, b| a.matmul(b)),
    ("cast", |a, _| a.to_dtype(DType::F64)),
    ("gt", |a, b| a.gt(b)),
    ("where_cond", |a, b| a.gt(b)?.where_cond(a, b)),
];

fn operands(device: &Device) -> [Tensor; 2] {
    [1f32, 2.].map(|x| Tensor::full(x, (32, 32), device).unwrap())
}

#[test]
fn an_operation_is_one_launch_and_its_end_is_no_call() {
    pretending(|pretend, device, _| {
        let [a, b] = operands(device);
        for (name, operation) in OPERATIONS {
            let launches = if name == "where_cond" { 2 } else { 1 };
            for _ in 0..3 {
                operation(&a, &b).unwrap();
            }
            let before = pretend.calls(None);
            for _ in 0..50 {
                drop(operation(&a, &b).unwrap());
            }
            gc::collect();
            assert_eq!(pretend.calls(None) - before, 50 * launches, "driver calls of {name}: {}", pretend.log());
        }
    });
}

#[test]
fn a_program_on_one_stream_makes_no_event_call() {
    pretending(|pretend, device, _| {
        let events = || ["cuEventRecord", "cuStreamWaitEvent", "cuEventQuery"].map(|name| pretend.calls(Some(name)));
        let before = events();
        let mut x = Tensor::from_slice(&[1f32; 4096], 4096, device).unwrap();
        for _ in 0..100 {
            x = x.affine(0.5, 1.).unwrap();
            assert!(x.to_vec::<f32>().unwrap().iter().all(|x| x.is_finite()));
        }
        assert_eq!(events(), before);
    });
}

#[test]
fn neither_drop_nor_drain_calls_the_driver_on_any_thread() {
    pretending(|pretend, device, _| {
        let arrays: Vec<_> = (0..1000).map(|i| Tensor::full(i as f32, 100, device).unwrap()).collect();
        let before = pretend.calls(None);
        std::thread::spawn(move || drop(arrays)).join().unwrap();
        gc::collect();
        assert_eq!(pretend.calls(None), before);
    });
}

#[test]
fn trim_gives_memory_back_to_the_driver() {
    on_cuda(|device, cuda| {
        device.clear_cache();
        let (before, _) = cuda.memory_info().unwrap();
        let big = Tensor::zeros(100 << 20, DType::U8, device).unwrap();
        let (during, _) = cuda.memory_info().unwrap();
        assert!(before - during >= 100 << 20, "{before} free, then {during}");
        drop(big);
        gc::collect();
        assert_eq!(cuda.memory_info().unwrap().0, during, "kept for reuse");
        assert!(device.clear_cache() >= 100 << 20);
        assert_eq!(cuda.memory_info().unwrap().0, before);
    });
}

#[test]
fn large_copies_go_through_pinned_memory_in_pieces() {
    on_cuda(|device, _| {
        for count in [1, 1 << 18, (1 << 20) + 7, (1 << 20) * 17 + 3] {
            let data: Vec<u32> = (0..count).map(|i| i as u32 ^ 0x5a5a).collect();
            let array = Tensor::from_slice(&data, count, device).unwrap();
            assert!(array.to_vec::<u32>().unwrap() == data, "{count} numbers");
        }
        // More small copies than one chunk holds, without a wait between them.
        let arrays: Vec<_> =
            (0..200u32).map(|i| Tensor::from_slice(&vec![i; 60_000], 60_000, device).unwrap()).collect();
        for (i, array) in arrays.iter().enumerate() {
            assert!(array.to_vec::<u32>().unwrap().iter().all(|&x| x == i as u32), "array {i}");
        }
    });
}

#[test]
fn a_bad_index_is_an_error_of_the_read_and_the_device_goes_on() {
    on_cuda(|device, _| {
        let table = Tensor::from_slice(&[1f32, 2., 3.], 3, device).unwrap();
        let bad = Tensor::from_slice(&[0u32, 7, 1], 3, device).unwrap();
        let error = table.index_select(&bad, 0).unwrap().to_vec::<f32>().unwrap_err().to_string();
        assert!(error.contains("index_select") && error.contains('7') && error.contains('3'), "{error}");
        let good = Tensor::from_slice(&[2u32, 0], 2, device).unwrap();
        assert_eq!(table.index_select(&good, 0).unwrap().to_vec::<f32>().unwrap(), [3., 1.]);
    });
}
