//! The cases of the gradient check: every differentiable operation, on operands where it is smooth.

use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig, t};

use crate::ops::gradcheck::{Case, Run};
use crate::ops::reference::Host;

/// Numbers with an absolute value between 0.3 and 2, of either sign.
fn away(dims: &[usize]) -> Host<f64> {
    let mut i = 0;
    Host::from_fn(dims, |_| {
        i += 1;
        (0.3 + (i * 37 % 101) as f64 / 60.) * if i * 7 % 5 < 3 { 1. } else { -1. }
    })
}

/// Numbers between 0.4 and 2.
fn positive(dims: &[usize]) -> Host<f64> {
    let mut i = 0;
    Host::from_fn(dims, |_| {
        i += 1;
        0.4 + (i * 53 % 97) as f64 / 60.
    })
}

/// Numbers of which no two are near each other, in no order.
fn distinct(dims: &[usize]) -> Host<f64> {
    let mut i = 0;
    Host::from_fn(dims, |_| {
        i += 1;
        (i * 29 % 67) as f64 / 10. - 3.
    })
}

fn list(ids: &[u32], device: &Device) -> Tensor {
    Tensor::from_slice(ids, ids.len(), device).unwrap()
}

fn case(name: &'static str, how: &'static str, inputs: Vec<Host<f64>>, run: Run) -> Case {
    Case { name, how, inputs, run, step: 1e-5, tolerance: 1e-6 }
}

macro_rules! cases {
    ($($name:literal, $how:literal, [$($input:expr),*], |$x:ident| $run:expr;)*) => {
        vec![$(case($name, $how, vec![$($input),*], |$x| $run)),*]
    };
}

/// Functions of one operand, of views and the like where they are of the table (`of_one.rs`).
pub(crate) fn functions() -> Vec<Case> {
    let mut all = cases! {
        "exp", "of a transposed view", [away(&[2, 3])], |x| x[0].t()?.exp();
        "sqr", "of a narrowed view", [away(&[3, 4])], |x| x[0].narrow(1, 1, 2)?.sqr();
        "tanh", "of a scalar", [away(&[])], |x| x[0].tanh();
        "sigmoid", "of a broadcast", [away(&[1, 3])], |x| x[0].broadcast_as((2, 3))?.sigmoid();
        "affine", "", [away(&[2, 3])], |x| x[0].affine(-1.5, 0.3);
        "powf", "of positive numbers", [positive(&[2, 3])], |x| x[0].powf(1.7);
        "powf", "cubed", [away(&[2, 3])], |x| x[0].powf(3.);
        "powf", "inverted", [away(&[2, 3])], |x| x[0].powf(-1.);
        "clamp", "", [distinct(&[3, 4])], |x| x[0].clamp(-0.95, 1.25);
        "clamp", "on one side", [distinct(&[3, 4])], |x| x[0].clamp(f64::NEG_INFINITY, 0.25);
        "duplicate", "", [away(&[2, 3])], |x| x[0].t()?.duplicate();
        "copy", "", [away(&[2, 3])], |x| x[0].t()?.copy();
        "force_contiguous", "", [away(&[2, 3])], |x| x[0].force_contiguous();
        "contiguous", "of a transposed view", [away(&[2, 3])], |x| x[0].t()?.contiguous();
        "exp", "of nothing", [away(&[0, 3])], |x| x[0].exp();
    };
    let narrow =
        case("to_dtype", "to f32 and back", vec![away(&[2, 3])], |x| x[0].to_dtype(DType::F32)?.to_dtype(DType::F64));
    all.push(Case { step: 1e-2, tolerance: 1e-3, ..narrow });
    let single = case("to_dtype", "a loss in f32", vec![away(&[2, 3])], |x| x[0].to_dtype(DType::F32)?.sqr());
    all.push(Case { step: 1e-2, tolerance: 1e-3, ..single });
    all
}

