//! Attention in blocks of rows against loops over queries, keys and heads in f64.

use ndgc::nn::attention::{AttnMask, flash_attn};
use ndgc::{DType, Device, Error, Tensor, Var, f16};

use crate::common::each_case;

/// Batch, queries, keys, heads, heads of keys, sizes of keys and of values.
type Sizes = [usize; 7];

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1000.0 - 1.0).collect()
}

/// What is added to a score, by head, query and key; none if the key is not seen.
type Bias<'a> = &'a dyn Fn(usize, usize, usize) -> Option<f64>;

fn reference(
    [b, s, t, h, g, n, m]: Sizes,
    [q, k, v]: [&[f32]; 3],
    scale: f64,
    cap: Option<f64>,
    bias: Bias<'_>,
) -> Vec<f64> {
    let mut out = Vec::new();
    for (bi, hi, si) in (0..b).flat_map(|b| (0..h).flat_map(move |h| (0..s).map(move |s| (b, h, s)))) {
        let key_head = hi / (h / g);
        let score = |ti: usize| {
            let (q, k) = (&q[((bi * s + si) * h + hi) * n..][..n], &k[((bi * t + ti) * g + key_head) * n..][..n]);
            let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(a * b)).sum();
            let score = cap.map_or(dot * scale, |cap| cap * (dot * scale / cap).tanh());
            bias(hi, si, ti).map(|bias| score + bias)
        };
        let parts: Vec<f64> = (0..t).map(|ti| score(ti).map_or(0.0, f64::exp)).collect();
        let sum: f64 = parts.iter().sum();
        out.extend((0..m).map(|mi| {
            let of = |ti: usize| f64::from(v[((bi * t + ti) * g + key_head) * m + mi]);
            parts.iter().enumerate().map(|(ti, part)| part / sum * of(ti)).sum::<f64>()
        }));
    }
    out
}

#[track_caller]
fn near(got: &Tensor, want: &[f64], most: f64) {
    let got = got.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(got.len(), want.len());
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off <= most, "{off} off");
}

#[test]
fn blocks_of_rows_give_the_attention_of_loops() {
    each_case(&[false], |device| {
        // The second has several blocks of rows, the last one not full.
        for sizes in [[2, 3, 5, 4, 2, 8, 6], [1, 150, 150, 2, 1, 4, 4]] {
            let [b, s, t, h, g, n, m] = sizes;
            let (q, k, v) = (numbers(b * s * h * n, 1), numbers(b * t * g * n, 2), numbers(b * t * g * m, 3));
            let of = |x: &[f32], dims: (usize, usize, usize, usize)| Tensor::from_slice(x, dims, device).unwrap();
            let (tq, tk, tv) = (of(&q, (b, s, h, n)), of(&k, (b, t, g, n)), of(&v, (b, t, g, m)));
            let check = |mask: AttnMask, max_bias: Option<f32>, cap: Option<f32>, bias: Bias<'_>| {
                let got = flash_attn::<f32>(&tq, &tk, &tv, 0.5, mask, max_bias, cap).unwrap();
                assert_eq!((got.device(), got.dims()), (device, &[b, h, s, m][..]));
                near(&got, &reference(sizes, [&q, &k, &v], 0.5, cap.map(f64::from), bias), 1e-5);
            };
            let offset = t - s;
            let seen = |si: usize, ti: usize| ti <= si + offset;
            let slope = |hi: usize| 2f64.powf(-8.0 * (hi + 1) as f64 / h.next_power_of_two() as f64);
            check(AttnMask::None, None, None, &|_, _, _| Some(0.0));
            check(AttnMask::None, Some(8.0), Some(2.0), &|_, _, _| Some(0.0));
            let causal = AttnMask::causal_with_offset(offset);
            check(causal.clone(), None, Some(1.5), &|_, si, ti| seen(si, ti).then_some(0.0));
            let behind = |si: usize, ti: usize| ti as f64 - (si + offset) as f64;
            check(causal, Some(8.0), None, &|hi, si, ti| seen(si, ti).then(|| slope(hi) * behind(si, ti)));
            let mask = numbers(s * t, 4);
            let given = || AttnMask::Mask(Tensor::from_slice(&mask, (s, t), device).unwrap());
            let added = |si: usize, ti: usize| f64::from(mask[si * t + ti]);
            check(given(), None, None, &|_, si, ti| Some(added(si, ti)));
            check(given(), Some(8.0), None, &|hi, si, ti| Some(slope(hi) * added(si, ti)));
        }
    });
}

#[test]
fn halves_are_scored_as_singles_and_gradients_flow() {
    each_case(&[false, true], |device| {
        let x = Tensor::from_vec(numbers(2 * 3 * 2 * 4, 5), (2, 3, 2, 4), device).unwrap();
        let want = flash_attn::<f32>(&x, &x, &x, 0.5, AttnMask::causal(), None, None).unwrap();
        let half = x.to_dtype(DType::F16).unwrap();
        let got = flash_attn::<f16>(&half, &half, &half, 0.5, AttnMask::causal(), None, None).unwrap();
        assert_eq!(got.dtype(), DType::F16);
        near(&got, &want.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), 2e-3);
        let q = Var::from_tensor(&x).unwrap();
        let y = flash_attn::<f32>(&q, &x, &x, 0.5, AttnMask::causal(), None, None).unwrap();
        let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let grad = grads.get(&q).unwrap().to_vec::<f32>().unwrap();
        // The first query sees one key alone, whatever its score.
        assert!(grad[..8].iter().all(|g| g.abs() < 1e-6) && grad[8..24].iter().any(|g| g.abs() > 1e-3), "{grad:?}");
    });
}

#[test]
fn sizes_that_do_not_fit_are_errors() {
    each_case(&[false], |_| {
        let of = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        let call = |q: &Tensor, k: &Tensor, v: &Tensor| flash_attn::<f32>(q, k, v, 1.0, AttnMask::None, None, None);
        let q = of(&[1, 2, 4, 8]);
        assert!(matches!(call(&of(&[2, 4, 8]), &q, &q), Err(Error::Shape { .. })));
        for k in [of(&[2, 2, 4, 8]), of(&[1, 2, 4, 6]), of(&[1, 2, 3, 8]), of(&[1, 2, 0, 8])] {
            assert!(matches!(call(&q, &k, &k), Err(Error::ShapeMismatch { .. })), "{:?}", k.dims());
        }
        assert!(matches!(call(&q, &q, &of(&[1, 3, 4, 8])), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(call(&q, &q, &of(&[1, 2, 2, 8])), Err(Error::ShapeMismatch { .. })));
        let wide = q.to_dtype(DType::F64).unwrap();
        assert!(matches!(call(&q, &wide, &q), Err(Error::DTypeMismatch { .. })));
        assert_eq!(call(&of(&[1, 0, 4, 8]), &q, &q).unwrap().dims(), [1, 4, 0, 8]);
    });
}
