#!/usr/bin/env python3
"""Makes tests/oracle/cases.npz: operands and results of PyTorch and NumPy that tests/oracle compares ours with.

    python3 -m venv venv && venv/bin/pip install numpy torch && venv/bin/python tests/oracle/make.py

Arrays are named `operation|case|a0, a1, .. or r0, r1, ..`. Operands are random, of several shapes and dtypes, with
infinities, NaN, zeros of both signs and numbers near the ends of their range among them; the Rust side lays them out in
strides of its own choice. The same seed gives the same file.
"""

import pathlib

import numpy as np
import torch
import torch.nn.functional as F

RNG = np.random.default_rng(20)
ARRAYS = {}
COUNTS = {}
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.3, -0.7, 1e-5, -1e-5, 30.0, -30.0, 1e4, 2.25, -3.75]
SMALL = [0.0, 1.0, -1.0, 0.3, -0.7, 1e-5, 2.25, -3.75, 9.0]


def floats(shape, dtype="f4", scale=2.0, positive=False):
    x = RNG.normal(size=shape) * scale
    return (np.abs(x) + 0.1 if positive else x).astype(dtype)


def edges(dtype="f4"):
    return np.array(EDGES, dtype)


def ints(shape, dtype="i8", low=-9, high=10):
    low = 0 if np.dtype(dtype).kind == "u" else low
    return RNG.integers(low, high, size=shape).astype(dtype)


def case(op, run, *operands):
    """One case: `run` maps tensors to a tensor or a tuple of them."""
    number = COUNTS[op] = COUNTS.get(op, -1) + 1
    results = run(*[torch.from_numpy(np.array(x)) for x in operands])
    results = results if isinstance(results, tuple) else (results,)
    for i, x in enumerate(operands):
        ARRAYS[f"{op}|{number}|a{i}"] = np.ascontiguousarray(x) if np.ndim(x) else np.array(x)
    for i, x in enumerate(results):
        ARRAYS[f"{op}|{number}|r{i}"] = np.array(x.contiguous().numpy() if isinstance(x, torch.Tensor) else x)


def unary(names, kinds="f"):
    for name, run in names.items():
        for x in [floats((2, 3, 4)), floats((5,), "f8"), edges("f4"), edges("f8"), floats(())]:
            # PyTorch's exact GELU is NaN at infinities, where ours has its limits.
            case(name, run, x[np.isfinite(x)] if name == "gelu_erf" and x.ndim == 1 else x)
        if "i" in kinds:
            for x in [ints((3, 4)), ints((5,), "u1", high=200)]:
                case(name, run, x)


def functions():
    unary({
        "exp": torch.exp, "log": torch.log, "expm1": torch.expm1, "log1p": torch.log1p, "log2": torch.log2,
        "log10": torch.log10, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "recip": torch.reciprocal,
        "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos,
        "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh,
        "acosh": torch.acosh, "atanh": torch.atanh, "sigmoid": torch.sigmoid, "frac": torch.frac,
        "gelu": lambda x: F.gelu(x, approximate="tanh"), "gelu_erf": F.gelu, "erf": torch.erf, "silu": F.silu,
        "elu": lambda x: F.elu(x, 0.7), "mish": F.mish, "softplus": F.softplus, "hard_sigmoid": F.hardsigmoid,
        "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "powf": lambda x: torch.pow(x, 1.5),
        "selu": F.selu,
    })
    unary({
        "neg": torch.neg, "abs": torch.abs, "sqr": torch.square, "floor": torch.floor, "ceil": torch.ceil,
        "trunc": torch.trunc, "powi": lambda x: torch.pow(x, 3),
        "is_nan": torch.isnan, "is_inf": torch.isinf, "is_finite": torch.isfinite, "logical_not": torch.logical_not,
        "clamp": lambda x: torch.clamp(x, 1, 4),
    }, "fi")


