//! What a reader of networks, products and shapes found wrong once: sums that lost their sense, gradients that were not
//! numbers, sizes beyond what can be.

use ndgc::nn::attention::{AttnMask, flash_attn, flash_attn_varlen_cpu};
use ndgc::nn::kv_cache::{Cache, InterleavedKvCache, KvCache, RotatingKvCache};
use ndgc::nn::{self, AdamConfig, Module, ModuleT, StepRule, loss};
use ndgc::quantized::QMatMul;
use ndgc::{DType, Device, Error, NdManager, PadMode, Tensor, TensorExt, TensorIndexer, Var, gc};

use crate::ops::support::{alone, each, error, f64s, values};

fn f32s(device: &Device, data: &[f32]) -> Tensor {
    Tensor::from_slice(data, data.len(), device).unwrap()
}

fn number(x: &Tensor) -> f64 {
    values::<f64>(&x.to_dtype(DType::F64).unwrap())[0]
}

#[test]
fn a_mean_of_a_whole_image_is_no_chain_of_floats() {
    each(|device| {
        let x = Tensor::full(0.1f32, (1, 1, 1024, 1024), device).unwrap();
        let line = x.reshape((1, 1, 1024 * 1024)).unwrap();
        for mean in [x.adaptive_avg_pool2d(1), x.avg_pool2d(1024), line.adaptive_avg_pool1d(1)] {
            let mean = number(&mean.unwrap());
            assert!((mean / 0.1 - 1.).abs() < 1e-5, "{mean}");
        }
    });
}

#[test]
fn a_batch_norm_of_one_value_a_channel_leaves_the_running_variance() {
    each(|device| {
        let (zeros, ones) = (f64s(device, &[0.; 2], 2), f64s(device, &[1.; 2], 2));
        let norm = nn::BatchNorm::new_no_bias(2, zeros, ones, 1e-5).unwrap();
        let nothing = Tensor::ones((0, 2), DType::F64, device).unwrap();
        assert!(matches!(error(norm.forward_train(&nothing)), Error::Shape { op: "batch_norm", .. }));
        assert_eq!(norm.forward_t(&nothing, false).unwrap().dims(), [0, 2]);
        let statistics = || [values::<f64>(norm.running_mean()), values::<f64>(norm.running_var())];
        assert_eq!(statistics(), [[0., 0.], [1., 1.]], "as before");
        // One value has a mean, and no unbiased variance.
        norm.forward_train(&Tensor::ones((1, 2, 1, 1), DType::F64, device).unwrap()).unwrap();
        assert_eq!(statistics(), [[0.1, 0.1], [1., 1.]]);
        norm.forward_train(&f64s(device, &[1., 2., 3., 5.], (1, 2, 2))).unwrap();
        assert!(values::<f64>(norm.running_var()).iter().all(|x| x.is_finite()));
    });
}

/// Of bf16 there is no 1001, which is their mean; of f16 no square of 300.
#[test]
fn norms_of_halves_take_off_the_mean_that_there_is() {
    each(|device| {
        let cases = [
            (DType::BF16, [1000f32, 1000., 1000., 1004.], [-0.577, -0.577, -0.577, 1.732], [100.1, 1.3]),
            (DType::F16, [-300., 300., -300., 300.], [-1., 1., -1., 1.], [0., 12_000.9]),
        ];
        for (dtype, data, want, statistics) in cases {
            let near = |got: &Tensor, want: &[f64], what: &str| {
                assert_eq!(got.dtype(), dtype, "{what}");
                let got = values::<f64>(&got.to_dtype(DType::F64).unwrap());
                let near = got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.01 * (1. + w.abs()));
                assert!(near && got.len() == want.len(), "{what} of {dtype}: {got:?}, not {want:?}");
            };
            let x = f32s(device, &data).to_dtype(dtype).unwrap();
            let layer = nn::LayerNorm::new_no_bias(x.ones_like().unwrap(), 1e-5);
            near(&layer.forward(&x).unwrap(), &want, "layer norm");
            let [zero, one] = [0f32, 1.].map(|start| f32s(device, &[start]).to_dtype(dtype).unwrap());
            let norm = nn::BatchNorm::new_no_bias(1, zero, one, 1e-5).unwrap();
            let rows = x.reshape((4, 1)).unwrap();
            near(&norm.forward_train(&rows).unwrap().reshape(4).unwrap(), &want, "batch norm");
            near(norm.running_mean(), &statistics[..1], "running mean");
            near(norm.running_var(), &statistics[1..], "running variance");
        }
    });
}