/// Arithmetic of two operands, of views, of itself, and broadcast (`of_two.rs` has it plain).
pub(crate) fn arithmetic() -> Vec<Case> {
    cases! {
        "add", "of itself", [away(&[2, 3])], |x| x[0].add(&x[0]);
        "add", "of its transpose", [away(&[3, 3])], |x| x[0].add(&x[0].t()?);
        "sub", "of itself", [away(&[2, 3])], |x| x[0].sub(&x[0]);
        "mul", "of itself", [away(&[2, 3])], |x| x[0].mul(&x[0]);
        "mul", "of views", [away(&[3, 2]), positive(&[4, 3])], |x| x[0].t()?.mul(&x[1].narrow(0, 1, 2)?);
        "div", "by itself", [away(&[2, 3])], |x| x[0].div(&x[0]);
        "maximum", "of itself", [away(&[2, 3])], |x| x[0].maximum(&x[0]);
        "broadcast_add", "rows", [away(&[2, 3]), positive(&[3])], |x| x[0].broadcast_add(&x[1]);
        "broadcast_add", "a scalar", [away(&[]), positive(&[2, 3])], |x| x[0].broadcast_add(&x[1]);
        "broadcast_sub", "both sides", [away(&[2, 1]), positive(&[1, 3])], |x| x[0].broadcast_sub(&x[1]);
        "broadcast_sub", "inside", [away(&[2, 1, 2]), positive(&[2, 3, 2])], |x| x[0].broadcast_sub(&x[1]);
        "broadcast_mul", "columns", [away(&[2, 3]), positive(&[2, 1])], |x| x[0].broadcast_mul(&x[1]);
        "broadcast_mul", "views", [away(&[3, 1]), positive(&[4])], |x| x[0].t()?.broadcast_mul(&x[1].narrow(0, 1, 3)?);
        "broadcast_mul", "more axes", [away(&[3]), positive(&[2, 2, 1])], |x| x[0].broadcast_mul(&x[1]);
        "broadcast_div", "both sides", [away(&[2, 1]), positive(&[3])], |x| x[0].broadcast_div(&x[1]);
        "broadcast_maximum", "", [distinct(&[3, 2]), away(&[2])], |x| x[0].broadcast_maximum(&x[1]);
        "broadcast_minimum", "", [distinct(&[3, 1]), away(&[2])], |x| x[0].broadcast_minimum(&x[1]);
        "broadcast_pow", "", [positive(&[2, 3]), away(&[2, 1])], |x| x[0].broadcast_pow(&x[1]);
        "broadcast_add", "nothing", [away(&[0, 3]), positive(&[3])], |x| x[0].broadcast_add(&x[1]);
        "affine", "operators with numbers", [away(&[2, 3])], |x| (2. - ((&x[0] * 3.)? + 1.)?)? / 4.;
        "recip", "a number by an array", [away(&[2, 3])], |x| 2. / &x[0];
        "neg", "operators of arrays", [away(&[2, 3]), away(&[2, 3])], |x| -&(&x[0] * &(&x[1] - &x[0])?)?;
        "where_cond", "", [away(&[2, 3]), positive(&[2, 3])], |x| {
            let mask = Tensor::new([[1u8, 0, 2], [0, 0, 1]], &x[0].device())?;
            mask.where_cond(&x[0], &x[1])
        };
        "where_cond", "by a comparison, of views", [distinct(&[3, 2]), away(&[1, 3])], |x| {
            let (a, b) = (x[0].t()?, x[1].broadcast_as((2, 3))?);
            a.gt(&b)?.where_cond(&a, &b)
        };
    }
}

