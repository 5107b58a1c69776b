//! Activations, normalisations, attention, losses, products named by letters, random draws: against loops.

use ndgc::{D, DType, Device, Error, Result, Tensor, TensorExt, nn};

use crate::ops::cases::for_types;
use crate::ops::reference::{Host, Native, indices};
use crate::ops::support::{assert_same, each, error, f64s, forms, put, shapes, values};

type Function = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);

fn sigmoid(x: f64) -> f64 {
    1. / (1. + (-x).exp())
}

fn activations() -> Vec<Function> {
    vec![
        ("silu", |x| nn::ops::silu(x), |x| x * sigmoid(x)),
        ("hard_sigmoid", |x| nn::ops::hard_sigmoid(x), |x| ((x + 3.) / 6.).clamp(0., 1.)),
        ("mish", |x| nn::ops::mish(x), |x| x * (x.max(0.) + (-x.abs()).exp().ln_1p() + x * 0.).tanh()),
        ("elu", |x| x.elu(0.7), |x| if x > 0. { x } else { 0.7 * x.exp_m1() }),
        ("selu", |x| nn::ops::selu(x, 1.5, 2.), |x| 2. * if x > 0. { x } else { 1.5 * x.exp_m1() }),
        ("leaky_relu", |x| nn::ops::leaky_relu(x, 0.25), |x| if x > 0. { x } else { 0.25 * x }),
    ]
}

#[test]
fn activations_match_loops_on_every_form() {
    fn body<T: Native>(device: &Device) {
        for (name, run, reference) in activations() {
            for operand in forms::<T>(device, 1).iter().chain(&shapes(device, 2)) {
                // At infinities the tanh forms are `0 * infinity`, as everywhere.
                let tame = |x: T| if x.to_f64().is_infinite() { T::from_f64(2.) } else { x };
                let host = operand.host.map(tame);
                let want = host.map(|x| T::from_f64(reference(x.to_f64())));
                let x = if host.data.iter().zip(&operand.host.data).any(|(a, b)| a != b && !a.to_f64().is_nan()) {
                    put(&host, device)
                } else {
                    operand.tensor.clone()
                };
                assert_same(&format!("{name} {}", operand.form), &run(&x).unwrap(), &want);
            }
        }
    }
    each(|device| for_types!(device, body, f32, f64));
}

#[test]
fn gated_and_learned_activations() {
    each(|device| {
        let host = Host::<f64>::tame(&[2, 3, 4], 3);
        let x = put(&host, device);
        let want = Host::from_fn(&[2, 3, 2], |i| {
            let a = host.at(&i);
            a * sigmoid(a) * host.at(&[i[0], i[1], i[2] + 2])
        });
        assert_same("swiglu", &nn::ops::swiglu(&x).unwrap(), &want);
        let slopes = [0.1, 0.2, 0.3];
        let by_row =
            Host::from_fn(&host.dims, |i| if host.at(&i) > 0. { host.at(&i) } else { host.at(&i) * slopes[i[1]] });
        assert_same("prelu", &x.prelu(&f64s(device, &slopes, 3)).unwrap(), &by_row);
        let one = host.map(|x| if x > 0. { x } else { x * 0.5 });
        assert_same("prelu", &x.prelu(&f64s(device, &[0.5], 1)).unwrap(), &one);
        assert!(matches!(error(x.prelu(&f64s(device, &[1., 2.], 2))), Error::ShapeMismatch { op: "prelu", .. }));
        let odd = x.narrow(2, 0, 3).unwrap();
        assert!(matches!(error(odd.swiglu()), Error::Shape { op: "swiglu", .. }));
    });
}