/// The products of these queries and keys are 115,200, before they are scaled: f16 ends at 65,504.
#[test]
fn attention_of_halves_has_scores_beyond_their_numbers() {
    each(|device| {
        let of = |data: &[f32]| f32s(device, data).to_dtype(DType::F16).unwrap();
        let keys = of(&[30., -30.]).reshape((1, 1, 2, 1)).unwrap().broadcast_as((1, 1, 2, 128)).unwrap();
        let (queries, numbers) = (keys.copy().unwrap(), of(&[1., 5.]).reshape((1, 1, 2, 1)).unwrap());
        let scale = 1. / 128f64.sqrt();
        for mask in [None, Some(of(&[0., 0.]))] {
            let y = queries.sdpa(&keys, &numbers, mask.as_ref(), false, scale, 1.).unwrap();
            assert_eq!(y.dtype(), DType::F16);
            assert_eq!(values::<f32>(&y.to_dtype(DType::F32).unwrap()), [1., 5.]);
        }
        let singles = numbers.to_dtype(DType::F32).unwrap();
        let found = error(queries.sdpa(&keys, &singles, None, false, scale, 1.));
        assert!(matches!(found, Error::DTypeMismatch { op: "sdpa", .. }), "{found}");
    });
}

#[test]
fn a_step_before_the_first_is_refused() {
    each(|device| {
        let [x, m, v] = [[1., 2.], [0., 0.], [0., 0.]].map(|data| f64s(device, &data, 2));
        let (grad, kept) = (f64s(device, &[1., 1.], 2), [m.clone(), v.clone()]);
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        let nadam = StepRule::Nadam { beta1, beta2, epsilon };
        for t in [0, -1, i32::MIN] {
            let found = error(x.adam_step_(&grad, &m, &v, t, &AdamConfig::default()));
            assert!(matches!(found, Error::Argument { op: "adam_step_", argument: "t", .. }));
            let found = error(x.optimizer_step_(&grad, &kept, nadam, 0.1, t));
            assert!(matches!(found, Error::Argument { op: "optimizer_step_", argument: "t", .. }));
        }
        let all = [values::<f64>(&x), values::<f64>(&m), values::<f64>(&v)];
        assert_eq!(all, [[1., 2.], [0., 0.], [0., 0.]], "as before");
        x.optimizer_step_(&grad, &kept, nadam, 0.1, 1).unwrap();
        assert!(values::<f64>(&x).iter().all(|x| x.is_finite()));
    });
}

#[test]
fn a_dot_product_sums_halves_in_singles() {
    each(|device| {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let of = |data: &[f32]| f32s(device, data).to_dtype(dtype).unwrap();
            let (a, b) = (of(&[300., 300., 2.]), of(&[300., -300., 3.]));
            assert_eq!((number(&a.dot(&b).unwrap()), a.dot(&b).unwrap().dtype()), (6., dtype));
            assert_eq!(a.dot(&b).unwrap().rank(), 0);
            assert!(matches!(error(a.dot(&of(&[1., 2.]))), Error::ShapeMismatch { op: "dot", .. }));
            let none = a.narrow(0, 0, 0).unwrap();
            assert_eq!(number(&none.dot(&none).unwrap()), 0.);
        }
        let bytes = Tensor::from_slice(&[200u8, 200], 2, device).unwrap();
        assert_eq!(values::<u8>(&bytes.dot(&bytes).unwrap()), [128]);
        let truth = Tensor::from_slice(&[true, false], 2, device).unwrap();
        assert!(matches!(error(truth.dot(&truth)), Error::UnsupportedDType { op: "dot", .. }));
        assert!(matches!(error(bytes.dot(&truth)), Error::DTypeMismatch { op: "dot", .. }));
    });
}

#[test]
fn a_dot_product_along_strides_is_no_chain_of_floats() {
    alone(|| {
        let x = Tensor::full(0.1f32, (1usize << 20, 2), &Device::Cpu).unwrap().get_on_dim(1, 0).unwrap();
        let ones = Tensor::ones(1usize << 20, DType::F32, &Device::Cpu).unwrap();
        let sum = number(&x.dot(&ones).unwrap()) / f64::from(1 << 20);
        assert!((sum / 0.1 - 1.).abs() < 1e-4, "{sum}");
    });
}

