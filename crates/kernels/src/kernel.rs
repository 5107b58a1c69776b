//! What a backend is asked to do: a closed list of kernels over views of memory.
//!
//! A kernel is plain data, so that a backend may run it at once (cpu), later (sim) or translate it into
//! a launch. Shapes, dtypes and bounds were checked by `ops` before a kernel is built; a backend relies
//! on the facts stated at each variant. Shape letters: B batch, M K N matrix sizes, R rows, C columns.

use crate::base::{
    dtype::DType,
    layout::Layout,
    shape::{Axes, Shape},
};
pub use crate::operations::{BinaryOp, Domain, Kept, UnaryOp};
pub use crate::view::{Access, OwnedView, View};
use crate::{axiswise::Axiswise, span::Span, view::kernels, window::Windowed};
use Access::{Read, ReadWrite, Write};

/// A function of one operand, element by element, into a result of its shape.
#[derive(Clone, Copy, Debug)]
pub enum Map {
    Unary(UnaryOp),
    /// `x * mul + add`; for integers the numbers are converted first.
    Affine {
        mul: f64,
        add: f64,
    },
    /// `x ^ exponent`, floats.
    Powf(f64),
    /// `x / number`, or `number / x` if the number is `first`; floats.
    Divide {
        number: f64,
        first: bool,
    },
    /// NaN stays NaN.
    Clamp {
        min: f64,
        max: f64,
    },
    /// Floats.
    Rectifier(Rectifier),
    /// The same dtype. The result may have any non-repeating layout.
    Copy,
    /// As the dtype of the result.
    Cast,
}

impl Map {
    /// What reports call it.
    fn name(&self) -> &'static str {
        match self {
            Map::Unary(op) => op.name(),
            Map::Affine { .. } => "affine",
            Map::Powf(_) => "powf",
            Map::Divide { .. } => "divide",
            Map::Clamp { .. } => "clamp",
            Map::Rectifier(rectifier) => rectifier.name(),
            Map::Copy => "copy",
            Map::Cast => "cast",
        }
    }
}

/// A rectifier: `scale x` above 0, else `scale below x`, or, if it is `curved`, `scale below (e^x - 1)`. Of -0 it is 0.
#[derive(Clone, Copy, Debug)]
pub struct Rectifier {
    pub scale: f64,
    pub below: f64,
    pub curved: bool,
}

impl Rectifier {
    /// What reports call it.
    fn name(&self) -> &'static str {
        if self.curved { "elu" } else { "leaky_relu" }
    }
}

/// Bits of two integers, or of truth values. Shifts by a negative number of places, or as many as there are bits, leave
/// zeros, or the sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOp {
    And,
    Or,
    Xor,
    /// Of the left operand alone.
    Not,
    Shl,
    Shr,
}

/// A comparison; the result is 0 or 1 in u8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

/// A reduction. Sums of floats are pairwise or in several lanes, never one long chain. `Mean` exists
/// for floats only. `Max` and `Min` give NaN if any element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    Sum,
    Mean,
    Max,
    Min,
}

/// How a step `t` (from 1) of an optimiser follows the gradient `g` of a parameter `x`, and what it keeps beside `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepRule {
    /// `x -= rate (g + decay x)`. Keeps nothing; or `v`: `v = momentum v + g + decay x; x -= rate v`.
    Sgd { momentum: f64, decay: f64 },
    /// `v = momentum v - rate g; x += v + momentum (v - v before)`. Keeps `v`.
    Nesterov { momentum: f64 },
    /// `m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2`, and with `M = m / (1 - beta1^t)` and
    /// `V = v / (1 - beta2^t)`: `x -= rate (M / (sqrt(V) + epsilon) + decay x)`. Keeps `m`, `v`.
    Adam { beta1: f64, beta2: f64, epsilon: f64, decay: f64 },
    /// `m` and `v` as those of Adam; `h = max(h, v)`,
    /// `x -= rate sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(h) + epsilon)`. Keeps `m`, `v`, `h`.
    AmsGrad { beta1: f64, beta2: f64, epsilon: f64 },
    /// `m`, `v` and `V` as those of Adam;
    /// `x -= rate (beta1 m / (1 - beta1^(t + 1)) + (1 - beta1) g / (1 - beta1^t)) / (sqrt(V) + epsilon)`.
    /// Keeps `m`, `v`.
    Nadam { beta1: f64, beta2: f64, epsilon: f64 },
    /// `m` as that of Adam; `u = max(beta2 u, |g|)`, `x -= rate / (1 - beta1^t) m / (u + 1e-32)`. Keeps `m`, `u`.
    AdaMax { beta1: f64, beta2: f64 },
    /// `s = decay s + (1 - decay) g^2; x -= rate g / (sqrt(s) + epsilon)`. Keeps `s`.
    RmsProp { decay: f64, epsilon: f64 },
    /// `s += g^2; x -= rate g / (sqrt(s) + epsilon)`. Keeps `s`.
    AdaGrad { epsilon: f64 },
    /// `s = rho s + (1 - rho) g^2; d = g sqrt(e + epsilon) / sqrt(s + epsilon)`, and then
    /// `e = rho e + (1 - rho) d^2; x -= rate d`. Keeps `s`, `e`.
    AdaDelta { rho: f64, epsilon: f64 },
}

