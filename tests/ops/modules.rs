//! What candle's programs use beside operations: custom operations, layers, errors, checkpoints.

use ndgc::nn::{self, Module, ModuleT, Optimizer, VarBuilder, VarMap};
use ndgc::{
    Context, CpuStorage, CustomOp1, CustomOp2, DType, Device, Error, InplaceOp1, Layout, NdManager, Result, Shape,
    Tensor, Var, checkpoint, gc, graph_report, node_count,
};
use serde_core::de::value::EnumAccessDeserializer;
use serde_core::de::{Deserialize, DeserializeSeed, EnumAccess, Error as _, IntoDeserializer, VariantAccess, Visitor};

use crate::ops::support::{alone, each, error, f64s, values};

/// `x^3`, on vectors.
struct Cube;

impl CustomOp1 for Cube {
    fn name(&self) -> &'static str {
        "cube"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end) = layout.contiguous_offsets().context("contiguous elements")?;
        let all = storage.as_slice::<f64>()?[start..end].iter().map(|x| x * x * x).collect();
        Ok((CpuStorage::F64(all), *layout.shape()))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(arg.sqr()?.affine(3., 0.)?.mul(grad_res)?))
    }
}

impl InplaceOp1 for Cube {
    fn name(&self) -> &'static str {
        "cube_"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _layout: &Layout) -> Result<()> {
        storage.as_mut_slice::<f64>()?.iter_mut().for_each(|x| *x = *x * *x * *x);
        Ok(())
    }
}

/// `a - b`, without a gradient.
struct Minus;

impl CustomOp2 for Minus {
    fn name(&self) -> &'static str {
        "minus"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let pairs = s1.as_slice::<f64>()?.iter().zip(s2.as_slice::<f64>()?);
        Ok((CpuStorage::F64(pairs.map(|(a, b)| a - b).collect()), *l1.shape()))
    }
}

#[test]
fn a_custom_operation_has_its_own_gradient_and_leaves_nothing_else() {
    each(|device| {
        let manager = NdManager::new_base_manager(device).unwrap();
        let x = manager.from_slice(&[1f64, 2., 3., 4.], (2, 2)).unwrap();
        let turned = x.t().unwrap();
        if !device.is_cpu() {
            assert!(matches!(error(x.apply_op1(Cube)), Error::DeviceMismatch { op: "cube", .. }));
            return;
        }
        let y = turned.apply_op1(Cube).unwrap();
        assert_eq!(y.to_vec2::<f64>().unwrap(), [[1., 27.], [8., 64.]]);
        assert_eq!(manager.array_count(), 3, "x, its transpose and the result");
        let w = Var::from_tensor(&turned).unwrap();
        let grads = w.apply_op1(Cube).unwrap().sum_all().unwrap().backward().unwrap();
        assert_eq!(values::<f64>(grads.get(&w).unwrap()), [3., 27., 12., 48.]);
        assert!(w.apply_op1_no_bwd(&Cube).unwrap().sum_all().unwrap().backward().is_err());
        let minus = w.apply_op2(&turned, Minus).unwrap().sum_all().unwrap();
        assert!(matches!(error(minus.backward()), Error::BackwardNotSupported { op: "minus", .. }));
        turned.inplace_op1(&Cube).unwrap();
        assert_eq!(values::<f64>(&x), [1., 8., 27., 64.], "through the view");
        let wrong = x.to_dtype(DType::F32).unwrap();
        assert!(matches!(error(wrong.apply_op1(Cube)), Error::DTypeMismatch { .. }));
    });
}