#[test]
fn losses_of_extremes_have_values_and_gradients() {
    each(|device| {
        let x = Var::from_vec(vec![f64::INFINITY, f64::NEG_INFINITY, 0.5, 0.], 4, device).unwrap();
        let huber = loss::huber(&x, &f64s(device, &[0.; 4], 4), 1.).unwrap();
        assert_eq!(number(&huber), f64::INFINITY);
        assert_eq!(values::<f64>(huber.backward().unwrap().get(&x).unwrap()), [0.25, -0.25, 0.125, 0.]);
        let refused = loss::huber(&x, &f64s(device, &[0.; 4], 4), -1.);
        assert!(matches!(error(refused), Error::Argument { op: "huber", .. }));
        // Without a limit, or with one beyond all numbers of the dtype, the squares alone.
        for (dtype, delta) in [(DType::F64, f64::INFINITY), (DType::F32, f64::INFINITY), (DType::F32, 1e39)] {
            let x = Var::from_tensor(&f64s(device, &[4., -0.5, 0., 0.], 4).to_dtype(dtype).unwrap()).unwrap();
            let huber = loss::huber(&x, &x.zeros_like().unwrap(), delta).unwrap();
            assert_eq!(number(&huber), (8. + 0.125) / 4.);
            let slopes = huber.backward().unwrap().get(&x).unwrap().to_dtype(DType::F64).unwrap();
            assert_eq!(values::<f64>(&slopes), [1., -0.125, 0., 0.]);
        }
        // A slope that there is, times sizes of which there may be no square.
        for (delta, far, want) in [(3e19f32, 1e20, f64::INFINITY), (2e19, 2.2e19, 6e37)] {
            let x = Var::from_tensor(&f32s(device, &[far, 1., 0., 0.])).unwrap();
            let huber = loss::huber(&x, &x.zeros_like().unwrap(), delta.into()).unwrap();
            assert!(number(&huber) == want || (number(&huber) / want - 1.).abs() < 1e-5, "{}", number(&huber));
            assert_eq!(values::<f32>(huber.backward().unwrap().get(&x).unwrap()), [delta / 4., 0.25, 0., 0.]);
        }

        // log(1 + e^-15), whichever side is the right one.
        let want = (-15f64).exp().ln_1p();
        for (logit, target) in [(15f32, 1f32), (-15., 0.)] {
            let x = Var::from_vec(vec![logit], 1, device).unwrap();
            let cross = loss::binary_cross_entropy_with_logit(&x, &f32s(device, &[target])).unwrap();
            assert!((number(&cross) / want - 1.).abs() < 1e-5, "{}", number(&cross));
            let grad = number(cross.backward().unwrap().get(&x).unwrap());
            let slope = -f64::from(logit).signum() / (1. + 15f64.exp());
            assert!((grad / slope - 1.).abs() < 1e-5, "{grad}");
        }
    });
}

#[test]
fn a_scale_that_gives_no_size_is_refused() {
    each(|device| {
        let x = Tensor::ones((1, 1, 5, 5), DType::F32, device).unwrap();
        for [h, w] in [[0.1, 1.], [1., 0.19], [f64::MIN_POSITIVE, 1.]] {
            let found = error(x.upsample_bilinear2d_with_scale(h, w, false));
            assert!(matches!(found, Error::Argument { op: "upsample_bilinear2d_with_scale", .. }));
        }
        assert_eq!(x.upsample_bilinear2d_with_scale(0.2, 1.5, false).unwrap().dims(), [1, 1, 1, 7]);
        let empty = x.narrow(2, 0, 0).unwrap();
        assert_eq!(empty.upsample_bilinear2d_with_scale(0.1, 1., false).unwrap().dims(), [1, 1, 0, 5]);
    });
}

#[test]
fn lists_that_no_machine_has_room_for_are_refused() {
    each(|device| {
        let far = 1usize << 45;
        let numbers = Tensor::arange_step(i64::MIN, 0, 1 << 10, device);
        assert!(matches!(error(numbers), Error::OutOfMemory(_)));
        let padded = f32s(device, &[1., 2.]).pad(&[(far, 0)], PadMode::Replicate);
        assert!(matches!(error(padded), Error::OutOfMemory(_)));
    });
}

