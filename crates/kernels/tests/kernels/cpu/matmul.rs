//! Products against three plain loops, on strided, repeated and batched operands.

use ndgc_kernels::base::{dtype::DType, layout::Layout, shape::Shape};
use ndgc_kernels::kernel::Kernel;

use super::arrays::{Array, Draw, NUMBERS, assert_close, indices, run, run_unseen, tolerance, wrapped};

fn plain(lhs: &Array, rhs: &Array, k: usize, dims: &[usize]) -> Vec<f64> {
    let (a, b) = (lhs.values(), rhs.values());
    let (m, n) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    let product = |index: &Vec<usize>| -> f64 {
        let item = index[..dims.len() - 2].iter().zip(dims).fold(0, |at, (&i, &dim)| at * dim + i);
        let (row, column) = (index[dims.len() - 2], index[dims.len() - 1]);
        (0..k).map(|p| a[(item * m + row) * k + p] * b[(item * k + p) * n + column]).sum()
    };
    indices(dims).iter().map(product).collect()
}

fn check(dtype: DType, lhs: &mut Array, rhs: &mut Array) {
    let rank = lhs.dims().len();
    let (k, mut dims) = (lhs.dims()[rank - 1], lhs.dims().to_vec());
    dims[rank - 1] = rhs.dims()[rank - 1];
    let mut dst = Array::new(dtype, &dims);
    run(&Kernel::Matmul { lhs: lhs.view(), rhs: rhs.view(), dst: dst.view() }).expect("floats");
    let what = format!("{:?} x {:?}", lhs.layout, rhs.layout);
    let expected: Vec<f64> = plain(lhs, rhs, k, &dims).into_iter().map(|x| wrapped(dtype, x)).collect();
    assert_close(&dst.values(), &expected, tolerance(dtype) * (k as f64).sqrt().max(1.0), &what);
}

#[test]
fn products_match_plain_loops_on_any_layout() {
    let mut draw = Draw::new(31);
    let sizes = [
        [1, 1, 1],
        [2, 3, 4],
        [8, 8, 8],
        [9, 17, 5],
        [1, 40, 33],
        [33, 40, 1],
        [31, 2, 29],
        [3, 500, 2],
        [48, 33, 50],
        [70, 65, 3],
        [4, 0, 3],
        [0, 3, 2],
        [3, 2, 0],
    ];
    for dtype in NUMBERS {
        for [m, k, n] in sizes {
            for batch in [&[][..], &[3], &[2, 1, 3], &[2, 2, 1, 2], &[0]] {
                if batch.len() > 1 && m * n * k > 2000 {
                    continue;
                }
                let lhs_dims = [batch, &[m, k]].concat();
                let rhs_dims = [batch, &[k, n]].concat();
                for _ in 0..3 {
                    let mut lhs = Array::random(&mut draw, dtype, &lhs_dims);
                    let mut rhs = Array::random(&mut draw, dtype, &rhs_dims);
                    check(dtype, &mut lhs, &mut rhs);
                }
            }
        }
    }
}

/// Several blocks along each axis, and tiles that are cut off on each side.
#[test]
fn products_in_blocks_match_plain_loops_on_any_layout() {
    let mut draw = Draw::new(33);
    for dtype in [DType::F32, DType::F64] {
        for [m, k, n] in [
            [100, 30, 301],
            [7, 1030, 90],
            [20, 1030, 90],
            [131, 67, 18],
            [17, 53, 64],
            [3, 600, 5],
            [5, 259, 70],
            [2, 400, 150],
            [25, 288, 13],
        ] {
            for turned in [[false, false], [false, true], [true, false], [true, true]] {
                let [mut lhs, mut rhs] = [([m, k], turned[0]), ([k, n], turned[1])].map(|([rows, columns], turned)| {
                    let dims = if turned { [columns, rows] } else { [rows, columns] };
                    let values: Vec<f64> = (0..rows * columns).map(|_| draw.value(dtype)).collect();
                    let mut side = Array::of(dtype, &dims, &values);
                    side.layout = if turned { side.layout.transpose(0, 1) } else { side.layout };
                    side
                });
                check(dtype, &mut lhs, &mut rhs);
                rhs.layout = rhs.layout.flip(1);
                lhs.layout = lhs.layout.flip(0);
                check(dtype, &mut lhs, &mut rhs);
                lhs.layout = lhs.layout.flip(1);
                rhs.layout = rhs.layout.flip(0);
                check(dtype, &mut lhs, &mut rhs);
            }
            let mut lhs = Array::random(&mut draw, dtype, &[m, k]);
            let mut rhs = Array::random(&mut draw, dtype, &[k, n]);
            check(dtype, &mut lhs, &mut rhs);
        }
    }
}

#[test]
fn a_repeated_right_side_makes_one_product_of_all_rows() {
    let mut draw = Draw::new(32);
    for dims in [[5, 7, 6], [4, 1, 30], [1, 20, 20]] {
        let [b, m, k] = dims;
        let mut lhs = Array::random(&mut draw, DType::F32, &dims);
        let mut rhs = Array::random(&mut draw, DType::F32, &[k, 9]);
        rhs.layout = rhs.layout.broadcast_to(&Shape::from((b, k, 9)), "test").expect("one matrix");
        check(DType::F32, &mut lhs, &mut rhs);
        lhs.layout = Layout::contiguous(Shape::from(dims));
        lhs = Array::of(DType::F32, &dims, &(0..b * m * k).map(|i| (i % 13) as f64 - 6.0).collect::<Vec<_>>());
        check(DType::F32, &mut lhs, &mut rhs);
    }
}

#[test]
fn products_on_several_threads_match_plain_sums() {
    // Entries are small whole numbers, so that sums are exact in any order.
    let side = 224;
    for batch in [1, 5] {
        let values: Vec<f64> = (0..batch * side * side).map(|i| (i * 7 % 11) as f64 - 5.0).collect();
        let mut lhs = Array::of(DType::F32, &[batch, side, side], &values);
        let mut rhs = Array::of(DType::F32, &[batch, side, side], &values[..values.len() - 1]);
        let mut dst = Array::new(DType::F32, &[batch, side, side]);
        run(&Kernel::Matmul { lhs: lhs.view(), rhs: rhs.view(), dst: dst.view() }).expect("floats");
        let (a, b, c) = (lhs.values(), rhs.values(), dst.values());
        for at in (0..c.len()).step_by(997) {
            let (item, row, column) = (at / (side * side), at / side % side, at % side);
            let term = |p: usize| a[(item * side + row) * side + p] * b[(item * side + p) * side + column];
            assert_eq!(c[at], (0..side).map(term).sum::<f64>(), "item {item}, row {row}, column {column}");
        }
    }
}

#[test]
#[should_panic = "a matrix lies inside its buffer"]
fn a_side_whose_last_row_begins_at_the_first_one_by_numbers_that_wrap_is_found_out() {
    let (mut lhs, mut rhs) = (Array::new(DType::F32, &[64]), Array::new(DType::F32, &[64, 32]));
    let mut dst = Array::new(DType::F32, &[9, 32]);
    let layout = Layout::contiguous(Shape::from(64usize)).windows(0, 9, 64, 1 << 61);
    let (right, to) = (rhs.layout, dst.layout);
    let (lhs, rhs, dst) = (lhs.view_by(&layout), rhs.view_by(&right), dst.view_by(&to));
    let _ = run_unseen(&Kernel::Matmul { lhs, rhs, dst });
}
