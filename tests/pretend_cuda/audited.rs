//! What a reader of the driver found: operations of several calls of which one fails, and memory of others in sections.

#![allow(unsafe_code)]

use ndgc::{
    DType, Device, Error, Tensor, Var,
    bench::{CudaConfig, cuda_device},
    gc,
};

use crate::pretend_cuda::{on_cuda, pretending};

#[test]
fn a_copy_that_fails_half_way_is_over_when_the_call_returns() {
    // Broken by: giving the bytes to another stream, which waits for operations alone, while a part of the copy runs.
    pretending(|pretend, _, _| {
        let device = cuda_device(0, CudaConfig::default()).unwrap();
        let Device::Cuda(cuda) = &device else { unreachable!("it was just made") };
        let numbers = vec![1u8; 12 << 20];
        let waits = pretend.calls(Some("cuStreamSynchronize"));
        // The second chunk.
        pretend.fail(Some("cuMemHostAlloc"), 2, 2);
        let refused = Tensor::from_slice(&numbers, numbers.len(), &device).map(drop);
        pretend.fail_off();
        assert!(matches!(&refused, Err(Error::Device { .. })), "{refused:?}");
        assert!(pretend.calls(Some("cuStreamSynchronize")) > waits);
        gc::collect();
        let next = cuda.on_stream(1, || Tensor::full(7u8, numbers.len(), &device)).unwrap();
        assert!(next.to_vec::<u8>().unwrap().iter().all(|&byte| byte == 7));
    });
}

#[test]
fn memory_of_others_is_no_part_of_a_section() {
    // Broken by: a graph that runs again after the memory went back to its owner.
    on_cuda(|device, _| {
        let a = Tensor::full(1f32, 64, device).unwrap();
        let pack = a.to_dlpack().unwrap();
        let start = pack.managed().dl_tensor.data.cast::<f32>();
        // SAFETY: the numbers of `a`, which stay as long as the pack, and which nobody else uses meanwhile.
        let lent = unsafe { Tensor::from_blob(start, 64, None, device, move || drop((pack, a))) }.unwrap();
        let double = || lent.affine(2., 0.);
        drop(double().unwrap());
        gc::collect();
        let refused = device.capture(double).map(drop);
        let Err(Error::Capture { what, .. }) = refused else { panic!("{refused:?}") };
        assert!(what.contains("memory of others"), "{what}");
        assert_eq!(double().unwrap().to_vec::<f32>().unwrap(), [2.; 64]);
    });
}

#[test]
fn memory_of_others_that_ends_leaves_failures_and_sections_alone() {
    // Broken by: a wait whose answer nobody sees, which takes a failure with it, and is refused in a section.
    on_cuda(|device, _| {
        let lend = || {
            let a = Tensor::full(1f32, 64, device).unwrap();
            let pack = a.to_dlpack().unwrap();
            let start = pack.managed().dl_tensor.data.cast::<f32>();
            // SAFETY: the numbers of `a`, which stay as long as the pack, and which nobody else uses meanwhile.
            unsafe { Tensor::from_blob(start, 64, None, device, move || drop((pack, a))) }.unwrap()
        };
        let (first, second) = (lend(), lend());
        let x = Tensor::new([1f32, 2.], device).unwrap();
        let far = Tensor::new([9u32], device).unwrap();
        let y = x.index_select(&far, 0).unwrap();
        drop(first);
        gc::collect();
        let read = y.to_vec::<f32>();
        assert!(matches!(read, Err(Error::IndexOutOfRange { index: 9, .. })), "{read:?}");
        let double = || x.affine(2., 0.);
        drop(double().unwrap());
        gc::collect();
        let section = || {
            drop(second);
            gc::collect();
            double()
        };
        let (graph, z) = device.capture(section).unwrap();
        graph.replay().unwrap();
        assert_eq!(z.to_vec::<f32>().unwrap(), [2., 4.]);
    });
}

#[test]
fn a_forked_child_asks_no_driver() {
    // Broken by: figures that take the lock of the driver, and calls of it.
    pretending(|_, device, cuda| {
        let x = Tensor::full(1f32, 1000, device).unwrap();
        drop(x.sum_all().unwrap());
        assert!(cuda.workspace_bytes() > 0 && cuda.memory_info().is_ok());
        // SAFETY: the child goes on with this thread alone, waits for no other, and ends at once.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork failed");
        if child == 0 {
            let is_right = cuda.workspace_bytes() == 0 && matches!(cuda.memory_info(), Err(Error::Forked { .. }));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_right)) }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above, and writes its status into an integer of ours.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0), "the child found otherwise");
    });
}

#[test]
fn a_context_of_another_device_that_somebody_made_current_does_no_harm() {
    // Broken by: an answer of 400 that is the last word, and code, handles and figures of whichever device is current.
    pretending(|pretend, _, _| {
        let device = cuda_device(0, CudaConfig::default()).unwrap();
        let Device::Cuda(cuda) = &device else { unreachable!("it was just made") };
        let meddle = || pretend.make_current(1);
        let a = Tensor::full(1f32, (8, 8), &device).unwrap();
        // The first sum loads its code, and the first product makes a handle.
        for _ in 0..2 {
            meddle();
            let sum = a.sum(0).unwrap();
            meddle();
            let product = a.matmul(&a).unwrap();
            meddle();
            assert_eq!(sum.to_vec::<f32>().unwrap(), [8.; 8]);
            meddle();
            device.synchronize().unwrap();
            assert_eq!(product.to_vec::<f32>().unwrap(), [8.; 64]);
        }
        meddle();
        let b = Tensor::from_slice(&[2f32; 64], (8, 8), &device).unwrap();
        let free = cuda.memory_info().unwrap();
        meddle();
        assert_eq!(cuda.memory_info().unwrap(), free);
        meddle();
        b.affine_(1., 1.).unwrap();
        meddle();
        let (graph, _) = device.capture(|| b.affine_(1., 1.)).unwrap();
        meddle();
        graph.replay().unwrap();
        assert_eq!(b.to_vec::<f32>().unwrap(), [4.; 64]);
    });
}

#[test]
fn a_mean_whose_next_window_lies_beyond_all_numbers_has_the_gradient_of_its_own() {
    // Broken by: rounding up by the step, which wraps, so that an element behind the window has a share.
    on_cuda(|device, _| {
        let x = Var::ones((1, 1, 5), DType::F32, device).unwrap();
        let y = x.avg_pool1d_with_stride(2, usize::MAX).unwrap();
        let grads = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(grads.get(&x).unwrap().to_vec::<f32>().unwrap(), [0.5, 0.5, 0., 0., 0.]);
    });
}
