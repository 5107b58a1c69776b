//! After warm-up a training step asks the heap for nothing: neither for the graph, nor in the walk back, nor in the
//! optimiser's step. A counting allocator looks at every call of the thread; with `NDGC_TRACE_REQUESTS=3` the first
//! three requests of a step that makes any are printed with their backtrace.
//!
//! The products of the models by hand are tiny, those of the networks are not: what these need room for stays with the
//! thread.

use ndgc::nn::{self, Module, ModuleT, Optimizer, RNN, VarBuilder, VarMap, loss};
use ndgc::train::{
    Activation, Convolution2D, DataSet, Dense, ElementWiseVertex, Gru, InputType, LayerNormalization, Loss, Lstm,
    NetworkConfig, OutputLayer, PoolingType, SelfAttention, Subsampling, Updater, WorkspaceMode,
};
use ndgc::{DType, Device, NdManager, Result, Tensor, gc, graph_report};

use crate::{alone, counting};

/// Steps before counting: every stock is filled, and idle lanes were looked at.
const WARM_UP: usize = 20;
const STEPS: usize = 10;

/// Numbers between -1 and 1, the same ones each time.
fn numbers(dims: &[usize], owner: Option<&NdManager>) -> Tensor {
    let count: usize = dims.iter().product();
    let data: Vec<f32> = (0..count).map(|i| ((i * 37 + 11) % 101) as f32 / 50. - 1.).collect();
    given(Tensor::from_vec(data, dims, &Device::Cpu).unwrap(), owner)
}

fn labels(rows: usize, classes: u32, owner: Option<&NdManager>) -> Tensor {
    let data: Vec<u32> = (0..rows as u32).map(|row| row % classes).collect();
    given(Tensor::from_vec(data, rows, &Device::Cpu).unwrap(), owner)
}

fn given(array: Tensor, owner: Option<&NdManager>) -> Tensor {
    owner.map_or(Ok(()), |manager| array.attach(manager)).unwrap();
    array
}

