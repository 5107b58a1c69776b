//! DLPack both ways, with a producer and a consumer of the test's own: without a copy, given back once, whichever side
//! ends last, on any thread.

// A producer and a consumer in Rust that do what a library in C does.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ndgc::dlpack::{DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor, DlPack, Managed};
use ndgc::{DType, Device, Error, NdManager, Tensor, TensorExt, Var, Workspace, WorkspaceConfig, gc};

use crate::ops::support::{active, each, error, values};

/// What the producer keeps for an array that it gave away.
struct Given {
    data: Vec<f32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    ended: Arc<AtomicUsize>,
}

impl Drop for Given {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

unsafe extern "C" fn end(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: called once with what `give` made.
    unsafe {
        drop(Box::from_raw((*managed).manager_ctx.cast::<Given>()));
        drop(Box::from_raw(managed));
    }
}

const HOST: DLDevice = DLDevice { device_type: 1, device_id: 0 };
const F32: DLDataType = DLDataType { code: 2, bits: 32, lanes: 1 };

/// 0, 1, 2, .. with `first` elements before the array's first.
fn give(
    count: usize,
    first: u64,
    shape: &[i64],
    strides: &[i64],
    ended: &Arc<AtomicUsize>,
) -> DLManagedTensorVersioned {
    let data = (0..count).map(|i| i as f32).collect();
    let given = Given { data, shape: shape.to_vec(), strides: strides.to_vec(), ended: ended.clone() };
    let given = Box::into_raw(Box::new(given));
    // SAFETY: the box that was just made.
    let (data, dims, steps) =
        unsafe { ((*given).data.as_mut_ptr(), (*given).shape.as_mut_ptr(), (*given).strides.as_mut_ptr()) };
    DLManagedTensorVersioned {
        version: DLPackVersion { major: 1, minor: 1 },
        manager_ctx: given.cast(),
        deleter: Some(end),
        flags: 0,
        dl_tensor: DLTensor {
            data: data.cast(),
            device: HOST,
            ndim: shape.len() as i32,
            dtype: F32,
            shape: dims,
            strides: if strides.is_empty() { std::ptr::null_mut() } else { steps },
            byte_offset: 4 * first,
        },
    }
}

fn pack(managed: DLManagedTensorVersioned) -> DlPack {
    let raw = NonNull::from(Box::leak(Box::new(managed)));
    // SAFETY: made by `give`, whose fields say what is there; its deleter frees both boxes on any thread.
    unsafe { DlPack::from_raw(raw) }
}

/// The elements as a consumer sees them, in row-major order.
///
/// # Safety
/// The structure says what is there.
unsafe fn look(tensor: &DLTensor) -> Vec<f32> {
    let rank = tensor.ndim as usize;
    // SAFETY: as many sizes and strides as axes, and elements where they lead.
    unsafe {
        let (dims, strides) =
            (std::slice::from_raw_parts(tensor.shape, rank), std::slice::from_raw_parts(tensor.strides, rank));
        let first = tensor.data.cast::<u8>().add(tensor.byte_offset as usize).cast::<f32>();
        let mut places = vec![0i64];
        for (&dim, &stride) in dims.iter().zip(strides) {
            places = places.iter().flat_map(|&place| (0..dim).map(move |i| place + i * stride)).collect();
        }
        places.iter().map(|&place| first.offset(place as isize).read()).collect()
    }
}

#[test]
fn a_consumer_sees_every_view_where_it_lies() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let a = Tensor::arange(0f32, 24., device).unwrap().reshape((2, 3, 4)).unwrap();
        let views = [
            a.clone(),
            a.transpose(0, 2).unwrap(),
            a.narrow(1, 1, 2).unwrap().flip(&[2]).unwrap(),
            a.get(1).unwrap().get(2).unwrap().get(3).unwrap(),
            a.narrow(0, 1, 1).unwrap().broadcast_as((5, 3, 4)).unwrap(),
            a.narrow(0, 2, 0).unwrap(),
        ];
        for view in views {
            let (new, old) = (view.to_dlpack().unwrap(), view.to_dlpack_unversioned().unwrap());
            for tensor in [new.managed().tensor(), old.managed().tensor()] {
                assert_eq!((tensor.device, tensor.dtype, tensor.ndim as usize), (HOST, F32, view.rank()));
                // SAFETY: exported just now.
                assert_eq!(unsafe { look(tensor) }, values::<f32>(&view));
            }
        }
    });
}

