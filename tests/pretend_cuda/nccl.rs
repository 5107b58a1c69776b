//! Sums over several devices: as NCCL's ranks, and as a communicator of trainings.

use std::slice::from_ref;
use std::sync::Mutex;
use std::thread;

use ndgc::train::{
    Activation, ArrayDataSetIterator, Communicator, DataSet, Dense, InputType, Loss, NcclCommunicator, Network,
    NetworkConfig, OutputLayer, ParallelWrapper, ThreadCommunicator, TrainingMode, Updater,
};
use ndgc::{Cuda, DType, Device, Error, Generator, NcclId, Result, Tensor, bf16, f16, gc, probe_nccl};

use crate::common::text_of;
use crate::pretend_cuda::{missing, on_cuda, pretending};

/// What each of two ranks returns, each on a thread and a device of its own.
fn two<T: Send>(play: impl Fn(usize, &Device, Cuda) -> T + Sync) -> [T; 2] {
    thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            let (play, cuda) = (&play, Cuda::new(rank).unwrap());
            scope.spawn(move || play(rank, &Device::Cuda(cuda), cuda))
        });
        ranks.map(|rank| rank.join().unwrap())
    })
}

/// As [`two`], with a communicator for each.
fn joined<T: Send>(play: impl Fn(NcclCommunicator, &Device) -> T + Sync) -> [T; 2] {
    let groups = ThreadCommunicator::group(2).unwrap().into_iter().map(|one| Mutex::new(Some(one)));
    let groups: Vec<_> = groups.collect();
    two(|rank, device, _| {
        let group = groups[rank].lock().unwrap().take().unwrap();
        play(NcclCommunicator::new(Box::new(group), device).unwrap(), device)
    })
}

fn text<T>(result: Result<T>) -> String {
    result.err().map_or("no error".to_owned(), |error| error.to_string())
}

/// A vector of this length, in the type, by which numbers can be told.
fn counting(count: usize, dtype: DType, device: &Device) -> Tensor {
    Tensor::arange(0f32, count as f32, device).unwrap().to_dtype(dtype).unwrap()
}

#[test]
fn a_group_of_one_has_its_own_sum() {
    on_cuda(|device, cuda| {
        if probe_nccl().is_err() {
            return;
        }
        let rank = cuda.join(&NcclId::new().unwrap(), 0, 1).unwrap();
        let own = counting(1000, DType::F32, device);
        let expected = own.to_vec::<f32>().unwrap();
        rank.all_reduce(&own).unwrap();
        assert_eq!(own.to_vec::<f32>().unwrap(), expected);
        assert_eq!((rank.number(), rank.ranks()), (0, 1));
    });
}

#[test]
fn a_sum_is_ordered_with_the_work_before_and_after_it() {
    pretending(|pretend, _, _| {
        assert_eq!(probe_nccl().unwrap(), 22005);
        let calls = || ["ncclCommInitRank", "ncclCommAbort"].map(|call| pretend.calls(Some(call)));
        let before = calls();
        let id = NcclId::from_bytes(NcclId::new().unwrap().to_bytes());
        let sums = two(|number, device, cuda| {
            let rank = cuda.join(&id, number, 2).unwrap();
            let one = counting(300, DType::F32, device);
            // Written on one stream, added up on another one, read on a third; a part of an array, too.
            let own = cuda.on_stream(1, || one.affine(number as f64 + 1., 0.)).unwrap();
            let part = own.narrow(0, 100, 200).unwrap();
            cuda.on_stream(2, || rank.all_reduce(&part)).unwrap();
            let twice = cuda.on_stream(3, || own.affine(2., 0.)).unwrap();
            twice.to_vec::<f32>().unwrap()
        });
        for (number, sums) in sums.iter().enumerate() {
            let expected = (0..300).map(|i| i as f32 * if i < 100 { number as f32 + 1. } else { 3. } * 2.);
            assert_eq!(*sums, expected.collect::<Vec<_>>());
        }
        assert_eq!(calls(), before.map(|calls| calls + 2), "each rank that joined left");
    });
}

