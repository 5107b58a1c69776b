//! Operations on whatever comes: arrays of any dtype and any sizes from 0 on, seen through any view, with arguments
//! inside and far outside what is allowed. They answer or refuse; a panic, of the library or of an assertion in it,
//! fails here.

use ndgc::nn::attention::{AttnMask, flash_attn, flash_attn_varlen_cpu};
use ndgc::nn::ops::{pixel_shuffle, pixel_unshuffle};
use ndgc::{D, DType, Device, Dim, Error, IndexOp, PadMode, Result, Shape, Tensor, TensorExt, TensorIndexer};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::common::{assert_names_its_line, random_cases};
use crate::ops::support::alone;

/// Numbers that arguments are made of: small ones, and those near the ends of their types.
const EDGES: [i64; 12] = [0, 1, 2, 3, 4, 7, -1, -2, -5, i64::MAX, i64::MIN, 1 << 40];

struct Draw<'a>(std::slice::Iter<'a, u8>);

impl Draw<'_> {
    fn below(&mut self, n: usize) -> usize {
        usize::from(*self.0.next().unwrap_or(&0)) % n
    }

    fn edge(&mut self) -> i64 {
        EDGES[self.below(EDGES.len())]
    }
}

/// What an operation is called with.
struct Given {
    x: Tensor,
    y: Tensor,
    z: Tensor,
    ids: Tensor,
    a: i64,
    b: i64,
    c: i64,
}

fn size(n: i64) -> usize {
    n as usize
}

/// The same number, but so large that no machine has as many bytes, where one may have them.
fn apart(n: i64) -> i64 {
    if n == 1 << 40 { 1 << 60 } else { n }
}

/// A size that is small, or of which no machine has the bytes.
fn far(n: i64) -> usize {
    size(apart(n))
}

fn attend(g: &Given, mask: AttnMask) -> Result<Tensor> {
    let single = |x: &Tensor| x.to_dtype(DType::F32);
    flash_attn::<f32>(&single(&g.x)?, &single(&g.y)?, &single(&g.z)?, 0.5, mask, Some(g.b as f32), Some(g.c as f32))
}

fn array(draw: &mut Draw<'_>, dtype: DType) -> Result<Tensor> {
    let dims: Vec<usize> = (0..draw.below(5)).map(|_| [2, 1, 3, 0, 4][draw.below(5)]).collect();
    let count: usize = dims.iter().product();
    let numbers: Vec<i64> = (0..count as i64).map(|i| (i * 7 + 3) % 5).collect();
    let mut x = Tensor::from_vec(numbers, dims, &Device::Cpu)?.to_dtype(dtype)?;
    for _ in 0..draw.below(4) {
        let axis = draw.below(4);
        let seen = match draw.below(6) {
            0 => x.flip(&[axis]),
            1 => x.transpose(0, axis),
            2 => x.narrow(axis, draw.below(3), draw.below(3)),
            3 => x.narrow_step(axis, draw.below(4), draw.below(3), draw.edge() as isize),
            4 => x.unfold(axis, draw.below(3), draw.below(3)),
            _ => x.unsqueeze(0).and_then(|x| x.expand([&[draw.below(3)], &x.dims()[1..]].concat())),
        };
        x = seen.unwrap_or(x);
    }
    Ok(x)
}

/// The first of several results.
fn first(all: Result<Vec<Tensor>>, g: &Given) -> Result<Tensor> {
    all.map(|all| all.into_iter().next().unwrap_or(g.x.clone()))
}

type Call = fn(&Given) -> Result<Vec<Tensor>>;

macro_rules! calls {
    ($(|$g:ident| $call:expr;)*) => {
        &[$(|$g| Ok(vec![$call?])),*]
    };
}