def arithmetic():
    both = {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum,
        "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
        "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
    }
    fractions = {"div": torch.div, "pow": torch.pow, "fmod": torch.fmod, "rem": torch.remainder,
                 "floor_div": torch.floor_divide}
    for name, run in {**both, **fractions}.items():
        case(name, run, floats((2, 3, 4)), floats((2, 3, 4)))
        values = SMALL if name in ("fmod", "rem", "floor_div", "pow") else EDGES
        case(name, run, np.repeat(np.array(values), len(values)), np.tile(np.array(values), len(values)))
        if name in both:
            for dtype in ["i8", "u1"]:
                case(name, run, ints((3, 5), dtype, high=120), ints((3, 5), dtype, high=120))
    for name, run in {"broadcast_" + name: both[name] for name in ["add", "sub", "mul", "maximum", "lt"]}.items():
        for shapes in [((2, 1, 4), (3, 1)), ((), (2, 3)), ((5, 1), ()), ((1, 3), (2, 3))]:
            case(name, run, *[floats(shape) for shape in shapes])
    case("broadcast_div", torch.div, floats((2, 3)), floats((3,)))
    x, y, z = (floats((2, 3)) for _ in range(3))
    case("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.5), x, y, z)
    case("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), x, y, z)
    case("lerp", lambda x, y: torch.lerp(x, y, 0.3), x, y)
    mask = ints((2, 3), "u1", high=2)
    case("where_cond", lambda m, x, y: torch.where(m != 0, x, y), mask, x, y)
    case("masked_fill", lambda x, m: x.masked_fill(m != 0, 9.0), x, mask)
    case("masked_select", lambda x, m: x.masked_select(m != 0), x, mask)


def reductions():
    with_nan = floats((3, 4, 5))
    with_nan[1, 2, 3] = np.nan
    for x in [floats((3, 4, 5)), floats((2, 6), "f8"), with_nan]:
        for name, run in {
            "sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1), "max": lambda x: x.amax(1),
            "min": lambda x: x.amin(1), "var": lambda x: x.var(1), "std_keepdim": lambda x: x.std(1, keepdim=True),
            "prod": lambda x: x.prod(1), "norm_dim": lambda x: torch.linalg.vector_norm(x, 3, 1),
            "log_sum_exp": lambda x: x.logsumexp(1), "cumsum": lambda x: x.cumsum(1), "sum_all": torch.sum,
            "norm": torch.linalg.vector_norm, "argmax": lambda x: x.argmax(1).to(torch.uint32),
            "argmin": lambda x: x.argmin(1).to(torch.uint32), "softmax": lambda x: x.softmax(1),
            "log_softmax": lambda x: x.log_softmax(1),
            "sort": lambda x: torch.sort(x, stable=True, dim=1).values, "median": lambda x: x.median(1).values,
            "quantile": lambda x: x.quantile(0.3, 1), "cumprod": lambda x: x.cumprod(1),
        }.items():
            case(name, run, x)
    for x in [ints((3, 4)), ints((3, 4), "i8", low=-2, high=2)]:
        for name, run in {
            "sum": lambda x: x.sum(1), "max": lambda x: x.amax(1), "min": lambda x: x.amin(1),
            "prod": lambda x: x.prod(1), "any": lambda x: x.any(1), "all": lambda x: x.all(1),
            "cumsum": lambda x: x.cumsum(1), "unique": torch.unique,
            "nonzero": lambda x: torch.nonzero(x),
        }.items():
            case(name, run, x)
    case("topk", lambda x: torch.topk(x, 3, 1).values, floats((3, 7)))
    case("bincount", lambda x: torch.bincount(x, minlength=3), ints((9,), low=0, high=5))


def indexing():
    x, ids = floats((3, 4)), ints((5,), "i8", low=0, high=4)
    case("index_select", lambda x, i: x.index_select(1, i), x, ids)
    case("embedding", lambda x, i: F.embedding(i, x), x, ints((2, 3), "i8", low=0, high=3))
    places = ints((3, 2), "i8", low=0, high=4)
    case("gather", lambda x, i: x.gather(1, i), x, places)
    case("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), x, places, floats((3, 2)))
    case("index_add", lambda x, i, y: x.index_add(1, i, y), x, ids, floats((3, 5)))


def shapes():
    x = floats((3, 4, 2))
    for name, run in {
        "flip": lambda x: x.flip(0, 2), "roll": lambda x: x.roll(2, 1), "tril": lambda x: x[..., 0].tril(-1),
        "triu": lambda x: x[..., 0].triu(1), "diag": lambda x: x[0, :, 0].diag(1), "repeat": lambda x: x.repeat(2, 1, 3),
        "unfold": lambda x: x.unfold(1, 2, 2), "pad_with_zeros": lambda x: F.pad(x, (0, 0, 1, 2)),
        "diagonal": lambda x: x.diagonal(1, 0, 1), "trace": lambda x: x[:, :3, 0].trace(),
    }.items():
        case(name, run, x)


def products():
    case("matmul", torch.matmul, floats((3, 4)), floats((4, 5)))
    case("matmul", torch.matmul, floats((2, 3, 7), "f8"), floats((2, 7, 5), "f8"))
    case("matmul", torch.matmul, floats((33, 17)), floats((17, 29)))
    case("broadcast_matmul", torch.matmul, floats((2, 1, 3, 4)), floats((5, 4, 2)))
    case("linear", F.linear, floats((5, 3)), floats((4, 3)), floats((4,)))
    case("dot", torch.dot, floats((9,)), floats((9,)))
    case("mv", torch.mv, floats((3, 9)), floats((9,)))
    case("outer", torch.outer, floats((3,)), floats((4,)))
    case("addmm", torch.addmm, floats((3, 5)), floats((3, 4)), floats((4, 5)))
    case("kron", torch.kron, floats((2, 3)), floats((3, 2)))
    case("cross", lambda x, y: torch.linalg.cross(x, y, dim=1), floats((2, 3)), floats((2, 3)))
    case("cdist", lambda x, y: torch.cdist(x, y, 1.0), floats((3, 4)), floats((5, 4)))
    case("einsum", lambda x, y: torch.einsum("bij,bkj->kib", x, y), floats((2, 3, 4)), floats((2, 5, 4)))


def networks():
    logits, labels = floats((5, 4)), ints((5,), "i8", low=0, high=4)
    case("cross_entropy", F.cross_entropy, logits, labels)
    case("nll", F.nll_loss, logits, labels)
    case("mse", F.mse_loss, floats((3, 4)), floats((3, 4)))
    targets = RNG.random((3, 4)).astype("f4")
    case("bce", F.binary_cross_entropy_with_logits, floats((3, 4)), targets)
    case("huber", lambda x, y: F.huber_loss(x, y, delta=0.8), floats((3, 4)), floats((3, 4)))
    x, scale, shift = floats((3, 6)), floats((6,)), floats((6,))
    case("layer_norm", lambda x, a, b: F.layer_norm(x, (6,), a, b, 1e-5), x, scale, shift)
    case("rms_norm", lambda x, a: F.rms_norm(x, (6,), a, 1e-5), x, scale)
    case("group_norm", lambda x, a, b: F.group_norm(x, 2, a, b, 1e-5), floats((2, 6, 3)), scale, shift)
    q, k, v = (floats((2, 3, 5, 4)) for _ in range(3))
    case("sdpa", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5), q, k, v)
    case("prelu", F.prelu, floats((2, 3, 4)), floats((3,)))
    for padding, stride, dilation, groups in [(0, 1, 1, 1), (2, 2, 1, 2), (1, 1, 2, 1)]:
        def how(conv):
            return lambda x, w: conv(x, w, None, stride, padding, dilation, groups)
        name = f"{padding}{stride}{dilation}{groups}"
        case(f"conv1d {name}", how(F.conv1d), floats((2, 4, 9)), floats((6, 4 // groups, 3)))
        case(f"conv2d {name}", how(F.conv2d), floats((2, 4, 7, 8)), floats((6, 4 // groups, 3, 2)))
        case(f"conv_transpose2d {name}",
             lambda x, w: F.conv_transpose2d(x, w, None, stride, padding, stride - 1, 1, dilation),
             floats((2, 4, 5, 4)), floats((4, 6, 3, 3)))
    case("max_pool2d", lambda x: F.max_pool2d(x, (2, 3), (2, 1)), floats((2, 3, 6, 7)))
    case("avg_pool2d", lambda x: F.avg_pool2d(x, (2, 3), (2, 1)), floats((2, 3, 6, 7)))
    case("upsample_nearest2d", lambda x: F.interpolate(x, (6, 9)), floats((1, 2, 3, 3)))


if __name__ == "__main__":
    for group in [functions, arithmetic, reductions, indexing, shapes, products, networks]:
        group()
    # Truth values are u8 in ndgc.
    arrays = {name: x.astype("u1") if x.dtype == bool else x for name, x in ARRAYS.items()}
    path = pathlib.Path(__file__).with_name("cases.npz")
    np.savez_compressed(path, **arrays)
    print(f"{len(COUNTS)} operations, {sum(COUNTS.values()) + len(COUNTS)} cases, {path.stat().st_size} bytes")