#[test]
fn normalisations_match_loops() {
    each(|device| {
        let host = Host::<f64>::tame(&[2, 4, 3], 5);
        let x = put(&host, device);
        let (scale, shift) = (Host::<f64>::tame(&[4], 6), Host::<f64>::tame(&[4], 7));
        let (alpha, beta) = (put(&scale, device), put(&shift, device));
        let even = |group: &[f64], x: f64| {
            let mean = group.iter().sum::<f64>() / group.len() as f64;
            let var = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / group.len() as f64;
            (x - mean) / (var + 1e-3).sqrt()
        };
        let turned = host.permute(&[0, 2, 1]);
        let row = |i: &[usize]| (0..4).map(|c| turned.at(&[i[0], i[1], c])).collect::<Vec<f64>>();
        let want = Host::from_fn(&[2, 3, 4], |i| even(&row(&i), turned.at(&i)) * scale.data[i[2]] + shift.data[i[2]]);
        let t = x.transpose(1, 2).unwrap();
        assert_same("layer_norm", &t.layer_norm(&alpha, &beta, 1e-3).unwrap(), &want);
        let want = Host::from_fn(&[2, 3, 4], |i| {
            let square = row(&i).iter().map(|x| x * x).sum::<f64>() / 4.;
            turned.at(&i) / (square + 1e-3).sqrt() * scale.data[i[2]]
        });
        assert_same("rms_norm", &t.rms_norm(&alpha, 1e-3).unwrap(), &want);
        let want = Host::from_fn(&[2, 4, 3], |i| {
            let first = i[1] / 2 * 2;
            let group: Vec<f64> = (0..6).map(|k| host.at(&[i[0], first + k / 3, k % 3])).collect();
            even(&group, host.at(&i)) * scale.data[i[1]] + shift.data[i[1]]
        });
        assert_same("group_norm", &x.group_norm(2, &alpha, &beta, 1e-3).unwrap(), &want);
        assert!(matches!(error(x.layer_norm(&alpha, &beta, 1e-3)), Error::ShapeMismatch { op: "layer_norm", .. }));
        assert!(matches!(error(x.group_norm(3, &alpha, &beta, 1e-3)), Error::Argument { op: "group_norm", .. }));
        assert!(matches!(error(x.group_norm(0, &alpha, &beta, 1e-3)), Error::Argument { op: "group_norm", .. }));
        let none = Tensor::zeros((0, 4), DType::F64, device).unwrap();
        assert_eq!(none.layer_norm(&alpha, &beta, 1e-3).unwrap().dims(), [0, 4]);
    });
}

#[test]
fn attention_matches_loops_with_shared_keys_masks_and_caps() {
    each(|device| {
        let (b, h, g, s, t, d) = (2, 4, 2, 3, 5, 2);
        let [q, k, v] =
            [(h, s, 1), (g, t, 2), (g, t, 3)].map(|(n, rows, seed)| Host::<f64>::tame(&[b, n, rows, d], seed));
        let mask = Host::<f64>::tame(&[s, t], 4);
        for (causal, masked, cap) in [(false, false, 1.), (true, false, 1.), (true, true, 3.)] {
            let want: Host<f64> = Host::from_fn(&[b, h, s, d], |i| {
                let group = i[1] / (h / g);
                let score = |j: usize| {
                    let dot: f64 = (0..d).map(|c| q.at(&[i[0], i[1], i[2], c]) * k.at(&[i[0], group, j, c])).sum();
                    let capped = if cap == 1. { dot * 0.5 } else { (dot * 0.5 / cap).tanh() * cap };
                    capped + if masked { mask.at(&[i[2], j]) } else { 0. }
                };
                let seen: Vec<usize> = (0..t).filter(|&j| !causal || j <= i[2] + t - s).collect();
                let total: f64 = seen.iter().map(|&j| score(j).exp()).sum();
                seen.iter().map(|&j| score(j).exp() / total * v.at(&[i[0], group, j, i[3]])).sum::<f64>()
            });
            let on = put(&mask, device);
            let [q, k, v] = [&q, &k, &v].map(|host| put(host, device));
            let got = nn::ops::sdpa(&q, &k, &v, masked.then_some(&on), causal, 0.5, cap as f32).unwrap();
            assert_same("sdpa", &got, &want);
        }
        let [q, k] = [put(&q, device), put(&k, device)];
        assert!(matches!(
            error(q.sdpa(&k, &k.narrow(1, 0, 1).unwrap(), None, false, 1., 1.)),
            Error::ShapeMismatch { op: "sdpa", .. }
        ));
        assert!(matches!(error(q.get(0).unwrap().sdpa(&k, &k, None, false, 1., 1.)), Error::Shape { op: "sdpa", .. }));
    });
}

