//! Driver calls, counted.

use ndgc::nn::{Adam, Mlp, Module, Optimizer};
use ndgc::train::{
    Activation, ArrayDataSetIterator, DataSet, Dense, InputType, Loss, Moments, Network, NetworkConfig, OutputLayer,
    Updater,
};
use ndgc::{DType, Device, Generator, Result, Tensor, gc};

use crate::common::cuda::Pretend;
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
        // A real driver has memory for such requests in lumps, of which one may have been used before.
        let lump = if Pretend::get().is_some() { 0 } else { 32 << 20 };
        assert!(before - during + lump >= 100 << 20, "{before} free, then {during}");
        drop(big);
        gc::collect();
        assert_eq!(cuda.memory_info().unwrap().0, during, "kept for reuse");
        assert!(device.clear_cache() >= 100 << 20);
        let after = cuda.memory_info().unwrap().0;
        assert!(after.abs_diff(before) <= lump, "{before} free, then {after}");
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
fn no_more_comes_to_the_host_than_is_asked_for_and_large_arrays_come_in_two_pieces() {
    on_cuda(|device, _| {
        let x = Tensor::arange(0f32, (8 << 20) as f32, device).unwrap();
        let pinned = || device.memory().pinned;
        let before = pinned();
        assert_eq!(x.get(5_000_000).unwrap().to_scalar::<f32>().unwrap(), 5_000_000.);
        assert!(x.to_scalar::<f32>().is_err());
        let rows = x.reshape((2048, 4096)).unwrap().t().unwrap().narrow(0, 7, 1).unwrap().narrow(1, 3, 2).unwrap();
        assert_eq!(rows.to_vec2::<f32>().unwrap(), [[12_295., 16_391.]]);
        let [told, host] = [device, &Device::Cpu].map(|device| {
            let all = Tensor::arange(0f32, (8 << 20) as f32, device).unwrap();
            all.reshape((2048, 4096)).unwrap().t().unwrap().to_string()
        });
        assert_eq!(told.replace(", cuda:0]", "]"), host);
        assert!(pinned() - before <= 64 << 10, "{} bytes for some numbers", pinned() - before);
        let all = x.to_vec::<f32>().unwrap();
        assert!(all.iter().enumerate().all(|(i, value)| *value == i as f32));
        assert!(pinned() - before <= (8 << 20) + (64 << 10), "{} bytes for 32 MiB", pinned() - before);
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

#[test]
fn a_networks_step_makes_as_many_calls_as_one_by_hand() {
    const ROWS: usize = 64;
    pretending(|pretend, device, _| {
        let mut random = Generator::new(1);
        let images = random.uniform(0., 1., (2 * ROWS, 20), DType::F32, device).unwrap();
        let labels = Tensor::from_vec((0..2 * ROWS as u32).map(|i| i % 10).collect(), 2 * ROWS, device).unwrap();
        // Of two steps, after some in which room was made.
        let calls = |two_steps: &mut dyn FnMut()| {
            (0..5).for_each(|_| two_steps());
            let before = pretend.calls(None);
            two_steps();
            pretend.calls(None) - before
        };
        let model = Mlp::new(&[20, 12, 8, 10], &mut random, device).unwrap();
        let mut optimizer = Adam::new(model.variables(), 1e-3).unwrap();
        let by_hand = calls(&mut || {
            for start in [0, ROWS] {
                let [x, y] = [&images, &labels].map(|all| all.narrow(0, start, ROWS).unwrap());
                let loss = model.forward(&x).unwrap().cross_entropy(&y).unwrap();
                optimizer.backward_step(&loss).unwrap();
                loss.to_scalar::<f32>().unwrap();
            }
        });
        let mut net: Network = NetworkConfig::builder()
            .updater(Updater::Adam(Moments::new(1e-3)))
            .device(device)
            .input_type(InputType::feed_forward(20))
            .layer(Dense::new(12).activation(Activation::Relu))
            .layer(Dense::new(8).activation(Activation::Relu))
            .layer(OutputLayer::new(10, Loss::SparseMcxent))
            .build()
            .unwrap();
        let data = DataSet::new(images.clone(), labels.clone()).unwrap();
        let by_network = calls(&mut || net.fit(ArrayDataSetIterator::new(data.clone(), ROWS).unwrap()).unwrap());
        // The score is read as a double.
        assert_eq!(by_network, by_hand + 2, "{by_network} calls in two steps, {by_hand} by hand");
    });
}
