//! Attention of sequences of different lengths that lie one behind the other, without padding.

use crate::base::call::Call;
use crate::{DType, Error, Result, Tensor};

/// Rows of queries whose scores are in memory at a time.
const ROWS: usize = 128;

/// Attention within each of several sequences that are packed one behind the other: queries `[all queries, heads, n]`,
/// keys `[all keys, kv_heads, n]` and values `[all keys, v_heads, m]` to `[all queries, heads, m]`, in their dtype and
/// with the owner of `q`. `seqlens_q` and `seqlens_k`, `[sequences]` of u32, say how many of each belong to a sequence;
/// they are read on the host. Several heads may share one of the keys or values.
///
/// The last query of a sequence stands beside its last key. With `causal` a query sees no later key; with
/// `window_left` none that is further before it, nor, without `window_right`, a later one; with `window_right` none
/// that is further behind. `alibi_slopes`, `[heads]`, are taken off a score times the distance. What sees no key is 0.
/// Scores of 128 rows of queries of one sequence are in memory at a time, as f32 for halves; the largest lengths are
/// not needed. On every device, with gradients.
///
/// ```
/// use ndgc::nn::attention::flash_attn_varlen_cpu;
/// use ndgc::{DType, Device, Tensor};
///
/// let x = Tensor::ones((5, 2, 4), DType::F32, &Device::Cpu)?; // sequences of 2 and 3, with 2 heads
/// let lengths = Tensor::new(&[2u32, 3], &Device::Cpu)?;
/// let y = flash_attn_varlen_cpu(&x, &x, &x, None, &lengths, &lengths, 3, 3, 0.5, true, None, None)?;
/// assert_eq!(y.dims(), [5, 2, 4]);
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] and [`Error::ShapeMismatch`] if the sizes do not fit; [`Error::DTypeMismatch`] if the three differ;
/// [`Error::Argument`] for a right window alone, and for `causal` with more queries than keys; as [`Tensor::matmul`].
#[allow(clippy::too_many_arguments)] // candle's
#[track_caller]
pub fn flash_attn_varlen_cpu(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    _max_seqlen_q: usize,
    _max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
    window_left: Option<usize>,
    window_right: Option<usize>,
) -> Result<Tensor> {
    let call = Call::here(OP);
    let [of_queries, of_keys] = lengths(call, [q, k, v], [seqlens_q, seqlens_k])?;
    let (heads, m) = (q.dim(1)?, v.dim(2)?);
    if window_left.is_none() && window_right.is_some() {
        return Err(Error::argument(call, "window_right", "alone", "given with window_left alone"));
    }
    if causal && let Some((a, b)) = of_queries.iter().zip(&of_keys).find(|(a, b)| a > b) {
        let (value, expected) = (format!("{b} for {a} queries"), "at least as many as the queries, if it is causal");
        return Err(Error::argument(call, "keys", value, expected));
    }
    if let Some(slopes) = alibi_slopes.filter(|slopes| slopes.dims() != [heads]) {
        return Err(misfit(call, slopes.dims(), &[heads], "there is a slope for each head"));
    }
    q.compose(OP, || {
        // Read in here, as they are copied if they are of another dtype.
        let slopes = alibi_slopes.map(|slopes| slopes.to_dtype(DType::F32)?.to_vec::<f32>()).transpose()?;
        let rule = Rule { scale: softmax_scale, causal, left: window_left, right: window_right, slopes };
        let (mut all, mut row, mut key) = (Vec::with_capacity(of_queries.len()), 0, 0);
        for (&count, &seen) in of_queries.iter().zip(&of_keys) {
            let (k, v) = (k.narrow(0, key, seen)?, v.narrow(0, key, seen)?);
            all.push(rule.attend(&q.narrow(0, row, count)?, &k, &v)?);
            (row, key) = (row + count, key + seen);
        }
        match &all[..] {
            [] => Tensor::zeros((0, heads, m), q.dtype(), q.device()),
            _ => Tensor::cat(&all, 0)?.to_dtype(q.dtype()),
        }
    })
}

