//! No library: loops over slices and the `gemm` crate, results in buffers that are there already. What the machine
//! gives to a program that knows everything in advance.

use std::hint::black_box;

use super::Case;
use crate::work::{SCORES, Work, cycle, mlp, operands, shown};

pub fn prepare(work: Work) -> Case {
    match work {
        Work::Add(n) => binary(n, n, |a, b, out| zip(a, b, out, |x, y| x + y)),
        Work::Chain10(n) | Work::Chain10ByReference(n) => binary(n, n, chain),
        Work::Exp(n) => binary(n, n, |a, _, out| zip(a, a, out, |x, _| x.exp())),
        Work::Sum(n, 0) => binary(n * n, n, move |a, _, out| {
            out.fill(0.0);
            for row in a.chunks_exact(n) {
                out.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
        }),
        Work::Sum(n, _) => binary(n * n, n, move |a, _, out| {
            out.iter_mut().zip(a.chunks_exact(n)).for_each(|(sum, row)| *sum = total(row));
        }),
        Work::Matmul(n) => binary(n * n, n * n, move |a, b, out| product([n, n, n], a, [n, 1], b, [n, 1], out, 0.0)),
        Work::Scores => scores(),
        Work::Infer(batch) => infer(batch),
        Work::Cycle | Work::CycleOfHandles => {
            let mut room = vec![0.0; cycle::ARRAYS * cycle::SIZE_MAX];
            cycle::case(move |sizes, values| turn(sizes, values, &mut room))
        }
        Work::MlpStep => train(),
    }
}

fn binary(len: usize, result: usize, op: impl Fn(&[f32], &[f32], &mut [f32]) + 'static) -> Case {
    let (a, b) = operands(len);
    let mut out = vec![0.0; result];
    op(&a, &b, &mut out);
    Case::new(shown(&out), move || {
        op(black_box(&a), black_box(&b), black_box(&mut out));
    })
}

/// One after the other in `room`.
fn turn(sizes: &[usize; cycle::INPUTS], values: &[f32], room: &mut [f32]) -> f32 {
    let (mut rest, mut last) = (room, 0.0);
    for &size in sizes {
        let (own, after) = std::mem::take(&mut rest).split_at_mut(4 * size);
        let (x, own) = own.split_at_mut(size);
        let (square, own) = own.split_at_mut(size);
        let (sum, positive) = own.split_at_mut(size);
        x.copy_from_slice(&values[..size]);
        zip(x, x, square, |a, b| a * b);
        zip(square, x, sum, |a, b| a + b);
        zip(sum, sum, positive, |a, _| a.max(0.0));
        last = total(positive) + positive.chunks_exact(64).remainder().iter().sum::<f32>();
        rest = after;
    }
    last
}

fn zip(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}

fn total(row: &[f32]) -> f32 {
    let mut sums = [0.0f32; 64];
    for chunk in row.chunks_exact(64) {
        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum()
}

fn chain(a: &[f32], b: &[f32], out: &mut [f32]) {
    zip(a, b, out, |a, b| {
        let t = ((a + b) * b).max(0.0);
        let t = ((t - a) * a + b).max(0.0);
        (t - b) * b + a
    });
}

/// `out = keep * out + left x right`, of `[m, k, n]`; strides of rows and columns.
fn product(
    [m, k, n]: [usize; 3],
    left: &[f32],
    [lr, lc]: [usize; 2],
    right: &[f32],
    [rr, rc]: [usize; 2],
    out: &mut [f32],
    keep: f32,
) {
    assert!(left.len() > (m - 1) * lr + (k - 1) * lc && right.len() > (k - 1) * rr + (n - 1) * rc);
    assert!(out.len() >= m * n);
    // SAFETY: the highest index of each operand was compared with its length above.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            keep != 0.0,
            left.as_ptr(),
            lc as isize,
            lr as isize,
            right.as_ptr(),
            rc as isize,
            rr as isize,
            keep,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

fn scores() -> Case {
    let [batch, heads, rows, depth] = SCORES;
    let size = rows * depth;
    binary(batch * heads * size, batch * heads * rows * rows, move |a, b, out| {
        for ((out, a), b) in out.chunks_exact_mut(rows * rows).zip(a.chunks_exact(size)).zip(b.chunks_exact(size)) {
            product([rows, depth, rows], a, [depth, 1], b, [1, depth], out, 0.0);
        }
    })
}

/// The network with all its buffers; the step is taken inside the products of the gradients.
struct Net {
    data: mlp::Data,
    batch: usize,
    outputs: [Vec<f32>; 3],
    gradients: [Vec<f32>; 3],
    n_steps: usize,
}

impl Net {
    fn new(batch: usize) -> Net {
        let buffers = || [1, 2, 3].map(|i| vec![0.0; batch * mlp::WIDTHS[i]]);
        Net { data: mlp::Data::new(), batch, outputs: buffers(), gradients: buffers(), n_steps: 0 }
    }

    fn forward(&mut self, start: usize) {
        let images = &self.data.images[start * mlp::N_FEATURES..][..self.batch * mlp::N_FEATURES];
        for i in 0..3 {
            let layer = &self.data.layers[i];
            let (before, rest) = self.outputs.split_at_mut(i);
            let (input, out) = (before.last().map_or(images, |output| output), &mut rest[0]);
            out.chunks_exact_mut(layer.n_out).for_each(|row| row.copy_from_slice(&layer.bias));
            let dims = [self.batch, layer.n_in, layer.n_out];
            product(dims, input, [layer.n_in, 1], &layer.weight, [layer.n_out, 1], out, 1.0);
            if i < 2 {
                out.iter_mut().for_each(|x| *x = x.max(0.0));
            }
        }
    }

    fn step(&mut self) -> f32 {
        let start = mlp::batch_start(self.n_steps);
        self.n_steps += 1;
        self.forward(start);
        let loss = self.cross_entropy(start);
        for i in (0..3).rev() {
            let layer = &mut self.data.layers[i];
            let (before, after) = self.gradients.split_at_mut(i);
            let gradient = &mut after[0];
            let images = &self.data.images[start * mlp::N_FEATURES..][..self.batch * mlp::N_FEATURES];
            let input = if i == 0 { images } else { &self.outputs[i - 1] };
            if let Some(gradient_before) = before.last_mut() {
                let dims = [self.batch, layer.n_out, layer.n_in];
                product(dims, gradient, [layer.n_out, 1], &layer.weight, [1, layer.n_out], gradient_before, 0.0);
                gradient_before.iter_mut().zip(input).for_each(|(g, &y)| *g = if y > 0.0 { *g } else { 0.0 });
            }
            gradient.iter_mut().for_each(|g| *g *= -mlp::LEARNING_RATE as f32);
            for row in gradient.chunks_exact(layer.n_out) {
                layer.bias.iter_mut().zip(row).for_each(|(b, g)| *b += g);
            }
            let dims = [layer.n_in, self.batch, layer.n_out];
            product(dims, input, [1, layer.n_in], gradient, [layer.n_out, 1], &mut layer.weight, 1.0);
        }
        loss
    }

    /// The mean loss; its gradient goes into the last of the gradients.
    fn cross_entropy(&mut self, start: usize) -> f32 {
        let (rows, width) = (self.batch as f32, mlp::N_CLASSES);
        let mut loss = 0.0;
        let rows_of = self.outputs[2].chunks_exact(width).zip(self.gradients[2].chunks_exact_mut(width));
        for ((logits, gradient), &label) in rows_of.zip(&self.data.labels[start..]) {
            let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
            gradient.iter_mut().zip(logits).for_each(|(g, &x)| *g = (x - max).exp());
            let sum: f32 = gradient.iter().sum();
            loss += sum.ln() - gradient[label as usize].ln();
            gradient.iter_mut().for_each(|g| *g /= sum * rows);
            gradient[label as usize] -= 1.0 / rows;
        }
        loss / rows
    }
}

fn infer(batch: usize) -> Case {
    let mut net = Net::new(batch);
    net.forward(0);
    Case::new(shown(&net.outputs[2]), move || {
        net.forward(0);
        black_box(&net.outputs[2]);
    })
}

fn train() -> Case {
    let mut net = Net::new(mlp::BATCH);
    let sample = (0..mlp::N_CHECKED).map(|_| net.step()).collect();
    Case::new(sample, move || {
        black_box(net.step());
    })
}