#[test]
fn errors_take_contexts_and_come_from_those_of_others() {
    fn parsed(text: &str) -> Result<usize> {
        Ok(text.parse::<usize>()?)
    }
    fn refused(n: usize) -> Result<()> {
        if n > 1 {
            ndgc::bail!("{n} is more than {}", 1);
        }
        ndgc::bail!("at most one")
    }
    fn others_can_take<E: std::error::Error + Send + Sync + 'static>() {}
    alone(|| {
        others_can_take::<Error>();
        assert!(matches!(bare(error(parsed("x"))), Error::Wrapped(_)));
        assert_eq!(bare(error(refused(2))).to_string(), "2 is more than 1");
        assert_eq!(bare(error(refused(1))).to_string(), "at most one");
        let of_file = error(std::fs::read("/nowhere/at/all").context("the weights")).with_path("here");
        let text = of_file.to_string();
        assert!(text.starts_with("here: the weights\n"), "{text}");
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&of_file);
        while let Some(inner) = source.and_then(std::error::Error::source) {
            source = Some(inner);
        }
        assert!(source.is_some_and(|last| last.is::<std::io::Error>()), "the system's error is at the bottom");
        let own: Result<()> = Err(Error::no_tensor("a.b", None, ["a.c"].iter()));
        let Error::Context { inner, context } = bare(error(own.context("c"))) else { panic!("a context") };
        assert!(matches!(*inner, Error::CannotFindTensor { .. }) && context == "c");
        assert_eq!(bare(None::<u8>.with_context(|| "nothing").unwrap_err()).to_string(), "nothing");
        let boxed: Box<dyn std::error::Error + Send + Sync> = bare(error(refused(1))).into();
        assert_eq!(bare(Error::from(boxed)).to_string(), "at most one");
    });
}

/// The error without the calls that `RUST_BACKTRACE` adds.
fn bare(error: Error) -> Error {
    match error {
        Error::WithBacktrace { inner, .. } => *inner,
        other => other,
    }
}

fn network(vb: VarBuilder) -> Result<Vec<nn::Linear>> {
    (0..4).map(|i| nn::linear(3, 3, vb.pp(i))).collect()
}

fn run(layers: &[nn::Linear], x: &Tensor, p: f32) -> Result<Tensor> {
    layers.iter().try_fold(x.clone(), |x, layer| nn::ops::dropout(&layer.forward(&x)?.tanh()?, p))
}

#[test]
fn a_checkpoint_gives_the_same_gradients_with_less_kept() {
    each(|device| {
        let variables = VarMap::new();
        device.set_seed(11).unwrap();
        let layers = network(VarBuilder::from_varmap(&variables, DType::F32, device)).unwrap();
        let x = Var::rand(-1f32, 1f32, (5, 3), device).unwrap();
        let all = [variables.all_vars(), vec![x.clone()]].concat();
        let gradients = |loss: Tensor| {
            let loss = loss.sqr().unwrap().sum_all().unwrap();
            let kept = graph_report().saved_bytes;
            let grads = loss.backward().unwrap();
            let grads: Vec<Vec<f32>> = all.iter().map(|var| values::<f32>(grads.get(var).unwrap())).collect();
            (kept, grads, loss.to_scalar::<f32>().unwrap())
        };
        let before = graph_report().saved_bytes;
        device.set_seed(5).unwrap();
        let (kept, want, value) = gradients(run(&layers, &x, 0.4).unwrap());
        device.set_seed(5).unwrap();
        let inner = layers.clone();
        let (less, got, same) = gradients(checkpoint(move |x| run(&inner, &x[0], 0.4), &[&x]).unwrap());
        assert_eq!((got, same), (want, value));
        assert!((less - before) * 3 < kept - before, "{less} of {kept} bytes, {before} before");
        // Twice the same, and after the stream went on as without a checkpoint.
        let inner = layers.clone();
        let y = checkpoint(move |x| run(&inner, &x[0], 0.4), &[&x]).unwrap().sum_all().unwrap();
        let grads = [y.backward().unwrap(), y.backward().unwrap()];
        assert_eq!(values::<f32>(grads[0].get(&x).unwrap()), values::<f32>(grads[1].get(&x).unwrap()));
        assert!(matches!(error(checkpoint(|_| Err(Error::msg("no")), &[])), Error::Argument { op: "checkpoint", .. }));
        assert!(error(checkpoint(|_| Err(Error::msg("no")), &[&x])).to_string().contains("no"));
        ndgc::no_grad(|| x.zero_()).unwrap();
        assert!(matches!(error(y.backward()), Error::ChangedSinceSaved { .. }));
    });
}

