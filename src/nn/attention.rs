//! Attention over whole sequences without the matrix of all scores: some rows of queries at a time.

use crate::base::call::Call;
use crate::{DType, Device, Error, Result, Tensor, WithDType};

pub use crate::nn::varlen_attention::{flash_attn_varlen_cpu, flash_attn_varlen_unfused};

/// Rows of queries whose scores are in memory at a time.
const ROWS: usize = 128;

/// Which positions a query sees.
#[derive(Clone, Debug, Default)]
pub enum AttnMask {
    /// All.
    #[default]
    None,
    /// Those up to its own.
    Causal {
        /// Position of the first query among the keys.
        kv_offset: usize,
    },
    /// What is added to the scores: `[queries, keys]`, or what repeats to `[batch, heads, queries, keys]`.
    Mask(Tensor),
}

impl AttnMask {
    /// Causal, from the first position on.
    pub fn causal() -> Self {
        AttnMask::Causal { kv_offset: 0 }
    }

    /// Causal, of queries that begin at a later position.
    pub fn causal_with_offset(kv_offset: usize) -> Self {
        AttnMask::Causal { kv_offset }
    }

    /// Whether it is causal.
    pub fn is_causal(&self) -> bool {
        matches!(self, AttnMask::Causal { .. })
    }

    /// Position of the first query; 0 if it is not causal.
    pub fn kv_offset(&self) -> usize {
        match self {
            AttnMask::Causal { kv_offset } => *kv_offset,
            _ => 0,
        }
    }
}

/// Attention of queries `[batch, queries, heads, n]` to keys `[batch, keys, kv_heads, n]` and values `[batch, keys,
/// kv_heads, m]`: `[batch, heads, queries, m]`, in their dtype `T` and with the owner of `q`. Several heads may share
/// one of the keys.
///
/// Scores are `softmax_scale * q k^T`; with `softcap`, `softcap * tanh(score / softcap)`. With `max_bias` (ALiBi) head
/// `h` has a slope, `2 ^ (-max_bias * (h + 1) / heads)` with the next power of two for `heads`, that a mask is
/// multiplied with, or a key's distance before the query if it is causal. Scores of 128 rows of queries are in memory
/// at a time, as f32 for halves. On every device, with gradients.
///
/// # Errors
/// [`Error::Shape`] and [`Error::ShapeMismatch`] if the sizes do not fit; [`Error::DTypeMismatch`] if one of the three
/// is not of `T`; as [`Tensor::matmul`].
#[track_caller]
pub fn flash_attn<T: WithDType>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    attn_mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let call = Call::here("flash_attn");
    let four = |x: &Tensor| {
        if x.dtype() != T::DTYPE {
            return Err(Error::dtype_mismatch(call, T::DTYPE, x.dtype()));
        }
        <[usize; 4]>::try_from(x.dims()).map_err(|_| Error::shape(call, x.dims(), "[batch, positions, heads, n]"))
    };
    let ([b, _, heads, n], [kb, keys, kv_heads, kn], [vb, vs, vh, _]) = (four(q)?, four(k)?, four(v)?);
    let misfit = |lhs: &Tensor, rhs: &Tensor| {
        let why = "batches, heads and sizes of queries, keys and values have to fit each other";
        Error::shape_mismatch(call, lhs.dims(), rhs.dims(), why)
    };
    if (kb, kn) != (b, n) || kv_heads == 0 || heads % kv_heads != 0 {
        return Err(misfit(q, k));
    }
    if (vb, vs, vh) != (b, keys, kv_heads) {
        return Err(misfit(k, v));
    }
    let scores = ScoreOptions { scale: softmax_scale, mask: &attn_mask, max_bias, softcap };
    q.compose(call.op, || scores.attend(q, k, v)?.to_dtype(T::DTYPE))
}

/// How scores are made.
struct ScoreOptions<'a> {
    scale: f32,
    mask: &'a AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
}