#[test]
fn rotary_positions_match_loops() {
    each(|device| {
        let x = Host::<f64>::tame(&[2, 2, 3, 4], 1);
        for dims in [&[5, 2][..], &[2, 5, 2]] {
            let (cos, sin) = (Host::<f64>::tame(dims, 2), Host::<f64>::tame(dims, 3));
            let of = |table: &Host<f64>, b: usize, p: usize, c: usize| {
                if dims.len() == 2 { table.at(&[p, c]) } else { table.at(&[b, p, c]) }
            };
            let turned = |i: &[usize], position: usize, pair: (usize, usize), first: bool, c: usize| {
                let at = |last: usize| x.at(&[i[0], i[1], i[2], last]);
                let (cos, sin) = (of(&cos, i[0], position, c), of(&sin, i[0], position, c));
                if first { at(pair.0) * cos - at(pair.1) * sin } else { at(pair.0) * sin + at(pair.1) * cos }
            };
            let halves = |thd: bool| {
                Host::from_fn(&x.dims, |i| {
                    let (c, position) = (i[3] % 2, if thd { i[1] } else { i[2] });
                    turned(&i, position, (c, c + 2), i[3] < 2, c)
                })
            };
            let pairs = Host::from_fn(&x.dims, |i| {
                let c = i[3] / 2;
                turned(&i, i[2], (2 * c, 2 * c + 1), i[3] % 2 == 0, c)
            });
            let [x, cos, sin] = [&x, &cos, &sin].map(|host| put(host, device));
            assert_same("rope", &nn::rotary_emb::rope(&x, &cos, &sin).unwrap(), &halves(false));
            assert_same("rope_thd", &nn::rotary_emb::rope_thd(&x, &cos, &sin).unwrap(), &halves(true));
            assert_same("rope_i", &nn::rotary_emb::rope_i(&x, &cos, &sin).unwrap(), &pairs);
        }
        let (x, table) = (put(&x, device), Tensor::zeros((2, 2), DType::F64, device).unwrap());
        assert!(matches!(error(x.rope(&table, &table)), Error::ShapeMismatch { op: "rope", .. }));
        assert!(matches!(error(x.get(0).unwrap().rope_i(&table, &table)), Error::Shape { op: "rope_i", .. }));
    });
}

#[test]
fn losses_are_sound_for_large_logits() {
    each(|device| {
        let x = f64s(device, &[-900., 900., 0., 1.5], 4);
        let t = f64s(device, &[0., 1., 1., 0.25], 4);
        let last = -(0.25 * sigmoid(1.5).ln() + 0.75 * (1. - sigmoid(1.5)).ln());
        let loss = nn::loss::binary_cross_entropy_with_logit(&x, &t).unwrap().to_scalar::<f64>().unwrap();
        assert!((loss - (2f64.ln() + last) / 4.).abs() < 1e-12, "{loss}");
        let huber = nn::loss::huber(&f64s(device, &[0., 3., -0.5], 3), &f64s(device, &[0., 0., 0.], 3), 1.).unwrap();
        assert!((huber.to_scalar::<f64>().unwrap() - (2.5 + 0.125) / 3.).abs() < 1e-12);
    });
}