impl StepRule {
    /// How many arrays it keeps; [`StepRule::Sgd`] keeps none without a velocity.
    pub fn kept(&self) -> usize {
        match self {
            StepRule::Sgd { .. } | StepRule::Nesterov { .. } | StepRule::RmsProp { .. } | StepRule::AdaGrad { .. } => 1,
            StepRule::Adam { .. } | StepRule::Nadam { .. } | StepRule::AdaMax { .. } | StepRule::AdaDelta { .. } => 2,
            StepRule::AmsGrad { .. } => 3,
        }
    }

    /// Whether steps differ by their number.
    pub fn counts(&self) -> bool {
        use StepRule::{AdaMax, Adam, AmsGrad, Nadam};
        matches!(self, Adam { .. } | AmsGrad { .. } | Nadam { .. } | AdaMax { .. })
    }
}

/// `1 - beta^step`.
pub fn bias(beta: f64, step: u64) -> f64 {
    1.0 - beta.powi(i32::try_from(step).unwrap_or(i32::MAX))
}

kernels! {
/// One piece of work for a backend.
///
/// Unless a variant says otherwise: `dst` is contiguous, shares no byte with a source, and has the shape
/// of every source (broadcasts are strides of 0 in the source's layout). A `dst` of a kernel named
/// "in place" is also read, may have any layout that does not repeat, and may not overlap the sources.
pub enum Kernel also {
    /// Windows over images.
    Windowed,
    /// Along one axis.
    Axiswise,
} {
    /// `dst = value`, converted as `as` does. Any non-repeating layout.
    Fill "fill", { value: f64 } (dst: Write);
    /// `dst[i] = start + i * step`, computed in f64, or in i64 for integers.
    Arange "arange", { start: f64, step: f64 } (dst: Write);
    /// `dst = map(src)`; dtypes are equal, but for a cast.
    Map map.name(), { map: Map } (src: Read, dst: Write);
    /// In place: `dst = map(dst)`, but for a copy or a cast.
    MapAssign map.name(), { map: Map } (dst: ReadWrite);
    /// `dst = op(lhs, rhs)`.
    Binary "binary", { op: BinaryOp } (lhs: Read, rhs: Read, dst: Write);
    /// In place: `dst = op(dst, rhs)`.
    BinaryAssign "binary_assign", { op: BinaryOp } (dst: ReadWrite, rhs: Read);
    /// `dst (u8) = lhs op rhs`.
    Compare "compare", { op: CmpOp } (lhs: Read, rhs: Read, dst: Write);
    /// `dst = cond != 0 ? yes : no`; `cond` is u8, u32 or i64.
    Where "where", {} (cond: Read, yes: Read, no: Read, dst: Write);
    /// `dst` = the gradient of `op` for its operand, floats. `saved` is what the row of `op` keeps: the operand, the
    /// result, or, if it keeps nothing, any array of the shape.
    UnaryGrad "unary_grad", { op: UnaryOp } (saved: Read, grad: Read, dst: Write);
    /// `dst` = the gradient of a rectifier for its operand, which is `saved`, floats. At 0 the slope is that below;
    /// of NaN it is 0.
    RectifierGrad "rectifier_grad", { rectifier: Rectifier } (saved: Read, grad: Read, dst: Write);
    /// Reduces `axes` of `src`; `dst` has the kept axes in order (or as size 1), contiguous. Empty
    /// reductions of `Max` and `Min` were refused before. u8 and u32 sums wrap in their own dtype.
    Reduce "reduce", { op: ReduceOp, axes: Axes } (src: Read, dst: Write);
    /// `dst (u32) = ` index of the first largest (or smallest) element along `axis`; the first NaN wins.
    ArgReduce "arg_reduce", { largest: bool, axis: usize } (src: Read, dst: Write);
    /// Softmax over the last axis: `src [R, C]`, rows contiguous or strided; `log`: its logarithm.
    Softmax "softmax", { log: bool } (src: Read, dst: Write);
    /// Gradient of (log-)softmax over the last axis from its output: `out`, `grad`, `dst` are `[R, C]`.
    SoftmaxGrad "softmax_grad", { log: bool } (out: Read, grad: Read, dst: Write);
    /// Mean negative log likelihood of `labels (u32 or i64, [R])` under the log-softmax of
    /// `logits [R, C]`: `loss` is a scalar, `probs [R, C]` the softmax, for the gradient. A label
    /// outside `0..C` is an error (`Error::IndexOutOfRange` from the backend on cpu and sim).
    CrossEntropy "cross_entropy", {} (logits: Read, labels: Read, probs: Write, loss: Write);
    /// `dst = (probs - onehot(labels)) * grad / R`; `grad` is a scalar.
    CrossEntropyGrad "cross_entropy_grad", {} (probs: Read, labels: Read, grad: Read, dst: Write);
    /// `dst [B.., M, N] = lhs [B.., M, K] x rhs [B.., K, N]`, any strides (0 in batch axes), numbers.
    Matmul "matmul", {} (lhs: Read, rhs: Read, dst: Write);
    /// `dst = op(lhs, rhs)` of integers or truth values.
    Bits "bits", { op: BitOp } (lhs: Read, rhs: Read, dst: Write);
    /// `dst = src` with `axis` indexed by `ids` (rank 1): `dst.dims[axis] == ids.len`. Ids u8, u32 or i64;
    /// one outside is an error, but for the largest of its dtype, which reads 0 and writes nothing, here and below.
    IndexSelect "index_select", { axis: usize } (src: Read, ids: Read, dst: Write);
    /// In place: `dst[.., ids[i], ..] += src[.., i, ..]` along `axis`, in order of `i`.
    IndexAdd "index_add", { axis: usize } (dst: ReadWrite, ids: Read, src: Read);
    /// `dst[i][j] = src[i][ids[i][j]]` along `axis`: `ids` and `dst` have one shape, its other axes are at
    /// most those of `src`.
    Gather "gather", { axis: usize } (src: Read, ids: Read, dst: Write);
    /// In place: `dst[i][ids[i][j]] += src[i][j]` along `axis`; `ids` and `src` have one shape.
    ScatterAdd "scatter_add", { axis: usize } (dst: ReadWrite, ids: Read, src: Read);
    /// Uniform in `[low, high)` from Philox4x32-10 with key `seed`, counter from `first` (in elements).
    Uniform "uniform", { seed: u64, first: u64, low: f64, high: f64 } (dst: Write);
    /// Normal, by Box-Muller over the same stream.
    Normal "normal", { seed: u64, first: u64, mean: f64, std: f64 } (dst: Write);
    /// In place: step number `step` (from 1) of an optimiser, with what its rule keeps: `kept1` is the first of those
    /// that [`StepRule`] names, and so on. All contiguous, of one shape, floats. A replay is the step after.
    OptimizerStep "optimizer_step", { rule: StepRule, rate: f64, step: u64 }
        (param: ReadWrite, grad: Read) (kept1: ReadWrite, kept2: ReadWrite, kept3: ReadWrite);
}
}

