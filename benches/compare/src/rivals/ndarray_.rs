//! ndarray: owned arrays; an operator that takes its left side by value writes into it. It has no autograd,
//! so the training step is written by hand.

use std::hint::black_box;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array, Array1, Array2, Array3, ArrayRef2, ArrayView1, Axis, Dimension, IntoDimension, s};

use super::Case;
use crate::work::{SCORES, Work, cycle, mlp, operands, shown};

pub fn prepare(work: Work) -> Case {
    match work {
        Work::Add(n) => binary(n, |a, b| a + b),
        Work::Chain10(n) | Work::Chain10ByReference(n) => binary(n, chain),
        Work::Matmul(n) => binary((n, n), |a, b| a.dot(b)),
        Work::Exp(n) => binary(n, |a, _| a.mapv(f32::exp)),
        Work::Sum(n, axis) => binary((n, n), move |a, _| a.sum_axis(Axis(axis)).insert_axis(Axis(0))),
        Work::Scores => scores(),
        Work::Infer(batch) => infer(batch),
        Work::Cycle | Work::CycleOfHandles => cycle::case(turn),
        Work::MlpStep => train(),
    }
}

/// A case that computes `op(a, b)` and drops the result.
fn binary<D, F>(shape: impl IntoDimension<Dim = D>, op: F) -> Case
where
    D: Dimension + 'static,
    F: Fn(&Array<f32, D>, &Array<f32, D>) -> Array<f32, D> + 'static,
{
    let shape = shape.into_dimension();
    let (a, b) = operands(shape.size());
    let array = |values| Array::from_shape_vec(shape.clone(), values).expect("one value an element");
    let (a, b) = (array(a), array(b));
    let sample = shown(&op(&a, &b).into_raw_vec_and_offset().0);
    Case::new(sample, move || {
        black_box(op(black_box(&a), black_box(&b)));
    })
}

fn chain(a: &Array1<f32>, b: &Array1<f32>) -> Array1<f32> {
    let t = a + b;
    let t = t * b;
    let t = t.mapv_into(relu);
    let t = t - a;
    let t = t * a;
    let t = t + b;
    let t = t.mapv_into(relu);
    let t = t - b;
    let t = t * b;
    t + a
}

fn relu(x: f32) -> f32 {
    x.max(0.0)
}

fn turn(sizes: &[usize; cycle::INPUTS], values: &[f32]) -> f32 {
    let mut arrays = Vec::with_capacity(cycle::ARRAYS);
    for &size in sizes {
        let x = Array1::from_vec(values[..size].to_vec());
        let square = &x * &x;
        let sum = &square + &x;
        let positive = sum.mapv(relu);
        arrays.extend([x, square, sum, positive]);
    }
    arrays[cycle::ARRAYS - 1].sum()
}

/// Product by product: there is none of many matrices.
fn scores() -> Case {
    let [batch, heads, rows, depth] = SCORES;
    let (a, b) = operands(SCORES.iter().product());
    let matrices = |values| Array3::from_shape_vec((batch * heads, rows, depth), values).expect("one value an element");
    let (a, b) = (matrices(a), matrices(b));
    let op = move |a: &Array3<f32>, b: &Array3<f32>| {
        let mut all = Array3::zeros((batch * heads, rows, rows));
        for ((mut out, a), b) in all.outer_iter_mut().zip(a.outer_iter()).zip(b.outer_iter()) {
            general_mat_mul(1.0, &a, &b.t(), 0.0, &mut out);
        }
        all
    };
    let sample = shown(op(&a, &b).as_slice().expect("it was just made"));
    Case::new(sample, move || {
        black_box(op(black_box(&a), black_box(&b)));
    })
}

fn infer(batch: usize) -> Case {
    let Training { images, layers, .. } = Training::new();
    let images = images.slice_move(s![..batch, ..]);
    let forward = move |images: &Array2<f32>| {
        let hidden = layers[0].forward(images).mapv_into(relu);
        let hidden = layers[1].forward(&hidden).mapv_into(relu);
        layers[2].forward(&hidden)
    };
    let sample = shown(forward(&images).as_slice().expect("it was just made"));
    Case::new(sample, move || {
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

struct Layer {
    weight: Array2<f32>,
    bias: Array1<f32>,
}

impl Layer {
    fn new(layer: mlp::Layer) -> Layer {
        let weight = Array2::from_shape_vec((layer.n_in, layer.n_out), layer.weight).expect("one value an element");
        Layer { weight, bias: layer.bias.into() }
    }

    fn forward(&self, input: &ArrayRef2<f32>) -> Array2<f32> {
        input.dot(&self.weight) + &self.bias
    }

    /// Takes one SGD step for this gradient of the output, made from this input.
    fn update(&mut self, input: &ArrayRef2<f32>, gradient: &ArrayRef2<f32>) {
        let rate = mlp::LEARNING_RATE as f32;
        self.weight.scaled_add(-rate, &input.t().dot(gradient));
        self.bias.scaled_add(-rate, &gradient.sum_axis(Axis(0)));
    }
}

struct Training {
    images: Array2<f32>,
    labels: Array1<u32>,
    layers: [Layer; 3],
    n_steps: usize,
}

impl Training {
    fn new() -> Training {
        let data = mlp::Data::new();
        let images = Array2::from_shape_vec((mlp::N_IMAGES, mlp::N_FEATURES), data.images);
        Training {
            images: images.expect("one value an element"),
            labels: data.labels.into(),
            layers: data.layers.map(Layer::new),
            n_steps: 0,
        }
    }

    fn step(&mut self) -> f32 {
        let batch = mlp::batch_start(self.n_steps);
        let batch = batch..batch + mlp::BATCH;
        self.n_steps += 1;
        let [first, second, third] = &mut self.layers;
        let images = self.images.slice(s![batch.clone(), ..]);
        let hidden_1 = first.forward(&images).mapv_into(relu);
        let hidden_2 = second.forward(&hidden_1).mapv_into(relu);
        let logits = third.forward(&hidden_2);

        let (loss, gradient_3) = cross_entropy(logits, self.labels.slice(s![batch]));
        let gradient_2 = through_relu(gradient_3.dot(&third.weight.t()), &hidden_2);
        let gradient_1 = through_relu(gradient_2.dot(&second.weight.t()), &hidden_1);
        third.update(&hidden_2, &gradient_3);
        second.update(&hidden_1, &gradient_2);
        first.update(&images, &gradient_1);
        loss
    }
}

/// The mean loss, and its gradient with respect to the logits in their buffer.
fn cross_entropy(mut logits: Array2<f32>, labels: ArrayView1<u32>) -> (f32, Array2<f32>) {
    let n_rows = logits.nrows() as f32;
    let mut loss = 0.0;
    for (mut row, &label) in logits.rows_mut().into_iter().zip(labels) {
        let max = row.fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        row.mapv_inplace(|x| (x - max).exp());
        let sum = row.sum();
        loss += sum.ln() - row[label as usize].ln();
        row.mapv_inplace(|e| e / sum / n_rows);
        row[label as usize] -= 1.0 / n_rows;
    }
    (loss / n_rows, logits)
}

fn through_relu(mut gradient: Array2<f32>, output: &Array2<f32>) -> Array2<f32> {
    gradient.zip_mut_with(output, |g, &y| {
        if y <= 0.0 {
            *g = 0.0;
        }
    });
    gradient
}