/// Broken by: steps that are rounded each.
#[test]
fn gates_and_losses_of_halves_are_rounded_once() {
    each(|device| {
        let all: Vec<f64> = (0..80).map(|i| f64::from(i) / 7. - 4.).collect();
        for dtype in [DType::F16, DType::BF16, DType::F8E4M3] {
            let halves = f64s(device, &all, (40, 2)).to_dtype(dtype).unwrap();
            let single = halves.to_dtype(DType::F32).unwrap();
            let both = |f: &dyn Fn(&Tensor) -> Result<Tensor>| {
                let all = [f(&halves).unwrap(), f(&single).unwrap().to_dtype(dtype).unwrap()];
                all.map(|x| {
                    assert_eq!(x.dtype(), dtype);
                    values::<f32>(&x.to_dtype(DType::F32).unwrap())
                })
            };
            let [found, want] = both(&|x| x.swiglu());
            assert_eq!(found, want, "swiglu of {dtype}");
            for row in 0..40 {
                let [found, want] = both(&|x| {
                    let (predictions, targets) = (x.get(row)?, x.get(39 - row)?);
                    nn::loss::huber(&predictions, &targets, 1.5)
                });
                assert_eq!(found, want, "huber of {dtype}, row {row}");
                let [found, want] = both(&|x| nn::loss::mse(&x.get(row)?, &x.get(39 - row)?));
                assert_eq!(found, want, "mse of {dtype}, row {row}");
            }
            let mixed = nn::loss::huber(&halves, &single, 1.);
            assert!(matches!(error(mixed), Error::DTypeMismatch { op: "huber", .. }));
            assert!(matches!(error(nn::loss::mse(&halves, &single)), Error::DTypeMismatch { op: "mse", .. }));
        }
        // The square is no number of f16, the mean is one.
        let far = f64s(device, &[256., 0., 0., 0.], (4, 1)).to_dtype(DType::F16).unwrap();
        let mean = nn::loss::mse(&far, &far.zeros_like().unwrap()).unwrap().to_dtype(DType::F64).unwrap();
        assert_eq!(mean.to_scalar::<f64>().unwrap(), 16384.);
    });
}

#[test]
fn products_match_loops() {
    fn body<T: Native>(device: &Device) {
        let (a, b) = (Host::<T>::tame(&[2, 3], 1), Host::<T>::tame(&[3, 2], 2));
        let (x, y) = (put(&a, device), put(&b, device));
        let kron = Host::from_fn(&[6, 6], |i| a.at(&[i[0] / 3, i[1] / 2]).times(b.at(&[i[0] % 3, i[1] % 2])));
        assert_same("kron", &x.kron(&y).unwrap(), &kron);
        let (u, v) = (x.get(0).unwrap(), y.t().unwrap().get(1).unwrap());
        let (hu, hv) = (a.get(0, 0), b.get(1, 1));
        let outer = Host::from_fn(&[3, 3], |i| hu.data[i[0]].times(hv.data[i[1]]));
        assert_same("outer", &u.outer(&v).unwrap(), &outer);
        let dot = (0..3).fold(T::from_f64(0.), |sum, i| sum.plus(hu.data[i].times(hv.data[i])));
        assert_same("dot", &u.dot(&v).unwrap(), &Host { dims: vec![], data: vec![dot] });
        let turned = b.permute(&[1, 0]);
        let cross = Host::from_fn(&[2, 3], |i| {
            let (j, k) = ((i[1] + 1) % 3, (i[1] + 2) % 3);
            let of = |host: &Host<T>, c| host.at(&[i[0], c]);
            of(&a, j).times(of(&turned, k)).minus(of(&a, k).times(of(&turned, j)))
        });
        assert_same("cross", &x.cross(&y.t().unwrap(), 1).unwrap(), &cross);
    }
    each(|device| {
        for_types!(device, body, u8, u32, i64, f32, f64);
        let (a, b) = (Host::<f64>::tame(&[2, 3], 1), Host::<f64>::tame(&[3, 4], 2));
        let (x, y) = (put(&a, device), put(&b, device));
        let product = a.matmul(&b);
        let bias = f64s(device, &[1., 2., 3., 4.], 4);
        let want = Host::from_fn(&[2, 4], |i| product.at(&i) + 1. + i[1] as f64);
        assert_same("addmm", &x.addmm(&bias, &y).unwrap(), &want);
        let v = y.t().unwrap().get(0).unwrap();
        assert_same("mv", &x.mv(&v).unwrap(), &product.get(1, 0));
        let far = Host::from_fn(&[2, 4], |i| {
            (0..3).map(|c| (a.at(&[i[0], c]) - b.at(&[c, i[1]])).powi(2)).sum::<f64>().sqrt()
        });
        assert_same("cdist", &x.cdist(&y.t().unwrap(), 2.).unwrap(), &far);
        let nowhere = |n: usize| Tensor::zeros((n, 0), DType::F64, device).unwrap();
        for p in [0., 1., 2., f64::INFINITY] {
            assert_eq!(nowhere(2).cdist(&nowhere(3), p).unwrap().to_vec2::<f64>().unwrap(), [[0.; 3]; 2]);
        }
        assert!(matches!(error(x.dot(&y)), Error::ShapeMismatch { op: "dot", .. }));
        assert!(matches!(error(x.mv(&x)), Error::ShapeMismatch { op: "mv", .. }));
        assert!(matches!(
            error(x.addmm(&f64s(device, &[0.; 24], (3, 2, 4)), &y)),
            Error::ShapeMismatch { op: "addmm", .. }
        ));
        assert!(matches!(error(y.cross(&y, 1)), Error::Shape { op: "cross", .. }));
        assert!(matches!(error(x.cdist(&y, 2.)), Error::ShapeMismatch { op: "cdist", .. }));
        let deep = Tensor::zeros((1, 1, 1, 1), DType::F32, device).unwrap();
        assert!(matches!(error(deep.kron(&deep)), Error::RankTooLarge { op: "kron", .. }));
    });
}

