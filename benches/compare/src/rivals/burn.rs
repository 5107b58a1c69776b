//! burn on its `flex` backend: tensors by value, cloned to be used again, so that an operand that is not
//! needed any more gives its buffer to the result.

use std::hint::black_box;

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Case;
use crate::work::{SCORES, Work, cycle, mlp, operands, shown};

pub fn prepare(work: Work) -> Case {
    match work {
        Work::Add(n) => binary([n], |a, b| a.clone() + b.clone()),
        Work::Chain10(n) | Work::Chain10ByReference(n) => binary([n], chain),
        Work::Matmul(n) => binary([n, n], |a, b| a.clone().matmul(b.clone())),
        Work::Exp(n) => binary([n], |a, _| a.clone().exp()),
        Work::Sum(n, axis) => binary([n, n], move |a, _| a.clone().sum_dim(axis)),
        Work::Scores => binary(SCORES, |a, b| a.clone().matmul(b.clone().swap_dims(2, 3))),
        Work::Infer(batch) => infer(batch),
        Work::Cycle | Work::CycleOfHandles => {
            let device = Device::flex();
            cycle::case(move |sizes, values| turn(sizes, values, &device))
        }
        Work::MlpStep => train(),
    }
}

/// A case that computes `op(a, b)` and drops the result.
fn binary<const D: usize>(shape: [usize; D], op: impl Fn(&Tensor<D>, &Tensor<D>) -> Tensor<D> + 'static) -> Case {
    let device = Device::flex();
    let (a, b) = operands(shape.iter().product());
    let a = Tensor::from_data(TensorData::new(a, shape), &device);
    let b = Tensor::from_data(TensorData::new(b, shape), &device);
    let sample: Vec<f32> = op(&a, &b).into_data().try_into_vec().expect("the tensor is f32");
    let sample = shown(&sample);
    Case::new(sample, move || {
        black_box(op(black_box(&a), black_box(&b)));
    })
}

fn chain(a: &Tensor<1>, b: &Tensor<1>) -> Tensor<1> {
    let t = a.clone() + b.clone();
    let t = t * b.clone();
    let t = relu(t);
    let t = t - a.clone();
    let t = t * a.clone();
    let t = t + b.clone();
    let t = relu(t);
    let t = t - b.clone();
    let t = t * b.clone();
    t + a.clone()
}

fn turn(sizes: &[usize], values: &[f32], device: &Device) -> f32 {
    let mut arrays = Vec::with_capacity(cycle::ARRAYS);
    for &size in sizes {
        let x: Tensor<1> = Tensor::from_data(TensorData::new(values[..size].to_vec(), [size]), device);
        let square = x.clone() * x.clone();
        let sum = square.clone() + x.clone();
        let positive = relu(sum.clone());
        arrays.extend([x, square, sum, positive]);
    }
    arrays[cycle::ARRAYS - 1].clone().sum().into_scalar()
}

fn infer(batch: usize) -> Case {
    let device = Device::flex();
    let data = mlp::Data::new();
    let images = TensorData::new(data.images[..batch * mlp::N_FEATURES].to_vec(), [batch, mlp::N_FEATURES]);
    let images: Tensor<2> = Tensor::from_data(images, &device);
    let layers = data.layers.map(|layer| linear(layer, &device));
    let forward = move |images: &Tensor<2>| {
        let hidden = relu(layers[0].forward(images.clone()));
        let hidden = relu(layers[1].forward(hidden));
        layers[2].forward(hidden)
    };
    let sample: Vec<f32> = forward(&images).into_data().try_into_vec().expect("the tensor is f32");
    Case::new(shown(&sample), move || {
        black_box(forward(black_box(&images)));
    })
}

fn train() -> Case {
    let mut training = Training::new();
    let sample = (0..mlp::N_CHECKED).map(|_| training.step()).collect();
    Case::new(sample, move || {
        black_box(training.step());
    })
}

#[derive(Module, Debug)]
struct Mlp {
    layers: [Linear; 3],
}

struct Training {
    images: Tensor<2>,
    labels: Tensor<1, Int>,
    /// `None` only while the optimizer, which takes the model by value, holds it.
    model: Option<Mlp>,
    loss: CrossEntropyLoss,
    optimizer: ModuleOptimizer,
    n_steps: usize,
}

impl Training {
    fn new() -> Training {
        let device = Device::flex().autodiff();
        let data = mlp::Data::new();
        let labels: Vec<i64> = data.labels.iter().map(|&label| label.into()).collect();
        Training {
            images: Tensor::from_data(TensorData::new(data.images, [mlp::N_IMAGES, mlp::N_FEATURES]), &device),
            labels: Tensor::from_data(TensorData::new(labels, [mlp::N_IMAGES]), &device),
            model: Some(Mlp { layers: data.layers.map(|layer| linear(layer, &device)) }),
            loss: CrossEntropyLossConfig::new().init(&device),
            optimizer: SgdConfig::new().init(),
            n_steps: 0,
        }
    }

    fn step(&mut self) -> f32 {
        let start = mlp::batch_start(self.n_steps);
        self.n_steps += 1;
        let model = self.model.take().expect("every step puts the model back");
        let images = self.images.clone().narrow(0, start, mlp::BATCH);
        let labels = self.labels.clone().narrow(0, start, mlp::BATCH);
        let hidden = relu(model.layers[0].forward(images));
        let hidden = relu(model.layers[1].forward(hidden));
        let logits = model.layers[2].forward(hidden);
        let loss = self.loss.forward(logits, labels);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(mlp::LEARNING_RATE, model, grads));
        loss.into_scalar()
    }
}

fn linear(layer: mlp::Layer, device: &Device) -> Linear {
    let weight = Tensor::from_data(TensorData::new(layer.weight, [layer.n_in, layer.n_out]), device);
    let bias = Tensor::from_data(TensorData::new(layer.bias, [layer.n_out]), device);
    Linear { weight: Param::from_tensor(weight), bias: Some(Param::from_tensor(bias)) }
}