/// Reductions and normalisations.
pub(crate) fn reductions() -> Vec<Case> {
    cases! {
        "sum", "", [away(&[2, 3, 2])], |x| x[0].sum(1);
        "sum", "over two axes", [away(&[2, 3, 2])], |x| x[0].sum((0, 2));
        "sum", "of a transposed view", [away(&[2, 3])], |x| x[0].t()?.sum(0);
        "sum", "of a broadcast", [away(&[2, 1])], |x| x[0].broadcast_as((2, 3))?.sum(1);
        "sum", "over no axis", [away(&[2, 3])], |x| x[0].sum(&[] as &[usize]);
        "sum_keepdim", "", [away(&[2, 3])], |x| x[0].sum_keepdim(0);
        "sum_all", "", [away(&[2, 3])], |x| x[0].sum_all();
        "mean", "", [away(&[2, 3, 2])], |x| x[0].mean(-1);
        "mean_keepdim", "", [away(&[2, 3, 2])], |x| x[0].mean_keepdim((0, 1));
        "mean_all", "", [away(&[2, 3])], |x| x[0].mean_all();
        "max", "", [distinct(&[3, 4])], |x| x[0].max(1);
        "max", "of a transposed view", [distinct(&[3, 4])], |x| x[0].t()?.max(1);
        "max_keepdim", "", [distinct(&[3, 4])], |x| x[0].max_keepdim(0);
        "max_all", "", [distinct(&[3, 4])], |x| x[0].max_all();
        "min", "over two axes", [distinct(&[2, 3, 4])], |x| x[0].min((0, 2));
        "min_keepdim", "", [distinct(&[3, 4])], |x| x[0].min_keepdim(1);
        "min_all", "", [distinct(&[3, 4])], |x| x[0].min_all();
        "softmax", "rows", [away(&[3, 4])], |x| x[0].softmax(1);
        "softmax", "columns", [away(&[3, 4])], |x| x[0].softmax(0);
        "softmax", "inside", [away(&[2, 3, 2])], |x| x[0].softmax(1);
        "softmax", "one axis", [away(&[4])], |x| x[0].softmax(0);
        "softmax", "of a transposed view", [away(&[3, 4])], |x| x[0].t()?.softmax(1);
        "softmax", "a scalar", [away(&[])], |x| x[0].softmax(0);
        "log_softmax", "rows", [away(&[3, 4])], |x| x[0].log_softmax(-1);
        "log_softmax", "columns", [away(&[3, 4])], |x| x[0].log_softmax(0);
        "log_softmax", "three axes", [away(&[2, 2, 3])], |x| x[0].log_softmax(2);
        "log_softmax", "of a broadcast", [away(&[1, 4])], |x| x[0].broadcast_as((3, 4))?.log_softmax(1);
        "cross_entropy", "", [away(&[3, 4])], |x| x[0].cross_entropy(&list(&[2, 0, 3], x[0].device()));
        "cross_entropy", "of a transposed view", [away(&[4, 3])], |x| {
            x[0].t()?.cross_entropy(&list(&[1, 1, 0], x[0].device()).to_dtype(DType::I64)?)
        };
        "cross_entropy", "of labels in bytes", [away(&[2, 3])], |x| {
            x[0].cross_entropy(&list(&[1, 2], x[0].device()).to_dtype(DType::U8)?)
        };
    }
}

