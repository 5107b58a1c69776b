//! Every operation beside a thread that exchanges its operands (`intern`) for arrays of other shapes, ranks, sizes and
//! dtypes: each answer is a result or an error, and no call panics. F9 of design.md, "What attack found".

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ndgc::nn::{self, Module};
use ndgc::{
    CpuStorage, CustomOp1, D, DType, Device, IndexOp, Layout, PadMode, Result, Shape, Tensor, TensorExt, Var,
    checkpoint, ndar, npy, s,
};

use crate::it::support::alone;

/// How long the threads are let loose on each other, in rounds with arrays of their own: what an exchanged array was
/// stays with its slot.
const ROUNDS: usize = 2 * HOMES.len();
const ROUND: Duration = Duration::from_millis(120);

/// What arrays are at first, and between exchanges: `x`, `y`, `ids`, `mask`, `list`. Every operation takes one of
/// these.
const HOMES: [[&[usize]; 5]; 10] = [
    [&[4, 6], &[4, 6], &[4, 6], &[4, 6], &[6]],
    [&[4, 4], &[4, 4], &[4], &[4, 4], &[4]],
    [&[4, 6], &[4, 6], &[6], &[6], &[6]],
    [&[1, 4, 6, 6], &[4, 4, 3, 3], &[4], &[1, 4, 6, 6], &[4]],
    [&[2, 2, 3, 4], &[2, 2, 3, 4], &[2], &[2, 2, 3, 4], &[3, 2]],
    [&[2, 4, 6], &[4, 4, 3], &[2], &[6], &[6]],
    [&[3, 6], &[3, 6], &[3], &[3, 6], &[6]],
    [&[6], &[6], &[2], &[6], &[6]],
    [&[2, 3, 4], &[2, 2], &[2], &[2, 3], &[4]],
    [&[4, 6], &[2, 2], &[2], &[4, 6], &[6]],
];

/// What they are exchanged for.
const SHAPES: [&[usize]; 16] = [
    &[],
    &[24],
    &[6],
    &[0],
    &[3, 0],
    &[6, 4],
    &[4, 6],
    &[2, 2],
    &[3, 3],
    &[2, 3, 4],
    &[2, 2, 6],
    &[1, 4, 6, 1],
    &[2, 2, 4, 6],
    &[1, 2, 1, 2, 3, 2],
    &[2, 4, 6],
    &[1],
];
const REAL: [DType; 7] = [DType::F32, DType::F64, DType::F32, DType::I64, DType::F16, DType::Bool, DType::U8];
const WHOLE: [DType; 5] = [DType::U32, DType::I64, DType::U8, DType::I32, DType::F32];

/// Ones, or the matrix that has an inverse.
fn made(shape: &[usize], dtype: DType) -> Result<Tensor> {
    match *shape {
        [rows, columns] if rows == columns => Tensor::eye(rows, dtype, &Device::Cpu),
        _ => Tensor::ones(shape, dtype, &Device::Cpu),
    }
}