impl Kernel<View<'_>> {
    /// It with operands of its own, for work that waits. Each is looked at: does it lie inside its buffer?
    pub fn to_owned(&self) -> Kernel {
        self.map(&mut |view| view.into())
    }
}

impl Kernel {
    /// Zeroes all bytes of a span.
    pub fn zero(span: Span) -> Self {
        let layout = Layout::contiguous(Shape::from(span.bytes()));
        Kernel::Fill { dst: OwnedView::new(span, DType::U8, layout), value: 0.0 }
    }

    /// It with operands by reference, to be run at once.
    pub fn borrowed(&self) -> Kernel<View<'_>> {
        self.map(&mut |view| view.borrowed())
    }
}

impl<V> Kernel<V> {
    /// `dst = src`.
    #[inline]
    pub fn copy(src: V, dst: V) -> Self {
        Kernel::Map { map: Map::Copy, src, dst }
    }

    /// Every operand with what the kernel does to it.
    pub fn accesses(&self) -> Accesses<'_, V> {
        let mut accesses = Accesses { list: [const { None }; OPERANDS_MAX], len: 0 };
        self.operands(&mut |view, access| {
            accesses.list[accesses.len] = Some((view, access));
            accesses.len += 1;
        });
        accesses
    }
}

/// Operands of a kernel at most.
pub(crate) const OPERANDS_MAX: usize = 5;

/// The operands of a kernel with what it does to them.
#[derive(Debug)]
pub struct Accesses<'k, V> {
    list: [Option<(&'k V, Access)>; OPERANDS_MAX],
    len: usize,
}

impl<'k, V> Accesses<'k, V> {
    pub fn iter(&self) -> impl Iterator<Item = (&'k V, Access)> {
        self.list[..self.len].iter().flatten().copied()
    }
}