const CALLS: &[Call] = calls! {
    |g| g.x.add(&g.y);
    |g| &g.x * &g.y;
    |g| g.x.clone() - g.y.clone();
    |g| g.x.broadcast_div(&g.y);
    |g| g.x.broadcast_pow(&g.y);
    |g| g.x.maximum(&g.y);
    |g| g.x.minimum(g.a);
    |g| g.x.clamp(g.a, g.b);
    |g| g.x.clamp(&g.y, &g.z);
    |g| g.x.rem(&g.y);
    |g| g.x.eq(&g.y);
    |g| g.x.lt(g.a as f64);
    |g| g.x.broadcast_ge(&g.y);
    |g| g.x.where_cond(&g.y, &g.z);
    |g| g.x.masked_fill(&g.y, g.a as f64);
    |g| g.x.masked_select(&g.y);
    |g| g.x.logical_and(&g.y);
    |g| g.x.neg();
    |g| g.x.abs();
    |g| g.x.exp();
    |g| g.x.sqr();
    |g| g.x.relu();
    |g| g.x.floor();
    |g| g.x.gelu();
    |g| g.x.powf(g.a as f64);
    |g| g.x.powi(g.a as i32);
    |g| g.x.round_to(g.a as i32);
    |g| g.x.affine(g.a as f64, g.b as f64);
    |g| g.x.to_dtype(DType::ALL[size(g.a) % DType::ALL.len()]);
    |g| g.x.sum(g.a);
    |g| g.x.mean(vec![g.a, g.b]);
    |g| g.x.max(g.a);
    |g| g.x.argmin(g.a);
    |g| g.x.var(g.a);
    |g| g.x.prod(g.a);
    |g| g.x.any(g.a);
    |g| g.x.cumsum(g.a);
    |g| g.x.norm_dim(g.b as f64, g.a);
    |g| g.x.log_sum_exp(g.a);
    |g| g.x.softmax(g.a);
    |g| g.x.sum_all();
    |g| g.x.min_all();
    |g| g.x.argsort(g.a, true);
    |g| g.x.sort(g.a, false).map(|(sorted, _)| sorted);
    |g| g.x.searchsorted(&g.y, g.a > 0);
    |g| g.x.topk(size(g.b), g.a).map(|(top, _)| top);
    |g| g.x.median(g.a);
    |g| g.x.quantile(g.b as f64, g.a);
    |g| g.x.nonzero();
    |g| g.x.bincount(size(g.a) % 100);
    |g| g.x.reshape((g.a, g.b));
    |g| g.x.reshape(vec![g.a, g.b, g.c]);
    |g| g.x.flatten(g.a, g.b);
    |g| g.x.transpose(g.a, g.b);
    |g| g.x.permute(vec![size(g.a), size(g.b)]);
    |g| g.x.movedim(g.a, g.b);
    |g| g.x.narrow(g.a, size(g.b), size(g.c));
    |g| g.x.narrow_step(g.a, size(g.b), size(g.c), g.a as isize);
    |g| g.x.unfold(g.a, size(g.b), size(g.c));
    |g| g.x.flip(&[size(g.a), size(g.b)]);
    |g| g.x.roll(g.b as i32, g.a);
    |g| g.x.get(size(g.a));
    |g| g.x.get_on_dim(g.a, size(g.b));
    |g| g.x.squeeze(g.a);
    |g| g.x.unsqueeze(g.a);
    |g| g.x.broadcast_as((2, 3, 4));
    |g| g.x.i((g.a, g.b));
    |g| g.x.i((g.a..g.b, g.c..));
    |g| g.x.i((.., g.b..=g.c));
    |g| g.x.i((&g.ids, g.a));
    |g| g.x.slice([TensorIndexer::from(g.a..).by(g.b as isize), TensorIndexer::Ellipsis, (..g.c).into()]);
    |g| g.x.slice([TensorIndexer::mask(&g.y), g.a.into()]);
    |g| g.x.get_index(&format!("{}:{}:{}, ..., {}", g.a, g.b, g.c, g.a), &[]);
    |g| g.x.index_select(&g.ids, g.a);
    |g| g.x.gather(&g.y, g.a);
    |g| g.x.gather_nd(&g.y);
    |g| g.x.scatter(&g.y, &g.z, g.a);
    |g| g.x.scatter_add(&g.y, &g.z, g.a);
    |g| g.x.index_add(&g.ids, &g.y, g.a);
    |g| g.x.slice_scatter(&g.y, g.a, size(g.b));
    |g| g.x.slice_assign(&[size(g.a)..size(g.b), 0..2], &g.y);
    |g| g.x.embedding(&g.y);
    |g| g.x.one_hot(size(g.a) % 9);
    |g| Tensor::cat(&[&g.x, &g.y], g.a);
    |g| Tensor::stack(&[&g.x, &g.y], g.a);
    |g| g.x.pad_with_zeros(g.a, size(g.b) % 5, size(g.c) % 5);
    |g| g.x.pad_with_same(g.a, size(g.b) % 5, size(g.c) % 5);
    |g| g.x.tril(g.a);
    |g| g.x.diag(g.a);
    |g| g.x.diagonal(g.a, g.b, g.c);
    |g| g.x.matmul(&g.y);
    |g| g.x.broadcast_matmul(&g.y);
    |g| g.x.dot(&g.y);
    |g| g.x.mv(&g.y);
    |g| g.x.kron(&g.y);
    |g| g.x.cross_entropy(&g.y);
    |g| g.x.layer_norm(&g.y, &g.z, 1e-5);
    |g| g.x.linear(&g.y, Some(&g.z));
    |g| g.x.add_(&g.y);
    |g| g.x.pow_(&g.y);
    |g| g.x.exp_();
    |g| g.x.floor_();
    |g| g.x.fill_(g.a as f64);
    |g| g.x.copy_(&g.y).map(|()| g.x.clone());
    |g| g.x.add_into(&g.y, &g.z).map(|()| g.z.clone());
    |g| g.x.eq_into(&g.y, &g.z).map(|()| g.z.clone());
    |g| g.x.swap_(&g.y).map(|()| g.x.clone());
    |g| g.x.const_set(g.a.into()).map(|()| g.x.clone());
    |g| g.x.slice_assign_([g.a.into(), (g.b..g.c).into()], &g.y).map(|()| g.x.clone());
    |g| g.x.slice_assign_([TensorIndexer::mask(&g.y)], &g.z).map(|()| g.x.clone());
    |g| g.x.slice_set(&g.y, g.a, size(g.b)).map(|()| g.x.clone());
    |g| g.x.index_put_(&g.ids, &g.y, g.a > 0).map(|()| g.x.clone());
    |g| g.x.uniform_(g.a as f64, g.b as f64);
    |g| first(g.x.split(size(g.b), g.a), g);
    |g| g.x.flatten_from(D::Minus(size(g.a)));
    |g| g.x.repeat((far(g.a), far(g.b)));
    |g| g.x.repeat(vec![far(g.a), far(g.b), far(g.c)]);
    |g| g.x.tile(far(g.a));
    |g| g.x.pad(&[(far(g.a), far(g.b))], PadMode::Constant(g.c as f64));
    |g| g.x.pad(&[(far(g.a), far(g.b)), (0, far(g.c))], PadMode::Reflect);
    |g| g.x.pad(&[(far(g.a), far(g.b)), (far(g.c), 1)], PadMode::Replicate);
    |g| g.x.pad(&[(far(g.a), far(g.b)), (far(g.c), 1)], PadMode::Circular);
    |g| Tensor::arange_step(apart(g.a), apart(g.b), apart(g.c), &Device::Cpu);
    |g| Tensor::arange_step(g.a as u8, g.b as u8, g.c as u8, &Device::Cpu);
    |g| Tensor::arange_step(apart(g.a) as f32, apart(g.b) as f32, apart(g.c) as f32, &Device::Cpu);
    |g| Tensor::linspace(g.a as f64, g.b as f64, far(g.c), g.x.dtype(), &Device::Cpu);
    |g| g.x.conv1d(&g.y, far(g.a), far(g.b), far(g.c), 1);
    |g| g.x.conv2d(&g.y, far(g.a), far(g.b), far(g.c), far(g.a));
    |g| g.x.conv_transpose1d(&g.y, far(g.a), far(g.b), far(g.c), 1, 1);
    |g| g.x.im2col((far(g.a), far(g.b)), far(g.c), 1, 1);
    |g| g.x.max_pool2d_with_stride((far(g.a), far(g.b)), far(g.c));
    |g| g.x.avg_pool1d_with_stride(far(g.a), far(g.b));
    |g| g.x.adaptive_avg_pool1d(far(g.a));
    |g| g.x.interpolate2d(far(g.a), far(g.b));
    |g| g.x.upsample_bilinear2d_with_scale(apart(g.a) as f64, 1. / g.b as f64, g.c > 0);
    |g| g.x.fmod(&g.y);
    |g| g.x.floor_div(&g.y);
    |g| g.x.bitwise_left_shift(&g.y);
    |g| g.x.bitwise_right_shift(&g.y);
    |g| g.x.bitwise_not();
    |g| g.x.lerp(&g.y, g.a as f64);
    |g| g.x.elu(g.a as f64);
    |g| g.x.prelu(&g.y);
    |g| g.x.swiglu();
    |g| g.x.dropout(g.a as f64);
    |g| g.x.std(g.a);
    |g| g.x.var_mean(g.a).map(|(var, _)| var);
    |g| g.x.all(g.a);
    |g| g.x.prod_all();
    |g| g.x.cumprod(g.a);
    |g| g.x.logcumsumexp(g.a);
    |g| g.x.cummax(g.a).map(|(largest, _)| largest);
    |g| g.x.sort_last_dim(g.a > 0).map(|(sorted, _)| sorted);
    |g| g.x.unique();
    |g| g.x.bincount(far(g.a));
    |g| g.x.histc(far(g.a), g.b as f64, g.c as f64);
    |g| g.x.multinomial(far(g.a), g.b > 0);
    |g| g.x.broadcast_as((far(g.a), far(g.b), far(g.c)));
    |g| g.x.broadcast_left((far(g.a), far(g.b)));
    |g| first(g.x.chunk(size(g.a), g.b), g);
    |g| first(g.x.split_sizes(&[size(g.a), size(g.b)], g.c), g);
    |g| first(Tensor::meshgrid(&[&g.x, &g.y], g.a > 0), g);
    |g| g.x.triu(g.a);
    |g| g.x.trace();
    |g| g.x.one_hot(far(g.a));
    |g| g.x.scatter_set(&g.y, &g.z, g.a).map(|()| g.x.clone());
    |g| g.x.scatter_add_set(&g.y, &g.z, g.a).map(|()| g.x.clone());
    |g| g.x.set_index(&format!("{}:{}", g.a, g.b), &[], &g.y).map(|()| g.x.clone());
    |g| g.x.outer(&g.y);
    |g| g.x.cross(&g.y, g.a);
    |g| g.x.cdist(&g.y, g.a as f64);
    |g| g.x.addmm(&g.y, &g.z);
    |g| Tensor::einsum("ij,jk->ik", &[&g.x, &g.y]);
    |g| Tensor::einsum("...i,...i,i", &[&g.x, &g.y, &g.z]);
    |g| g.x.rms_norm(&g.y, 1e-5);
    |g| g.x.group_norm(size(g.a), &g.y, &g.z, 1e-5);
    |g| g.x.sdpa(&g.y, &g.z, None, g.a > 0, 1., g.b as f64);
    |g| g.x.rope(&g.y, &g.z);
    |g| g.x.rope_thd(&g.y, &g.z);
    |g| g.x.conv3d(&g.y, far(g.a), far(g.b), far(g.c), 1);
    |g| g.x.max_pool2d_with_indices(far(g.a), far(g.b)).map(|(largest, _)| largest);
    |g| g.x.interpolate1d(far(g.a));
    |g| pixel_shuffle(&g.x, far(g.a));
    |g| pixel_unshuffle(&g.x, far(g.a));
    |g| Tensor::eye(far(g.a), g.x.dtype(), &Device::Cpu);
    |g| Tensor::randperm(far(g.a), &Device::Cpu);
    |g| Tensor::randint(g.a, g.b, [3usize], &Device::Cpu);
    |g| attend(g, AttnMask::causal_with_offset(size(g.a)));
    |g| attend(g, AttnMask::Mask(g.y.clone()));
};

