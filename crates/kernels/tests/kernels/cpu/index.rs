//! Picking and adding by indices against plain loops.

use ndgc_kernels::base::{
    dtype::DType,
    error::{Error, Result},
};
use ndgc_kernels::kernel::Kernel;

use super::arrays::{Array, Draw, NUMBERS, SHAPES, assert_close, indices, run, tolerance, wrapped};

const IDS: [DType; 3] = [DType::U8, DType::U32, DType::I64];

/// The index with one place changed.
fn moved(index: &[usize], axis: usize, to: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index[axis] = to;
    index
}

/// Where an index lies in a row-major array.
fn place(index: &[usize], dims: &[usize]) -> usize {
    index.iter().zip(dims).fold(0, |at, (&i, &dim)| at * dim + i)
}

#[test]
fn lists_of_indices_match_plain_loops_on_any_layout() {
    let mut draw = Draw::new(41);
    for dtype in NUMBERS {
        for (turn, dims) in SHAPES.into_iter().enumerate() {
            for axis in (0..dims.len()).filter(|&axis| dims[axis] > 0) {
                let of = IDS[(turn + axis) % 3];
                let count = draw.below(7);
                let dim = dims[axis].min(200);
                let mut ids = Array::random(&mut draw, of, &[count]).map(|id| id % dim as f64);
                let list: Vec<usize> = ids.values().iter().map(|&id| id as usize).collect();
                let part = moved(dims, axis, count);
                let mut src = Array::random(&mut draw, dtype, dims);
                let mut dst = Array::new(dtype, &part);
                run(&Kernel::IndexSelect { src: src.view(), ids: ids.view(), axis, dst: dst.view() }).expect("inside");
                let all = src.values();
                let pick = |index: &Vec<usize>| all[place(&moved(index, axis, list[index[axis]]), dims)];
                let expected: Vec<f64> = indices(&part).iter().map(pick).collect();
                assert_eq!(dst.values(), expected, "{dtype} {:?} {axis} {list:?}", src.layout);

                let mut target = Array::random_target(&mut draw, dtype, dims);
                let mut from = Array::random(&mut draw, dtype, &part);
                let mut expected = target.values();
                for (index, value) in indices(&part).iter().zip(from.values()) {
                    expected[place(&moved(index, axis, list[index[axis]]), dims)] += value;
                }
                expected.iter_mut().for_each(|sum| *sum = wrapped(dtype, *sum));
                let (ids, src) = (ids.view(), from.view());
                run(&Kernel::IndexAdd { dst: target.view(), ids, src, axis }).expect("inside");
                assert_close(&target.values(), &expected, tolerance(dtype), &format!("add {dims:?} {axis}"));
            }
        }
    }
}

#[test]
fn arrays_of_indices_match_plain_loops_on_any_layout() {
    let mut draw = Draw::new(42);
    for dtype in NUMBERS {
        for (turn, dims) in SHAPES.into_iter().enumerate() {
            for axis in (0..dims.len()).filter(|&axis| dims[axis] > 0) {
                let of = IDS[(turn + axis) % 3];
                let mut part: Vec<usize> = dims.iter().map(|&dim| dim - dim.min(draw.below(2))).collect();
                part[axis] = draw.below(6);
                let dim = dims[axis].min(200);
                let mut ids = Array::random(&mut draw, of, &part).map(|id| id % dim as f64);
                let chosen = ids.values();
                let target_of = |at: usize, index: &[usize]| place(&moved(index, axis, chosen[at] as usize), dims);
                let mut src = Array::random(&mut draw, dtype, dims);
                let mut dst = Array::new(dtype, &part);
                run(&Kernel::Gather { src: src.view(), ids: ids.view(), axis, dst: dst.view() }).expect("inside");
                let all = src.values();
                let places: Vec<usize> = indices(&part).iter().enumerate().map(|(at, i)| target_of(at, i)).collect();
                let expected: Vec<f64> = places.iter().map(|&at| all[at]).collect();
                assert_eq!(dst.values(), expected, "{dtype} {:?} {axis}", src.layout);

                let mut target = Array::random_target(&mut draw, dtype, dims);
                let mut from = Array::random(&mut draw, dtype, &part);
                let mut expected = target.values();
                for (&at, value) in places.iter().zip(from.values()) {
                    expected[at] += value;
                }
                expected.iter_mut().for_each(|sum| *sum = wrapped(dtype, *sum));
                let (ids, src) = (ids.view(), from.view());
                run(&Kernel::ScatterAdd { dst: target.view(), ids, src, axis }).expect("inside");
                assert_close(&target.values(), &expected, tolerance(dtype), &format!("scatter {dims:?} {axis}"));
            }
        }
    }
}

#[test]
fn an_index_outside_is_an_error_and_nothing_is_written() {
    for bad in [4.0, -1.0] {
        let mut ids = Array::of(DType::I64, &[2], &[0.0, bad]);
        let mut whole = Array::of(DType::F32, &[4, 3], &[1.0]);
        let mut rows = Array::of(DType::F32, &[2, 3], &[5.0]);
        let outside = |result: Result<()>| {
            assert!(matches!(result, Err(Error::IndexOutOfRange { index, dim: 4, .. }) if index == bad as i64));
        };
        outside(run(&Kernel::IndexAdd { dst: whole.view(), ids: ids.view(), src: rows.view(), axis: 0 }));
        outside(run(&Kernel::IndexSelect { src: whole.view(), ids: ids.view(), axis: 0, dst: rows.view() }));
        let mut square = Array::of(DType::I64, &[2, 3], &[0.0, 1.0, bad]);
        outside(run(&Kernel::ScatterAdd { dst: whole.view(), ids: square.view(), src: rows.view(), axis: 0 }));
        outside(run(&Kernel::Gather { src: whole.view(), ids: square.view(), axis: 0, dst: rows.view() }));
        assert_eq!((whole.values(), rows.values()), (vec![1.0; 12], vec![5.0; 6]));
    }
}

#[test]
fn no_index_is_inside_an_empty_axis() {
    let mut ids = Array::of(DType::U32, &[1], &[0.0]);
    let mut src = Array::new(DType::F32, &[0, 3]);
    let mut dst = Array::new(DType::F32, &[1, 3]);
    let result = run(&Kernel::IndexSelect { src: src.view(), ids: ids.view(), axis: 0, dst: dst.view() });
    assert!(matches!(result, Err(Error::IndexOutOfRange { index: 0, dim: 0, .. })));
}
