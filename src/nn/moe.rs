//! Products of tokens with the weights of the experts that a router chose for them.
//!
//! A token is given to `topk` experts; choice `s` of token `t` is pair `t * topk + s`. The functions take the pairs in
//! the order of their experts: which pair comes at each place, and its expert. On every device, with gradients of
//! input, weights and `topk_weights`; the two lists are read on the host, which waits for them.

use crate::base::{call::Call, order::value_of};
use crate::quantized::QTensor;
use crate::{DType, Error, Result, Tensor};

/// The pairs of each expert that has some, and where each pair's row comes then.
struct Pairs {
    by_expert: Vec<(usize, Vec<u32>)>,
    places: Vec<u32>,
}

impl Pairs {
    fn new(op: &'static str, ids: &Tensor, experts: &Tensor, [pairs, count]: [usize; 2]) -> Result<Self> {
        let read = |list: &Tensor| {
            if !list.dtype().is_int() {
                return Err(Error::unsupported_dtype(op, list.dtype(), "integers"));
            }
            list.to_dtype(DType::I64)?.to_vec::<i64>()
        };
        let (ids, chosen) = (read(ids)?, read(experts)?);
        for list in [&ids, &chosen] {
            if list.len() != pairs {
                return Err(Error::element_count(op, list.len(), &[pairs]));
            }
        }
        let inside = |index: i64, dim: usize| {
            usize::try_from(index).ok().filter(|&i| i < dim).ok_or_else(|| Error::index_out_of_range(op, index, dim))
        };
        // Those that have pairs: there may be any number of others.
        let mut by_expert: Vec<(usize, Vec<u32>)> = Vec::new();
        for (&id, &expert) in ids.iter().zip(&chosen) {
            value_of(&mut by_expert, inside(expert, count)?).push(inside(id, pairs)? as u32);
        }
        let mut places = vec![u32::MAX; pairs];
        let mut place = 0;
        for (_, own) in &by_expert {
            for &pair in own {
                places[pair as usize] = place;
                place += 1;
            }
        }
        if let Some(pair) = places.iter().position(|&place| place == u32::MAX) {
            return Err(Error::argument(op, "sorted_token_ids", format!("no pair {pair}"), "every pair once"));
        }
        Ok(Pairs { by_expert, places })
    }
}

/// Who goes where, as the functions below are told.
struct Routes<'a> {
    topk_weights: Option<&'a Tensor>,
    ids: &'a Tensor,
    experts: &'a Tensor,
    topk: usize,
}

