//! Attention in blocks of rows against loops over queries, keys and heads in f64.

use ndgc::nn::attention::cpu_flash::causal::{causal_decode_f32_interleaved, run_causal_attn_cpu};
use ndgc::nn::attention::{AttnMask, flash_attn, flash_attn_varlen_cpu};
use ndgc::nn::{cpu_flash_attention::run_flash_attn_cpu, varlen_attention::flash_attn_varlen_unfused};
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

/// Which keys of packed sequences a query sees, and what a head takes off for the distance.
struct Packed<'a> {
    causal: bool,
    windows: [Option<usize>; 2],
    slopes: Option<&'a [f32]>,
}

impl Packed<'_> {
    /// The formula, sequence by sequence, as `[all queries, heads, m]`.
    fn reference(&self, lengths: &[[usize; 2]], [h, g, n, m]: [usize; 4], [q, k, v]: [&[f32]; 3]) -> Vec<f64> {
        let (mut out, mut row, mut key) = (Vec::new(), 0, 0);
        for &[s, t] in lengths {
            let parts =
                [&q[row * h * n..][..s * h * n], &k[key * g * n..][..t * g * n], &v[key * g * m..][..t * g * m]];
            let bias = |hi: usize, si: usize, ti: usize| {
                let at = (si + t) as i64 - s as i64 - ti as i64; // how far the key is before the query
                let [left, right] =
                    self.windows.map(|window| window.map(|window| i64::try_from(window).unwrap_or(i64::MAX)));
                let is_late = at < 0 && (self.causal || (left.is_some() && right.is_none()));
                let is_far = left.is_some_and(|left| at > left) || right.is_some_and(|right| -at > right);
                let slope = self.slopes.map_or(0., |slopes| f64::from(slopes[hi]));
                let away = if self.causal { at.max(0) } else { at.abs() };
                (!is_late && !is_far).then_some(-slope * away as f64)
            };
            let found = reference([1, s, t, h, g, n, m], parts, 0.5, None, &bias);
            // Rows that see nothing are 0 / 0 in the formula.
            let at = |si: usize, hi: usize, mi: usize| Some(found[(hi * s + si) * m + mi]).filter(|x| !x.is_nan());
            for (si, hi) in (0..s).flat_map(|si| (0..h).map(move |hi| (si, hi))) {
                out.extend((0..m).map(|mi| at(si, hi, mi).unwrap_or(0.)));
            }
            (row, key) = (row + s, key + t);
        }
        out
    }
}

#[test]
fn packed_sequences_are_attended_one_by_one() {
    each_case(&[false], |device| {
        let (h, g, n, m) = (4, 2, 8, 6);
        let growing: &[[usize; 2]] = &[[3, 5], [0, 4], [150, 200], [2, 2], [1, 9]];
        let shrinking: &[[usize; 2]] = &[[6, 3], [2, 0], [140, 20], [3, 3]];
        let slopes = [0.5f32, 0.25, 0., 1.];
        let all = |causal, windows, slopes| Packed { causal, windows, slopes };
        for (lengths, rule) in [
            (growing, all(false, [None, None], None)),
            (growing, all(true, [None, None], None)),
            (growing, all(true, [None, None], Some(&slopes[..]))),
            (growing, all(true, [Some(2), None], None)),
            (growing, all(false, [Some(2), Some(1)], Some(&slopes[..]))),
            (growing, all(false, [Some(usize::MAX), Some(usize::MAX)], None)),
            (shrinking, all(false, [None, None], Some(&slopes[..]))),
            (shrinking, all(false, [Some(0), Some(0)], None)),
            (shrinking, all(false, [Some(1), None], None)),
            (&[], all(false, [None, None], None)),
        ] {
            let [s, t] = [0, 1].map(|part| lengths.iter().map(|pair| pair[part]).sum::<usize>());
            let (q, k, v) = (numbers(s * h * n, 1), numbers(t * g * n, 2), numbers(t * g * m, 3));
            let of = |x: &[f32], dims: (usize, usize, usize)| Tensor::from_slice(x, dims, device).unwrap();
            let (tq, tk, tv) = (of(&q, (s, h, n)), of(&k, (t, g, n)), of(&v, (t, g, m)));
            let of_lengths = |part: usize| {
                let all: Vec<u32> = lengths.iter().map(|pair| pair[part] as u32).collect();
                Tensor::from_slice(&all, all.len(), device).unwrap()
            };
            let (lq, lk) = (of_lengths(0), of_lengths(1));
            let ts = rule.slopes.map(|slopes| Tensor::from_slice(slopes, slopes.len(), device).unwrap());
            let [left, right] = rule.windows;
            let want = rule.reference(lengths, [h, g, n, m], [&q, &k, &v]);
            for call in [flash_attn_varlen_cpu, flash_attn_varlen_unfused] {
                let y = call(&tq, &tk, &tv, ts.as_ref(), &lq, &lk, 200, 200, 0.5, rule.causal, left, right).unwrap();
                assert_eq!((y.dims(), y.device()), (&[s, h, m][..], device));
                near(&y, &want, 1e-5);
            }
            let [hq, hk, hv] = [&tq, &tk, &tv].map(|x| x.to_dtype(DType::F16).unwrap());
            let y = flash_attn_varlen_cpu(&hq, &hk, &hv, ts.as_ref(), &lq, &lk, 0, 0, 0.5, rule.causal, left, right);
            let y = y.unwrap();
            assert_eq!(y.dtype(), DType::F16);
            near(&y, &want, 5e-3);
        }
    });
}