#[test]
fn what_a_rank_does_not_take_is_an_error_that_says_so() {
    pretending(|_, device, cuda| {
        let id = NcclId::new().unwrap();
        for (number, ranks) in [(2, 2), (0, 0)] {
            let told = format!("Cuda::join: number is {number} of {ranks}; it must be a rank below their number");
            assert_eq!(text_of(&cuda.join(&id, number, ranks).unwrap_err()), told);
        }
        let mut rank = cuda.join(&id, 0, 1).unwrap();
        let own = counting(6, DType::F32, device);
        let columns = own.reshape((2, 3)).unwrap().t().unwrap();
        assert!(matches!(rank.all_reduce(&columns), Err(Error::RequiresContiguous { op: "all_reduce", .. })));
        let whole = own.to_dtype(DType::U32).unwrap();
        assert!(matches!(rank.all_reduce(&whole), Err(Error::UnsupportedDType { dtype: DType::U32, .. })));
        let other = counting(6, DType::F32, &Device::cuda(1).unwrap());
        assert!(matches!(rank.all_reduce(&other), Err(Error::DeviceMismatch { .. })));
        assert!(matches!(rank.all_reduce(&counting(6, DType::F32, &Device::Cpu)), Err(Error::DeviceMismatch { .. })));
        let closed = own.affine(1., 0.).unwrap();
        closed.close();
        assert!(matches!(rank.all_reduce(&closed), Err(Error::StaleArray(_))));
        let captured = device.capture(|| rank.all_reduce(&own));
        assert!(matches!(captured, Err(Error::Capture { .. })), "{}", text(captured));
        rank.all_reduce(&own).unwrap();
        rank.abort();
        let gone = rank.all_reduce(&own).unwrap_err();
        assert_eq!(text_of(&gone), "all_reduce: this rank left its group; join one anew");
        assert_eq!(own.to_vec::<f32>().unwrap(), [0., 1., 2., 3., 4., 5.]);
    });
}

#[test]
fn what_the_library_answers_is_said_in_words() {
    let cases = [
        (1, "a call of the driver failed (NCCL_DEBUG=WARN says which)"),
        (2, "a call of the system failed (NCCL_DEBUG=WARN says which)"),
        (3, "see ncclResult_t in the library's documentation"),
        (4, "an argument of a wrong value"),
        (5, "not so: one device for several ranks, or other calls on other ranks"),
        (6, "another rank, or the way to it, failed"),
    ];
    pretending(|pretend, device, cuda| {
        let rank = cuda.join(&NcclId::new().unwrap(), 0, 1).unwrap();
        let own = counting(6, DType::F32, device);
        for (code, meaning) in cases {
            pretend.fail(Some("ncclGetVersion"), 1, code);
            let error = probe_nccl().unwrap_err();
            pretend.fail(Some("ncclAllReduce"), 1, code);
            let of_sum = rank.all_reduce(&own).unwrap_err();
            pretend.fail_off();
            assert_eq!(text_of(&error), format!("nccl: ncclGetVersion failed: error {code}: {meaning}"));
            assert_eq!(text_of(&of_sum), format!("cuda:0: ncclAllReduce failed: error {code}: {meaning}"));
        }
        rank.all_reduce(&own).unwrap();
        assert_eq!(own.to_vec::<f32>().unwrap(), [0., 1., 2., 3., 4., 5.]);
    });
}

#[test]
fn one_device_for_two_ranks_is_refused_on_both() {
    pretending(|_, _, cuda| {
        let id = NcclId::new().unwrap();
        for refused in two(|number, _, _| text(cuda.join(&id, number, 2))) {
            assert!(
                refused.contains("ncclCommInitRank") && refused.contains("one device for several ranks"),
                "{refused}"
            );
        }
    });
}

