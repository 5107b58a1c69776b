//! Gradients of the operations that are composed of others, checked as all others are (`gradcheck.rs`). A list of the
//! public methods in those files makes sure that none is without a case, or without a reason.

use std::collections::BTreeSet;

use ndgc::{D, IndexOp, NewAxis, Tensor, TensorExt, TensorIndexer, Var, s};

use crate::ops::gradcheck::{Case, Run, check_all};
use crate::ops::reference::Host;
use crate::ops::support::{each, values};

/// Numbers in `(low, high)`, all different, in no order.
pub(crate) fn spread(dims: &[usize], low: f64, high: f64) -> Host<f64> {
    let count = dims.iter().product::<usize>();
    let mut i = 0usize;
    Host::from_fn(dims, |_| {
        i += 1;
        low + (high - low) * (((i * 7 + 3) % (count * 3 + 1)) as f64 + 0.5) / (count * 3 + 2) as f64
    })
}

macro_rules! cases {
    ($($name:literal, [$($input:expr),+], |$x:ident| $run:expr;)*) => {
        vec![$(Case {
            name: $name,
            how: "composed",
            inputs: vec![$($input),+],
            run: |$x: &[Tensor]| $run,
            step: 1e-5,
            tolerance: 1e-6,
        }),*]
    };
}

pub(crate) fn functions() -> Vec<Case> {
    let any = || spread(&[2, 3], -2.3, 2.4);
    let inner = || spread(&[2, 3], -0.95, 0.93);
    let positive = || spread(&[2, 3], 0.2, 4.);
    cases! {
        "ln", [positive()], |x| x[0].ln();
        "square", [any()], |x| x[0].square();
        "lgamma", [positive()], |x| x[0].lgamma();
        "round_to", [any()], |x| x[0].round_to(1);
        "powi", [any()], |x| x[0].powi(3);
        "clamp_min", [any()], |x| x[0].clamp_min(0.3);
        "clamp_max", [any()], |x| x[0].clamp_max(0.3);
        "addcmul", [any(), inner(), positive()], |x| x[0].addcmul(&x[1], &x[2], 0.7);
        "addcdiv", [any(), inner(), positive()], |x| x[0].addcdiv(&x[1], &x[2], 0.7);
        "lerp", [any(), inner()], |x| x[0].lerp(&x[1], 0.3);
        "div", [any()], |x| (&x[0] / 3.)?.sqr()?.mul(&(3. / &x[0])?);
        "div", [any()], |x| (&x[0] / 7.)?.sqr()? / 0.3;
        "div", [positive()], |x| 0.7 / &x[0];
        "elu", [any()], |x| x[0].elu(0.8);
        "selu", [any()], |x| x[0].selu(1.67, 1.05);
        "leaky_relu", [any()], |x| x[0].leaky_relu(0.1);
        "prelu", [any(), spread(&[3], 0.1, 0.4)], |x| x[0].prelu(&x[1]);
        "swiglu", [spread(&[2, 4], -2., 2.)], |x| x[0].swiglu();
        "glu", [spread(&[4, 3], -2., 2.)], |x| x[0].glu(0);
        "celu", [any()], |x| x[0].celu(0.8);
        "softshrink", [any()], |x| x[0].softshrink(0.35)?.sqr();
        "hardshrink", [any()], |x| x[0].hardshrink(0.35)?.sqr();
        "nan_to_num", [any()], |x| x[0].nan_to_num(0., Some(1.), Some(-1.))?.sqr();
    }
}

