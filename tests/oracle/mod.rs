//! Operations against PyTorch: `cases.npz`, made by `make.py`, has operands and results. Each operand is laid out in
//! several ways, each case runs on every device; and each case of the file has its call here, and each call a case.

use std::collections::{BTreeMap, BTreeSet};

use ndgc::nn::loss;
use ndgc::{D, DType, Device, Result, Tensor, TensorExt, npz};

use crate::common::each_case;

type Call = fn(&[Tensor]) -> Result<Tensor>;

/// The calls, by the names that `make.py` gives.
macro_rules! calls {
    ($($name:literal |$x:ident| $call:expr;)*) => {
        const CALLS: &[(&str, Call)] = &[$(($name, |$x| $call)),*];
    };
}

calls! {
    "exp" |x| x[0].exp();
    "log" |x| x[0].log();
    "expm1" |x| x[0].expm1();
    "log1p" |x| x[0].log1p();
    "log2" |x| x[0].log2();
    "log10" |x| x[0].log10();
    "sqrt" |x| x[0].sqrt();
    "rsqrt" |x| x[0].rsqrt();
    "recip" |x| x[0].recip();
    "sin" |x| x[0].sin();
    "cos" |x| x[0].cos();
    "tan" |x| x[0].tan();
    "asin" |x| x[0].asin();
    "acos" |x| x[0].acos();
    "atan" |x| x[0].atan();
    "sinh" |x| x[0].sinh();
    "cosh" |x| x[0].cosh();
    "tanh" |x| x[0].tanh();
    "asinh" |x| x[0].asinh();
    "acosh" |x| x[0].acosh();
    "atanh" |x| x[0].atanh();
    "sigmoid" |x| x[0].sigmoid();
    "frac" |x| x[0].frac();
    "gelu" |x| x[0].gelu();
    "gelu_erf" |x| x[0].gelu_erf();
    "erf" |x| x[0].erf();
    "silu" |x| x[0].silu();
    "elu" |x| x[0].elu(0.7);
    "mish" |x| x[0].mish();
    "softplus" |x| x[0].softplus();
    "hard_sigmoid" |x| x[0].hard_sigmoid();
    "leaky_relu" |x| x[0].leaky_relu(0.1);
    "selu" |x| x[0].selu(1.673_263_242_354_377_2, 1.050_700_987_355_480_5);
    "powf" |x| x[0].powf(1.5);
    "neg" |x| x[0].neg();
    "abs" |x| x[0].abs();
    "sqr" |x| x[0].sqr();
    "floor" |x| x[0].floor();
    "ceil" |x| x[0].ceil();
    "trunc" |x| x[0].trunc();
    "powi" |x| x[0].powi(3);
    "is_nan" |x| x[0].is_nan();
    "is_inf" |x| x[0].is_inf();
    "is_finite" |x| x[0].is_finite();
    "logical_not" |x| x[0].logical_not();
    "clamp" |x| x[0].clamp(1., 4.);
    "add" |x| x[0].add(&x[1]);
    "sub" |x| x[0].sub(&x[1]);
    "mul" |x| x[0].mul(&x[1]);
    "div" |x| x[0].div(&x[1]);
    "pow" |x| x[0].pow(&x[1]);
    "fmod" |x| x[0].fmod(&x[1]);
    "rem" |x| x[0].rem(&x[1]);
    "floor_div" |x| x[0].floor_div(&x[1]);
    "maximum" |x| x[0].maximum(&x[1]);
    "minimum" |x| x[0].minimum(&x[1]);
    "eq" |x| x[0].eq(&x[1]);
    "ne" |x| x[0].ne(&x[1]);
    "lt" |x| x[0].lt(&x[1]);
    "le" |x| x[0].le(&x[1]);
    "gt" |x| x[0].gt(&x[1]);
    "ge" |x| x[0].ge(&x[1]);
    "logical_and" |x| x[0].logical_and(&x[1]);
    "logical_or" |x| x[0].logical_or(&x[1]);
    "logical_xor" |x| x[0].logical_xor(&x[1]);
    "broadcast_add" |x| x[0].broadcast_add(&x[1]);
    "broadcast_sub" |x| x[0].broadcast_sub(&x[1]);
    "broadcast_mul" |x| x[0].broadcast_mul(&x[1]);
    "broadcast_div" |x| x[0].broadcast_div(&x[1]);
    "broadcast_maximum" |x| x[0].broadcast_maximum(&x[1]);
    "broadcast_lt" |x| x[0].broadcast_lt(&x[1]);
    "addcmul" |x| x[0].addcmul(&x[1], &x[2], 0.5);
    "addcdiv" |x| x[0].addcdiv(&x[1], &x[2], 0.5);
    "lerp" |x| x[0].lerp(&x[1], 0.3);
    "where_cond" |x| x[0].where_cond(&x[1], &x[2]);
    "masked_fill" |x| x[0].masked_fill(&x[1], 9.);
    "masked_select" |x| x[0].masked_select(&x[1]);
    "sum" |x| x[0].sum(1);
    "mean" |x| x[0].mean(1);
    "max" |x| x[0].max(1);
    "min" |x| x[0].min(1);
    "var" |x| x[0].var(1);
    "std_keepdim" |x| x[0].std_keepdim(1);
    "prod" |x| x[0].prod(1);
    "any" |x| x[0].any(1);
    "all" |x| x[0].all(1);
    "norm_dim" |x| x[0].norm_dim(3., 1);
    "norm" |x| x[0].norm();
    "log_sum_exp" |x| x[0].log_sum_exp(1);
    "cumsum" |x| x[0].cumsum(1);
    "cumprod" |x| x[0].cumprod(1);
    "sum_all" |x| x[0].sum_all();
    "argmax" |x| x[0].argmax(1);
    "argmin" |x| x[0].argmin(1);
    "softmax" |x| x[0].softmax(1);
    "log_softmax" |x| x[0].log_softmax(1);
    "sort" |x| Ok(x[0].sort(1, false)?.0);
    "median" |x| x[0].median(1);
    "quantile" |x| x[0].quantile(0.3, 1);
    "unique" |x| x[0].unique();
    "nonzero" |x| x[0].nonzero();
    "topk" |x| Ok(x[0].topk(3, 1)?.0);
    "bincount" |x| x[0].bincount(3);
    "index_select" |x| x[0].index_select(&x[1], 1);
    "embedding" |x| x[0].embedding(&x[1]);
    "gather" |x| x[0].gather(&x[1], 1);
    "scatter_add" |x| x[0].scatter_add(&x[1], &x[2], 1);
    "index_add" |x| x[0].index_add(&x[1], &x[2], 1);
    "flip" |x| x[0].flip(&[0, 2]);
    "roll" |x| x[0].roll(2, 1);
    "tril" |x| x[0].get_on_dim(2, 0)?.tril(-1);
    "triu" |x| x[0].get_on_dim(2, 0)?.triu(1);
    "diag" |x| x[0].get(0)?.get_on_dim(1, 0)?.diag(1);
    "repeat" |x| x[0].repeat((2, 1, 3));
    "unfold" |x| x[0].unfold(1, 2, 2);
    "pad_with_zeros" |x| x[0].pad_with_zeros(1, 1, 2);
    "diagonal" |x| x[0].diagonal(1, 0, 1);
    "trace" |x| x[0].narrow(1, 0, 3)?.get_on_dim(2, 0)?.trace();
    "matmul" |x| x[0].matmul(&x[1]);
    "broadcast_matmul" |x| x[0].broadcast_matmul(&x[1]);
    "linear" |x| x[0].linear(&x[1], Some(&x[2]));
    "dot" |x| x[0].dot(&x[1]);
    "mv" |x| x[0].mv(&x[1]);
    "outer" |x| x[0].outer(&x[1]);
    "addmm" |x| x[1].addmm(&x[0], &x[2]);
    "kron" |x| x[0].kron(&x[1]);
    "cross" |x| x[0].cross(&x[1], 1);
    "cdist" |x| x[0].cdist(&x[1], 1.);
    "einsum" |x| Tensor::einsum("bij,bkj->kib", &[&x[0], &x[1]]);
    "cross_entropy" |x| x[0].cross_entropy(&x[1]);
    "nll" |x| loss::nll(&x[0], &x[1]);
    "mse" |x| loss::mse(&x[0], &x[1]);
    "bce" |x| loss::binary_cross_entropy_with_logit(&x[0], &x[1]);
    "huber" |x| loss::huber(&x[0], &x[1], 0.8);
    "layer_norm" |x| x[0].layer_norm(&x[1], &x[2], 1e-5);
    "rms_norm" |x| x[0].rms_norm(&x[1], 1e-5);
    "group_norm" |x| x[0].group_norm(2, &x[1], &x[2], 1e-5);
    "sdpa" |x| x[0].sdpa(&x[1], &x[2], None, false, 0.5, 1.);
    "prelu" |x| x[0].prelu(&x[1]);
    "conv1d 0111" |x| x[0].conv1d(&x[1], 0, 1, 1, 1);
    "conv1d 2212" |x| x[0].conv1d(&x[1], 2, 2, 1, 2);
    "conv1d 1121" |x| x[0].conv1d(&x[1], 1, 1, 2, 1);
    "conv2d 0111" |x| x[0].conv2d(&x[1], 0, 1, 1, 1);
    "conv2d 2212" |x| x[0].conv2d(&x[1], 2, 2, 1, 2);
    "conv2d 1121" |x| x[0].conv2d(&x[1], 1, 1, 2, 1);
    "conv_transpose2d 0111" |x| x[0].conv_transpose2d(&x[1], 0, 0, 1, 1);
    "conv_transpose2d 2212" |x| x[0].conv_transpose2d(&x[1], 2, 1, 2, 1);
    "conv_transpose2d 1121" |x| x[0].conv_transpose2d(&x[1], 1, 0, 1, 2);
    "max_pool2d" |x| x[0].max_pool2d_with_stride((2, 3), (2, 1));
    "avg_pool2d" |x| x[0].avg_pool2d_with_stride((2, 3), (2, 1));
    "upsample_nearest2d" |x| x[0].upsample_nearest2d(6, 9);
}