/// Views and joins.
pub(crate) fn views() -> Vec<Case> {
    cases! {
        "reshape", "", [away(&[2, 3])], |x| x[0].reshape((3, 2));
        "reshape", "that copies", [away(&[2, 3])], |x| x[0].t()?.reshape((2, 3));
        "reshape", "flatten", [away(&[2, 3, 2])], |x| x[0].flatten(1, 2)?.flatten_all()?.sqr();
        "unsafe_duplication_async", "", [away(&[2, 3])], |x| x[0].t()?.unsafe_duplication()?.sqr();
        "leverage", "out of a workspace", [away(&[2, 3])], |x| {
            let enter = |name| Workspace::enter_on(x[0].device(), name, &WorkspaceConfig::default());
            let result = {
                let _outer = enter("OUTER")?;
                let copy = {
                    let _inner = enter("INNER")?;
                    x[0].affine(2., 1.)?.leverage()?
                };
                let _out = Workspace::scope_out();
                copy.affine(3., 0.)?
            };
            // The graph has nothing of theirs.
            ndgc::destroy_all_workspaces_for_current_thread()?;
            Ok(result)
        };
        "transpose", "", [away(&[2, 3, 2])], |x| x[0].transpose(0, 1)?.sqr();
        "transpose", "t", [away(&[2, 3])], |x| x[0].t();
        "permute", "", [away(&[2, 3, 4])], |x| x[0].permute((2, 0, 1))?.sqr();
        "narrow", "", [away(&[4, 3])], |x| x[0].narrow(0, 1, 2)?.sqr();
        "narrow", "of a view", [away(&[4, 3])], |x| x[0].t()?.narrow(1, 2, 1);
        "narrow", "two parts that overlap", [away(&[4, 2])], |x| x[0].narrow(0, 0, 3)?.mul(&x[0].narrow(0, 1, 3)?);
        "narrow", "nothing", [away(&[4, 2])], |x| x[0].narrow(0, 1, 0)?.sum_all()?.add(&x[0].sum_all()?);
        "function", "of temporaries in t!", [away(&[2, 3]), positive(&[2, 3])], |x| {
            let (a, b) = (&x[0], &x[1]);
            t!((a * b + a).exp() / (b + 1).sqrt() - 2 * (a * a).sigmoid() + (a - b).sqr().neg())
        };
        "narrow_step", "", [away(&[5, 3])], |x| x[0].narrow_step(0, 4, 3, -2)?.sqr();
        "narrow_step", "forwards", [away(&[2, 4])], |x| x[0].narrow_step(1, 1, 2, 2)?.sqr();
        "flip", "", [away(&[2, 3, 2])], |x| x[0].flip(&[0, 2])?.sqr();
        "unfold", "few windows", [away(&[2, 6])], |x| x[0].unfold(1, 4, 2)?.sqr();
        "unfold", "many windows", [away(&[7, 2])], |x| x[0].unfold(0, 2, 1)?.sqr();
        "unfold", "with gaps", [away(&[7])], |x| x[0].unfold(0, 2, 3)?.sqr();
        "get_on_dim", "get", [away(&[3, 2])], |x| x[0].get(1)?.sqr();
        "get_on_dim", "", [away(&[3, 2, 2])], |x| x[0].get_on_dim(-1, 1)?.sqr();
        "squeeze", "", [away(&[2, 1, 3])], |x| x[0].squeeze(1)?.sqr();
        "unsqueeze", "", [away(&[2, 3])], |x| x[0].unsqueeze(1)?.sqr();
        "broadcast_as", "", [away(&[2, 1])], |x| x[0].broadcast_as((3, 2, 2))?.sqr();
        "broadcast_as", "a scalar", [away(&[])], |x| x[0].expand((2, 2))?.sqr();
        "cat", "rows", [away(&[2, 3]), positive(&[1, 3])], |x| Tensor::cat(x, 0)?.sqr();
        "cat", "columns of views", [away(&[2, 3]), positive(&[2, 3])], |x| {
            Tensor::cat(&[x[0].t()?, x[1].t()?], 1)?.sqr()
        };
        "cat", "one array three times", [away(&[2, 2])], |x| Tensor::cat(&[&x[0], &x[0], &x[0]], 0)?.sqr();
        "cat", "with one that is not tracked", [away(&[2, 2])], |x| {
            let ones = Tensor::ones((2, 2), DType::F64, &x[0].device())?;
            Tensor::cat(&[&ones, &x[0], &ones], 1)?.sqr()
        };
        "stack", "in front", [away(&[2, 3]), positive(&[2, 3])], |x| Tensor::stack(x, 0)?.sqr();
        "stack", "behind", [away(&[3]), positive(&[3]), distinct(&[3])], |x| Tensor::stack(x, 1)?.sqr();
        "stack", "scalars", [away(&[]), positive(&[])], |x| Tensor::stack(x, 0)?.sqr();
    }
}

/// Indices.
pub(crate) fn indexing() -> Vec<Case> {
    cases! {
        "index_select", "with repeats", [away(&[3, 2])], |x| {
            x[0].index_select(&list(&[2, 0, 2, 2], x[0].device()), 0)?.sqr()
        };
        "index_select", "along the last axis", [away(&[2, 3])], |x| {
            x[0].index_select(&list(&[1, 1], x[0].device()).to_dtype(DType::I64)?, 1)?.sqr()
        };
        "index_select", "embedding", [away(&[4, 2])], |x| {
            x[0].embedding(&list(&[3, 0, 0, 1], x[0].device()).reshape((2, 2))?)?.sqr()
        };
        "gather", "", [away(&[2, 3])], |x| {
            let ids = list(&[2, 0, 0, 1, 1, 1], x[0].device()).reshape((2, 3))?;
            x[0].gather(&ids, 1)?.sqr()
        };
        "gather", "fewer rows, of a view", [away(&[3, 4])], |x| {
            let ids = list(&[2, 0], x[0].device()).reshape((1, 2))?;
            x[0].t()?.gather(&ids, 0)?.sqr()
        };
        "scatter_add", "", [away(&[3, 2]), positive(&[2, 2])], |x| {
            let ids = list(&[2, 0, 2, 0], x[0].device()).reshape((2, 2))?;
            x[0].scatter_add(&ids, &x[1], 0)?.sqr()
        };
        "scatter_add", "fewer columns", [away(&[2, 3]), positive(&[2, 4])], |x| {
            let ids = list(&[2, 0, 2, 0, 1, 1, 1, 0], x[0].device()).reshape((2, 4))?;
            x[0].scatter_add(&ids, &x[1], 1)?.sqr()
        };
        "index_add", "", [away(&[3, 2]), positive(&[4, 2])], |x| {
            x[0].index_add(&list(&[2, 0, 2, 2], x[0].device()), &x[1], 0)?.sqr()
        };
        "index_add", "along the last axis, of views", [away(&[3, 2]), positive(&[2, 2])], |x| {
            x[0].t()?.index_add(&list(&[2, 0], x[0].device()), &x[1].t()?, 1)?.sqr()
        };
        "scatter_add", "of one side alone", [positive(&[2, 2])], |x| {
            let zeros = Tensor::zeros((3, 2), DType::F64, &x[0].device())?;
            let ids = list(&[2, 0, 2, 0], x[0].device()).reshape((2, 2))?;
            zeros.scatter_add(&ids, &x[0], 0)?.sqr()
        };
    }
}