fn shapes() -> Vec<Case> {
    let cube = || spread(&[2, 3, 4], -2., 2.);
    let matrix = || spread(&[3, 4], -2., 2.);
    let line = || spread(&[4], -2., 2.);
    cases! {
        "flatten_to", [cube()], |x| x[0].flatten_to(1);
        "broadcast_left", [line()], |x| x[0].broadcast_left((2, 3));
        "movedim", [cube()], |x| x[0].movedim(0, 2);
        "repeat", [matrix()], |x| x[0].repeat((2, 1, 3));
        "tile", [matrix()], |x| x[0].tile((2, 2));
        "repeat_interleave", [cube()], |x| x[0].repeat_interleave(3, 1)?.sqr();
        "chunk", [cube()], |x| x[0].chunk(2, 1)?[1].sqr()?.add(&x[0].narrow(1, 0, 1)?);
        "split", [cube()], |x| x[0].split(2, 2)?[0].sqr()?.add(&x[0].split(2, 2)?[1]);
        "split_sizes", [cube()], |x| x[0].split_sizes(&[1, 2], 1)?[1].sqr();
        "roll", [cube()], |x| x[0].roll(-2, 2);
        "pad_with_zeros", [matrix()], |x| x[0].pad_with_zeros(1, 2, 1);
        "pad_with_same", [matrix()], |x| x[0].pad_with_same(0, 2, 1);
        "tril", [cube()], |x| x[0].tril(1);
        "triu", [cube()], |x| x[0].triu(-1);
        "diag", [line()], |x| x[0].diag(-1);
        "diagonal", [cube()], |x| x[0].diagonal(1, 0, 2);
        "trace", [cube()], |x| x[0].trace();
        "meshgrid", [line(), spread(&[2], 0., 1.)], |x| {
            let grid = Tensor::meshgrid(&[&x[0], &x[1]], true)?;
            grid[0].mul(&grid[1])
        };
        "slice_assign", [cube(), spread(&[2, 2, 1], 0., 1.)], |x| x[0].slice_assign(&[0..2, 1..3, 2..3], &x[1]);
        "slice_scatter", [cube(), spread(&[2, 1, 4], 0., 1.)], |x| x[0].slice_scatter(&x[1], 1, 1);
        "slice_scatter0", [cube(), spread(&[1, 3, 4], 0., 1.)], |x| x[0].slice_scatter0(&x[1], 1);
        "scatter", [matrix(), spread(&[3, 2], 0., 1.)], |x| {
            let ids = Tensor::new([[1u32, 1], [3, 0], [2, 2]], &x[0].device())?;
            x[0].scatter(&ids, &x[1].sqr()?, 1)?.sqr()
        };
        "slice", [cube()], |x| x[0].slice(s![-1, NewAxis, ..;-2, 1..=2])?.sqr();
        "slice", [cube()], |x| {
            let mask = Tensor::new([1u8, 0, 1], x[0].device())?;
            x[0].slice([(..).into(), TensorIndexer::mask(&mask), vec![3u32, 0, 3].into()])?.sqr()
        };
        "i", [cube()], |x| x[0].i((1.., .., 2))?.sqr();
        "get_index", [cube()], |x| x[0].get_index("..., ::-1", &[])?.sqr();
        "gather_nd", [cube()], |x| {
            let ids = Tensor::new([[1u32, 2], [0, 1], [1, 2]], &x[0].device())?;
            x[0].gather_nd(&ids)
        };
        "masked_fill", [matrix()], |x| x[0].masked_fill(&x[0].gt(&x[0].zeros_like()?)?, 3.);
        "masked_select", [matrix()], |x| x[0].masked_select(&x[0].gt(&x[0].zeros_like()?)?)?.sqr();
        "sort", [cube()], |x| x[0].sort(1, true)?.0.sqr();
        "sort_last_dim", [cube()], |x| Ok(x[0].sort_last_dim(true)?.0);
        "topk", [cube()], |x| Ok(x[0].topk(2, 2)?.0);
        "median", [cube()], |x| x[0].median(2);
        "quantile", [cube()], |x| x[0].quantile(0.3, 1);
    }
}