#[test]
fn a_checkpoint_inside_another_and_between_other_steps_is_right_too() {
    each(|device| {
        let x = Var::from_tensor(&f64s(device, &[0.3, -0.7], 2)).unwrap();
        let w = Var::from_tensor(&f64s(device, &[1.5, 0.5], 2)).unwrap();
        let outside = x.exp().unwrap().mul(&w).unwrap();
        let plain = outside.sin().unwrap().mul(&w).unwrap().tanh().unwrap().sum_all().unwrap().backward().unwrap();
        let inner = w.clone();
        let y = checkpoint(
            move |x| {
                let inner = inner.clone();
                checkpoint(move |x| x[0].sin()?.mul(&inner), &[&x[0]])?.tanh()
            },
            &[&outside],
        );
        let grads = y.unwrap().sum_all().unwrap().backward().unwrap();
        for var in [&x, &w] {
            assert_eq!(values::<f64>(grads.get(var).unwrap()), values::<f64>(plain.get(var).unwrap()));
        }
        assert_eq!(grads.len(), 2);
    });
}

#[test]
fn nothing_of_the_graph_is_left_after_a_step_also_of_values_that_never_meet_backward() {
    each(|device| {
        let (nodes, kept) = (node_count(), graph_report().saved_bytes);
        let variables = VarMap::new();
        let layers = network(VarBuilder::from_varmap(&variables, DType::F32, device)).unwrap();
        let mut adam = nn::AdamW::new_lr(variables.all_vars(), 0.01).unwrap();
        let x = Tensor::ones((2, 3), DType::F32, device).unwrap();
        let own = node_count();
        for _ in 0..3 {
            let y = run(&layers, &x, 0.).unwrap();
            let stray = y.exp().unwrap().sqr().unwrap();
            let partial = layers[0].forward(&x).unwrap().relu().unwrap();
            adam.backward_step(&y.sqr().unwrap().mean_all().unwrap()).unwrap();
            drop((y, stray, partial));
            gc::collect();
            assert_eq!((node_count(), graph_report().saved_bytes), (own, kept), "the variables alone");
        }
        drop((variables, layers, adam));
        gc::collect();
        assert_eq!(node_count(), nodes);
    });
}

#[test]
fn the_backward_pass_of_100_layers_needs_its_activations_and_its_gradients() {
    const LAYERS: usize = 100;
    const WIDTH: usize = 32;
    const BATCH: usize = 128;
    if crate::common::ran_apart() {
        return;
    }
    alone(|| {
        let device = Device::Cpu;
        let variables = VarMap::new();
        let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
        let layers: Vec<_> = (0..LAYERS).map(|i| nn::linear(WIDTH, WIDTH, vb.pp(i)).unwrap()).collect();
        let x = Tensor::ones((BATCH, WIDTH), DType::F32, &device).unwrap();
        gc::collect();
        let before = device.memory().active;
        device.reset_peak();
        let y = layers.iter().try_fold(x, |x, layer| layer.forward(&x)?.relu()).unwrap();
        let grads = y.sqr().unwrap().mean_all().unwrap().backward().unwrap();
        let peak = device.memory().peak - before;
        let (activation, gradient) = (BATCH * WIDTH * 4, (WIDTH * WIDTH + WIDTH) * 4);
        // One activation a layer, one gradient a weight, and a few activations in the middle of a step.
        let bound = (LAYERS * (activation + gradient) + 6 * activation) as u64;
        assert!(peak <= bound, "{peak} bytes, and {bound} are needed");
        drop(grads);
    });
}