fn run(bytes: &[u8]) {
    let mut draw = Draw(bytes.iter());
    let dtype = DType::ALL[draw.below(DType::ALL.len())];
    let other = if draw.below(4) > 0 { dtype } else { DType::ALL[draw.below(DType::ALL.len())] };
    let operands = [dtype, other, other].map(|dtype| array(&mut draw, dtype));
    let [Ok(x), Ok(y), Ok(z)] = operands else { return };
    // Half of the time what mostly fits.
    let (y, z) = if draw.below(2) > 0 { (x.copy().unwrap_or(y), x.flip(&[0]).unwrap_or(z)) } else { (y, z) };
    let ids = Tensor::from_vec(vec![draw.edge(), draw.edge().clamp(-1, 2)], 2, &Device::Cpu).unwrap();
    let given = Given { x, y, z, ids, a: draw.edge(), b: draw.edge(), c: draw.edge() };
    for _ in 0..4 {
        let call = CALLS[draw.below(256) % CALLS.len()];
        for made in call(&given).into_iter().flatten() {
            if made.elem_count() < 100_000 {
                // An empty array can be too long for larger elements.
                let _ = made.to_dtype(DType::F64).and_then(|made| made.to_vec::<f64>());
            }
        }
    }
}

#[test]
fn no_operation_panics_on_any_shape_stride_index_or_dtype() {
    alone(|| {
        let config = random_cases(4000);
        let bytes = proptest::collection::vec(any::<u8>(), 48..64);
        if let Err(error) = TestRunner::new(config).run(&bytes, |bytes| {
            run(&bytes);
            Ok(())
        }) {
            panic!("{error}");
        }
    });
}

