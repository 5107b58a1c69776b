//! Area D, behaviours 33 to 42: arrays that were closed, and what fills them.

use ndgc::{DType, Device, Error, Result, Tensor};

use crate::it::support::{alone, base, block, both, live_bytes, mask, matrix, owned_by, values, vector};

#[test]
fn d33_closing_an_array_twice_is_harmless_and_the_managers_count_falls_once() {
    both(|device| {
        let manager = base(device);
        let (array, other) = (vector(&manager), block(&manager));
        let handle = array.clone();
        array.close();
        assert!(array.is_released() && handle.is_released() && !array.is_open(), "for every handle");
        assert_eq!(manager.array_count(), 1);
        array.close();
        handle.close();
        assert_eq!(manager.array_count(), 1);
        let newer = block(&manager);
        array.close();
        assert!(newer.is_open() && other.is_open(), "a late close meets nobody else");
    });
}

#[test]
fn d34_every_use_of_a_closed_array_is_the_same_typed_error() {
    both(|device| {
        let manager = base(device);
        let (gone, open) = (matrix(&manager), matrix(&manager));
        gone.close();
        let uses: [(&str, Result<Tensor>); 12] = [
            ("unary", gone.exp()),
            ("left", gone.add(&open)),
            ("right", open.add(&gone)),
            ("both", gone.mul(&gone)),
            ("in place", gone.add_(&open)),
            ("into another", open.add_(&gone)),
            ("view", gone.t()),
            ("matmul", open.matmul(&gone)),
            ("reduction", gone.sum_all()),
            ("cat", Tensor::cat(&[&open, &gone], 0)),
            ("detach", gone.try_detach()),
            ("get_in", gone.get_in(&manager, 0)),
        ];
        for (name, result) in uses {
            assert!(matches!(result, Err(Error::StaleArray(_))), "{name}: {result:?}");
        }
        let owners: [(&str, Result<()>); 7] = [
            ("attach", gone.attach(&manager)),
            ("temp_attach", gone.temp_attach(&manager)),
            ("ret", manager.ret(&gone).map(drop)),
            ("set_name", gone.set_name("x")),
            ("copy_", open.copy_(&gone)),
            ("intern", open.intern(gone.clone())),
            ("backward", gone.backward().map(drop)),
        ];
        for (name, result) in owners {
            assert!(matches!(result, Err(Error::StaleArray(_))), "{name}: {result:?}");
        }
        assert_eq!(values(&open), [1., 2., 3., 4.], "nothing was written anywhere");
    });
}

#[test]
fn d35_printing_a_closed_array_gives_a_text_and_no_error() {
    both(|device| {
        let manager = base(device);
        let (array, named) = (vector(&manager), vector(&manager));
        named.set_name("w").unwrap();
        manager.close().unwrap();
        assert_eq!(array.to_string(), "This array is already closed");
        assert_eq!(format!("{array:#}"), "This array is already closed");
        assert_eq!(mask(&format!("{array:?}").replace('(', "( ")), "Proxy( KEY, closed)");
        assert!(format!("{named:?}").ends_with(" `w`, closed)"), "{named:?}");
    });
}

#[test]
fn d36_an_array_closed_early_does_not_disturb_its_managers_close() {
    both(|device| {
        let manager = base(device);
        let scope = manager.new_sub_manager().unwrap();
        let arrays: Vec<Tensor> = (0..5).map(|_| block(&scope)).collect();
        arrays[0].close();
        arrays[2].close();
        arrays[4].close();
        assert_eq!(scope.array_count(), 2);
        scope.close().unwrap();
        manager.close().unwrap();
        assert!(arrays.iter().all(Tensor::is_released));
    });
}

#[test]
fn d37_intern_gives_an_array_the_content_of_another_also_if_its_shape_was_read_before() {
    // DJL kept the receiver's cached shape.
    both(|device| {
        let (manager, other) = (base(device), base(device));
        let array = vector(&manager);
        let (handle, view) = (array.clone(), array.narrow(0, 1, 2).unwrap());
        let before = array.shape();
        assert_eq!((array.dims(), array.dtype()), (&[3][..], DType::F32));
        let key = array.key();
        let replacement = other.from_slice(&[5f64, 6.], (2, 1)).unwrap();
        let kept = replacement.clone();
        array.intern(replacement).unwrap();
        assert_eq!((array.dims(), array.dtype()), (&[2, 1][..], DType::F64));
        assert_eq!(before.dims(), [3], "what was asked before stays what it was");
        assert_eq!(array.to_vec::<f64>().unwrap(), [5., 6.]);
        assert_eq!(handle.to_vec::<f64>().unwrap(), [5., 6.], "for all its handles");
        assert!(array.key() == key && owned_by(&array, &manager), "identity and owner stay");
        assert!(matches!(kept.storage_bytes(), Err(Error::StaleArray(_))), "the other one is closed");
        assert_eq!(values(&view), [2., 3.], "a view keeps the bytes it was made of");
        other.close().unwrap();
        assert_eq!(array.to_vec::<f64>().unwrap(), [5., 6.]);
        array.intern(array.clone()).unwrap();
        assert!(array.is_open(), "with itself it changes nothing");
    });
}