impl ScoreOptions<'_> {
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let single = |x: &Tensor| match x.dtype() {
            DType::F8E4M3 | DType::F16 | DType::BF16 => x.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous(),
            _ => x.transpose(1, 2)?.contiguous(),
        };
        let (&[b, queries, heads, n], &[_, keys, kv_heads, _]) = (q.dims(), k.dims()) else {
            return Err(Error::msg("looked at by the caller"));
        };
        let m = v.dims()[3];
        if let AttnMask::Mask(mask) = self.mask {
            mask.broadcast_as((b, heads, queries, keys))?;
        }
        // Heads that share keys are rows of one product.
        let q = single(q)?.reshape((b, kv_heads, heads / kv_heads, queries, n))?;
        let (k, v) = (single(k)?.transpose(2, 3)?.unsqueeze(2)?, single(v)?.unsqueeze(2)?);
        // Queries without elements take no memory: there may be any number of them.
        let together = if q.elem_count() == 0 { queries.max(1) } else { ROWS };
        let mut all = Vec::new();
        for start in (0..queries).step_by(together) {
            let count = together.min(queries - start);
            // Of later keys nothing is seen.
            let end = (start + count).saturating_add(self.mask.kv_offset());
            let seen = if self.mask.is_causal() { keys.min(end) } else { keys };
            let rows = q.narrow(3, start, count)?;
            let mut scores = rows.broadcast_matmul(&k.narrow(4, 0, seen)?)?.affine(self.scale.into(), 0.0)?;
            if let Some(cap) = self.softcap.filter(|cap| *cap != 0.0) {
                scores = scores.affine(1.0 / f64::from(cap), 0.0)?.tanh()?.affine(cap.into(), 0.0)?;
            }
            let scores = scores.reshape((b, heads, count, seen))?;
            let scores = match self.bias(start, [heads, count, seen], &scores)? {
                Some(bias) => scores.broadcast_add(&bias)?,
                None => scores,
            };
            let parts = scores.softmax(3)?.reshape((b, kv_heads, heads / kv_heads, count, seen))?;
            all.push(parts.broadcast_matmul(&v.narrow(3, 0, seen)?)?.reshape((b, heads, count, m))?);
        }
        match &all[..] {
            [] => Tensor::zeros((b, heads, 0, m), q.dtype(), q.device()),
            _ => Tensor::cat(&all, 2),
        }
    }

    /// What is added to the scores of some rows, on their device.
    fn bias(&self, start: usize, [heads, count, seen]: [usize; 3], scores: &Tensor) -> Result<Option<Tensor>> {
        if scores.elem_count() == 0 {
            return Ok(None);
        }
        let power = heads.next_power_of_two() as f32;
        let bias = self.max_bias.filter(|bias| *bias > 0.0);
        let slope = |bias: f32| (0..heads).map(|h| 2f32.powf(-bias * (h + 1) as f32 / power)).collect::<Vec<_>>();
        let slopes = match bias {
            Some(bias) => Some(Tensor::from_vec(slope(bias), (heads, 1, 1), &Device::Cpu)?),
            None => None,
        };
        let like = |x: Tensor| x.to_dtype(scores.dtype())?.to_device(scores.device());
        let bias = match (self.mask, slopes) {
            (AttnMask::None, _) => return Ok(None),
            (AttnMask::Mask(mask), slopes) => {
                let rows = match mask.dims() {
                    [] | [_] | [.., 1, _] => mask.clone(),
                    dims => mask.narrow(dims.len() - 2, start, count)?,
                };
                match slopes {
                    Some(slopes) => like(rows)?.broadcast_mul(&like(slopes)?)?,
                    None => like(rows)?,
                }
            }
            (AttnMask::Causal { kv_offset }, slopes) => {
                // A key's place, and its query's.
                let places = |i: usize| (i % seen, (start + i / seen).saturating_add(*kv_offset));
                let hidden = |(key, query): (usize, usize)| if key > query { f32::NEG_INFINITY } else { 0.0 };
                let behind = |(key, query): (usize, usize)| (key as f64 - query as f64) as f32;
                let hidden: Vec<f32> = (0..count * seen).map(places).map(hidden).collect();
                let hidden = like(Tensor::from_vec(hidden, (count, seen), &Device::Cpu)?)?;
                match slopes {
                    None => hidden,
                    Some(slopes) => {
                        let behind: Vec<f32> = (0..count * seen).map(places).map(behind).collect();
                        let behind = Tensor::from_vec(behind, (count, seen), &Device::Cpu)?;
                        like(slopes.broadcast_mul(&behind)?)?.broadcast_add(&hidden)?
                    }
                }
            }
        };
        Ok(Some(bias))
    }
}