#[test]
fn repeating_elements_that_lie_apart_further_than_can_be_counted_is_refused() {
    alone(|| {
        let apart = Tensor::zeros((4, 2), DType::U8, &Device::Cpu).unwrap().narrow(1, 0, 1).unwrap();
        for count in [1 << 59, 1 << 60, 1 << 62] {
            assert_names_its_line(&apart.repeat((count, 1)).unwrap_err());
            assert_names_its_line(&apart.squeeze(1).unwrap().tile(count).unwrap_err());
        }
        assert_eq!(apart.tile((1, 2)).unwrap().dims(), [4, 2]);
    });
}

/// A count of which no memory holds as many items.
const MANY: usize = 1 << 59;

/// The largest size of an axis.
const MOST: usize = isize::MAX as usize;

fn bytes(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, DType::U8, &Device::Cpu).unwrap()
}

#[track_caller]
fn finds_no_memory<T>(answer: Result<T>) {
    let Err(error) = answer else { panic!("there is memory") };
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert_names_its_line(&error);
}

#[test]
fn lists_that_no_memory_holds_are_refused_before_the_first_item() {
    alone(|| {
        let long = bytes(&[1]).broadcast_as(&[MANY][..]).unwrap();
        finds_no_memory(long.chunk(usize::MAX, 0));
        finds_no_memory(long.chunk(MANY, 0));
        finds_no_memory(long.split(1, 0));
        // Indices that repeat, of an array without elements, whose result has none either.
        let (none, ids) = (bytes(&[3, 0]), Tensor::zeros(1, DType::U32, &Device::Cpu).unwrap());
        let ids = ids.broadcast_as(&[MANY][..]).unwrap();
        finds_no_memory(none.index_select(&ids, 0));
        finds_no_memory(none.index_add(&ids, &bytes(&[MANY, 0]), 0));
        // Points without coordinates: each names the whole array.
        let points = |count: usize| Tensor::zeros(&[count, 0][..], DType::I64, &Device::Cpu).unwrap();
        finds_no_memory(none.gather_nd(&points(MANY)));
        finds_no_memory(none.index_put_(&points(MANY), &none, true));
        assert_eq!(none.gather_nd(&points(2)).unwrap().dims(), [2, 3, 0]);
    });
}

