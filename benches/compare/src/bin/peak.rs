//! The peak of memory of the backward pass of a perceptron of 100 layers, in candle and in ndgc.
//!
//! ```text
//! cargo run --release --bin peak
//! ```
//!
//! candle's figure is what its allocations hold at most, ndgc's what its arrays do, both above what was there before
//! the forward pass: the variables and the data.

#[path = "../live.rs"]
mod live;

#[global_allocator]
static ALLOCATOR: live::Live = live::Live;

const LAYERS: usize = 100;
const WIDTH: usize = 64;
const BATCH: usize = 256;

/// Weights that keep the size of what goes through, for values behind a ReLU.
fn number(i: usize) -> f32 {
    let mixed = (i as u32).wrapping_add(1).wrapping_mul(2_654_435_761);
    ((mixed ^ mixed >> 15).wrapping_mul(2_246_822_519) >> 8) as f32 / (1 << 23) as f32 * 0.306 - 0.306
}

macro_rules! perceptron {
    ($core:ident) => {
        type Layers = Vec<($core::Var, $core::Var)>;

        pub(crate) fn layers() -> $core::Result<Layers> {
            (0..LAYERS)
                .map(|i| {
                    let weight: Vec<f32> = (0..WIDTH * WIDTH).map(|j| number(i * WIDTH * WIDTH + j)).collect();
                    let weight = $core::Tensor::from_vec(weight, (WIDTH, WIDTH), &$core::Device::Cpu)?;
                    let bias = $core::Tensor::zeros(WIDTH, $core::DType::F32, &$core::Device::Cpu)?;
                    Ok(($core::Var::from_tensor(&weight)?, $core::Var::from_tensor(&bias)?))
                })
                .collect()
        }

        pub(crate) fn step(layers: &Layers, x: &$core::Tensor) -> $core::Result<f32> {
            let mut y = x.clone();
            for (weight, bias) in layers {
                y = nn::Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone())).forward(&y)?.relu()?;
            }
            let loss = y.sqr()?.mean_all()?;
            let grads = loss.backward()?;
            let grad = grads.get(layers[0].0.as_tensor()).ok_or_else(|| $core::Error::Msg("no gradient".into()))?;
            grad.abs()?.sum_all()?.to_scalar::<f32>()
        }

        pub(crate) fn data() -> $core::Result<$core::Tensor> {
            $core::Tensor::ones((BATCH, WIDTH), $core::DType::F32, &$core::Device::Cpu)
        }
    };
}

mod theirs {
    use super::{BATCH, LAYERS, WIDTH, number};
    use candle_nn::{self as nn, Module};
    perceptron!(candle_core);
}

mod ours {
    use super::{BATCH, LAYERS, WIDTH, number};
    use ndgc::nn::{self, Module};
    perceptron!(ndgc);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (layers, x) = (theirs::layers()?, theirs::data()?);
    theirs::step(&layers, &x)?;
    let (sum, candle) = live::most(|| theirs::step(&layers, &x));
    let sum = sum?;

    let (layers, x) = (ours::layers()?, ours::data()?);
    ours::step(&layers, &x)?;
    ndgc::gc::collect();
    let before = ndgc::Device::Cpu.memory().active;
    ndgc::Device::Cpu.reset_peak();
    let own_sum = ours::step(&layers, &x)?;
    let own = ndgc::Device::Cpu.memory().peak - before;

    let ratio = own as f64 / candle as f64;
    println!(
        "{LAYERS} layers of {WIDTH}, a batch of {BATCH}: candle {candle} bytes, ndgc {own} bytes, ratio {ratio:.2}"
    );
    println!("sums of the first gradient: {sum} and {own_sum}");
    if ratio > 0.6 {
        return Err("more than 0.6 of candle's".into());
    }
    Ok(())
}
