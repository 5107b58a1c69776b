//! Gradients: what is recorded, how long it stays, and what it costs.
//!
//! What you learn: operations on a `Var` are recorded; `backward` gives the gradients by variable, in arrays that their
//! handles own. The record keeps the values that derivatives need, and goes with the last result that leads to it;
//! `no_grad` records nothing; `checkpoint` keeps the inputs alone and computes the rest again.
//!
//! ```text
//! $ cargo run --release --example 04_gradients
//! dy/dx = 7
//! step  0: loss 21.0000, 7 nodes, 2 saved values of 32 B
//! step 10: loss 0.0003, 7 nodes, 2 saved values of 32 B
//! step 20: loss 0.0001, 7 nodes, 2 saved values of 32 B
//! after the loop: 2 nodes, 0 saved values of 0 B
//! at 10: 21.00
//! eight layers: 19 nodes, 23 saved values of 1.11 MiB
//! checkpoint:   4 nodes, 1 saved values of 64.00 KiB
//! ```

use ndgc::nn::{Optimizer, SGD};
use ndgc::{DType, Device, Result, Tensor, Var, checkpoint, gc, graph_report, no_grad};

fn main() -> Result<()> {
    // dy/dx of y = x² + 3x at 2 is 2 * 2 + 3.
    let x = Var::new(2f64, &Device::Cpu)?;
    let y = (x.sqr()? + (x.as_tensor() * 3.)?)?;
    let grads = y.backward()?;
    println!("dy/dx = {}", grads.get(&x).map(Tensor::to_scalar::<f64>).transpose()?.unwrap_or(f64::NAN));
    drop((grads, x, y));

    // A line through points of 2x + 1, by gradient descent.
    let points = Tensor::new([[0f32], [1.], [2.], [3.]], &Device::Cpu)?;
    let wanted = points.affine(2., 1.)?;
    let (slope, offset) = (Var::new([[0f32]], &Device::Cpu)?, Var::new([0f32], &Device::Cpu)?);
    let line = |x: &Tensor| x.matmul(&slope)?.broadcast_add(&offset);
    let mut descent = SGD::new(vec![slope.clone(), offset.clone()], 0.1)?;
    for step in 0..100 {
        let loss = (line(&points)? - &wanted)?.sqr()?.mean_all()?;
        if step % 10 == 0 && step < 30 {
            println!("step {step:2}: loss {:.4}, {}", loss.to_scalar::<f32>()?, graph_report());
        }
        descent.backward_step(&loss)?;
    } // the loss is dropped here; the next call ends it, and its record with it
    gc::collect();
    println!("after the loop: {}", graph_report());
    let at_10 = Tensor::new([[10f32]], &Device::Cpu)?;
    println!("at 10: {:.2}", no_grad(|| line(&at_10))?.to_vec2::<f32>()?[0][0]);

    // Eight layers keep what their derivatives need; in a checkpoint they keep their input.
    let weights = Var::ones((64, 64), DType::F32, &Device::Cpu)?;
    let layers = move |x: &Tensor| (0..8).try_fold(x.clone(), |x, _| x.matmul(&weights)?.tanh());
    let input = Tensor::ones((256, 64), DType::F32, &Device::Cpu)?;
    let out = layers(&input)?;
    println!("eight layers: {}", graph_report());
    drop(out);
    let out = checkpoint(move |inputs| layers(&inputs[0]), &[&input])?;
    println!("checkpoint:   {}", graph_report());
    out.sum_all()?.backward().map(drop)
}