#[test]
fn diagonals_of_rows_as_long_as_can_be_counted_have_their_number() {
    alone(|| {
        assert_eq!(bytes(&[0, MOST]).diag(0).unwrap().dims(), [0]);
        let row = bytes(&[1, 1]).broadcast_as((1, MOST)).unwrap();
        for k in [0, 5, i64::MAX - 1] {
            assert_eq!(row.diagonal(k, 0, 1).unwrap().to_vec::<u8>().unwrap(), [0], "{k}");
        }
        assert_eq!(row.diagonal(-1, 0, 1).unwrap().dims(), [0]);
    });
}

#[test]
fn steps_of_arrays_without_elements_may_be_as_long_as_numbers_go() {
    alone(|| {
        let none = bytes(&[0, MOST]);
        let ids = none.narrow_step(1, 0, 2, isize::MAX - 1).unwrap();
        assert_eq!(bytes(&[2, 2]).gather(&ids, 0).unwrap().dims(), [0, 2]);
        let left = none.t().unwrap().narrow_step(0, 0, 2, isize::MAX - 1).unwrap();
        let product = left.broadcast_as((2, 2, 0)).unwrap().matmul(&bytes(&[2, 0, 3])).unwrap();
        assert_eq!(product.to_vec::<u8>().unwrap(), [0; 12]);
    });
}

