//! Arrays in memory of others: it is used where it lies, kept as long as anybody needs it, and given back once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ndgc::{DType, Error, Tensor, Var, gc};

use crate::ops::support::{active, each, error, values};

/// Bytes aligned to 8 that count how often they were dropped.
struct Kept {
    words: Vec<u64>,
    dropped: Arc<AtomicUsize>,
    bytes: usize,
}

impl Kept {
    fn new(bytes: &[u8], dropped: &Arc<AtomicUsize>) -> Arc<Self> {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(8), 0);
        let words = padded.as_chunks().0.iter().map(|&chunk| u64::from_ne_bytes(chunk)).collect();
        Arc::new(Kept { words, dropped: dropped.clone(), bytes: bytes.len() })
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: words read as bytes, within their length.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes)
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn numbers(count: u8) -> Vec<u8> {
    (0..count).flat_map(|i| f32::from(i).to_ne_bytes()).collect()
}

fn address(array: &Tensor) -> usize {
    array.with_slice(|all: &[f32]| all.as_ptr().addr()).unwrap()
}

#[test]
fn bytes_of_a_keeper_stay_until_the_last_view_of_them_goes() {
    each(|device| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = || {
            gc::collect();
            dropped.load(Ordering::Relaxed)
        };
        let kept = Kept::new(&numbers(6), &dropped);
        let (start, before) = (kept.words.as_ptr().addr(), active(device));
        let a = Tensor::from_shared(kept, 0..24, DType::F32, (2, 3), device).unwrap();
        assert_eq!(values::<f32>(&a), [0., 1., 2., 3., 4., 5.]);
        if !device.is_cpu() {
            return assert_eq!(count(), 1, "a copy needs no keeper");
        }
        assert_eq!((address(&a), active(device)), (start, before), "in place, and not the pool's");
        let (row, turned) = (a.get(1).unwrap(), a.t().unwrap());
        a.close();
        assert_eq!(values::<f32>(&turned), [0., 3., 1., 4., 2., 5.]);
        drop((a, turned));
        assert_eq!(count(), 0, "a view is left");
        let w = Var::ones(3, DType::F32, device).unwrap();
        let y = row.mul(&w).unwrap();
        drop(row);
        assert_eq!(count(), 0, "the product's gradient needs it");
        let grads = y.backward().unwrap();
        assert_eq!(values::<f32>(grads.get(&w).unwrap()), [3., 4., 5.]);
        drop((y, grads));
        assert_eq!(count(), 1);
    });
}

#[test]
fn bytes_lent_for_reading_are_not_changed_in_place() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let bytes = Kept::new(&numbers(4), &Arc::default());
        let a = Tensor::from_shared(bytes.clone(), 0..8, DType::F32, 2, device).unwrap();
        let b = Tensor::from_shared(bytes.clone(), 8..16, DType::F32, 2, device).unwrap();
        let ones = Tensor::ones(2, DType::F32, device).unwrap();
        assert!(matches!(error(a.add_(&ones)), Error::ReadOnly { op: "add_", .. }));
        assert!(matches!(error(a.get(0).unwrap().zero_()), Error::ReadOnly { op: "zero_", .. }));
        assert!(matches!(error(a.sgd_step_(&ones, None, 0.1, 0., 0.)), Error::ReadOnly { .. }));
        assert_eq!((values::<f32>(&a), values::<f32>(&b)), (vec![0., 1.], vec![2., 3.]));
        assert_eq!(values::<f32>(&a.copy().unwrap().add_(&b).unwrap()), [2., 4.]);
    });
}

#[test]
fn bytes_that_do_not_fit_are_refused_and_bytes_that_lie_badly_are_copied() {
    each(|device| {
        let dropped = Arc::new(AtomicUsize::new(0));
        let kept = || Kept::new(&[&[9], &numbers(3)[..]].concat(), &dropped);
        let odd = Tensor::from_shared(kept(), 1..13, DType::F32, 3, device).unwrap();
        assert_eq!(values::<f32>(&odd), [0., 1., 2.]);
        odd.zero_().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), 1, "a copy");
        let inside = Tensor::from_shared(Arc::new([1u8, 2, 3]), 1..3, DType::U8, 2, device).unwrap();
        assert_eq!(values::<u8>(&inside), [2, 3], "bytes beside their count");
        let none = Tensor::from_shared(Arc::new(Vec::new()), 0..0, DType::F64, (0, 3), device).unwrap();
        assert_eq!(values::<f64>(&none), [0.; 0]);
        for (range, shape) in [(1..14, 3), (std::ops::Range { start: 9, end: 5 }, 1), (usize::MAX..usize::MAX, 0)] {
            let found = error(Tensor::from_shared(kept(), range, DType::F32, shape, device));
            assert!(matches!(found, Error::Argument { op: "from_shared", .. }), "{found}");
        }
        for shape in [2, 4, usize::MAX] {
            let found = error(Tensor::from_shared(kept(), 1..13, DType::F32, shape, device));
            assert!(matches!(found, Error::ElementCount { .. } | Error::SizeOverflow { .. }), "{found}");
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 7, "each keeper once");
    });
}

#[test]
fn a_panic_of_a_keeper_ends_with_it() {
    struct Bad(Vec<u8>);
    impl AsRef<[u8]> for Bad {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Bad {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("refuses to go"));
        }
    }
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        drop(Tensor::from_shared(Arc::new(Bad(vec![1, 2])), 0..2, DType::U8, 2, device).unwrap());
        gc::collect();
        assert_eq!(values::<u8>(&Tensor::new([7u8], device).unwrap()), [7], "the runtime goes on");
    });
}

#[test]
fn a_vector_gives_its_memory_to_the_array() {
    each(|device| {
        if !device.is_cpu() {
            return;
        }
        let before = active(device);
        let data: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        let start = data.as_ptr().addr();
        let a = Tensor::from_vec(data, (50, 100), device).unwrap();
        assert_eq!((address(&a), active(device) - before), (start, 20_000));
        a.affine_(2., 0.).unwrap();
        assert_eq!(values::<f32>(&a.get(1).unwrap())[..2], [200., 202.]);
        drop(a);
        assert_eq!(active(device), before);
        let found = error(Tensor::from_vec(vec![0f32; 5000], 4999, device));
        assert!(matches!(found, Error::ElementCount { op: "from_vec", .. }));
        let limit = device.set_limit(Some(before + 8000));
        let found = error(Tensor::from_vec(vec![0f32; 5000], 5000, device));
        device.set_limit(limit);
        assert!(matches!(found, Error::OutOfMemory(_)), "{found}");
        assert_eq!(active(device), before);
    });
}
