//! What the backend takes for granted of a driver and a device. On the pretend driver these tests show that the
//! pretence agrees with the assumption; on a GPU, that the assumption is right.

use ndgc::{DType, Device, Generator, Tensor, gc};

use crate::pretend_cuda::on_cuda;

fn numbers(device: &Device, seed: u64, rows: usize, columns: usize) -> Tensor {
    Generator::new(seed).uniform(-1., 1., (rows, columns), DType::F32, device).unwrap()
}

#[test]
fn a_block_reused_on_its_stream_without_a_wait_is_right_every_time() {
    on_cuda(|device, _| {
        let mut x = Tensor::zeros(1000, DType::F32, device).unwrap();
        // The block that is freed in one round is written in the next, while the round before may still run.
        for _ in 0..2000 {
            x = x.affine(1., 1.).unwrap();
        }
        assert_eq!(x.to_vec::<f32>().unwrap(), [2000.; 1000]);
    });
}

#[test]
fn the_hosts_bytes_are_free_when_an_upload_returns() {
    on_cuda(|device, _| {
        let mut bytes = vec![1u32; 300_000];
        let one = Tensor::from_slice(&bytes, bytes.len(), device).unwrap();
        bytes.fill(2);
        let two = Tensor::from_slice(&bytes, bytes.len(), device).unwrap();
        bytes.fill(3);
        assert!(one.to_vec::<u32>().unwrap().iter().all(|&x| x == 1));
        assert!(two.to_vec::<u32>().unwrap().iter().all(|&x| x == 2));
    });
}

#[test]
fn an_event_recorded_again_leaves_earlier_waits_alone() {
    on_cuda(|device, cuda| {
        // Stream 0 is waited for by the others again and again; each of them reads what was there at its own wait.
        let mut x = Tensor::zeros(50_000, DType::F32, device).unwrap();
        let mut seen = Vec::new();
        for round in 0..30usize {
            x = x.affine(1., 1.).unwrap();
            seen.push(cuda.on_stream(1 + round % 3, || x.affine(2., 0.)).unwrap());
        }
        for (round, array) in seen.iter().enumerate() {
            let expected = 2. * (round + 1) as f32;
            assert!(array.to_vec::<f32>().unwrap().iter().all(|&value| value == expected), "round {round}");
        }
    });
}

#[test]
fn threads_that_never_saw_the_device_compute_and_free_on_it() {
    on_cuda(|device, _| {
        let x = Tensor::full(1f32, 1000, device).unwrap();
        std::thread::scope(|scope| {
            for i in 0..4 {
                let x = x.clone();
                scope.spawn(move || {
                    let y = x.affine(f64::from(i), 1.).unwrap();
                    assert!(y.to_vec::<f32>().unwrap().iter().all(|&value| value == i as f32 + 1.));
                });
            }
        });
    });
}

#[test]
fn products_are_exact_to_single_precision_unless_less_is_asked_for() {
    on_cuda(|device, cuda| {
        let (a, b) = (numbers(device, 1, 65, 300), numbers(device, 2, 300, 33));
        let [host_a, host_b] = [&a, &b].map(|x| x.to_device(&Device::Cpu).unwrap().to_dtype(DType::F64).unwrap());
        let exact = host_a.matmul(&host_b).unwrap().to_vec::<f64>().unwrap();
        let furthest = |c: Tensor| {
            let found = c.to_vec::<f32>().unwrap();
            found.iter().zip(&exact).map(|(f, e)| (f64::from(*f) - e).abs()).fold(0., f64::max)
        };
        let single = furthest(a.matmul(&b).unwrap());
        assert!(single < 2e-5, "single precision: {single}");
        let before = cuda.allow_tf32(true);
        let reduced = furthest(a.matmul(&b).unwrap());
        cuda.allow_tf32(before);
        assert!(reduced < 2e-2, "TF32: {reduced}");
        println!("products of 300: furthest {single:e} in single precision, {reduced:e} with TF32 allowed");
    });
}

#[test]
fn scattered_sums_can_be_had_in_order() {
    on_cuda(|device, cuda| {
        let ids = Tensor::from_vec((0..5000u32).map(|i| i % 7).collect::<Vec<_>>(), 5000, device).unwrap();
        let (table, source) = (Tensor::zeros((7, 5), DType::F32, device).unwrap(), numbers(device, 3, 5000, 5));
        let [host_ids, host_table, host_source] = [&ids, &table, &source].map(|x| x.to_device(&Device::Cpu).unwrap());
        let expected = host_table.index_add(&host_ids, &host_source, 0).unwrap().to_vec::<f32>().unwrap();
        let before = cuda.order_scattered_sums(true);
        let ordered = table.index_add(&ids, &source, 0).unwrap().to_vec::<f32>().unwrap();
        cuda.order_scattered_sums(before);
        assert_eq!(ordered, expected, "the same bits as on the host");
        let any = table.index_add(&ids, &source, 0).unwrap().to_vec::<f32>().unwrap();
        assert!(any.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3));
    });
}

#[test]
fn a_thousand_steps_leave_the_driver_the_memory_that_it_had() {
    on_cuda(|device, cuda| {
        let step = || {
            let x = numbers(device, 5, 64, 64);
            let y = x.matmul(&x).unwrap().exp().unwrap().sum_all().unwrap();
            y.to_scalar::<f32>().unwrap()
        };
        step();
        gc::collect();
        device.clear_cache();
        let (before, active) = (cuda.memory_info().unwrap().0, device.memory().active);
        for _ in 0..100 {
            step();
        }
        gc::collect();
        assert_eq!(device.memory().active, active);
        device.clear_cache();
        assert_eq!(cuda.memory_info().unwrap().0, before, "bytes that the driver has free");
    });
}

#[test]
fn an_axis_longer_than_32_bits_count_is_kept_whole_by_a_reduction() {
    // Broken by: dividing by the lower 32 bits of an axis' length. Where there is memory for it.
    on_cuda(|device, cuda| {
        if cuda.memory_info().unwrap().0 < 40 << 30 {
            return;
        }
        let long = 1usize << 32;
        let x = Tensor::zeros((2, 3, long), DType::U8, device).unwrap();
        let one = x.narrow(0, 1, 1).unwrap().narrow(1, 2, 1).unwrap().narrow(2, 7, 1).unwrap();
        one.fill_(5.).unwrap();
        let sums = x.sum(1).unwrap();
        let sum = |row| sums.narrow(0, row, 1).unwrap().narrow(1, 7, 1).unwrap().to_vec::<u8>().unwrap();
        assert_eq!([sum(0), sum(1)], [[0u8], [5]]);
        drop((x, one, sums));
        gc::collect();
        device.clear_cache();
    });
}