#[test]
fn every_dtype_goes_out_and_comes_back() {
    each(|device| {
        for dtype in DType::ALL.into_iter().filter(|_| device.is_cpu()) {
            let a = Tensor::ones((2, 3), dtype, device).unwrap();
            let out = a.to_dlpack_unversioned().unwrap();
            let bits = out.managed().tensor().dtype.bits as usize;
            assert_eq!(bits, 8 * dtype.size_in_bytes());
            if dtype == DType::F8E4M3 {
                assert_eq!(out.managed().tensor().dtype, DLDataType { code: 10, bits: 8, lanes: 1 });
            }
            let back = Tensor::from_dlpack(out, device).unwrap();
            assert_eq!((back.dtype(), back.dims()), (dtype, &[2, 3][..]));
            assert!(back.content_equals(&a).unwrap());
        }
    });
}

#[test]
fn exported_bytes_stay_until_the_consumer_gives_them_back() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let before = active(device);
        let manager = NdManager::new_base_manager(device).unwrap();
        let a = manager.arange(0f32, 500.).unwrap();
        let (one, two) = (a.to_dlpack().unwrap().into_raw().as_ptr().addr(), a.to_dlpack().unwrap());
        manager.close().unwrap();
        drop(a);
        assert_eq!(active(device), before + 2000, "the consumer's");
        // SAFETY: exported above; the bytes are there until the deleter is called.
        let seen = unsafe { look(two.managed().tensor()) };
        assert_eq!(seen[499], 499.);
        drop(two);
        assert_eq!(active(device), before + 2000, "the other one's");
        thread::spawn(move || {
            let raw = NonNull::new(std::ptr::with_exposed_provenance_mut::<DLManagedTensorVersioned>(one)).unwrap();
            // SAFETY: taken over by `into_raw` above, and given back here, once.
            unsafe { (raw.as_ref().deleter.unwrap())(raw.as_ptr()) };
        })
        .join()
        .unwrap();
        assert_eq!(active(device), before);
    });
}

#[test]
fn what_ndgc_exported_comes_back_as_a_view() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let a = Tensor::arange(0f32, 6., device).unwrap();
        let back = Tensor::from_dlpack(a.reshape((2, 3)).unwrap().t().unwrap().to_dlpack().unwrap(), device).unwrap();
        assert!(!a.is_unique().unwrap(), "one storage");
        a.affine_(2., 0.).unwrap();
        assert_eq!(values::<f32>(&back), [0., 6., 2., 8., 4., 10.]);
        let found = a.with_slice(|_: &[f32]| error(back.zero_())).unwrap();
        assert!(matches!(found, Error::InUse { .. }), "a reader of one excludes a writer of the other: {found}");
    });
}

/// F17 of design.md, "What attack found".
#[test]
fn an_export_of_a_workspaces_array_comes_back_to_the_manager_that_is_given() {
    let config = WorkspaceConfig::builder().initial_size(1 << 12).build().unwrap();
    let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let back = Workspace::cycle("F17", &config, || {
        let pack = Tensor::arange(0f32, 6., &Device::Cpu)?.to_dlpack()?;
        let back = Tensor::from_dlpack(pack, &manager)?;
        assert_eq!((manager.array_count(), back.manager()?.uuid()), (1, manager.uuid()));
        Ok::<_, Error>(back)
    });
    let back = back.unwrap();
    assert_eq!(values::<f32>(&back), [0., 1., 2., 3., 4., 5.], "it lives as long as its manager");
    Workspace::cycle("F17", &config, || Tensor::full(7f32, 6, &Device::Cpu).map(drop)).unwrap();
    assert_eq!(values::<f32>(&back), [0., 1., 2., 3., 4., 5.], "its bytes are its own");
    manager.close().unwrap();
    assert!(!back.is_open());
    ndgc::destroy_all_workspaces_for_current_thread().unwrap();
}

#[test]
fn foreign_arrays_of_any_strides_are_used_where_they_lie() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let ended = Arc::new(AtomicUsize::new(0));
        let before = active(device);
        type Case = (usize, u64, &'static [i64], &'static [i64], &'static [f32]);
        // Elements, the first one, shape, strides, what is there.
        let cases: [Case; 6] = [
            (6, 0, &[2, 3], &[], &[0., 1., 2., 3., 4., 5.]),
            (6, 0, &[3, 2], &[1, 3], &[0., 3., 1., 4., 2., 5.]),
            (6, 5, &[2, 3], &[-3, -1], &[5., 4., 3., 2., 1., 0.]),
            (3, 2, &[2, 2], &[0, -1], &[2., 1., 2., 1.]),
            (3, 1, &[], &[], &[1.]),
            (1, 0, &[2, 0], &[7, 9], &[]),
        ];
        for (i, (count, first, shape, strides, want)) in cases.into_iter().enumerate() {
            let managed = give(count, first, shape, strides, &ended);
            let start = managed.dl_tensor.data.addr();
            let a = Tensor::from_dlpack(pack(managed), device).unwrap();
            assert_eq!(values::<f32>(&a), want);
            if i == 0 {
                assert_eq!(a.with_slice(|all: &[f32]| all.as_ptr().addr()).unwrap(), start, "where it lies");
                a.affine_(1., 1.).unwrap();
                assert_eq!(values::<f32>(&a.get(1).unwrap()), [4., 5., 6.]);
            }
            assert_eq!(active(device), before, "not the pool's bytes");
            drop(a);
            gc::collect();
            assert_eq!(ended.load(Ordering::Relaxed), i + 1, "given back once");
        }
    });
}