#[test]
fn layers_have_the_values_of_their_formulas() {
    each(|device| {
        let x = f64s(device, &[1., 2., 3., 6., -1., 0., 1., 4.], (2, 4));
        let (one, two) = (Tensor::ones(4, DType::F64, device).unwrap(), f64s(device, &[2.; 4], 4));
        let normed = nn::LayerNorm::new(two.clone(), one.clone(), 0.).forward(&x).unwrap();
        let want = |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / 4.;
            let root = (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4.).sqrt();
            row.iter().map(|x| (x - mean) / root * 2. + 1.).collect::<Vec<_>>()
        };
        let close = |got: &[f64], want: &[f64]| got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-9);
        let all = values::<f64>(&x);
        assert!(close(&values::<f64>(&normed), &[want(&all[..4]), want(&all[4..])].concat()));
        let bare = nn::LayerNorm::new_no_bias(two.clone(), 0.).forward(&x).unwrap().affine(1., 1.).unwrap();
        assert!(close(&values::<f64>(&bare), &values::<f64>(&normed)));
        // A batch norm: running statistics follow, and are used.
        let zeros = one.zeros_like().unwrap();
        let norm = nn::BatchNorm::new_no_bias_with_momentum(4, zeros.clone(), one.clone(), 0., 0.5).unwrap();
        let trained = norm.forward_t(&x, true).unwrap();
        assert!(close(&values::<f64>(&trained), &[1., 1., 1., 1., -1., -1., -1., -1.]));
        assert_eq!(values::<f64>(norm.running_mean()), [0., 0.5, 1., 2.5]);
        assert_eq!(values::<f64>(norm.running_var()), [1.5, 1.5, 1.5, 1.5]);
        let used = norm.forward_t(&x, false).unwrap();
        assert!(close(&values::<f64>(&used)[..1], &[1. / 1.5f64.sqrt()]));
        assert!(matches!(error(norm.forward_t(&one, true)), Error::Shape { op: "batch_norm", .. }));
        assert!(nn::BatchNorm::new_no_bias(4, zeros, one.clone(), -1.).is_err());
        // Slopes by channel.
        let slopes = nn::PReLU::new(f64s(device, &[0.5, 0., 1., 1.], 4), false);
        let y = slopes.forward(&x.neg().unwrap()).unwrap();
        assert_eq!(values::<f64>(&y), [-0.5, 0., -3., -6., 1., 0., -1., -4.]);
        let shuffled = nn::ops::pixel_shuffle(&x.reshape((1, 8, 1, 1)).unwrap(), 2).unwrap();
        assert_eq!(shuffled.dims(), [1, 2, 2, 2]);
        assert_eq!(values::<f64>(&nn::ops::pixel_unshuffle(&shuffled, 2).unwrap()), all);
        assert!(nn::ops::pixel_shuffle(&shuffled, 0).is_err());
    });
}

#[test]
fn caches_grow_turn_and_forget() {
    each(|device| {
        let at = |from: usize, to: usize| {
            let numbers: Vec<f32> = (from..to).map(|i| i as f32).collect();
            Tensor::from_vec(numbers, (1, to - from), device).unwrap()
        };
        let mut cache = nn::kv_cache::KvCache::new(1, 2);
        cache.append(&at(0, 1), &at(10, 11)).unwrap();
        let (k, v) = cache.append(&at(1, 5), &at(11, 15)).unwrap();
        assert_eq!((values::<f32>(&k), cache.current_seq_len()), (vec![0., 1., 2., 3., 4.], 5));
        assert_eq!((values::<f32>(&v)[4], cache.k_cache().max_seq_len()), (14., 6));
        assert!(cache.append(&at(0, 1).unsqueeze(0).unwrap(), &at(0, 1)).is_err());
        assert_eq!(values::<f32>(&cache.k().unwrap().unwrap()), [0., 1., 2., 3., 4.], "as before");
        cache.reset();
        assert!(cache.k().unwrap().is_none());

        let mut round = nn::kv_cache::RotatingCache::new(1, 4);
        assert_eq!(values::<f32>(&round.append(&at(0, 3)).unwrap()), [0., 1., 2.]);
        let mask = round.attn_mask(2, device).unwrap().unwrap();
        assert_eq!(round.positions(2), [4, 1, 2, 3]);
        assert_eq!(mask.to_vec2::<u8>().unwrap(), [[1, 0, 0, 0], [0, 0, 0, 0]]);
        assert_eq!(values::<f32>(&round.append(&at(3, 5)).unwrap()), [4., 1., 2., 3.]);
        assert_eq!((round.offset(), round.current_seq_len()), (1, 5));
        assert_eq!(values::<f32>(&round.append(&at(5, 11)).unwrap()), [5., 6., 7., 8., 9., 10.]);
        assert_eq!(values::<f32>(&round.current_data().unwrap().unwrap()), [7., 8., 9., 10.]);
    });
}