#[test]
fn attention_without_scores_takes_no_memory_for_its_rows_and_heads() {
    alone(|| {
        let of = |dims: [usize; 4]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        let k = of([0, 1, 1, 1]);
        for [queries, heads] in [[1, 1 << 58], [1 << 58, 1]] {
            for mask in [AttnMask::None, AttnMask::causal()] {
                let q = of([0, queries, heads, 1]);
                let made = flash_attn::<f32>(&q, &k, &k, 0.5, mask, Some(1.), None).unwrap();
                assert_eq!(made.dims(), [0, heads, queries, 1]);
            }
        }
        // Nor do queries without elements, whose scores are refused before the first row.
        let (q, k) = (of([1, 1 << 58, 1, 0]), of([1, 3, 1, 0]));
        finds_no_memory(flash_attn::<f32>(&q, &k, &k, 0.5, AttnMask::None, None, None));
        // Nor do keys that no head looks at: one of the two queries sees one less than the other.
        let of = |dims: [usize; 3]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        let lengths = |count: u32| Tensor::from_slice(&[count], 1, &Device::Cpu).unwrap();
        let (q, k, two, all) = (of([2, 0, 0]), of([u32::MAX as usize, 1, 0]), lengths(2), lengths(u32::MAX));
        let made = flash_attn_varlen_cpu(&q, &k, &k, None, &two, &all, 0, 0, 0.5, true, None, None).unwrap();
        assert_eq!(made.dims(), [2, 0, 0]);
    });
}

/// Sizes inside and outside of what a window can have; of none that is large a machine has the bytes.
const SIZES: [usize; 6] = [0, 1, 3, 1 << 60, isize::MAX as usize, usize::MAX];

type Windowed = fn(&Tensor, &Tensor, [usize; 4]) -> Result<Tensor>;

/// What slides over an image, with these kernels.
const WINDOWED: &[Windowed] = &[
    |x, w, [a, b, c, d]| x.conv1d(w, a, b, c, d),
    |x, w, [a, b, c, d]| x.conv2d(w, a, b, c, d),
    |x, w, [a, b, c, d]| x.conv_transpose1d(w, a, b, c, d, 1),
    |x, w, [a, b, c, d]| x.conv_transpose2d(w, a, b, c, d),
    |x, _, [a, b, c, d]| x.im2col((a, b), c, d, 1),
    |x, _, [a, b, c, _]| x.im2col(2, a, b, c),
    |x, _, [a, b, c, d]| x.flatten(1, 2)?.fold((a, b), (2, 1), c, d, 1),
    |x, _, [a, b, c, d]| x.max_pool2d_with_stride((a, b), (c, d)),
    |x, _, [a, b, c, d]| x.avg_pool2d_with_stride((a, b), (c, d)),
    |x, _, [a, b, ..]| x.avg_pool1d_with_stride(a, b),
    |x, _, [a, b, ..]| x.adaptive_avg_pool2d((a, b)),
    |x, _, [a, b, ..]| x.interpolate2d(a, b),
    |x, _, [a, b, ..]| x.upsample_bilinear2d(a, b, true),
];

/// Images with kernels for them: of each kind of layout, of the ways that a convolution has, and of nothing.
fn images() -> Result<Vec<(Tensor, Tensor)>> {
    let of = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu);
    // Elements far apart.
    let turned = of(&[1, 2, 9, 8])?.transpose(2, 3)?.narrow(2, 0, 1)?;
    Ok(vec![
        (of(&[1, 2, 3, 4])?, of(&[2, 2, 2, 2])?),
        (of(&[2, 4, 3, 2])?.permute((0, 3, 1, 2))?, of(&[2, 2, 1, 1])?),
        (turned.clone(), of(&[2, 2, 1, 2])?),
        (turned.narrow(1, 0, 1)?, of(&[1, 1, 1, 2])?),
        (turned.squeeze(2)?, of(&[2, 2, 2])?),
        (of(&[0, 2, 3, 4])?, of(&[2, 2, 2, 2])?),
        (of(&[1, 2, 0, 4])?, of(&[2, 2, 2, 2])?),
        (of(&[1, 0, 3, 4])?, of(&[2, 0, 2, 2])?),
    ])
}

