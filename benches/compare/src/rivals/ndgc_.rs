//! The crate under test: tensors by reference but where it says otherwise, every operation returns a `Result`. The
//! arrays here are owned by their handles and freed when these drop.

use std::hint::black_box;

use ndgc::nn::{Linear, Module, Optimizer, SGD, loss};
use ndgc::{Device, Result, SpillPolicy, Tensor, Var, Workspace, WorkspaceConfig, t};

use super::Case;
use crate::work::{SCORES, Work, cycle, mlp, operands, shown};

pub fn prepare(work: Work) -> Case {
    match work {
        Work::Add(n) => binary(&[n], |a, b| a.add(b)),
        Work::Chain10(n) => binary(&[n], chain),
        Work::Chain10ByReference(n) => binary(&[n], chain_by_reference),
        Work::Matmul(n) => binary(&[n, n], |a, b| a.matmul(b)),
        Work::Exp(n) => binary(&[n], |a, _| a.exp()),
        Work::Sum(n, axis) => binary(&[n, n], move |a, _| a.sum(axis)),
        Work::Scores => binary(&SCORES, |a, b| a.matmul(&b.t()?)),
        Work::Infer(batch) => infer(batch),
        Work::Cycle => in_workspace(),
        Work::CycleOfHandles => Ok(cycle::case(|sizes, values| turn(sizes, values).expect("shapes and dtypes agree"))),
        Work::MlpStep => train(),
    }
    .expect("shapes and dtypes of the workload agree")
}

/// A case that computes `op(a, b)` and drops the result.
fn binary(shape: &[usize], op: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + 'static) -> Result<Case> {
    let (a, b) = operands(shape.iter().product());
    let (a, b) = (Tensor::from_vec(a, shape, &Device::Cpu)?, Tensor::from_vec(b, shape, &Device::Cpu)?);
    let sample = shown(&op(&a, &b)?.to_vec()?);
    Ok(Case::new(sample, move || {
        black_box(op(black_box(&a), black_box(&b)).expect("it worked for the sample"));
    }))
}

/// Each step gives its operand up, as those of burn and ndarray do.
fn chain(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    t!((((((a + b) * b).relu() - a) * a + b).relu() - b) * b + a)
}

fn chain_by_reference(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let t = a.add(b)?;
    let t = t.mul(b)?;
    let t = t.relu()?;
    let t = t.sub(a)?;
    let t = t.mul(a)?;
    let t = t.add(b)?;
    let t = t.relu()?;
    let t = t.sub(b)?;
    let t = t.mul(b)?;
    t.add(a)
}

fn in_workspace() -> Result<Case> {
    // The sizes vary, so the workspace grows to the largest turn.
    let config = WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate).build()?;
    Ok(cycle::case(move |sizes, values| {
        Workspace::cycle("TURN", &config, || turn(sizes, values)).expect("shapes and dtypes agree")
    }))
}

fn turn(sizes: &[usize], values: &[f32]) -> Result<f32> {
    let mut arrays = Vec::with_capacity(cycle::ARRAYS);
    for &size in sizes {
        let x = Tensor::from_slice(&values[..size], size, &Device::Cpu)?;
        let square = x.mul(&x)?;
        let sum = square.add(&x)?;
        let positive = sum.relu()?;
        arrays.extend([x, square, sum, positive]);
    }
    arrays[cycle::ARRAYS - 1].sum_all()?.to_scalar()
}

fn infer(batch: usize) -> Result<Case> {
    let Training { images, layers, .. } = Training::new()?;
    let images = images.narrow(0, 0, batch)?;
    let layers = layers.map(|layer| Linear::new(layer.weight().detach(), layer.bias().map(Tensor::detach)));
    let sample = shown(&forward(&layers, &images)?.to_vec()?);
    Ok(Case::new(sample, move || {
        black_box(forward(&layers, black_box(&images)).expect("it worked for the sample"));
    }))
}

fn forward(layers: &[Linear; 3], images: &Tensor) -> Result<Tensor> {
    let hidden = layers[0].forward(images)?.relu()?;
    let hidden = layers[1].forward(&hidden)?.relu()?;
    layers[2].forward(&hidden)
}

fn train() -> Result<Case> {
    let mut training = Training::new()?;
    let sample = (0..mlp::N_CHECKED).map(|_| training.step()).collect::<Result<_>>()?;
    Ok(Case::new(sample, move || {
        black_box(training.step().expect("it worked for the sample"));
    }))
}

struct Training {
    images: Tensor,
    labels: Tensor,
    layers: [Linear; 3],
    optimizer: SGD,
    n_steps: usize,
}

impl Training {
    fn new() -> Result<Training> {
        let data = mlp::Data::new();
        let images = Tensor::from_vec(data.images, (mlp::N_IMAGES, mlp::N_FEATURES), &Device::Cpu)?;
        let labels = Tensor::from_vec(data.labels, mlp::N_IMAGES, &Device::Cpu)?;
        let mut vars = Vec::new();
        let mut linear = |layer: &mlp::Layer| -> Result<Linear> {
            let weight = Var::from_vec(layer.weight_transposed(), (layer.n_out, layer.n_in), &Device::Cpu)?;
            let bias = Var::from_vec(layer.bias.clone(), layer.n_out, &Device::Cpu)?;
            vars.extend([weight.clone(), bias.clone()]);
            Ok(Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone())))
        };
        let [first, second, third] = &data.layers;
        let layers = [linear(first)?, linear(second)?, linear(third)?];
        Ok(Training { images, labels, layers, optimizer: SGD::new(vars, mlp::LEARNING_RATE)?, n_steps: 0 })
    }

    fn step(&mut self) -> Result<f32> {
        let start = mlp::batch_start(self.n_steps);
        self.n_steps += 1;
        let images = self.images.narrow(0, start, mlp::BATCH)?;
        let labels = self.labels.narrow(0, start, mlp::BATCH)?;
        let logits = forward(&self.layers, &images)?;
        let loss = loss::cross_entropy(&logits, &labels)?;
        self.optimizer.backward_step(&loss)?;
        loss.to_scalar::<f32>()
    }
}