/// An activation in a format without names: its number, and 0 where it has one of its own.
struct Numbered(u64);

impl<'de> EnumAccess<'de> for Numbered {
    type Error = serde_json::Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> std::result::Result<(V::Value, Self), Self::Error> {
        Ok((seed.deserialize(self.0.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for Numbered {
    type Error = serde_json::Error;

    fn unit_variant(self) -> std::result::Result<(), Self::Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> std::result::Result<T::Value, Self::Error> {
        seed.deserialize(0f64.into_deserializer())
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> std::result::Result<V::Value, Self::Error> {
        Err(serde_json::Error::custom("a list"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> std::result::Result<V::Value, Self::Error> {
        Err(serde_json::Error::custom("fields"))
    }
}

#[test]
fn activations_have_the_names_and_numbers_of_candle_and_of_the_files_that_it_reads() {
    use nn::Activation::{
        Elu, Gelu, GeluPytorchTanh, HardSigmoid, HardSwish, LeakyRelu, Mish, NewGelu, Relu, Relu2, Relu6, Sigmoid,
        Silu, Swiglu, Swish,
    };
    let read = |text: &str| serde_json::from_str::<nn::Activation>(text).map_err(|error| error.to_string());
    let rows = [
        (Gelu, "\"gelu\""),
        (NewGelu, "\"newgelu\""),
        (Relu, "\"relu\""),
        (Relu2, "\"relu2\""),
        (Relu6, "\"relu6\""),
        (Silu, "\"silu\""),
        (Sigmoid, "\"sigmoid\""),
        (HardSigmoid, "\"hardsigmoid\""),
        (Swiglu, "\"swiglu\""),
        (Swish, "\"swish\""),
        (Mish, "\"mish\""),
        (HardSwish, "\"hardswish\""),
        (Elu(0.0), "{\"elu\":0.0}"),
        (LeakyRelu(0.0), "{\"leakyrelu\":0.0}"),
        (GeluPytorchTanh, "\"gelupytorchtanh\""),
    ];
    for (number, (activation, text)) in rows.into_iter().enumerate() {
        assert_eq!(serde_json::to_string(&activation).unwrap(), text);
        assert_eq!(read(text), Ok(activation));
        let counted = nn::Activation::deserialize(EnumAccessDeserializer::new(Numbered(number as u64))).unwrap();
        assert_eq!(counted, activation);
    }
    let beyond = nn::Activation::deserialize(EnumAccessDeserializer::new(Numbered(rows.len() as u64)));
    assert!(beyond.unwrap_err().to_string().contains("below 15"));
    assert_eq!(read("\"gelu_new\""), Ok(NewGelu));
    assert_eq!(read("\"gelu_pytorch_tanh\""), Ok(GeluPytorchTanh));
    assert_eq!(read("{\"leakyrelu\":0.25}"), Ok(LeakyRelu(0.25)));
    for wrong in ["\"Gelu\"", "\"elu\"", "{\"relu\":1.0}", "3", "\"gelu_erf\""] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    assert!(read("\"tanh\"").is_err_and(|why| why.contains("unknown variant `tanh`, expected one of `gelu`")));
}