#[test]
fn no_window_panics_whatever_its_size_stride_padding_and_dilation() {
    alone(|| {
        for (x, w) in images().unwrap() {
            for i in 0..SIZES.len().pow(4) {
                let sizes = [1, 6, 36, 216].map(|place| SIZES[i / place % 6]);
                for run in WINDOWED {
                    match run(&x, &w, sizes) {
                        Ok(made) => assert_eq!(made.to_vec::<f32>().unwrap().len(), made.elem_count(), "{sizes:?}"),
                        Err(error) => assert_names_its_line(&error),
                    }
                }
            }
        }
    });
}

#[test]
fn attention_of_any_sizes_has_its_shape_or_is_refused() {
    let one = |sizes: [usize; 6], mask: AttnMask, bias: Option<f32>| {
        let [batch, queries, keys, heads, of_keys, n] = sizes;
        let of = |dims: [usize; 4]| Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
        let (q, k) = (of([batch, queries, heads, n]), of([batch, keys, of_keys, n]));
        match flash_attn::<f32>(&q, &k, &k, 0.5, mask, bias, bias) {
            Ok(made) => assert_eq!(made.dims(), [batch, heads, queries, n], "{sizes:?}"),
            Err(error) => assert_names_its_line(&error),
        }
    };
    let masks: [&[usize]; 5] = [&[], &[3], &[3, 3], &[1, 3], &[3, 1, 3]];
    alone(|| {
        for i in 0..3usize.pow(6) {
            let sizes = [1, 3, 9, 27, 81, 243].map(|place| [1, 0, 3][i / place % 3]);
            for offset in [0, 1, usize::MAX] {
                one(sizes, AttnMask::causal_with_offset(offset), Some(offset as f32));
            }
            one(sizes, AttnMask::None, Some(f32::NAN));
            for dims in masks {
                let mask = Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
                one(sizes, AttnMask::Mask(mask), None);
            }
        }
    });
}

/// An axis of a program's own kind, which answers what it is told to, whatever the shape.
#[derive(Clone, Copy)]
struct Answers(usize);

impl Dim for Answers {
    fn to_index(&self, _shape: &Shape, _op: &'static str) -> Result<usize> {
        Ok(self.0)
    }

    fn to_index_plus_one(&self, _shape: &Shape, _op: &'static str) -> Result<usize> {
        Ok(self.0)
    }
}

/// Called with an array of sizes 2, 3 and 4, indices of that shape, and one index.
type OfAxis = fn(&[Tensor; 3], Answers) -> Result<()>;

