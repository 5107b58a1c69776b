//! Kernels with the types of their dtypes: those that `maps.rs` and `dispatch.rs` do not have.

use float8::F8E4M3;
use half::{bf16, f16};

use super::{
    cast, elementwise, index, low_precision, matmul,
    operand::{Dst, In, Out, Src},
    optim,
    product::product,
    random::{self, RandomStream},
    reduce, softmax,
    types::{open, with_bits, with_float, with_id, with_number, with_sums, with_wide},
};
use crate::base::{
    dtype::DType,
    error::{Error, Result},
    shape::Axes,
};
use crate::kernel::{CmpOp, Rectifier, ReduceOp, StepRule, UnaryOp};

pub(super) fn fill(dst: Dst, value: f64) -> Result<()> {
    let bits = cast::bits_of(dst.dtype(), value);
    with_bits!(dst.dtype(), T => {
        open!(T; ; dst);
        elementwise::fill(dst, bits as T);
    });
    Ok(())
}

pub(super) fn arange(dst: Dst, start: f64, step: f64) -> Result<()> {
    with_number!("arange", dst.dtype(), T => {
        open!(T; ; dst);
        elementwise::arange(dst, start, step);
    }, N => {
        open!(N; ; dst);
        elementwise::arange(dst, start, step);
    });
    Ok(())
}

pub(super) fn compare(op: CmpOp, lhs: Src, rhs: Src, dst: Dst) -> Result<()> {
    open!(u8; ; dst);
    if lhs.dtype() == DType::Bool {
        open!(u8; lhs rhs;);
        elementwise::compare(op, lhs, rhs, dst);
        return Ok(());
    }
    with_number!("compare", lhs.dtype(), T => {
        open!(T; lhs rhs;);
        elementwise::compare(op, lhs, rhs, dst);
    }, N => {
        open!(N; lhs rhs;);
        low_precision::compare(op, lhs, rhs, dst);
    });
    Ok(())
}

pub(super) fn choose(cond: Src, yes: Src, no: Src, dst: Dst) -> Result<()> {
    with_id!("where_cond", cond.dtype(), I => {
        open!(I; cond;);
        with_bits!(dst.dtype(), T => {
            open!(T; yes no; dst);
            elementwise::choose(cond, yes, no, dst);
        });
    });
    Ok(())
}

pub(super) fn unary_grad(op: UnaryOp, saved: Src, grad: Src, dst: Dst) -> Result<()> {
    with_float!("unary_grad", dst.dtype(), T => {
        open!(T; saved grad; dst);
        <T as elementwise::Functions>::unary_grad(op, saved, grad, dst);
    }, N => {
        open!(N; saved grad; dst);
        low_precision::unary_grad(op, saved, grad, dst);
    });
    Ok(())
}

pub(super) fn rectifier_grad(rectifier: Rectifier, saved: Src, grad: Src, dst: Dst) -> Result<()> {
    with_float!("rectifier_grad", dst.dtype(), T => {
        open!(T; saved grad; dst);
        elementwise::rectifier_grad(rectifier, saved, grad, dst);
    }, N => {
        open!(N; saved grad; dst);
        low_precision::rectifier_grad(rectifier, saved, grad, dst);
    });
    Ok(())
}

pub(super) fn reduce(op: ReduceOp, src: Src, axes: Axes, dst: Dst) -> Result<()> {
    if op == ReduceOp::Mean && !dst.dtype().is_float() {
        return Err(Error::unsupported_dtype("mean", dst.dtype(), DType::FLOATS));
    }
    if op == ReduceOp::Sum && dst.dtype() == DType::Bool {
        return Err(Error::unsupported_dtype("sum", dst.dtype(), "any but bool"));
    }
    with_wide!("reduce", dst.dtype(), T => {
        open!(T; src; dst);
        reduce::reduce(op, src, axes, dst);
    });
    Ok(())
}

pub(super) fn arg_reduce(largest: bool, src: Src, axis: usize, dst: Dst) -> Result<()> {
    open!(u32; ; dst);
    with_wide!("arg_reduce", src.dtype(), T => {
        open!(T; src;);
        reduce::arg(largest, src, axis, dst);
    });
    Ok(())
}

pub(super) fn softmax(src: Src, dst: Dst, log: bool) -> Result<()> {
    with_wide!("softmax", float dst.dtype(), T => {
        open!(T; src; dst);
        softmax::softmax(src, dst, log);
    });
    Ok(())
}

pub(super) fn softmax_grad(out: Src, grad: Src, dst: Dst, log: bool) -> Result<()> {
    with_wide!("softmax", float dst.dtype(), T => {
        open!(T; out grad; dst);
        softmax::softmax_grad(out, grad, dst, log);
    });
    Ok(())
}

pub(super) fn cross_entropy(logits: Src, labels: Src, probs: Dst, loss: Dst) -> Result<()> {
    with_id!("cross_entropy", labels.dtype(), I => {
        open!(I; labels;);
        with_wide!("cross_entropy", float logits.dtype(), T => {
            open!(T; logits; probs loss);
            softmax::cross_entropy(logits, labels, probs, loss)
        })
    })
}