/// Arrays that are exchanged, and a variable that is not.
struct Shared {
    home: [&'static [usize]; 5],
    x: Tensor,
    y: Tensor,
    ids: Tensor,
    mask: Tensor,
    list: Tensor,
    var: Var,
    failed: Mutex<BTreeSet<&'static str>>,
}

impl Shared {
    fn new(home: [&'static [usize]; 5]) -> Self {
        let [x, y, list] = [home[0], home[1], home[4]].map(|shape| made(shape, DType::F32).unwrap());
        let ids = Tensor::zeros(home[2], DType::U32, &Device::Cpu).unwrap();
        let mask = Tensor::zeros(home[3], DType::U8, &Device::Cpu).unwrap();
        let var = Var::from_tensor(&x).unwrap();
        Shared { home, x, y, ids, mask, list, var, failed: Mutex::default() }
    }

    /// All arrays as they were at first; a gradient leads through the first.
    fn go_home(&self) -> Result<()> {
        let [_, y, ids, mask, list] = self.home;
        // One that is in use stays, which is as good.
        let _ = self.x.intern(self.var.affine(2., 0.)?);
        let _ = self.y.intern(made(y, DType::F32)?);
        let _ = self.ids.intern(Tensor::zeros(ids, DType::U32, &Device::Cpu)?);
        let _ = self.mask.intern(Tensor::zeros(mask, DType::U8, &Device::Cpu)?);
        let _ = self.list.intern(made(list, DType::F32)?);
        Ok(())
    }

    /// Exchanges each for arrays of other kinds, and back.
    fn exchange(&self) -> Result<()> {
        for (i, shape) in SHAPES.into_iter().enumerate() {
            let real = REAL[i % REAL.len()];
            let _ = self.x.intern(made(shape, real)?);
            let _ = self.y.intern(made(SHAPES[(i + 3) % SHAPES.len()], real)?);
            let _ = self.ids.intern(made(shape, WHOLE[i % WHOLE.len()])?);
            let _ = self.mask.intern(made(SHAPES[(i + 5) % SHAPES.len()], DType::U8)?);
            let _ = self.list.intern(made(shape, DType::F32)?);
            // A gradient leads through it, from an array of another shape.
            let _ = self.y.intern(self.var.sum(0)?);
            self.go_home()?;
        }
        Ok(())
    }

    /// The walk back from a result, if there is one.
    fn back(&self, made: Result<Tensor>) -> Result<Vec<f64>> {
        let made = made?;
        let loss = made.to_dtype(DType::F32)?.sum_all()?;
        if loss.track_op() {
            let grads = loss.backward()?;
            if let Some(grad) = grads.get(&self.var) {
                assert_eq!((grad.dims(), grad.dtype()), (self.var.dims(), self.var.dtype()));
            }
        }
        // Whatever it is, it lies inside its bytes.
        made.to_dtype(DType::F64)?.to_vec()
    }
}

/// Makes each call, and notes those that panic.
macro_rules! calls {
    ($shared:ident: $($call:expr;)*) => {
        $(if catch_unwind(AssertUnwindSafe(|| drop($call))).is_err() {
            $shared.failed.lock().unwrap().insert(stringify!($call));
        })*
    };
}

/// As [`calls`], of calls that give one array each, and of the walks back.
macro_rules! results {
    ($shared:ident: $($call:expr;)*) => { calls! { $shared: $($shared.back($call);)* } };
}

fn shapes(c: &Shared) {
    let Shared { x, y, mask, ids, .. } = c;
    results! { c:
        x.reshape((6, 4)); x.reshape((2, ())); x.t().and_then(|t| t.reshape(24)); x.flatten(0, 1); x.flatten_all();
        x.flatten_to(1); x.transpose(0, 1); x.permute((1, 0)); x.narrow(1, 1, 3); x.get(3); x.get_on_dim(1, 5);
        x.squeeze(0); x.unsqueeze(1); x.broadcast_as((2, 4, 6)); x.broadcast_left((2, 2, 2)); x.movedim(0, 1);
        x.repeat((2, 3)); x.repeat((1, 1, 2, 2)); x.tile((1, 2)); x.roll(2, 1); x.flip(&[0, 1]); x.unfold(1, 3, 2);
        x.narrow_step(1, 5, 3, -2); x.pad_with_zeros(1, 1, 2); x.pad_with_zeros(1, 0, 2); x.pad_with_same(1, 2, 1);
        x.pad(&[(1, 1), (2, 2)], PadMode::Constant(3.)); x.pad(&[(1, 1)], PadMode::Reflect);
        x.pad(&[(2, 1)], PadMode::Circular); x.pad(&[(2, 1)], PadMode::Replicate);
        Tensor::cat(&[x, y], 1); Tensor::cat(&[y, x], 0); Tensor::stack(&[x, y], 1); Tensor::stack(&[x, y], 2);
        x.tril(0); x.triu(1); x.diag(0); x.diagonal(0, 0, 1); x.trace(); x.contiguous(); x.copy(); x.duplicate();
        x.i((1, 2..)); x.i((.., ids)); x.slice(s![.., -1]); x.slice([ndgc::TensorIndexer::mask(mask)]);
        x.slice([ndgc::TensorIndexer::mask(mask), ndgc::TensorIndexer::mask(mask)]); x.get_index("..., ::-1", &[]);
    }
    calls! { c:
        x.chunk(3, 1); x.split(2, 1); x.split_sizes(&[2, 4], 1); x.to_vec2::<f32>(); x.to_string(); format!("{x:?}");
        Tensor::meshgrid(&[x, y], true); x.to_scalar::<f32>(); x.slice_assign_(s![.., ids], y);
        x.slice_assign_([ndgc::TensorIndexer::mask(mask)], y); x.set_index("1:, 2", &[], y); x.to_dlpack();
        x.to_dlpack_unversioned(); npy::encode(x); ndar::encode(x); x.storage_and_layout();
        x.all_close(y, 1., 1.); x.content_equals(y); x.with_slice(|all: &[f32]| all.len());
    }
    #[cfg(feature = "ndarray")]
    calls! { c: x.as_ndarray_view(|view: ndarray::ArrayViewD<'_, f32>| view.sum()); }
}

fn reductions(c: &Shared) {
    let Shared { x, y, .. } = c;
    results! { c:
        x.sum(1); x.sum_keepdim((0, 1)); x.sum_all(); x.mean(0); x.mean_all(); x.max(1); x.max_keepdim(0); x.min(1);
        x.argmax(1); x.argmin_keepdim(1); x.cumsum(1); x.cumprod(1); x.var(1); x.var_keepdim(0); x.std(1); x.prod(1);
        x.prod_keepdim((0, 1)); x.prod_all(); x.any(1); x.any_all(); x.all(1); x.all_all(); x.norm(); x.norm_dim(2., 1);
        x.norm_dim(3., 0); x.log_sum_exp(1); x.logcumsumexp(0); x.argsort(1, false); x.median(1); x.quantile(0.3, 1);
        x.searchsorted(y, true); x.unique(); x.nonzero(); x.bincount(3); x.histc(3, 0., 2.); x.softmax(0); x.softmax(1);
        x.log_softmax(1); x.multinomial(2, true); x.multinomial(2, false);
    }
    calls! { c:
        x.sort(1, true); x.topk(2, 1); x.cummax(1); x.cummin(0); x.var_mean(1); x.sort_last_dim(true);
        x.arg_sort_last_dim(true);
    }
}

fn indices(c: &Shared) {
    let Shared { x, y, ids, mask, .. } = c;
    results! { c:
        x.gather(ids, 1); x.index_select(ids, 1); x.embedding(ids); x.scatter_add(ids, y, 1); x.index_add(ids, y, 1);
        x.scatter(ids, y, 1); x.slice_assign(&[0..2, 1..3], y); x.slice_scatter(y, 1, 0); x.gather_nd(ids); ids.one_hot(3);
        mask.where_cond(x, y); x.masked_fill(mask, 2.); x.masked_select(mask); x.cross_entropy(ids);
        nn::loss::nll(x, ids); x.to_dtype(DType::F64); x.to_dtype(DType::I32);
    }
    calls! { c:
        x.scatter_set(ids, y, 1); x.scatter_add_set(ids, y, 1); x.slice_set(y, 1, 0); x.index_put_(ids, y, true);
        x.index_put_(ids, y, false); mask.where_cond_into(x, y, x); x.copy_(y); x.swap_(y); x.replace(y);
    }
}

fn arithmetic(c: &Shared) {
    let Shared { x, y, ids, mask, list, .. } = c;
    results! { c:
        x.add(y); x.broadcast_mul(y); x.broadcast_pow(list); x.maximum(y); x.eq(y); x.broadcast_lt(y); x.exp(); x.floor();
        x.relu(); x.clamp(0., 1.); x.clamp(x, y); x.powf(2.); x.powi(3); x.affine(2., 1.); x.rem(y); x.floor_div(y);
        x.fmod(y); ids.rem(ids); x.logical_and(y); x.is_nan(); x.is_finite(); ids.bitwise_and(ids); ids.bitwise_not();
        x + y; x * 2.; 1. / x; -x; x.round_to(2); x.addcmul(x, y, 2.); x.lerp(y, 0.5); x.elu(1.); x.prelu(list);
        x.swiglu(); x.dropout(0.5); x.zeros_like(); x.full_like(3.); x.rand_like(0., 1.); x.to_device(&Device::Cpu);
        x.compose("own", || x.sqr()?.mul(y)); x.apply_op1(Own); x.apply_op1_no_bwd(&Own);
        checkpoint(|a: &[Tensor]| a[0].mul(&a[1]), &[x, y]); Var::from_tensor(x).and_then(|var| var.sqr());
    }
    calls! { c:
        x.add_(y); x.exp_(); x.floor_(); x.affine_(2., 1.); x.fill_(2.); x.add_into(y, x); x.broadcast_mul_into(list, y);
        x.exp_into(y); x.floor_into(y); x.eq_into(y, mask); x.clamp_into(0., 1., y); x.affine_into(2., 1., y);
        x.powf_into(2., y); ids.bitwise_or_into(ids, ids); x.clamp_(0., 1.); x.const_set(3u8.into()); x.uniform_(0., 1.);
        x.sgd_step_(y, None, 0.1, 0., 0.);
        x.backward(); x.add(y).and_then(|sum| sum.backward());
    }
}

/// Counts on its storage being as its layout says.
struct Own;

impl CustomOp1 for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        if let Ok(all) = storage.as_slice::<f32>() {
            assert_eq!(all.len(), layout.shape().elem_count());
        }
        Ok((storage.clone(), *layout.shape()))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(grad.clone()))
    }
}

fn matrices(c: &Shared) {
    let Shared { x, y, list, .. } = c;
    results! { c:
        x.matmul(y); x.broadcast_matmul(y); x.linear(y, Some(list)); x.linear(y, None); x.dot(y); x.mv(list); x.outer(list);
        x.addmm(list, y); x.kron(y); x.cross(y, 0); x.cdist(y, 2.); Tensor::einsum("ij,kj->ik", &[x, y]);
        Tensor::einsum("...j,...j->...", &[x, y]); Tensor::einsum("ii->i", &[x]); x.layer_norm(list, list, 1e-5);
        x.rms_norm(list, 1e-5); x.group_norm(2, list, list, 1e-5); x.conv1d(y, 1, 1, 1, 1); x.conv2d(y, 1, 1, 1, 1);
        x.conv_transpose1d(y, 0, 0, 1, 1, 1); x.conv_transpose2d(y, 0, 0, 1, 1); x.im2col(2, 0, 1, 1);
        x.fold((2, 2), 1, 0, 1, 1); x.max_pool2d(2); x.avg_pool1d(2); x.adaptive_avg_pool2d(2); x.interpolate1d(3);
        x.upsample_bilinear2d(3, 3, true); x.upsample_bilinear2d_with_scale(1.5, 1.5, false); x.sdpa(y, y, None, true, 1., 1.);
        x.rope(list, list); x.rope_i(list, list); nn::ops::pixel_shuffle(x, 2); nn::ops::replication_pad2d(x, 1);
    }
    if let Ok(layer) = nn::Linear::new(y.clone(), Some(list.clone())).forward(x) {
        calls! { c: c.back(Ok(layer.clone())); }
    }
    calls! { c: x.max_pool2d_with_indices(2, 1); x.dim(D::Minus1); nn::kv_cache::Cache::new(1, 8).append(x); }
}

#[cfg(all(feature = "fft", feature = "linalg"))]
fn on_the_host(c: &Shared) {
    use ndgc::{fft, linalg};
    let Shared { x, y, list, .. } = c;
    results! { c:
        linalg::inverse(x); linalg::solve(x, y); linalg::det(x); linalg::cholesky(x);
        fft::rfft(x, None, 1).map(|found| found.re); fft::stft(x, list, 2, true).map(|found| found.im);
        fft::Complex::new(x.clone(), y.clone()).and_then(|both| fft::irfft(&both, None, 1));
        fft::Complex::new(x.clone(), y.clone()).and_then(|both| fft::fft2(&both, None)).map(|found| found.re);
    }
    calls! { c: linalg::lu(x); linalg::qr(x); linalg::svd(x); linalg::eigh(x); }
}

#[cfg(not(all(feature = "fft", feature = "linalg")))]
fn on_the_host(_: &Shared) {}

#[test]
fn f9_no_operation_panics_beside_an_exchange() {
    const FAMILIES: [fn(&Shared); 6] = [shapes, reductions, indices, arithmetic, matrices, on_the_host];
    alone(|| {
        let mut failed = BTreeSet::new();
        for round in 0..ROUNDS {
            let (shared, stop) = (Shared::new(HOMES[round % HOMES.len()]), AtomicBool::new(false));
            thread::scope(|scope| {
                let end = Instant::now() + ROUND;
                let (shared, stop) = (&shared, &stop);
                let workers = [0, 3].map(|first| {
                    scope.spawn(move || {
                        for i in round + first.. {
                            if Instant::now() > end {
                                break;
                            }
                            FAMILIES[i % FAMILIES.len()](shared);
                        }
                    })
                });
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        shared.exchange().unwrap();
                    }
                });
                let ended = workers.map(|worker| worker.join());
                stop.store(true, Ordering::Relaxed);
                ended.into_iter().for_each(|worker| worker.unwrap());
            });
            failed.append(&mut shared.failed.lock().unwrap());
        }
        assert!(failed.is_empty(), "{failed:#?}");
    });
}
