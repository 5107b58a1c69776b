//! The host's kernels.

use std::ptr::NonNull;

use ndgc_kernels::base::{dtype::DType, error::Error, layout::Layout, shape::Shape};
use ndgc_kernels::kernel::{BinaryOp, Kernel, Map, OwnedView, Rectifier, StepRule, UnaryOp};
use ndgc_kernels::span::Span;

use arrays::{Array, run};

mod arrays;
mod elementwise;
mod formulas;
mod functions;
mod index;
mod math;
mod matmul;
mod number;
mod optim;
mod random;
mod reduce;
mod softmax;
mod special;
mod threads;

#[test]
fn a_dtype_that_a_kernel_has_no_code_for_is_an_error() {
    let (mut a, mut b) = (Array::new(DType::U32, &[3]), Array::new(DType::U32, &[3]));
    let (src, dst) = (a.view(), b.view());
    let rectifier = Rectifier { scale: 1.0, below: 0.1, curved: true };
    let kernels = [
        Kernel::Map { map: Map::Unary(UnaryOp::Exp), src, dst },
        Kernel::Map { map: Map::Rectifier(rectifier), src, dst },
        Kernel::RectifierGrad { rectifier, saved: src, grad: src, dst },
        Kernel::Map { map: Map::Powf(2.0), src, dst },
        Kernel::Map { map: Map::Divide { number: 3.0, first: false }, src, dst },
        Kernel::Softmax { src, dst, log: false },
        Kernel::Normal { dst, seed: 0, first: 0, mean: 0.0, std: 1.0 },
        Kernel::OptimizerStep {
            param: dst,
            grad: src,
            kept1: None,
            kept2: None,
            kept3: None,
            rule: StepRule::Sgd { momentum: 0.0, decay: 0.0 },
            rate: 0.1,
            step: 1,
        },
    ];
    for kernel in kernels {
        assert!(matches!(run(&kernel), Err(Error::UnsupportedDType { dtype: DType::U32, .. })), "{kernel:?}");
    }
}

#[test]
fn an_empty_view_may_have_a_dangling_span() {
    let nowhere =
        OwnedView::new(Span::new(NonNull::dangling(), 0), DType::F32, Layout::contiguous(Shape::from((2, 0))));
    run(&Kernel::Binary { op: BinaryOp::Add, lhs: nowhere, rhs: nowhere, dst: nowhere }).expect("nothing to do");
    run(&Kernel::Softmax { src: nowhere, dst: nowhere, log: true }).expect("nothing to do");
    run(&Kernel::Matmul { lhs: nowhere, rhs: nowhere, dst: nowhere }).expect("nothing to do");
}