fn sums() -> Vec<Case> {
    let cube = || spread(&[2, 3, 4], -2., 2.);
    let matrix = || spread(&[3, 4], -2., 2.);
    let line = || spread(&[4], -2., 2.);
    let zeros = || {
        let mut host = spread(&[2, 3], 0.5, 2.);
        (host.data[1], host.data[3]) = (0., 0.);
        host
    };
    cases! {
        "var", [cube()], |x| x[0].var((0, 2));
        "var_keepdim", [cube()], |x| x[0].var_keepdim(1);
        "std", [cube()], |x| x[0].std(D::Minus1);
        "std_keepdim", [cube()], |x| x[0].std_keepdim(0);
        "var_mean", [cube()], |x| {
            let (var, mean) = x[0].var_mean(1)?;
            var.mul(&mean)
        };
        "prod", [zeros()], |x| x[0].prod(1);
        "prod_keepdim", [cube()], |x| x[0].prod_keepdim((0, 2));
        "prod_all", [zeros()], |x| x[0].prod_all();
        "norm", [cube()], |x| x[0].norm();
        "norm_dim", [cube()], |x| {
            let of = |p: f64| x[0].norm_dim(p, 1);
            let two = of(1.)?.add(&of(2.)?)?;
            two.add(&of(3.)?)?.add(&of(f64::INFINITY)?)?.add(&of(f64::NEG_INFINITY)?)
        };
        "log_sum_exp", [cube()], |x| x[0].log_sum_exp((0, 1));
        "nansum", [cube()], |x| x[0].nansum((0, 2))?.sqr();
        "nanmean", [cube()], |x| x[0].nanmean(1)?.sqr();
        "cumsum", [cube()], |x| x[0].cumsum(1);
        "dot", [line(), spread(&[4], 0., 1.)], |x| x[0].dot(&x[1]);
        "mv", [matrix(), line()], |x| x[0].mv(&x[1]);
        "outer", [line(), spread(&[2], 0., 1.)], |x| x[0].outer(&x[1]);
        "addmm", [matrix(), spread(&[2], 0., 1.), spread(&[4, 2], 0., 1.)], |x| x[0].addmm(&x[1], &x[2]);
        "kron", [spread(&[2, 3], 0., 1.), spread(&[2, 2], 1., 2.)], |x| x[0].kron(&x[1]);
        "cross", [matrix(), spread(&[3, 4], 0., 1.)], |x| x[0].cross(&x[1], 0);
        "cdist", [spread(&[2, 3], 0., 1.), spread(&[4, 3], 1.1, 2.)], |x| x[0].cdist(&x[1], 2.);
        "einsum", [cube(), spread(&[4, 3, 2], 0., 1.), line()], |x| {
            Tensor::einsum("bij,jik,j->bk", &[&x[0], &x[1], &x[2]])
        };
        "layer_norm", [cube(), spread(&[4], 0.5, 1.5), line()], |x| x[0].layer_norm(&x[1], &x[2], 1e-5);
        "rms_norm", [cube(), spread(&[4], 0.5, 1.5)], |x| x[0].rms_norm(&x[1], 1e-5);
        "group_norm", [spread(&[2, 4, 3], -1., 1.), spread(&[4], 0.5, 1.5), line()], |x| {
            x[0].group_norm(2, &x[1], &x[2], 1e-5)
        };
        "sdpa", [spread(&[1, 4, 2, 3], -1., 1.), spread(&[1, 2, 3, 3], -1., 1.), spread(&[1, 2, 3, 2], -1., 1.)], |x| {
            x[0].sdpa(&x[1], &x[2], None, true, 0.6, 2.)
        };
        "rope", [spread(&[1, 2, 3, 4], -1., 1.), spread(&[3, 2], -1., 1.), spread(&[3, 2], -1., 1.)], |x| {
            x[0].rope(&x[1], &x[2])
        };
        "rope_i", [spread(&[1, 2, 3, 4], -1., 1.), spread(&[3, 2], -1., 1.), spread(&[3, 2], -1., 1.)], |x| {
            x[0].rope_i(&x[1], &x[2])
        };
        "rope_thd", [spread(&[1, 3, 2, 4], -1., 1.), spread(&[3, 2], -1., 1.), spread(&[3, 2], -1., 1.)], |x| {
            x[0].rope_thd(&x[1], &x[2])
        };
    }
}