/// The sum of products by a loop over every letter.
fn einsum<T: Native>(equation: &str, operands: &[&Host<T>]) -> Host<T> {
    let (left, right) = equation.split_once("->").unwrap();
    let inputs: Vec<Vec<char>> = left.split(',').map(|part| part.chars().collect()).collect();
    let output: Vec<char> = right.chars().collect();
    let mut letters = output.clone();
    inputs.concat().into_iter().for_each(|c| {
        if !letters.contains(&c) {
            letters.push(c)
        }
    });
    let size = |c: &char| {
        inputs.iter().zip(operands).find_map(|(own, host)| Some(host.dims[own.iter().position(|o| o == c)?])).unwrap()
    };
    let sizes: Vec<usize> = letters.iter().map(size).collect();
    let mut out = Host::from_fn(&sizes[..output.len()], |_| T::from_f64(0.));
    for index in indices(&sizes) {
        let value = |c: &char| index[letters.iter().position(|l| l == c).unwrap()];
        let product = inputs.iter().zip(operands).fold(T::from_f64(1.), |product, (own, host)| {
            product.times(host.at(&own.iter().map(value).collect::<Vec<_>>()))
        });
        let flat = index[..output.len()].iter().zip(&sizes).fold(0, |flat, (&i, &dim)| flat * dim + i);
        out.data[flat] = out.data[flat].plus(product);
    }
    out
}

#[test]
fn sums_of_products_named_by_letters_match_loops() {
    fn body<T: Native>(device: &Device) {
        let hosts =
            [&[2, 3][..], &[3, 4], &[2, 3, 4], &[3, 3], &[4], &[]].map(|dims| Host::<T>::tame(dims, dims.len() as u64));
        let [ij, jk, ijk, jj, k, s] = &hosts;
        let cases: [(&str, Vec<&Host<T>>); 14] = [
            ("ij,jk->ik", vec![ij, jk]),
            ("ij->ji", vec![ij]),
            ("ij->", vec![ij]),
            ("jj->j", vec![jj]),
            ("jj->", vec![jj]),
            ("ijk,jk->ikj", vec![ijk, jk]),
            ("ijk,ijk->i", vec![ijk, ijk]),
            ("ij,k->kij", vec![ij, k]),
            ("ij,jk,k->i", vec![ij, jk, k]),
            ("k,k->k", vec![k, k]),
            ("k,k->", vec![k, k]),
            ("ijk,lj->il", vec![ijk, jj]),
            ("jj,jk->k", vec![jj, jk]),
            (",ij->ij", vec![s, ij]),
        ];
        for (equation, operands) in cases {
            let want = einsum(equation, &operands);
            let operands: Vec<Tensor> = operands.into_iter().map(|host| put(host, device)).collect();
            assert_same(equation, &Tensor::einsum(equation, &operands).unwrap(), &want);
        }
        let (x, y) = (put(ij, device), put(jk, device));
        assert_same("implicit", &Tensor::einsum(" ij , jk ", &[&x, &y]).unwrap(), &einsum("ij,jk->ik", &[ij, jk]));
    }
    each(|device| {
        for_types!(device, body, u8, i64, f32, f64);
        let x = Tensor::zeros((2, 3), DType::F32, device).unwrap();
        for bad in ["ij", "ij,ij,ij", "i,ij->j", "ij,jk->ik", "ij,ij->z", "ij,ij->ii", "i?,ij->", "ij,i->"] {
            assert!(matches!(error(Tensor::einsum(bad, &[&x, &x])), Error::Argument { op: "einsum", .. }), "{bad}");
        }
        assert!(matches!(error(Tensor::einsum::<Tensor>("", &[])), Error::Argument { op: "einsum", .. }));
        assert!(matches!(error(Tensor::einsum("ii->i", &[&x])), Error::Shape { op: "einsum", .. }));
        let (a, b) =
            (Tensor::zeros((2, 0), DType::F32, device).unwrap(), Tensor::zeros((0, 3), DType::F32, device).unwrap());
        assert_eq!(values::<f32>(&Tensor::einsum("ij,jk->ik", &[&a, &b]).unwrap()), [0.; 6]);
    });
}