/// Matrix products.
pub(crate) fn products() -> Vec<Case> {
    cases! {
        "matmul", "", [away(&[2, 3]), positive(&[3, 4])], |x| x[0].matmul(&x[1]);
        "matmul", "of views", [away(&[3, 2]), positive(&[4, 3])], |x| x[0].t()?.matmul(&x[1].t()?);
        "matmul", "of itself", [away(&[3, 3])], |x| x[0].matmul(&x[0]);
        "matmul", "with its transpose", [away(&[2, 3])], |x| x[0].matmul(&x[0].t()?);
        "matmul", "batches", [away(&[2, 2, 3]), positive(&[2, 3, 2])], |x| x[0].matmul(&x[1]);
        "matmul", "without inner elements", [away(&[2, 0]), positive(&[0, 3])], |x| x[0].matmul(&x[1]);
        "broadcast_matmul", "one matrix for all", [away(&[2, 2, 3]), positive(&[3, 2])], |x| {
            x[0].broadcast_matmul(&x[1])
        };
        "broadcast_matmul", "both sides", [away(&[2, 1, 2, 3]), positive(&[3, 3, 2])], |x| x[0].broadcast_matmul(&x[1]);
        "broadcast_matmul", "more axes on the right", [away(&[2, 3]), positive(&[2, 3, 2])], |x| {
            x[0].broadcast_matmul(&x[1])
        };
        "linear", "", [away(&[4, 3]), positive(&[2, 3]), away(&[2])], |x| x[0].linear(&x[1], Some(&x[2]));
        "linear", "without a bias", [away(&[4, 3]), positive(&[2, 3])], |x| x[0].linear(&x[1], None);
        "linear", "more axes", [away(&[2, 2, 3]), positive(&[2, 3]), away(&[2])], |x| x[0].linear(&x[1], Some(&x[2]));
        "linear", "of views", [away(&[3, 4]), positive(&[3, 2]), away(&[2, 2])], |x| {
            x[0].t()?.linear(&x[1].t()?, Some(&x[2].get_on_dim(1, 0)?))
        };
        "linear", "of weights alone", [positive(&[2, 3]), away(&[2])], |x| {
            let input = Tensor::arange(0f64, 12., &x[0].device())?.reshape((4, 3))?;
            input.linear(&x[0], Some(&x[1]))
        };
    }
}

/// Networks, and values used in several places.
pub(crate) fn compositions() -> Vec<Case> {
    cases! {
        "exp", "used three times", [away(&[2, 3])], |x| {
            let y = x[0].exp()?;
            y.mul(&y)?.add(&y.sum_keepdim(1)?.broadcast_as((2, 3))?)
        };
        "tanh", "two layers and a loss", [away(&[3, 4]), away(&[5, 4]), positive(&[5]), away(&[2, 5])], |x| {
            let hidden = x[0].linear(&x[1], Some(&x[2]))?.tanh()?;
            hidden.matmul(&x[3].t()?)?.cross_entropy(&list(&[0, 1, 1], x[0].device()))
        };
        "div", "a normalisation", [away(&[3, 4])], |x| {
            let centred = x[0].broadcast_sub(&x[0].mean_keepdim(1)?)?;
            centred.broadcast_div(&centred.sqr()?.mean_keepdim(1)?.affine(1., 1e-3)?.sqrt()?)
        };
        "sqr", "the mean squared error", [away(&[3]), positive(&[3])], |x| ndgc::nn::loss::mse(&x[0], &x[1]);
        "gather", "the likelihood of labels", [away(&[3, 4])], |x| {
            ndgc::nn::loss::nll(&x[0].log_softmax(1)?, &list(&[0, 3, 1], x[0].device()))
        };
    }
}