/// Each pair's row of `input`, by what `product` does with the rows of an expert.
#[track_caller]
fn routed(
    op: &'static str,
    input: &Tensor,
    routes: &Routes<'_>,
    weights: &[usize],
    product: &dyn Fn(usize, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let call = Call::here(op);
    let (&[rows, k], &[count, n, of]) = (input.dims(), weights) else {
        return Err(Error::shape_mismatch(
            call,
            input.dims(),
            weights,
            "an input [rows, k] and weights [experts, n, k]",
        ));
    };
    if k != of {
        return Err(Error::shape_mismatch(call, input.dims(), weights, format!("the last axes differ ({k} != {of})")));
    }
    let Some(topk) = u32::try_from(routes.topk).ok().filter(|topk| *topk > 0) else {
        return Err(Error::argument(call, "topk", routes.topk, "at least 1"));
    };
    // With weights of the pairs, the input has a row for each of them.
    let each = if routes.topk_weights.is_some() { 1 } else { topk };
    let Some(pairs) = rows.checked_mul(each as usize) else {
        return Err(Error::size_overflow(call, &[rows, each as usize], size_of::<u32>()));
    };
    input.compose(op, || {
        let Pairs { by_expert, places } = Pairs::new(op, routes.ids, routes.experts, [pairs, count])?;
        let list = |all: Vec<u32>| Tensor::new(&all[..], input.device());
        let mut parts = Vec::with_capacity(by_expert.len());
        for (expert, own) in by_expert {
            let rows = list(own.iter().map(|pair| pair / each).collect())?;
            parts.push(product(expert, &input.index_select(&rows, 0)?)?);
        }
        if parts.is_empty() {
            return Tensor::zeros((0, n), input.dtype(), input.device());
        }
        let all = Tensor::cat(&parts, 0)?.index_select(&list(places)?, 0)?;
        match routes.topk_weights {
            Some(weights) => all.broadcast_mul(&weights.reshape((pairs, 1))?.to_dtype(all.dtype())?),
            None => Ok(all),
        }
    })
}

/// Rows of `input` times the transposed weights `[n, k]` of their experts, of `weights [experts, n, k]`: `[pairs, n]`,
/// in the order of the pairs, with the dtype and the owner of `input`.
///
/// `input` is `[tokens, k]`; or, with `topk_weights`, of which there is one for each pair, `[pairs, k]`, and each
/// result is multiplied with its weight. `sorted_token_ids` and `experts_ids` have the pairs and their experts, of any
/// dtype of integers. `is_prefill` is candle's choice between two kernels, which are one here.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::ElementCount`] for lists of another length; [`Error::IndexOutOfRange`] for a pair
/// or an expert that there is not; [`Error::UnsupportedDType`] for lists of other than integers; [`Error::Argument`] if
/// a pair is missing, or `topk` is 0; [`Error::SizeOverflow`] for more pairs than can be; as [`Tensor::matmul`].
///
/// ```
/// # use ndgc::{nn::moe::moe_gemm, Device, Tensor};
/// let weights = Tensor::new(&[[[1f32, 0.]], [[0., 10.]]], &Device::Cpu)?; // two experts, n = 1
/// let tokens = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// // Token 0 goes to expert 1, token 1 to expert 0.
/// let (pairs, experts) = (Tensor::new(&[1u32, 0], &Device::Cpu)?, Tensor::new(&[0u32, 1], &Device::Cpu)?);
/// let y = moe_gemm(&tokens, &weights, &None, &pairs, &experts, 1, false)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[20.], [3.]]);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn moe_gemm(
    input: &Tensor,
    weights: &Tensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    is_prefill: bool,
) -> Result<Tensor> {
    let _ = is_prefill;
    let routes = Routes { topk_weights: topk_weights.as_ref(), ids: sorted_token_ids, experts: experts_ids, topk };
    routed("moe_gemm", input, &routes, weights.dims(), &|expert, rows| rows.matmul(&weights.get(expert)?.t()?))
}

/// As [`moe_gemm`], of weights in blocks, which have no gradient. `dtype` is what candle computes in for `is_prefill`;
/// here sums are f32.
///
/// # Errors
/// As [`moe_gemm`] and [`QTensor::matmul`].
#[allow(clippy::too_many_arguments)] // as many as candle's has
#[track_caller]
pub fn moe_gemm_gguf(
    input: &Tensor,
    weights: &QTensor,
    topk_weights: &Option<Tensor>,
    sorted_token_ids: &Tensor,
    experts_ids: &Tensor,
    topk: usize,
    is_prefill: bool,
    dtype: DType,
) -> Result<Tensor> {
    let _ = (is_prefill, dtype);
    let routes = Routes { topk_weights: topk_weights.as_ref(), ids: sorted_token_ids, experts: experts_ids, topk };
    routed("moe_gemm_gguf", input, &routes, weights.shape().dims(), &|expert, rows| {
        let &[count, n, k] = weights.shape().dims() else { return Err(Error::msg("looked at by the caller")) };
        let bytes = weights.storage_size_in_bytes() / count;
        let own = weights.blocks().flatten_all()?.narrow(0, expert * bytes, bytes)?;
        QTensor::from_blocks(own, weights.dtype(), (n, k))?.matmul(rows)
    })
}