#[test]
fn draws_keep_to_their_laws() {
    each(|device| {
        device.set_seed(5).unwrap();
        let x = Tensor::zeros((50, 40), DType::F64, device).unwrap();
        let uniform = values::<f64>(&x.rand_like(-1., 3.).unwrap());
        assert!(uniform.iter().all(|x| (-1. ..3.).contains(x)));
        let normal = x.randn_like(2., 0.5).unwrap();
        assert!((normal.mean_all().unwrap().to_scalar::<f64>().unwrap() - 2.).abs() < 0.05);
        let dice = values::<i64>(&Tensor::randint(-2i64, 4, 3000, device).unwrap());
        for face in -2..4 {
            let count = dice.iter().filter(|&&x| x == face).count();
            assert!((380..620).contains(&count), "{face}: {count}");
        }
        assert!(dice.iter().all(|x| (-2..4).contains(x)));
        assert_eq!(values::<u8>(&Tensor::randint(7u8, 8, (2, 2), device).unwrap()), [7; 4]);
        assert!(matches!(error(Tensor::randint(3u32, 3, 2, device)), Error::Argument { op: "randint", .. }));
        let mut order = values::<i64>(&Tensor::randperm(100, device).unwrap());
        assert!(order.windows(2).any(|pair| pair[0] > pair[1]));
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<i64>>());
        let p = f64s(device, &[0., 1., 0.25], 3).broadcast_as((2000, 3)).unwrap().contiguous().unwrap();
        let hits = values::<f64>(&p.bernoulli().unwrap().mean(0).unwrap());
        assert!(hits[0] == 0. && hits[1] == 1. && (hits[2] - 0.25).abs() < 0.05, "{hits:?}");
        // As exactly as of singles: draws that are rounded to 4 bits are below a half in 48 of 100 cases.
        for dtype in [DType::F8E4M3, DType::BF16, DType::F16] {
            let halves = Tensor::full(0.5f32, 100_000, device).unwrap().to_dtype(dtype).unwrap().bernoulli().unwrap();
            assert_eq!(halves.dtype(), dtype);
            let share = values::<f32>(&halves.to_dtype(DType::F32).unwrap().mean_all().unwrap())[0];
            assert!((share - 0.5).abs() < 0.008, "{dtype}: {share}");
        }
        let ones = Tensor::ones((40, 50), DType::F32, device).unwrap();
        let dropped = values::<f32>(&nn::ops::dropout(&ones, 0.2).unwrap());
        assert!(dropped.iter().all(|&x| x == 0. || x == 1.25));
        let kept = dropped.iter().filter(|&&x| x != 0.).count();
        assert!((1500..1700).contains(&kept), "{kept}");
        assert!(matches!(error(ones.dropout(1.)), Error::Argument { op: "dropout", .. }));
        let ids = Tensor::zeros(2, DType::U32, device).unwrap();
        assert!(matches!(error(ids.rand_like(0., 1.)), Error::UnsupportedDType { op: "rand_like", .. }));
        assert_eq!(ones.sum(D::Minus1).unwrap().dims(), [40]);
    });
}