/// What takes an axis.
const OF_AXIS: &[(&str, OfAxis)] = &[
    ("dim", |[x, ..], d| x.dim(d).map(drop)),
    ("flatten", |[x, ..], d| x.flatten(d, 2).map(drop)),
    ("flatten", |[x, ..], d| x.flatten(0, d).map(drop)),
    ("flatten_from", |[x, ..], d| x.flatten_from(d).map(drop)),
    ("flatten_to", |[x, ..], d| x.flatten_to(d).map(drop)),
    ("transpose", |[x, ..], d| x.transpose(0, d).map(drop)),
    ("permute", |[x, ..], d| x.permute((d, 0, 1)).map(drop)),
    ("narrow", |[x, ..], d| x.narrow(d, 0, 1).map(drop)),
    ("narrow_step", |[x, ..], d| x.narrow_step(d, 0, 1, 1).map(drop)),
    ("get_on_dim", |[x, ..], d| x.get_on_dim(d, 0).map(drop)),
    ("squeeze", |[x, ..], d| x.squeeze(d).map(drop)),
    ("chunk", |[x, ..], d| x.chunk(2, d).map(drop)),
    ("split", |[x, ..], d| x.split(1, d).map(drop)),
    ("split_sizes", |[x, ..], d| x.split_sizes(&[1, 1], d).map(drop)),
    ("unfold", |[x, ..], d| x.unfold(d, 1, 1).map(drop)),
    ("roll", |[x, ..], d| x.roll(1, d).map(drop)),
    ("movedim", |[x, ..], d| x.movedim(d, 0).map(drop)),
    ("movedim", |[x, ..], d| x.movedim(0, d).map(drop)),
    ("pad_with_zeros", |[x, ..], d| x.pad_with_zeros(d, 1, 1).map(drop)),
    ("pad_with_same", |[x, ..], d| x.pad_with_same(d, 1, 1).map(drop)),
    ("repeat_interleave", |[x, ..], d| x.repeat_interleave(2, d).map(drop)),
    ("diagonal", |[x, ..], d| x.diagonal(0, d, 1).map(drop)),
    ("cross", |[x, ..], d| x.cross(x, d).map(drop)),
    ("cat", |[x, ..], d| Tensor::cat(&[x, x], d).map(drop)),
    ("index_select", |[x, _, one], d| x.index_select(one, d).map(drop)),
    ("gather", |[x, ids, _], d| x.gather(ids, d).map(drop)),
    ("scatter", |[x, ids, _], d| x.scatter(ids, x, d).map(drop)),
    ("scatter_add", |[x, ids, _], d| x.scatter_add(ids, x, d).map(drop)),
    ("scatter_set", |[x, ids, _], d| x.copy()?.scatter_set(ids, x, d)),
    ("scatter_add_set", |[x, ids, _], d| x.copy()?.scatter_add_set(ids, x, d)),
    ("index_add", |[x, _, one], d| x.index_add(one, &x.narrow(0, 0, 1)?, d).map(drop)),
    ("slice_scatter", |[x, ..], d| x.slice_scatter(x, d, 0).map(drop)),
    ("slice_set", |[x, ..], d| x.copy()?.slice_set(x, d, 0)),
    ("sum", |[x, ..], d| x.sum(d).map(drop)),
    ("sum", |[x, ..], d| x.sum((0, d)).map(drop)),
    ("mean_keepdim", |[x, ..], d| x.mean_keepdim(&[d][..]).map(drop)),
    ("var", |[x, ..], d| x.var(d).map(drop)),
    ("prod", |[x, ..], d| x.prod(d).map(drop)),
    ("any", |[x, ..], d| x.any(d).map(drop)),
    ("norm_dim", |[x, ..], d| x.norm_dim(2., d).map(drop)),
    ("log_sum_exp", |[x, ..], d| x.log_sum_exp(d).map(drop)),
    ("argmax", |[x, ..], d| x.argmax(d).map(drop)),
    ("sort", |[x, ..], d| x.sort(d, false).map(drop)),
    ("topk", |[x, ..], d| x.topk(1, d).map(drop)),
    ("median", |[x, ..], d| x.median(d).map(drop)),
    ("quantile", |[x, ..], d| x.quantile(0.5, d).map(drop)),
    ("cumsum", |[x, ..], d| x.cumsum(d).map(drop)),
    ("cumprod", |[x, ..], d| x.cumprod(d).map(drop)),
    ("logcumsumexp", |[x, ..], d| x.logcumsumexp(d).map(drop)),
    ("cummax", |[x, ..], d| x.cummax(d).map(drop)),
    ("softmax", |[x, ..], d| x.softmax(d).map(drop)),
    ("softmax", |[x, ..], d| x.sum_all()?.softmax(d).map(drop)),
    ("glu", |[x, ..], d| x.glu(d).map(drop)),
];

#[test]
fn an_axis_of_a_programs_own_kind_that_is_not_there_is_refused() {
    alone(|| {
        let x = Tensor::arange(0f32, 24., &Device::Cpu).unwrap().reshape((2, 3, 4)).unwrap();
        let ids = Tensor::zeros((2, 3, 4), DType::U32, &Device::Cpu).unwrap();
        let given = [x, ids, Tensor::zeros(1, DType::U32, &Device::Cpu).unwrap()];
        let x = &given[0];
        for axis in [3, 4, 7, 8, 64, usize::MAX] {
            let asked = i64::try_from(axis).unwrap_or(i64::MAX);
            let is_refused = |name: &str, answer: Result<()>| {
                let Err(Error::DimOutOfRange { dim, .. }) = &answer else { panic!("{name}, {axis}: {answer:?}") };
                assert_eq!(*dim, asked, "{name}");
            };
            for &(name, call) in OF_AXIS {
                is_refused(name, call(&given, Answers(axis)));
            }
            if axis > 3 {
                is_refused("unsqueeze", x.unsqueeze(Answers(axis)).map(drop));
                is_refused("stack", Tensor::stack(&[x, x], Answers(axis)).map(drop));
            }
        }
        assert_eq!(x.unsqueeze(Answers(3)).unwrap().dims(), [2, 3, 4, 1]);
        assert_eq!((x.dim(Answers(1)).unwrap(), x.sum((0, Answers(2))).unwrap().dims()), (3, &[3][..]));
    });
}