/// candle's other name of [`flash_attn_varlen_cpu`]: a sequence without keys gives zeros under it too.
pub use self::flash_attn_varlen_cpu as flash_attn_varlen_unfused;

const OP: &str = "flash_attn_varlen";

fn misfit(call: Call, lhs: &[usize], rhs: &[usize], why: &str) -> Error {
    Error::shape_mismatch(call, lhs, rhs, why)
}

/// The lengths of the sequences, of queries and of keys, if all sizes fit.
fn lengths(call: Call, [q, k, v]: [&Tensor; 3], [seqlens_q, seqlens_k]: [&Tensor; 2]) -> Result<[Vec<usize>; 2]> {
    let three = |x: &Tensor| {
        <[usize; 3]>::try_from(x.dims()).map_err(|_| Error::shape(call, x.dims(), "[all positions, heads, n]"))
    };
    let ([queries, heads, n], [keys, kv_heads, kn], [values, v_heads, _]) = (three(q)?, three(k)?, three(v)?);
    for other in [k, v] {
        if other.dtype() != q.dtype() {
            return Err(Error::dtype_mismatch(call, q.dtype(), other.dtype()));
        }
    }
    let divides = |part: usize| part > 0 && heads.is_multiple_of(part);
    if kn != n || !divides(kv_heads) {
        return Err(misfit(
            call,
            q.dims(),
            k.dims(),
            "keys have the queries' last size, and heads that divide the queries'",
        ));
    }
    if values != keys || !divides(v_heads) {
        return Err(misfit(
            call,
            k.dims(),
            v.dims(),
            "there is a value for each key, with heads that divide the queries'",
        ));
    }
    let on_host = |of: &Tensor| Ok::<_, Error>(of.to_vec1::<u32>()?.into_iter().map(|len| len as usize).collect());
    let all: [Vec<usize>; 2] = [on_host(seqlens_q)?, on_host(seqlens_k)?];
    let sums = all.each_ref().map(|all| all.iter().fold(0, |sum: usize, len| sum.saturating_add(*len)));
    if all[0].len() != all[1].len() || sums != [queries, keys] {
        return Err(misfit(
            call,
            &sums,
            &[queries, keys],
            "the lengths of the sequences are as many, and sum up to the rows",
        ));
    }
    Ok(all)
}

/// How scores are made, and which count.
struct Rule {
    scale: f32,
    causal: bool,
    left: Option<usize>,
    right: Option<usize>,
    slopes: Option<Vec<f32>>,
}