#[test]
fn gradients_flow_through_packed_sequences() {
    each_case(&[false, true], |device| {
        let x = Var::from_tensor(&Tensor::from_vec(numbers(5 * 2 * 4, 6), (5, 2, 4), device).unwrap()).unwrap();
        let lengths = Tensor::new([2u32, 3], device).unwrap();
        let y = flash_attn_varlen_cpu(&x, &x, &x, None, &lengths, &lengths, 3, 3, 0.5, true, None, None).unwrap();
        // A sequence alone, by the batched form.
        let one = x.narrow(0, 2, 3).unwrap().unsqueeze(0).unwrap();
        let alone = flash_attn::<f32>(&one, &one, &one, 0.5, AttnMask::causal(), None, None).unwrap();
        let alone = alone.squeeze(0).unwrap().transpose(0, 1).unwrap();
        let part = y.narrow(0, 2, 3).unwrap();
        let grads = [part, alone].map(|y| {
            let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            grads.get(&x).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
        });
        assert!(grads[0][16..].iter().any(|grad| grad.abs() > 1e-3));
        assert!(grads[0].iter().zip(&grads[1]).all(|(a, b)| (a - b).abs() < 1e-5), "{grads:?}");
    });
}

#[test]
fn packed_sequences_that_do_not_fit_are_errors() {
    each_case(&[false], |_| {
        let of = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        let lengths = |all: &[u32]| Tensor::from_slice(all, all.len(), &Device::Cpu).unwrap();
        let q = of(&[4, 4, 8]);
        let call = |k: &Tensor, v: &Tensor, [a, b]: [&[u32]; 2], causal: bool, right: Option<usize>| {
            flash_attn_varlen_cpu(&q, k, v, None, &lengths(a), &lengths(b), 4, 4, 1., causal, None, right)
        };
        let fit: [&[u32]; 2] = [&[1, 3], &[2, 2]];
        assert!(call(&q, &q, fit, false, None).is_ok());
        assert!(matches!(call(&of(&[1, 4, 4, 8]), &q, fit, false, None), Err(Error::Shape { .. })));
        for (k, v) in [([4, 3, 8], [4, 3, 8]), ([4, 4, 6], [4, 4, 8]), ([4, 0, 8], [4, 4, 8]), ([4, 4, 8], [3, 4, 8])] {
            assert!(matches!(call(&of(&k), &of(&v), fit, false, None), Err(Error::ShapeMismatch { .. })), "{k:?}");
        }
        for lengths in [[&[1u32, 2][..], &[2, 2]], [&[1, 3], &[4]], [&[1, 3], &[2, 3]], [&[u32::MAX, 5], &[2, 2]]] {
            assert!(matches!(call(&q, &q, lengths, false, None), Err(Error::ShapeMismatch { .. })), "{lengths:?}");
        }
        let half = q.to_dtype(DType::F16).unwrap();
        assert!(matches!(call(&half, &q, fit, false, None), Err(Error::DTypeMismatch { .. })));
        assert!(matches!(call(&q, &q, fit, true, None), Err(Error::Argument { argument: "keys", .. })));
        assert!(matches!(call(&q, &q, fit, false, Some(1)), Err(Error::Argument { argument: "window_right", .. })));
        let slopes = of(&[3]);
        let (a, b) = (lengths(fit[0]), lengths(fit[1]));
        let wrong = flash_attn_varlen_cpu(&q, &q, &q, Some(&slopes), &a, &b, 4, 4, 1., false, None, None);
        assert!(matches!(wrong, Err(Error::ShapeMismatch { .. })));
    });
}

#[test]
fn the_parts_have_candles_names() {
    each_case(&[false], |_| {
        let x = Tensor::from_vec(numbers(3 * 2 * 4, 8), (1, 3, 2, 4), &Device::Cpu).unwrap();
        let values = |y: ndgc::Result<Tensor>| y.unwrap().to_vec::<f32>().unwrap();
        let with = |mask: AttnMask| values(flash_attn::<f32>(&x, &x, &x, 0.5, mask, None, None));
        assert_eq!(values(run_causal_attn_cpu::<f32>(&x, &x, &x, 0.5, 0, None, None)), with(AttnMask::causal()));
        let mask = Tensor::from_vec(numbers(9, 9), (3, 3), &Device::Cpu).unwrap();
        let masked = run_flash_attn_cpu::<f32>(&x, &x, &x, Some(&mask), 0.5, None, None);
        assert_eq!(values(masked), with(AttnMask::Mask(mask)));
        assert_eq!(values(run_flash_attn_cpu::<f32>(&x, &x, &x, None, 0.5, None, None)), with(AttnMask::None));
        // Four heads on two, with keys and values side by side.
        let (q, kv) = (numbers(4 * 3, 10), numbers(5 * 2 * 6, 11));
        let y = causal_decode_f32_interleaved(&q, &kv, 4, 2, 3, 5, 0.7).unwrap();
        assert_eq!(y.dims(), [4, 1, 3]);
        let half = |from: usize| -> Vec<f32> { kv.chunks(6).flat_map(|pair| pair[from..][..3].to_vec()).collect() };
        near(&y, &reference([1, 1, 5, 4, 2, 3, 3], [&q, &half(0), &half(3)], 0.7, None, &|_, _, _| Some(0.)), 1e-5);
        for (d, positions) in [(3, 6), (usize::MAX, 1), (4, 5)] {
            let short = causal_decode_f32_interleaved(&q, &kv, 4, 2, d, positions, 0.7);
            assert!(matches!(short, Err(Error::ElementCount { .. })), "{d}, {positions}");
        }
    });
}