#[test]
fn arrays_of_all_types_and_layouts_become_their_scaled_sum() {
    pretending(|_, device, _| {
        gc::collect();
        let before = device.memory().active;
        joined(|mut gpus, device| {
            let factor = [1., 2.][gpus.rank()];
            for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
                let own = counting(6, dtype, device).affine(factor, 0.).unwrap();
                let columns = own.copy().unwrap().reshape((2, 3)).unwrap().t().unwrap();
                let single = Tensor::full(factor, (), device).unwrap().to_dtype(DType::F32).unwrap();
                let none = Tensor::zeros((0, 3), dtype, device).unwrap();
                let on_host = Tensor::full(factor, 2, &Device::Cpu).unwrap();
                gpus.all_reduce(&[own.clone(), none, on_host.clone(), columns.clone(), single.clone()], 0.5).unwrap();
                assert_eq!(on_host.to_vec::<f64>().unwrap(), [1.5; 2]);
                let read = |array: &Tensor| array.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec::<f64>();
                assert_eq!(read(&own).unwrap(), [0., 1.5, 3., 4.5, 6., 7.5], "{dtype}");
                assert_eq!(read(&columns).unwrap(), [0., 4.5, 1.5, 6., 3., 7.5], "{dtype}");
                assert_eq!(read(&single).unwrap(), [1.5]);
            }
            // Halves whose sum no half can hold, and their mean, which one can.
            let large = Tensor::full(f16::from_f32(60000.), 3, device).unwrap();
            let fine = Tensor::full(bf16::from_f32(1.), 3, device).unwrap();
            gpus.all_reduce(&[large.clone(), fine.clone()], 0.5).unwrap();
            assert_eq!(large.to_vec::<f16>().unwrap(), [f16::from_f32(60000.); 3]);
            assert_eq!(fine.to_vec::<bf16>().unwrap(), [bf16::from_f32(1.); 3]);
            gpus.all_reduce(&[], 1.).unwrap();
        });
        gc::collect();
        assert_eq!(device.memory().active, before);
    });
}

#[test]
fn ranks_that_do_not_fit_each_other_are_told_so_and_no_number_is_changed() {
    pretending(|_, _, _| {
        for (what, says) in [("sizes", "of different sizes"), ("factor", "of different sizes"), ("dtype", "u32 is not")]
        {
            let said = joined(|mut gpus, device| {
                let odd = gpus.rank() == 1;
                let count = if odd && what == "sizes" { 5 } else { 4 };
                let dtype = if odd && what == "dtype" { DType::U32 } else { DType::F32 };
                let own = counting(count, dtype, device);
                let before = own.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
                let scale = if odd && what == "factor" { 2. } else { 1. };
                let said = text(gpus.all_reduce(from_ref(&own), scale));
                assert_eq!(own.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap(), before);
                let again = text(gpus.all_reduce(&[counting(4, DType::F32, device)], 1.));
                assert_ne!(again, "no error", "for good");
                said
            });
            if what == "dtype" {
                assert!(said[0].contains("rank 0 cannot go on: rank 1 failed"), "{said:?}");
                assert!(said[1].contains("f16, bf16, f32 and f64"), "{said:?}");
            } else {
                assert!(said.iter().all(|said| said.contains(says)), "{said:?}");
            }
        }
    });
}

#[test]
fn a_rank_that_fails_or_ends_is_named_to_the_others() {
    pretending(|pretend, _, _| {
        let said = joined(|mut gpus, device| {
            let own = counting(4, DType::F32, device);
            gpus.all_reduce(from_ref(&own), 1.).unwrap();
            if gpus.rank() == 1 {
                gpus.abort("no more data");
            }
            text(gpus.all_reduce(from_ref(&own), 1.))
        });
        assert!(said[0].contains("rank 1 failed: no more data"), "{said:?}");
        assert!(said[1].contains("no more data"), "{said:?}");

        let said = joined(|mut gpus, device| match gpus.rank() {
            0 => text(gpus.all_reduce(&[counting(4, DType::F32, device)], 1.)),
            _ => String::new(),
        });
        assert!(said[0].contains("rank 1") && said[0].contains("its thread ended"), "{said:?}");

        // As it is at the end of its batches, where the other one has more.
        let said = joined(|mut gpus, device| match gpus.rank() {
            0 => text(gpus.end()),
            _ => text(gpus.all_reduce(&[counting(4, DType::F32, device)], 1.)),
        });
        assert!(said.iter().all(|said| said.contains("rank 0 is at the end of its batches")), "{said:?}");

        // The library fails on one of them, when both have agreed.
        pretend.fail(Some("ncclAllReduce"), 1, 2);
        let mut said = joined(|mut gpus, device| text(gpus.all_reduce(&[counting(4, DType::F32, device)], 1.)));
        pretend.fail_off();
        said.sort();
        assert!(said.iter().all(|said| said.contains("ncclAllReduce") || said.contains("cannot go on")), "{said:?}");
        assert!(said.iter().any(|said| said.contains("a call of the system failed")), "{said:?}");
    });
}