/// Sequences of different lengths.
pub mod varlen {
    pub use crate::nn::varlen_attention::{flash_attn_varlen_cpu, flash_attn_varlen_unfused};
}

/// candle's names of parts of its kernels for the host: here they are [`flash_attn`], on every device.
pub mod cpu_flash {
    pub use crate::nn::attention::{flash_attn, varlen};

    /// What a query sees up to its own position.
    pub mod causal {
        use crate::base::call::Call;
        use crate::nn::attention::{AttnMask, flash_attn};
        use crate::{Device, Error, Result, Tensor, WithDType};

        /// [`flash_attn`] with [`AttnMask::causal_with_offset`], of any number of sequences.
        ///
        /// # Errors
        /// As [`flash_attn`].
        #[track_caller]
        pub fn run_causal_attn_cpu<T: WithDType>(
            q: &Tensor,
            k: &Tensor,
            v: &Tensor,
            softmax_scale: f32,
            kv_offset: usize,
            max_bias: Option<f32>,
            softcap: Option<f32>,
        ) -> Result<Tensor> {
            flash_attn::<T>(q, k, v, softmax_scale, AttnMask::causal_with_offset(kv_offset), max_bias, softcap)
        }

        /// One query, `[h_q, d]`, and keys and values side by side, `[kv_len, h_kv, 2 d]`: `[h_q, 1, d]` on the host.
        /// Of `kv_data` the first `kv_len` positions are looked at.
        ///
        /// # Errors
        /// [`Error::ElementCount`] if there are fewer numbers; as [`flash_attn`].
        #[track_caller]
        pub fn causal_decode_f32_interleaved(
            q_data: &[f32],
            kv_data: &[f32],
            h_q: usize,
            h_kv: usize,
            d: usize,
            kv_len: usize,
            scale: f32,
        ) -> Result<Tensor> {
            let call = Call::here("causal_decode_f32_interleaved");
            let part = |data: &[f32], shape: [usize; 4]| {
                let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
                let found = count.and_then(|count| data.get(..count));
                let found = found.ok_or_else(|| Error::element_count(call, data.len(), &shape));
                Tensor::from_slice(found?, &shape[..], &Device::Cpu)
            };
            let wide = d.saturating_mul(2);
            let (q, kv) = (part(q_data, [1, 1, h_q, d])?, part(kv_data, [1, kv_len, h_kv, wide])?);
            let (k, v) = (kv.narrow(3, 0, d)?, kv.narrow(3, d, d)?);
            flash_attn::<f32>(&q, &k, &v, scale, AttnMask::None, None, None)?.reshape((h_q, 1, d))
        }
    }

    /// With a mask, or without.
    pub mod standard {
        use crate::nn::attention::{AttnMask, flash_attn};
        use crate::{Result, Tensor, WithDType};

        /// [`flash_attn`] with [`AttnMask::Mask`], or none.
        ///
        /// # Errors
        /// As [`flash_attn`].
        #[track_caller]
        pub fn run_flash_attn_cpu<T: WithDType>(
            q: &Tensor,
            k: &Tensor,
            v: &Tensor,
            mask: Option<&Tensor>,
            softmax_scale: f32,
            max_bias: Option<f32>,
            softcap: Option<f32>,
        ) -> Result<Tensor> {
            let mask = mask.map_or(AttnMask::None, |mask| AttnMask::Mask(mask.clone()));
            flash_attn::<T>(q, k, v, softmax_scale, mask, max_bias, softcap)
        }
    }
}