/// The same elements in other places: as they came, in columns, backwards, every second place.
fn layouts(x: &Tensor) -> Result<Vec<Tensor>> {
    let mut all = vec![x.clone()];
    if x.rank() > 0 {
        let axes: Vec<usize> = (0..x.rank()).collect();
        let turned: Vec<usize> = axes.iter().rev().copied().collect();
        all.push(x.permute(turned.clone())?.contiguous()?.permute(turned)?);
        all.push(x.flip(&axes)?.contiguous()?.flip(&axes)?);
        all.push(Tensor::stack(&[&x.ones_like()?, x], D::Minus1)?.get_on_dim(D::Minus1, 1)?);
    }
    Ok(all)
}

fn compare(what: &str, got: &Tensor, want: &Tensor) -> std::result::Result<(), String> {
    if (got.dims(), got.dtype()) != (want.dims(), want.dtype()) {
        return Err(format!("{what}: {:?} {}, not {:?} {}", got.dims(), got.dtype(), want.dims(), want.dtype()));
    }
    let near = match want.dtype() {
        DType::F32 => 2e-5,
        DType::F64 => 1e-9,
        _ => 0.,
    };
    let read = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    for (i, (g, w)) in read(got).into_iter().zip(read(want)).enumerate() {
        if !(g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= near * w.abs().max(1.)) {
            return Err(format!("{what}: element {i} is {g:e}, not {w:e}"));
        }
    }
    Ok(())
}