pub(super) fn cross_entropy_grad(probs: Src, labels: Src, grad: Src, dst: Dst) -> Result<()> {
    with_id!("cross_entropy", labels.dtype(), I => {
        open!(I; labels;);
        with_wide!("cross_entropy", float dst.dtype(), T => {
            open!(T; probs grad; dst);
            softmax::cross_entropy_grad(probs, labels, grad, dst)
        })
    })
}

pub(super) fn matmul(lhs: Src, rhs: Src, dst: Dst) -> Result<()> {
    if dst.dtype() == DType::Bool {
        return Err(Error::unsupported_dtype("matmul", dst.dtype(), "any but bool"));
    }
    match dst.dtype() {
        DType::F32 => {
            open!(f32; lhs rhs; dst);
            matmul::matmul(lhs, rhs, dst, product::<f32>);
        }
        DType::F64 => {
            open!(f64; lhs rhs; dst);
            matmul::matmul(lhs, rhs, dst, product::<f64>);
        }
        // Wrapping products are those of the bits, whatever the sign.
        dtype => with_bits!(dtype, T => {
            open!(T; lhs rhs; dst);
            matmul::matmul(lhs, rhs, dst, matmul::of_integers::<T>);
        }),
    }
    Ok(())
}

pub(super) fn index_select(src: Src, ids: Src, axis: usize, dst: Dst) -> Result<()> {
    let dim = src.layout().dims()[axis];
    let ids = with_id!("index_select", ids.dtype(), I => {
        open!(I; ids;);
        index::list("index_select", ids, dim)?
    });
    with_bits!(dst.dtype(), T => {
        open!(T; src; dst);
        index::select(src, &ids, axis, dst);
    });
    Ok(())
}

pub(super) fn index_add(dst: Dst, ids: Src, src: Src, axis: usize) -> Result<()> {
    let dim = dst.layout().dims()[axis];
    let ids = with_id!("index_add", ids.dtype(), I => {
        open!(I; ids;);
        index::list("index_add", ids, dim)?
    });
    with_sums!("index_add", dst.dtype(), T => {
        open!(T; src; dst);
        index::add(dst, &ids, src, axis);
    });
    Ok(())
}

pub(super) fn gather(src: Src, ids: Src, axis: usize, dst: Dst) -> Result<()> {
    with_id!("gather", ids.dtype(), I => {
        open!(I; ids;);
        index::check("gather", ids, src.layout().dims()[axis])?;
        with_bits!(dst.dtype(), T => {
            open!(T; src; dst);
            index::gather(src, ids, axis, dst)
        })
    })
}

pub(super) fn scatter_add(dst: Dst, ids: Src, src: Src, axis: usize) -> Result<()> {
    with_id!("scatter_add", ids.dtype(), I => {
        open!(I; ids;);
        index::check("scatter_add", ids, dst.layout().dims()[axis])?;
        with_sums!("scatter_add", dst.dtype(), T => {
            open!(T; src; dst);
            index::scatter_add(dst, ids, src, axis)
        })
    })
}

pub(super) fn uniform(dst: Dst, stream: RandomStream, low: f64, high: f64) -> Result<()> {
    match dst.dtype() {
        DType::F32 => {
            open!(f32; ; dst);
            random::uniform_f32(dst, stream, low, high);
        }
        DType::F64 => {
            open!(f64; ; dst);
            random::uniform_f64(dst, stream, low, high);
        }
        DType::F8E4M3 => {
            open!(F8E4M3; ; dst);
            random::uniform_halves(dst, stream, low, high);
        }
        DType::F16 => {
            open!(f16; ; dst);
            random::uniform_halves(dst, stream, low, high);
        }
        DType::BF16 => {
            open!(bf16; ; dst);
            random::uniform_halves(dst, stream, low, high);
        }
        dtype => with_number!(@ "uniform", dtype, T => {
            open!(T; ; dst);
            random::uniform_integers(dst, stream, low, high);
        }, N => { unreachable!() };
            U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64;),
    }
    Ok(())
}

pub(super) fn normal(dst: Dst, stream: RandomStream, mean: f64, std: f64) -> Result<()> {
    match dst.dtype() {
        DType::F64 => {
            open!(f64; ; dst);
            random::normal_f64(dst, stream, mean, std);
        }
        DType::F32 => {
            open!(f32; ; dst);
            random::normal_f32(dst, stream, mean, std);
        }
        DType::F8E4M3 => {
            open!(F8E4M3; ; dst);
            random::normal_halves(dst, stream, mean, std);
        }
        DType::F16 => {
            open!(f16; ; dst);
            random::normal_halves(dst, stream, mean, std);
        }
        DType::BF16 => {
            open!(bf16; ; dst);
            random::normal_halves(dst, stream, mean, std);
        }
        dtype => return Err(Error::unsupported_dtype("normal", dtype, DType::FLOATS)),
    }
    Ok(())
}

pub(super) fn step(rule: (StepRule, f64, u64), param: Dst, grad: Src, kept: [Option<Dst>; 3]) -> Result<()> {
    macro_rules! of {
        ($t:ty) => {{
            let [first, second, third] = kept;
            open!($t; grad; param);
            optim::step::<$t>(rule, grad, [Some(param), first.map(Out::of), second.map(Out::of), third.map(Out::of)])
        }};
    }
    with_float!("optimizer_step", param.dtype(), T => of!(T), N => of!(N))
}