/// A model, and the loss of a forward pass of it.
type Model = (&'static str, VarMap, Box<dyn Fn() -> Result<Tensor>>);

/// Makes a model whose input has this owner, or is its handle's.
type Make = fn(Option<&NdManager>) -> Result<Model>;

fn weights() -> (VarMap, VarBuilder<'static>) {
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    (map, builder)
}

fn mlp(owner: Option<&NdManager>) -> Result<Model> {
    let (map, vb) = weights();
    let (first, second) = (nn::linear(6, 8, vb.pp("first"))?, nn::linear(8, 3, vb.pp("second"))?);
    let (x, y) = (numbers(&[4, 6], owner), labels(4, 3, owner));
    let forward = move || loss::cross_entropy(&second.forward(&first.forward(&x)?.relu()?)?, &y);
    Ok(("mlp", map, Box::new(forward)))
}

fn convolution(owner: Option<&NdManager>) -> Result<Model> {
    let (map, vb) = weights();
    let same = nn::Conv2dConfig { padding: 1, ..Default::default() };
    let (conv, dense) = (nn::conv2d(2, 3, 3, same, vb.pp("conv"))?, nn::linear(3 * 4, 3, vb.pp("dense"))?);
    let (x, y) = (numbers(&[2, 2, 4, 4], owner), labels(2, 3, owner));
    let forward = move || {
        let seen = conv.forward(&x)?.relu()?.max_pool2d(2)?;
        loss::cross_entropy(&dense.forward(&seen.flatten_from(1)?)?, &y)
    };
    Ok(("convolution", map, Box::new(forward)))
}

fn recurrent(owner: Option<&NdManager>, time: usize) -> Result<Model> {
    let (map, vb) = weights();
    let (lstm, dense) = (nn::lstm(4, 5, Default::default(), vb.pp("lstm"))?, nn::linear(5, 3, vb.pp("dense"))?);
    let (x, y) = (numbers(&[time, 2, 4], owner), labels(2, 3, owner));
    let forward = move || {
        let mut state = lstm.zero_state(2)?;
        for t in 0..time {
            state = lstm.step(&x.get(t)?, &state)?;
        }
        loss::mse(&dense.forward(state.h())?, &dense.forward(state.c())?)?
            .add(&loss::cross_entropy(&dense.forward(state.h())?, &y)?)
    };
    Ok(("lstm", map, Box::new(forward)))
}

/// The layers that the others leave out.
fn mixed(owner: Option<&NdManager>) -> Result<Model> {
    let (map, vb) = weights();
    let (rows, scale) = (nn::embedding(5, 4, vb.pp("rows"))?, nn::layer_norm(4, 1e-5, vb.pp("scale"))?);
    let (batch, slopes) = (nn::batch_norm(4, 1e-5, vb.pp("batch"))?, nn::prelu(Some(4), vb.pp("slopes"))?);
    let (gru, group) = (nn::gru(4, 4, Default::default(), vb.pp("gru"))?, nn::group_norm(2, 4, 1e-5, vb.pp("group"))?);
    let dropout = nn::Dropout::new(0.2);
    let (ids, target) = (labels(3, 5, owner), numbers(&[3, 4], owner));
    let forward = move || {
        let x = scale.forward(&rows.forward(&ids)?)?;
        let x = slopes.forward(&batch.forward_t(&x.gelu()?, true)?)?;
        let x = gru.step(&dropout.forward(&x, true)?, &gru.zero_state(3)?)?.h;
        let x = group
            .forward(&x.unsqueeze(2)?)?
            .squeeze(2)?
            .silu()?
            .add(&x.broadcast_matmul(&target.t()?)?.softmax(1)?.matmul(&target)?)?;
        loss::huber(&Tensor::cat(&[&x, &x], 0)?.narrow(0, 1, 3)?, &target, 1.)
    };
    Ok(("mixed", map, Box::new(forward)))
}

const MODELS: [Make; 5] = [
    mlp,
    convolution,
    mixed,
    |owner| recurrent(owner, 4),
    // More arrays, storages and nodes than a thread keeps in stock.
    |owner| recurrent(owner, 40),
];

/// Requests of each of the steps.
fn requests(owner: &str, optimiser: &mut dyn Optimizer, (name, _, forward): &Model) -> f64 {
    let mut step = || {
        let loss = forward().unwrap();
        optimiser.backward_step(&loss).unwrap();
    };
    (0..WARM_UP).for_each(|_| step());
    let before = counting::requests();
    (0..STEPS).for_each(|_| step());
    let each = (counting::requests() - before) as f64 / STEPS as f64;
    println!("{name:12} {owner:24} {each:8.2} requests a step");
    if each != 0. {
        let traced = std::env::var("NDGC_TRACE_REQUESTS").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
        counting::trace(traced);
        step();
        counting::trace(0);
    }
    each
}

fn all_steps(owner: &str, manager: Option<&NdManager>) -> f64 {
    let mut sum = 0.;
    for make in MODELS {
        let model = make(manager).unwrap();
        let own = graph_report().nodes;
        let mut sgd = nn::SGD::new(model.1.all_vars(), 0.01).unwrap();
        sum += requests(&format!("{owner}, SGD"), &mut sgd, &model);
        let mut adam = nn::Adam::new(model.1.all_vars(), 0.01).unwrap();
        sum += requests(&format!("{owner}, Adam"), &mut adam, &model);
        gc::collect();
        assert_eq!(graph_report().nodes, own, "the variables alone are left");
    }
    sum
}

#[test]
fn a_training_step_asks_the_heap_for_nothing() {
    alone(|| {
        let mut sum = 0.;
        for on in [false, true] {
            let _switch = gc::scoped(on);
            sum += all_steps(if on { "handles, on" } else { "handles, off" }, None);
        }
        assert_eq!(sum, 0., "some step asks the heap for something");
    });
}

#[test]
fn a_training_step_on_arrays_of_a_manager_asks_the_heap_for_nothing_with_the_switch_on() {
    alone(|| {
        let _on = gc::scoped(true);
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        assert_eq!(all_steps("manager, on", Some(&manager)), 0., "some step asks the heap for something");
        manager.close().unwrap();
    });
}

/// A configuration, and the shapes of its batch.
type Fitted = (&'static str, NetworkConfig, &'static [usize], &'static [usize]);

fn networks() -> [Fitted; 6] {
    let dense = |size| Dense::new(size).activation(Activation::Relu);
    let output = |size| OutputLayer::new(size, Loss::Mcxent);
    let start = || NetworkConfig::builder().seed(1).updater(Updater::adam(1e-3));
    let pool = || Subsampling::new(PoolingType::Max, (2, 2));
    let mlp = start().input_type(InputType::feed_forward(784));
    let mlp = mlp.layer(dense(128)).layer(dense(64)).layer(output(10));
    let images = |size| {
        let images = start().input_type(InputType::convolutional(1, 28, 28));
        let images = images.layer(Convolution2D::new(20, (5, 5))).layer(pool());
        images.layer(Convolution2D::new(50, (5, 5))).layer(pool()).layer(dense(size)).layer(output(10))
    };
    let series = || start().input_type(InputType::recurrent(50));
    [
        ("mlp", mlp, &[32, 784], &[32, 10]),
        ("images, few", images(100), &[4, 1, 28, 28], &[4, 10]),
        ("images", images(500), &[32, 1, 28, 28], &[32, 10]),
        ("lstm", series().layer(Lstm::new(128)).layer(output(50)), &[16, 50, 30], &[16, 50, 30]),
        ("gru", series().layer(Gru::new(64)).layer(output(50)), &[16, 50, 30], &[16, 50, 30]),
        ("block", block(start()), &[16, 64, 32], &[16, 10, 32]),
    ]
}

/// A block of a transformer.
fn block(config: NetworkConfig) -> NetworkConfig {
    config
        .add_input("x", InputType::recurrent(64))
        .add_layer("norm 1", LayerNormalization::new(), &["x"])
        .add_layer("attention", SelfAttention::new(64, 4), &["norm 1"])
        .add_vertex("sum 1", ElementWiseVertex::Add, &["x", "attention"])
        .add_layer("norm 2", LayerNormalization::new(), &["sum 1"])
        .add_layer("wide", Dense::new(256).activation(Activation::Relu), &["norm 2"])
        .add_layer("narrow", Dense::new(64).activation(Activation::Identity), &["wide"])
        .add_vertex("sum 2", ElementWiseVertex::Add, &["sum 1", "narrow"])
        .add_layer("out", OutputLayer::new(10, Loss::Mcxent), &["sum 2"])
        .set_outputs(&["out"])
}

/// Who hands work to the threads of kernels asks for a block of their queue each 63rd time: that is rayon's.
const QUEUED: u64 = STEPS as u64 / 2;

#[test]
fn a_step_of_a_network_asks_the_heap_for_nothing() {
    alone(|| {
        let mut wrong = Vec::new();
        for on in [false, true] {
            let _switch = gc::scoped(on);
            for (name, config, features, labels) in networks() {
                for mode in
                    [WorkspaceMode::None, WorkspaceMode::Single, WorkspaceMode::Separate, WorkspaceMode::Enabled]
                {
                    let mut net = config.clone().training_workspace_mode(mode).build().unwrap();
                    let batch = DataSet::new(numbers(features, None), numbers(labels, None)).unwrap();
                    // A planned workspace settles in 20 steps.
                    for _ in 0..2 * WARM_UP {
                        net.fit_batch(&batch).unwrap();
                    }
                    let before = counting::requests();
                    for _ in 0..STEPS {
                        net.fit_batch(&batch).unwrap();
                    }
                    let requests = counting::requests() - before;
                    println!("{name:12} {mode:?}, switch {on}: {requests} requests in {STEPS} steps");
                    let alone = matches!(name, "mlp" | "images, few");
                    if requests > if alone { 0 } else { QUEUED } {
                        let traced = std::env::var("NDGC_TRACE_REQUESTS").ok().and_then(|count| count.parse().ok());
                        counting::trace(traced.unwrap_or(0));
                        net.fit_batch(&batch).unwrap();
                        counting::trace(0);
                        wrong.push((name, mode, on, requests));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "steps that ask the heap for something: {wrong:?}");
    });
}