#[test]
fn who_cannot_join_says_so_to_the_others() {
    pretending(|_, _, _| {
        let groups = ThreadCommunicator::group(2).unwrap().into_iter().map(|one| Mutex::new(Some(one)));
        let groups: Vec<_> = groups.collect();
        let said = two(|rank, device, _| {
            let group = Box::new(groups[rank].lock().unwrap().take().unwrap());
            text(NcclCommunicator::new(group, if rank == 0 { device } else { &Device::Cpu }))
        });
        assert!(said[0].contains("rank 0 cannot go on: rank 1 failed"), "{said:?}");
        assert!(said[1].contains("a CUDA device"), "{said:?}");
    });
}

#[test]
fn without_the_library_the_error_says_what_was_looked_for() {
    if missing::is_child() {
        let device = Device::cuda(0).unwrap();
        let group = ThreadCommunicator::group(1).unwrap().remove(0);
        let errors = [probe_nccl().err(), NcclId::new().err(), NcclCommunicator::new(Box::new(group), &device).err()];
        for error in errors {
            let told = "nccl is not available: no library for nccl was found (libnccl.so.2, libnccl.so, in the \
                        loader's folders)";
            assert_eq!(text_of(&error.unwrap()), told);
        }
        return;
    }
    let Some(folder) = missing::Folder::new("no-nccl", &["libcuda.so.1", "kernels"]) else { return };
    let test = "pretend_cuda::nccl::without_the_library_the_error_says_what_was_looked_for";
    missing::passed(&missing::run(test, &folder.0, &[]));
}

fn network(device: &Device) -> Network {
    let config = NetworkConfig::builder().seed(5).updater(Updater::adam(0.02)).input_type(InputType::feed_forward(3));
    let config = config.layer(Dense::new(7).activation(Activation::Tanh)).layer(OutputLayer::new(2, Loss::Mse));
    config.device(device).build().unwrap()
}

fn examples(rank: usize, device: &Device) -> DataSet {
    // Of its own, for both draw at once.
    let mut random = Generator::new(rank as u64);
    let x = random.normal(0., 1., (32, 3), DType::F32, &Device::Cpu).unwrap().affine(1., rank as f64 / 10.).unwrap();
    let y = x.narrow(1, 0, 2).unwrap().affine(0.5, 0.1).unwrap();
    DataSet::new(x.to_device(device).unwrap(), y.to_device(device).unwrap()).unwrap()
}

#[test]
fn two_gpus_learn_the_same() {
    pretending(|_, _, _| {
        for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
            let learnt = joined(|gpus, device| {
                let own = examples(gpus.rank(), device);
                let wrapper = ParallelWrapper::builder(network(device)).training_mode(mode);
                let mut wrapper = wrapper.communicator(Box::new(gpus)).build().unwrap();
                let mut scores = Vec::new();
                for _ in 0..12 {
                    wrapper.fit(ArrayDataSetIterator::new(own.clone(), 8).unwrap()).unwrap();
                    scores.push(wrapper.score().unwrap());
                }
                assert!(scores[11] < 0.7 * scores[0], "{scores:?}");
                let net = wrapper.into_model().unwrap();
                let all = net.params().map(|(_, var)| var.as_detached_tensor().to_vec::<f32>().unwrap());
                all.flatten().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert_eq!(learnt[0], learnt[1]);
            assert!(learnt[0].len() > 40);
        }
    });
}