#[test]
fn foreign_arrays_stay_for_whoever_needs_them() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let ended = Arc::new(AtomicUsize::new(0));
        let taken = || Tensor::from_dlpack(pack(give(4, 0, &[4], &[], &ended)), device).unwrap();
        // A view, closed on another thread.
        let view = taken().narrow(0, 1, 2).unwrap();
        gc::collect();
        assert_eq!(ended.load(Ordering::Relaxed), 0);
        thread::spawn(move || {
            drop(view);
            gc::collect();
        })
        .join()
        .unwrap();
        gc::collect();
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        // A saved value.
        let w = Var::ones(4, DType::F32, device).unwrap();
        let loss = taken().mul(&w).unwrap().sum_all().unwrap();
        gc::collect();
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert_eq!(values::<f32>(loss.backward().unwrap().get(&w).unwrap()), [0., 1., 2., 3.]);
        drop(loss);
        gc::collect();
        assert_eq!(ended.load(Ordering::Relaxed), 2);
        // A manager's.
        let manager = NdManager::new_base_manager(device).unwrap();
        let a = Tensor::from_dlpack(pack(give(4, 0, &[4], &[], &ended)), &manager).unwrap();
        manager.close().unwrap();
        assert_eq!(ended.load(Ordering::Relaxed), 3);
        assert!(matches!(error(a.copy()), Error::StaleArray(_)));
        // Passed on to a third one, as what it was.
        let out = taken().to_dlpack().unwrap();
        gc::collect();
        assert_eq!(ended.load(Ordering::Relaxed), 3);
        drop(out);
        gc::collect();
        assert_eq!(ended.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn what_says_that_it_is_read_only_is() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let ended = Arc::new(AtomicUsize::new(0));
        let mut managed = give(4, 0, &[4], &[], &ended);
        managed.flags = 1;
        let a = Tensor::from_dlpack(pack(managed), device).unwrap();
        assert!(matches!(error(a.zero_()), Error::ReadOnly { .. }));
        assert_eq!(a.to_dlpack().unwrap().managed().read_only(), Some(true));
        assert!(matches!(error(a.to_dlpack_unversioned()), Error::ReadOnly { .. }));
    });
}

#[test]
fn arrays_that_cannot_be_used_are_refused_and_given_back() {
    type Spoil = fn(&mut DLManagedTensorVersioned);
    let cases: [(&str, Spoil); 11] = [
        ("version", |m| m.version.major = 2),
        ("device", |m| m.dl_tensor.device.device_type = 7),
        ("rank", |m| m.dl_tensor.ndim = 7),
        ("rank", |m| m.dl_tensor.ndim = -1),
        ("dtype", |m| m.dl_tensor.dtype.bits = 24),
        ("dtype", |m| m.dl_tensor.dtype.lanes = 4),
        ("ptr", |m| m.dl_tensor.byte_offset = 1),
        ("ptr", |m| m.dl_tensor.data = std::ptr::null_mut::<c_void>()),
        // SAFETY: the lists that `give` made have an element.
        ("shape", |m| unsafe { *m.dl_tensor.shape = -1 }),
        // SAFETY: as above.
        ("size", |m| unsafe { *m.dl_tensor.shape = i64::MAX / 2 }),
        // SAFETY: as above.
        ("size", |m| unsafe { *m.dl_tensor.strides = i64::MAX / 2 }),
    ];
    each(|device| {
        let ended = Arc::new(AtomicUsize::new(0));
        for (i, (what, spoil)) in cases.into_iter().enumerate() {
            let mut managed = give(4, 0, &[4], &[1], &ended);
            spoil(&mut managed);
            let found = error(Tensor::from_dlpack(pack(managed), device));
            let named = match &found {
                Error::DeviceMismatch { .. } => what == "device" || !device.is_cpu(),
                Error::RankTooLarge { .. } => what == "rank",
                Error::SizeOverflow { .. } => what == "size",
                Error::Argument { argument, .. } => what == *argument,
                _ => false,
            };
            assert!(named, "{what}: {found}");
            assert_eq!(ended.load(Ordering::Relaxed), i + 1);
        }
    });
}