/// A case: operands and result.
type Case = (Vec<Tensor>, Tensor);

fn cases(device: &Device) -> BTreeMap<String, Case> {
    let mut found: BTreeMap<String, (Vec<Tensor>, Option<Tensor>)> = BTreeMap::new();
    for (name, array) in npz::decode(include_bytes!("cases.npz"), device).unwrap() {
        let (case, role) = name.rsplit_once('|').unwrap();
        let entry = found.entry(case.to_owned()).or_default();
        match role.split_at(1) {
            ("a", number) => {
                assert_eq!(number, entry.0.len().to_string(), "operands come in order");
                entry.0.push(array);
            }
            _ => entry.1 = Some(array),
        }
    }
    found.into_iter().map(|(name, (operands, result))| (name, (operands, result.unwrap()))).collect()
}

#[test]
fn operations_give_what_pytorch_gives_in_any_layout() {
    each_case(&[true], |device| {
        let mut wrong = Vec::new();
        let mut called = BTreeSet::new();
        for (name, (operands, want)) in cases(device) {
            let op = name.split('|').next().unwrap();
            let Some((op, call)) = CALLS.iter().find(|(named, _)| *named == op) else {
                wrong.push(format!("{op} has no call"));
                continue;
            };
            called.insert(*op);
            let all: Vec<Vec<Tensor>> = operands.iter().map(|x| layouts(x).unwrap()).collect();
            for i in 0..4 {
                let operands: Vec<Tensor> = all.iter().map(|x| x[i.min(x.len() - 1)].clone()).collect();
                let what = format!("{name}, layout {i}, on {device}");
                let answer = call(&operands).map_err(|error| format!("{what}: {error}"));
                wrong.extend(answer.and_then(|got| compare(&what, &got, &want)).err());
            }
        }
        wrong.extend(CALLS.iter().filter(|(op, _)| !called.contains(op)).map(|(op, _)| format!("{op} has no case")));
        assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    });
}