impl Rule {
    /// One sequence: `[queries, heads, n]`, `[keys, kv_heads, n]` and `[keys, v_heads, m]` to `[queries, heads, m]`.
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let single = |x: &Tensor| match x.dtype() {
            DType::F8E4M3 | DType::F16 | DType::BF16 => x.to_dtype(DType::F32)?.transpose(0, 1)?.contiguous(),
            _ => x.transpose(0, 1)?.contiguous(),
        };
        let ((queries, heads, n), (keys, kv_heads, _), (_, v_heads, m)) = (q.dims3()?, k.dims3()?, v.dims3()?);
        // Heads that share keys are rows of one product.
        let q = single(q)?.reshape((kv_heads, heads / kv_heads, queries, n))?;
        let (k, v) = (single(k)?.transpose(1, 2)?.unsqueeze(1)?, single(v)?.unsqueeze(1)?);
        let mut all = Vec::new();
        for start in (0..queries).step_by(ROWS) {
            let count = ROWS.min(queries - start);
            let ranges: Vec<(usize, usize)> = (start..start + count).map(|row| self.seen(row, queries, keys)).collect();
            let first = ranges.iter().map(|range| range.0).min().unwrap_or(0);
            let end = ranges.iter().map(|range| range.1).max().unwrap_or(0);
            if first >= end {
                all.push(Tensor::zeros((heads, count, m), q.dtype(), q.device())?);
                continue;
            }
            let scores = q.narrow(2, start, count)?.broadcast_matmul(&k.narrow(3, first, end - first)?)?;
            let scores = scores.affine(self.scale.into(), 0.0)?.reshape((heads, count, end - first))?;
            let like = |data: Vec<f32>, dims: (usize, usize, usize)| {
                Tensor::from_vec(data, dims, scores.device())?.to_dtype(scores.dtype())
            };
            // Without heads there are no scores, for however many keys.
            let bias =
                if heads == 0 { (0, Vec::new()) } else { self.bias(start, queries, keys, first, &ranges, end - first) };
            let scores = match bias {
                (1, bias) => scores.broadcast_add(&like(bias, (1, count, end - first))?)?,
                (0, _) => scores.clone(),
                (_, bias) => scores.add(&like(bias, (heads, count, end - first))?)?,
            };
            let parts = scores.softmax(2)?.reshape((v_heads, heads / v_heads, count, end - first))?;
            let y = parts.broadcast_matmul(&v.narrow(2, first, end - first)?)?.reshape((heads, count, m))?;
            let sees: Vec<u8> = ranges.iter().map(|range| u8::from(range.0 < range.1)).collect();
            all.push(match sees.contains(&0) {
                false => y,
                // Not times 0, which is no number where a value is infinite.
                true => {
                    let sees = Tensor::from_vec(sees, (1, count, 1), y.device())?;
                    sees.broadcast_as((heads, count, m))?.where_cond(&y, &y.zeros_like()?)?
                }
            });
        }
        match &all[..] {
            [] => Tensor::zeros((0, heads, m), q.dtype(), q.device()),
            _ => Tensor::cat(&all, 1)?.transpose(0, 1)?.contiguous(),
        }
    }

    /// The first key that a query sees, and the end.
    fn seen(&self, row: usize, queries: usize, keys: usize) -> (usize, usize) {
        // The place of the query among the keys; the last ones stand side by side.
        let at = (row + keys) as i64 - queries as i64;
        let far = |window: usize| i64::try_from(window).unwrap_or(i64::MAX);
        let first = self.left.map_or(0, |left| at.saturating_sub(far(left)));
        let last = match (self.left, self.right) {
            (_, Some(right)) => at.saturating_add(far(right)),
            (Some(_), None) => at,
            (None, None) => i64::MAX,
        };
        let last = if self.causal { last.min(at) } else { last };
        let end = last.saturating_add(1).clamp(0, keys as i64);
        (first.clamp(0, keys as i64) as usize, end as usize)
    }

    /// What is added to the scores of some rows, for `wide` keys from `first` on: for no head, for all alike, or for
    /// each. Rows that see nothing get what does no harm.
    fn bias(
        &self,
        start: usize,
        queries: usize,
        keys: usize,
        first: usize,
        ranges: &[(usize, usize)],
        wide: usize,
    ) -> (usize, Vec<f32>) {
        let whole = ranges.iter().all(|&(from, end)| (from, end) == (first, first + wide));
        if whole && self.slopes.is_none() {
            return (0, Vec::new());
        }
        let slopes = self.slopes.as_deref().unwrap_or(&[0.0]);
        let of = |slope: f32, row: usize, key: usize| {
            let (from, end) = ranges[row];
            if from < end && !(from..end).contains(&key) {
                return f32::NEG_INFINITY;
            }
            let away = (start + row + keys) as f32 - (queries + key) as f32;
            -slope * if self.causal { away.max(0.0) } else { away.abs() }
        };
        let mut all = Vec::new();
        for &slope in slopes {
            for row in 0..ranges.len() {
                all.extend((first..first + wide).map(|key| of(slope, row, key)));
            }
        }
        (slopes.len(), all)
    }
}
