//! Reductions over every set of axes against plain loops.

use ndgc_kernels::base::{
    dtype::DType,
    layout::Layout,
    shape::{Axes, Dims, Shape},
};
use ndgc_kernels::kernel::{Kernel, ReduceOp};

use super::arrays::{Array, Draw, NUMBERS, SHAPES, assert_close, indices, run, tolerance, wrapped};

/// Every set of axes of a shape.
fn axis_sets(dims: &[usize]) -> Vec<Axes> {
    let rank = dims.len();
    let set = |bits: usize| (0..rank).filter(|&axis| bits >> axis & 1 == 1).collect::<Vec<usize>>();
    (0..1 << rank).map(|bits| (&set(bits)[..]).to_axes(&Shape::from(dims), "test").expect("distinct")).collect()
}

/// The groups of values that each element of the result is made of.
fn groups(src: &Array, axes: Axes) -> Vec<Vec<f64>> {
    let kept = axes.reduced(&Shape::from(src.dims()), true);
    let mut groups = vec![Vec::new(); kept.elem_count()];
    for (index, value) in indices(src.dims()).iter().zip(src.values()) {
        let at = index.iter().zip(kept.dims()).fold(0, |at, (&i, &dim)| at * dim + if dim == 1 { 0 } else { i });
        groups[at].push(value);
    }
    groups
}

fn plain(op: ReduceOp, values: &[f64]) -> f64 {
    match op {
        ReduceOp::Sum => values.iter().sum(),
        ReduceOp::Mean => values.iter().sum::<f64>() / values.len() as f64,
        ReduceOp::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
    }
}

#[test]
fn reductions_match_plain_loops_on_any_layout_and_axes() {
    let mut draw = Draw::new(11);
    for dtype in NUMBERS {
        for dims in SHAPES {
            let mut src = Array::random(&mut draw, dtype, dims);
            for axes in axis_sets(dims) {
                let groups = groups(&src, axes);
                let shape = axes.reduced(&Shape::from(dims), false);
                for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min] {
                    let empty = groups.iter().any(Vec::is_empty);
                    let refused = matches!(op, ReduceOp::Max | ReduceOp::Min) && empty;
                    if refused || (op == ReduceOp::Mean && !dtype.is_float()) {
                        continue;
                    }
                    let mut dst = Array::new(dtype, shape.dims());
                    run(&Kernel::Reduce { op, src: src.view(), axes, dst: dst.view() }).expect("supported");
                    let expected: Vec<f64> = groups.iter().map(|group| wrapped(dtype, plain(op, group))).collect();
                    let scale = groups.first().map_or(1, |group| group.len().max(1)) as f64;
                    let what = format!("{op:?} {dtype} {:?} {axes:?}", src.layout);
                    assert_close(&dst.values(), &expected, tolerance(dtype) * scale.sqrt(), &what);
                }
            }
        }
    }
}

#[test]
fn long_sums_stay_exact_in_every_direction() {
    let n = if cfg!(miri) { 1 << 12 } else { 1 << 21 };
    let mut src = Array::of(DType::F32, &[n], &[0.1]);
    let exact = f64::from(0.1f32) * n as f64;
    for (rows, columns) in [(1, n), (n, 1), (n / 2, 2), (n / 64, 64), (64, n / 64)] {
        src.layout = Layout::contiguous(Shape::from((rows, columns)));
        for axis in 0..2usize {
            let axes = axis.to_axes(src.layout.shape(), "test").expect("an axis");
            let mut dst = Array::new(DType::F32, axes.reduced(src.layout.shape(), false).dims());
            run(&Kernel::Reduce { op: ReduceOp::Sum, src: src.view(), axes, dst: dst.view() }).expect("floats");
            let part = exact / dst.dims()[0] as f64;
            let worst = dst.values().iter().map(|sum| (sum / part - 1.0).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-6, "[{rows}, {columns}] over {axis}: {worst}");
        }
    }
}

#[test]
fn extremes_and_their_places_find_nan_first() {
    let mut values = vec![1.0; 100];
    (values[70], values[90]) = (f64::NAN, 5.0);
    for dims in [[1, 100], [100, 1]] {
        let mut src = Array::of(DType::F32, &dims, &values);
        for op in [ReduceOp::Max, ReduceOp::Min] {
            let mut dst = Array::new(DType::F32, &[]);
            let axes = Axes::all(&Shape::from(dims));
            run(&Kernel::Reduce { op, src: src.view(), axes, dst: dst.view() }).expect("floats");
            assert!(dst.values()[0].is_nan(), "{op:?}");
        }
        for largest in [true, false] {
            let axis = usize::from(dims[0] == 1);
            let mut dst = Array::new(DType::U32, &[1]);
            run(&Kernel::ArgReduce { largest, src: src.view(), axis, dst: dst.view() }).expect("any dtype");
            assert_eq!(dst.values(), [70.0], "largest: {largest}");
        }
    }
}

#[test]
fn places_of_extremes_match_plain_loops() {
    let mut draw = Draw::new(12);
    for dtype in NUMBERS {
        for dims in SHAPES {
            let mut src = Array::random(&mut draw, dtype, dims);
            for axis in (0..dims.len()).filter(|&axis| dims[axis] > 0) {
                let axes = axis.to_axes(&Shape::from(dims), "test").expect("an axis");
                let shape = axes.reduced(&Shape::from(dims), false);
                for largest in [true, false] {
                    let mut dst = Array::new(DType::U32, shape.dims());
                    run(&Kernel::ArgReduce { largest, src: src.view(), axis, dst: dst.view() }).expect("any dtype");
                    let place = |group: &Vec<f64>| {
                        let extreme = plain(if largest { ReduceOp::Max } else { ReduceOp::Min }, group);
                        group.iter().position(|&x| x == extreme).expect("it is one of them") as f64
                    };
                    let expected: Vec<f64> = groups(&src, axes).iter().map(place).collect();
                    assert_eq!(dst.values(), expected, "{dtype} {:?} over {axis}", src.layout);
                }
            }
        }
    }
}
