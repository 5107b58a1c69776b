//! Products with chosen experts against a loop over pairs.

use ndgc::nn::moe::{moe_gemm, moe_gemm_gguf};
use ndgc::quantized::{GgmlDType, QTensor};
use ndgc::{DType, Device, Error, Result, Tensor, Var};

use crate::common::each_case;

const TOKENS: usize = 5;
const TOPK: usize = 2;
const EXPERTS: usize = 4;
const N: usize = 3;
const K: usize = 32;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 1.0).collect()
}

/// The expert of a pair: one has none, one most.
fn expert(pair: usize) -> usize {
    [3, 0, 0, 3, 0, 0, 1, 0, 0, 3][pair]
}

/// The pairs in the order of their experts, and those.
fn routes(device: &Device) -> [Tensor; 2] {
    let mut pairs: Vec<u32> = (0..(TOKENS * TOPK) as u32).collect();
    pairs.sort_by_key(|&pair| expert(pair as usize));
    let experts: Vec<u32> = pairs.iter().map(|&pair| expert(pair as usize) as u32).collect();
    [pairs, experts].map(|list| Tensor::new(&list[..], device).unwrap())
}

/// Each pair's row: of the input, by the weights of its expert, times its own weight.
fn reference(input: &[f32], weights: &[f32], of_pairs: Option<&[f32]>) -> Vec<f32> {
    let row = |pair: usize| if of_pairs.is_some() { pair } else { pair / TOPK };
    let one = |pair: usize, n: usize| -> f32 {
        let (x, w) = (&input[row(pair) * K..][..K], &weights[(expert(pair) * N + n) * K..][..K]);
        x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>() * of_pairs.map_or(1.0, |all| all[pair])
    };
    (0..TOKENS * TOPK).flat_map(|pair| (0..N).map(move |n| one(pair, n))).collect()
}

#[track_caller]
fn assert_close(found: &Tensor, want: &[f32], tolerance: f32) {
    assert_eq!(found.dims(), [TOKENS * TOPK, N]);
    let found = found.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    assert!(found.iter().zip(want).all(|(a, b)| (a - b).abs() < tolerance), "{found:?}, not {want:?}");
}

#[test]
fn each_pair_is_multiplied_with_the_weights_of_its_expert() {
    each_case(&[false, true], |device| {
        let (w, few, many) = (numbers(EXPERTS * N * K, 1), numbers(TOKENS * K, 2), numbers(TOKENS * TOPK * K, 3));
        let of_pairs = numbers(TOKENS * TOPK, 4);
        let put = |all: &[f32], dims: &[usize]| Tensor::from_slice(all, dims, device).unwrap();
        let (weights, [ids, experts]) = (put(&w, &[EXPERTS, N, K]), routes(device));
        let (tokens, pairs) = (put(&few, &[TOKENS, K]), put(&many, &[TOKENS * TOPK, K]));
        let scales = Some(put(&of_pairs, &[TOKENS, TOPK]));
        for prefill in [false, true] {
            let found = moe_gemm(&tokens, &weights, &None, &ids, &experts, TOPK, prefill).unwrap();
            assert_close(&found, &reference(&few, &w, None), 1e-4);
            let found = moe_gemm(&pairs, &weights, &scales, &ids, &experts, TOPK, prefill).unwrap();
            assert_close(&found, &reference(&many, &w, Some(&of_pairs)), 1e-4);
        }
        let [short, narrow] = [&tokens, &weights].map(|x| x.to_dtype(DType::F16).unwrap());
        let found = moe_gemm(&short, &narrow, &None, &ids, &experts, TOPK, false).unwrap();
        assert_eq!(found.dtype(), DType::F16);
        assert_close(&found, &reference(&few, &w, None), 0.02);
        let blocks = QTensor::quantize(&weights, GgmlDType::Q8_0).unwrap();
        let found = moe_gemm_gguf(&tokens, &blocks, &None, &ids, &experts, TOPK, true, DType::F16).unwrap();
        assert_close(&found, &reference(&few, &w, None), 0.2);
        let found = moe_gemm_gguf(&pairs, &blocks, &scales, &ids, &experts, TOPK, false, DType::F16).unwrap();
        assert_close(&found, &reference(&many, &w, Some(&of_pairs)), 0.2);
    });
}

#[test]
fn the_gradient_is_that_of_a_product_for_each_pair() {
    each_case(&[false, true], |device| {
        let var = |count: usize, seed: usize, dims: &[usize]| {
            Var::from_tensor(&Tensor::from_slice(&numbers(count, seed), dims, device).unwrap()).unwrap()
        };
        let (weights, tokens) = (var(EXPERTS * N * K, 1, &[EXPERTS, N, K]), var(TOKENS * K, 2, &[TOKENS, K]));
        let [ids, experts] = routes(device);
        let y = moe_gemm(&tokens, &weights, &None, &ids, &experts, TOPK, false).unwrap();
        let own = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let rows: Vec<Tensor> = (0..TOKENS * TOPK)
            .map(|pair| {
                let x = tokens.narrow(0, pair / TOPK, 1).unwrap();
                x.matmul(&weights.get(expert(pair)).unwrap().t().unwrap()).unwrap()
            })
            .collect();
        let by_hand = Tensor::cat(&rows, 0).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for x in [&weights, &tokens] {
            let [a, b] = [&own, &by_hand].map(|grads| grads.get(x).unwrap().flatten_all().unwrap());
            let [a, b] = [a, b].map(|grad| grad.to_vec1::<f32>().unwrap());
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3), "{a:?}, not {b:?}");
        }
    });
}

#[test]
fn routes_that_do_not_fit_are_refused_by_name() {
    each_case(&[false], |device| {
        let put = |count: usize, dims: &[usize]| Tensor::from_slice(&numbers(count, 1), dims, device).unwrap();
        let (weights, tokens) = (put(EXPERTS * N * K, &[EXPERTS, N, K]), put(TOKENS * K, &[TOKENS, K]));
        let [ids, experts] = routes(device);
        let with = |ids: &Tensor, experts: &Tensor, topk: usize| -> Result<Tensor> {
            moe_gemm(&tokens, &weights, &None, ids, experts, topk, false)
        };
        let few = with(&ids.narrow(0, 0, 3).unwrap(), &experts, TOPK);
        assert!(matches!(few, Err(Error::ElementCount { given: 3, .. })), "{few:?}");
        let far = with(&ids, &experts.affine(2.0, 0.0).unwrap(), TOPK);
        assert!(matches!(far, Err(Error::IndexOutOfRange { index: 6, dim: EXPERTS, .. })), "{far:?}");
        let twice = with(&ids.zeros_like().unwrap(), &experts, TOPK);
        assert!(matches!(twice, Err(Error::Argument { argument: "sorted_token_ids", .. })), "{twice:?}");
        let none = with(&ids, &experts, 0);
        assert!(matches!(none, Err(Error::Argument { argument: "topk", .. })), "{none:?}");
        let flat = moe_gemm(&tokens, &tokens, &None, &ids, &experts, TOPK, false);
        assert!(matches!(flat, Err(Error::ShapeMismatch { .. })), "{flat:?}");
        let nobody = put(0, &[0, K]);
        let empty = Tensor::zeros(0, DType::U32, device).unwrap();
        let none = moe_gemm(&nobody, &weights, &None, &empty, &empty, TOPK, false).unwrap();
        assert_eq!(none.dims(), [0, N]);
    });
}