#[test]
fn sizes_that_no_number_counts_are_refused() {
    each(|device| {
        let far = 1usize << 40;
        let none = Tensor::zeros((far, 0), DType::F32, device).unwrap();
        assert!(matches!(error(none.repeat((far, 1))), Error::SizeOverflow { op: "repeat", .. }));
        assert_eq!(none.repeat((2, 3)).unwrap().dims(), [2 * far, 0]);
        let weights = nn::init::DEFAULT_KAIMING_NORMAL.var((1, far, far), DType::F32, device);
        assert!(matches!(error(weights), Error::SizeOverflow { .. }));
        let connections = nn::init::FanInOut::FanOut.for_shape(&(far, 1, far).into());
        assert_eq!(connections, usize::MAX);
    });
}

#[test]
fn attention_from_any_position_on_sees_all_keys() {
    each(|device| {
        let of = |count: usize, step: f64| {
            let numbers: Vec<f32> = (0..4 * count).map(|i| (i as f64 * step).sin() as f32).collect();
            Tensor::from_vec(numbers, (1, count, 1, 4), device).unwrap()
        };
        let (q, k, v) = (of(2, 0.7), of(3, 0.3), of(3, 1.1));
        let with = |mask: AttnMask, bias: Option<f32>| flash_attn::<f32>(&q, &k, &v, 0.5, mask, bias, None);
        let all = values::<f32>(&with(AttnMask::None, None).unwrap());
        for offset in [2, usize::MAX - 1, usize::MAX] {
            let causal = || AttnMask::causal_with_offset(offset);
            assert_eq!(values::<f32>(&with(causal(), None).unwrap()), all);
            assert!(values::<f32>(&with(causal(), Some(8.)).unwrap()).iter().all(|x| x.is_finite()));
        }
        // A mask of one axis is one of keys, and none may have more queries than there are.
        let mask = f32s(device, &[0., f32::NEG_INFINITY, 1.]);
        let row = mask.unsqueeze(0).unwrap();
        let q = q.narrow(1, 0, 1).unwrap();
        let of_one = |mask: &Tensor| flash_attn::<f32>(&q, &k, &v, 0.5, AttnMask::Mask(mask.clone()), None, None);
        assert_eq!(values::<f32>(&of_one(&mask).unwrap()), values::<f32>(&of_one(&row).unwrap()));
        let more = row.repeat((2, 1)).unwrap();
        assert!(matches!(error(of_one(&more)), Error::ShapeMismatch { op: "flash_attn", .. }));
    });
}

#[test]
fn sums_of_letters_of_integers_make_no_array_of_all_products() {
    if crate::common::ran_apart() {
        return;
    }
    alone(|| {
        let device = Device::Cpu;
        let x = Tensor::arange(-2048i64, 2048, &device).unwrap().reshape((64, 64)).unwrap();
        let before = device.memory().active;
        device.reset_peak();
        let y = Tensor::einsum("ij,jk->ik", &[&x, &x]).unwrap();
        let peak = device.memory().peak - before;
        assert!(peak <= 2 * 64 * 64 * 8, "{peak} bytes");
        let at = |i: i64, j: i64| 64 * i + j - 2048;
        let want = (0..64).map(|j| at(3, j) * at(j, 5)).sum::<i64>();
        assert_eq!(values::<i64>(&y)[3 * 64 + 5], want);
        let truth = x.gt(0.).unwrap().to_dtype(DType::Bool).unwrap();
        let refused = Tensor::einsum("ij,jk->ik", &[&truth, &truth]);
        assert!(matches!(error(refused), Error::UnsupportedDType { op: "einsum", .. }));
    });
}

#[test]
fn bytes_that_lie_anywhere_are_elements() {
    each(|device| {
        let bytes: Vec<u8> = [0u8].into_iter().chain([1.5f32, -2.].into_iter().flat_map(f32::to_ne_bytes)).collect();
        let x = Tensor::from_raw_buffer(&bytes[1..], DType::F32, 2, device).unwrap();
        assert_eq!(values::<f32>(&x), [1.5, -2.]);
        let refused = Tensor::from_raw_buffer(&[1, 2], DType::Bool, 2, device);
        assert!(matches!(error(refused), Error::Argument { op: "from_raw_buffer", .. }));
        let refused = Tensor::from_raw_buffer(&bytes, DType::F32, 2, device);
        assert!(matches!(error(refused), Error::Argument { op: "from_raw_buffer", .. }));
    });
}