#[test]
fn gradients_of_composed_functions_match_differences() {
    check_all(functions());
}

#[test]
fn gradients_of_composed_views_and_picks_match_differences() {
    check_all(shapes());
}

#[test]
fn gradients_of_composed_sums_and_products_match_differences() {
    check_all(sums());
}

/// Where a formula of kernels would have `0 * infinity`.
#[test]
fn gradients_at_special_points_are_what_is_stated() {
    type Point = (&'static str, f64, Run, f64);
    let points: [Point; 12] = [
        ("expm1", 0., |x| x[0].expm1(), 1.),
        ("log1p", 0., |x| x[0].log1p(), 1.),
        ("atan", 0., |x| x[0].atan(), 1.),
        ("sinh", 0., |x| x[0].sinh(), 1.),
        ("softplus", 0., |x| x[0].softplus(), 0.5),
        ("softplus", 900., |x| x[0].softplus(), 1.),
        ("elu", 900., |x| x[0].elu(1.), 1.),
        ("mish", 900., |x| x[0].mish(), 1.),
        ("norm", 0., |x| x[0].norm(), 0.),
        ("asinh", 1e200, |x| x[0].asinh(), 1e-200),
        ("leaky_relu", 0., |x| x[0].leaky_relu(0.1), 0.1),
        ("log_sum_exp", 900., |x| x[0].log_sum_exp(0), 1.),
    ];
    each(|device| {
        for (name, point, run, want) in points {
            let x = Var::from_vec(vec![point], 1, device).unwrap();
            let grads = run(&[x.as_tensor().clone()]).unwrap().sum_all().unwrap().backward().unwrap();
            assert_eq!(values::<f64>(grads.get(&x).unwrap()), [want], "{name} at {point}");
        }
    });
}

/// Without a gradient, or made of random numbers, or tested where they stand.
const ELSEWHERE: &[&str] = &[
    // Without a gradient: `special`.
    "multinomial",
    "truncated_normal",
    "histc",
    "all",
    "all_all",
    "all_keepdim",
    "any",
    "any_all",
    "any_keepdim",
    "arg_sort_last_dim",
    "argsort",
    "bernoulli",
    "bincount",
    "by",
    "dims4",
    "dims5",
    "dropout",
    "eye",
    "from_iter",
    "from_raw_buffer",
    "index_put_",
    "is_finite",
    "is_inf",
    "is_nan",
    "linspace",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "mask",
    "nonzero",
    "numel",
    "one_hot",
    "rand_like",
    "randint",
    "randn_like",
    "randperm",
    "scatter_add_set",
    "scatter_set",
    "set_index",
    "slice_assign_",
    "slice_set",
    "tril2",
    "triu2",
    "unique",
];

#[test]
fn every_composed_operation_has_a_case_or_a_reason() {
    let all = [functions(), shapes(), sums()];
    let mut known: BTreeSet<&str> = all.iter().flatten().map(|case| case.name).collect();
    known.extend(ELSEWHERE);
    for file in [
        "create/draws",
        "create/generate",
        "elementwise/activation",
        "elementwise/logic",
        "elementwise/math",
        "index/indexer",
        "index/ndindex",
        "index/scatter",
        "linalg/einsum",
        "linalg/products",
        "reduction/order",
        "reduction/stats",
        "shape/rearrange",
    ] {
        let path = format!("{}/../src/ops/{file}.rs", env!("CARGO_MANIFEST_DIR"));
        let source = std::fs::read_to_string(path).unwrap();
        for line in source.lines() {
            let code = line.trim_start();
            // A method, or a line of a macro's list: `    name, |x..| ..`.
            let name = code.strip_prefix("pub fn ").or_else(|| code.contains(", |x").then_some(code));
            let Some(name) = name.filter(|name| !name.starts_with('$')) else { continue };
            let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            let listed = line.starts_with("    pub fn ")
                || line == line.trim_end() && line.starts_with(&format!("    {name}, |x"));
            assert!(!listed || known.contains(name), "{file}.rs: {name} has no case");
        }
    }
}