#[test]
fn devices_without_addresses_have_nothing_to_exchange() {
    each(|device| {
        let a = Tensor::ones(3, DType::F32, device).unwrap();
        if let Device::Sim(_) = device {
            assert!(matches!(error(a.to_dlpack()), Error::Argument { argument: "device", .. }));
            let mut data = [0f32; 3];
            // SAFETY: a simulated device is refused before anything is looked at.
            let found = unsafe { Tensor::from_blob(data.as_mut_ptr(), 3, None, device, || {}) };
            assert!(matches!(error(found), Error::Argument { argument: "device", .. }));
        } else {
            let out = a.affine(3., 0.).unwrap().to_dlpack().unwrap();
            assert_eq!(out.managed().tensor().device.device_type, if device.is_cpu() { 1 } else { 2 });
            assert_eq!(values::<f32>(&Tensor::from_dlpack(out, device).unwrap()), [3., 3., 3.]);
        }
    });
}

#[test]
fn memory_at_an_address_is_an_array_until_its_deleter_runs() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let ended = Arc::new(AtomicUsize::new(0));
        let mut data: Vec<i64> = (0..6).collect();
        let ptr = data.as_mut_ptr();
        let deleter = || {
            let ended = ended.clone();
            move || _ = ended.fetch_add(1, Ordering::Relaxed)
        };
        // SAFETY: `data` stays to the end of the test, and is not touched while the arrays are there.
        unsafe {
            let a = Tensor::from_blob(ptr, (2, 3), None, device, deleter()).unwrap();
            let b = Tensor::from_blob(ptr.add(5), (3, 2), Some(&[-1, -3]), device, deleter()).unwrap();
            assert_eq!(values::<i64>(&b), [5, 2, 4, 1, 3, 0]);
            a.affine_(10., 0.).unwrap();
            drop((a, b));
            gc::collect();
            assert_eq!(ended.load(Ordering::Relaxed), 2);
            let found = error(Tensor::from_blob(ptr, (2, 3), Some(&[1]), device, deleter()));
            assert!(matches!(found, Error::Argument { argument: "strides", .. }));
            let found = error(Tensor::from_blob(ptr, (2, 3), Some(&[1, isize::MIN]), device, deleter()));
            assert!(matches!(found, Error::SizeOverflow { .. }), "{found}");
            let found = error(Tensor::from_blob(ptr.wrapping_byte_add(1), 3, None, device, deleter()));
            assert!(matches!(found, Error::Argument { argument: "ptr", .. }));
            assert_eq!(ended.load(Ordering::Relaxed), 5, "also if the call fails");
        }
        assert_eq!(data, [0, 10, 20, 30, 40, 50]);
    });
}

#[test]
fn f11_of_strided_truth_values_only_those_are_looked_at() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        // The first column of records whose other bytes are anything.
        let mut records = [1u8, 200, 7, 0, 255, 8, 1, 77, 9];
        let ptr = records.as_mut_ptr();
        // SAFETY: `records` stays to the end of the test, all of its bytes are initialised, and nobody touches them
        // while an operation runs; the bytes at multiples of 3 are truth values.
        let a = unsafe { Tensor::from_blob(ptr.cast::<bool>(), 3, Some(&[3]), device, || {}) }.unwrap();
        assert_eq!(values::<bool>(&a), [true, false, true]);
        assert_eq!(values::<bool>(&a.flip(&[0]).unwrap().narrow(0, 1, 2).unwrap()), [false, true]);
        assert_eq!(a.contiguous().unwrap().with_slice(|all: &[bool]| all.to_vec()).unwrap(), [true, false, true]);
        assert!(a.get(2).unwrap().with_slice(|all: &[bool]| all == [true]).unwrap(), "one of them");
        assert_eq!(values::<u8>(&a.logical_not().unwrap()), [0, 1, 0]);
        assert_eq!(values::<f32>(&a.to_dtype(DType::F32).unwrap()), [1., 0., 1.]);
        assert!(a.to_string().contains("true, false"), "{a}");
        a.copy_(&a.bitwise_not().unwrap()).unwrap();
        drop(a);
        gc::collect();
        assert_eq!(records, [0, 200, 7, 1, 255, 8, 0, 77, 9], "the bytes between are as they were");
    });
}