#[test]
fn a_window_whose_next_place_lies_beyond_all_numbers_takes_one() {
    each(|device| {
        // Elements of a line are 8 apart.
        let all = Tensor::arange(0f32, 144., device).unwrap().reshape((1, 2, 9, 8)).unwrap();
        let x = all.get_on_dim(3, 0).unwrap();
        for (channels, kernel) in [(1, [1usize, 1, 2]), (2, [2, 2, 2])] {
            let x = x.narrow(1, 0, channels).unwrap();
            let w = Tensor::ones(kernel, DType::F32, device).unwrap();
            let far = |stride: usize| values::<f32>(&x.conv1d(&w, 1, stride, 1, 1).unwrap());
            for stride in [1 << 60, isize::MAX as usize, usize::MAX] {
                assert_eq!(far(stride), far(100));
            }
        }
    });
}

#[test]
fn an_infinite_gradient_of_a_resized_image_reaches_no_neighbour_of_no_weight() {
    each(|device| {
        // Each place lies on an element, so that the others count for nothing.
        let x = Var::new([[[[1f32, 2., 3.]]]], device).unwrap();
        let by = Tensor::new([[[[f32::INFINITY, 0., 1.]]]], device).unwrap();
        let y = x.upsample_bilinear2d(1, 3, false).unwrap();
        let grads = y.mul(&by).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(values::<f32>(grads.get(&x).unwrap()), [f32::INFINITY, 0., 1.]);
    });
}

/// With the switch off a manager keeps every array that was made for it: what is made on the way must not be.
#[test]
fn what_is_made_on_the_way_stays_with_no_manager() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let ones = |dims: &[usize], dtype| manager.ones(dims, dtype).unwrap();
        let adds_none = |what: &str, f: &dyn Fn()| {
            gc::collect();
            let before = manager.array_count();
            f();
            gc::collect();
            assert_eq!(manager.array_count(), before, "{what}");
        };
        let (x, row, ids) = (ones(&[2, 3], DType::F32), ones(&[3], DType::F32), ones(&[1, 1], DType::U32));
        adds_none("index_put_", &|| x.index_put_(&ids, &row, false).unwrap());
        let (mask, one, list) = (ones(&[2, 3], DType::U8), row.get(0).unwrap(), ones(&[1], DType::U32));
        adds_none("a mask", &|| x.slice_assign_([TensorIndexer::mask(&mask)], &one).unwrap());
        adds_none("a list", &|| x.slice_assign_([(&list).into()], &row).unwrap());

        let keys = ones(&[1, 2, 4, 3], DType::F32).transpose(2, 3).unwrap();
        adds_none("KvCache", &|| drop(KvCache::new(2, 8).append(&keys, &keys).unwrap()));
        adds_none("RotatingKvCache", &|| drop(RotatingKvCache::new(2, 8).append(&keys, &keys).unwrap()));
        adds_none("InterleavedKvCache", &|| drop(InterleavedKvCache::new(4).append(&keys, &keys).unwrap()));

        let (q, length, slopes) =
            (Tensor::ones((2, 1, 4), DType::F32, device).unwrap(), ones(&[1], DType::U32), ones(&[1], DType::F16));
        let two = length.affine(2., 0.).unwrap();
        let attend = || flash_attn_varlen_cpu(&q, &q, &q, Some(&slopes), &two, &two, 2, 2, 0.5, false, None, None);
        adds_none("slopes", &|| drop(attend().unwrap()));

        let (weights, xs) = (ones(&[3, 4], DType::F32), Tensor::ones((2, 4), DType::F32, device).unwrap());
        let floats = QMatMul::Tensor(weights.clone());
        let halves = QMatMul::TensorF16(weights.to_dtype(DType::F16).unwrap());
        adds_none("weights of floats", &|| drop(floats.forward(&xs).unwrap()));
        adds_none("weights of floats, by way of halves", &|| drop(floats.forward_via_f16(&xs).unwrap()));
        let xs = ones(&[2, 4], DType::F32);
        adds_none("an input made halves", &|| halves.forward(&xs).unwrap().close());
        manager.close().unwrap();
    });
}

#[test]
fn a_cache_takes_views_of_its_own_block_in() {
    each(|device| {
        let start = Tensor::arange(0f32, 8., device).unwrap().reshape((1, 2, 2, 2)).unwrap();
        let mut cache = Cache::new(2, 4);
        cache.append(&start).unwrap();
        let own = cache.current_data().unwrap().unwrap();
        cache.append(&own).unwrap();
        let all = cache.current_data().unwrap().unwrap();
        assert_eq!(values::<f32>(&all), [0., 1., 2., 3., 0., 1., 2., 3., 4., 5., 6., 7., 4., 5., 6., 7.]);
    });
}