#[test]
fn d38_arrays_and_slices_without_elements_can_be_made_used_and_closed() {
    both(|device| {
        let manager = base(device);
        let empties = [
            manager.zeros(0, DType::F32).unwrap(),
            manager.zeros((3, 0, 2), DType::F32).unwrap(),
            vector(&manager).narrow(0, 3, 0).unwrap(),
            manager.from_slice::<_, f32>(&[], (0, 5)).unwrap(),
        ];
        for empty in &empties {
            assert_eq!((empty.elem_count(), values(empty)), (0, vec![]));
            assert_eq!(empty.add(empty).unwrap().dims(), empty.dims());
            empty.close();
            assert!(empty.is_released());
        }
    });
}

#[test]
fn d39_there_are_no_string_arrays_and_a_read_as_another_type_is_an_error() {
    // DJL's string tensors refuse `get` and `toByteBuffer` at run time. Here `from_slice::<_, String>` does not
    // compile: `WithDType` is sealed and covers numbers alone.
    both(|device| {
        assert!(DType::ALL.map(DType::as_str).iter().all(|name| name.parse::<DType>().is_ok()));
        assert!("string".parse::<DType>().is_err());
        let manager = base(device);
        let array = vector(&manager);
        let wrong = array.to_vec::<u8>();
        assert!(matches!(wrong, Err(Error::DTypeMismatch { lhs: DType::F32, rhs: DType::U8, .. })), "{wrong:?}");
    });
}

#[test]
fn d40_an_array_of_more_than_two_gib_can_be_read() {
    // DJL's export counts in 32 bits and fails. Broken by: an index or a byte count that is cut to 32 bits.
    if cfg!(miri) {
        return;
    }
    alone(|| {
        let before = live_bytes(&Device::Cpu);
        let count = (1usize << 31) + 4096;
        let large = Tensor::zeros(count, DType::U8, &Device::Cpu).unwrap();
        let tail = large.narrow(0, count - 3, 3).unwrap();
        tail.copy_(&Tensor::new([7u8, 8, 9], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(tail.to_vec::<u8>().unwrap(), [7, 8, 9]);
        let (len, first, last) = large.with_slice(|s: &[u8]| (s.len(), s[0], s[count - 1])).unwrap();
        assert_eq!((len, first, last), (count, 0, 9));
        assert_eq!(large.storage_bytes().unwrap(), count);
        assert_eq!(large.reshape((2, ())).unwrap().dims(), [2, count / 2]);
        drop((large, tail));
        assert_eq!(live_bytes(&Device::Cpu), before);
        Device::Cpu.clear_cache();
    });
}

#[test]
fn d41_filling_from_a_buffer_of_another_length_is_an_error_both_ways() {
    // DJL truncates a longer buffer with a warning and throws for a shorter one. Ours: nothing is cut silently.
    both(|device| {
        let manager = base(device);
        for given in [2, 4] {
            let buffer = vec![1f32; given];
            let refused = manager.from_slice(&buffer, 3);
            assert!(matches!(refused, Err(Error::ElementCount { given: n, .. }) if n == given), "{refused:?}");
            let array = vector(&manager);
            let source = manager.from_vec(buffer, given).unwrap();
            assert!(matches!(array.copy_(&source), Err(Error::ShapeMismatch { op: "copy_", .. })));
            assert_eq!(values(&array), [1., 2., 3.], "and the array is as it was");
        }
        let array = vector(&manager);
        array.copy_(&manager.from_slice(&[7f32, 8., 9.], 3).unwrap()).unwrap();
        assert_eq!(values(&array), [7., 8., 9.]);
    });
}

#[test]
fn d42_copying_into_an_array_works_for_matrices_scalars_and_empty_ones() {
    both(|device| {
        let manager = base(device);
        let target = manager.zeros((2, 2), DType::F32).unwrap();
        target.copy_(&matrix(&manager)).unwrap();
        assert_eq!(values(&target), [1., 2., 3., 4.]);
        target.t().unwrap().copy_(&matrix(&manager)).unwrap();
        assert_eq!(values(&target), [1., 3., 2., 4.], "through a view");
        let scalar = manager.zeros((), DType::F32).unwrap();
        scalar.copy_(&manager.create(5f32).unwrap()).unwrap();
        assert_eq!(scalar.to_scalar::<f32>().unwrap(), 5.);
        let empty = manager.zeros((0, 3), DType::F32).unwrap();
        empty.copy_(&manager.ones((0, 3), DType::F32).unwrap()).unwrap();
        assert!(values(&empty).is_empty());
    });
}
