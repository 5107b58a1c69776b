//! Real handwriting read by two networks: a perceptron and a convolutional one, from IDX files to a confusion matrix.
//!
//! What you learn: `IdxDataSetIterator` reads the files of MNIST's form, a normaliser brings pixels to 0 to 1, and both
//! are iterators that wrap one another; the same batches suit both networks; `evaluate` counts right and wrong answers
//! without making an array; memory is the same after every epoch. `examples/digits/README.md` says whose hands these
//! are.
//!
//! ```text
//! $ cargo run --release --example 15_digits
//! perceptron: 4810 parameters
//! epoch  1: … % of the test digits are read, … bytes
//! epoch  8: … % of the test digits are read, the same
//! epoch 16: … % of the test digits are read, the same
//! epoch 24: 9… % of the test digits are read, the same
//! … s
//! convolutional network: 6090 parameters
//! epoch  1: … % of the test digits are read, … bytes
//! epoch  8: … % of the test digits are read, the same
//! epoch 16: … % of the test digits are read, the same
//! epoch 24: 9… % of the test digits are read, the same
//! … s
//!
//!
//! ========================Evaluation Metrics========================
//!  # of classes:    10
//!  Accuracy:        0.9…
//!  Precision:       0.9…
//!  Recall:          0.9…
//!  F1 Score:        0.9…
//! Precision, recall & F1: macro-averaged (equally weighted avg. of 10 classes)
//!
//!
//! =========================Confusion Matrix=========================
//!   0  1  2  3  4  5  6  7  8  9
//! -------------------------------
//! … | 0 = 0
//! … | 1 = 1
//! … | 2 = 2
//! … | 3 = 3
//! … | 4 = 4
//! … | 5 = 5
//! … | 6 = 6
//! … | 7 = 7
//! … | 8 = 8
//! … | 9 = 9
//!
//! Confusion matrix format: Actual (rowClass) predicted as (columnClass) N times
//! ==================================================================
//! ```

use std::path::PathBuf;
use std::time::Instant;

use ndgc::train::{
    Activation, Convolution2D, Dense, Evaluation, IEvaluation, IdxDataSetIterator, InputType, Loss, Network,
    NetworkConfig, Normalizer, NormalizingIterator, OutputLayer, PoolingType, Subsampling, Updater,
};
use ndgc::{Device, Result, gc};

const EPOCHS: usize = 24;

/// Batches of 32 digits with pixels from 0 to 1.
fn digits(part: &str) -> Result<NormalizingIterator<IdxDataSetIterator>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/digits");
    let file = |kind: &str| folder.join(format!("{part}-{kind}-ubyte.gz"));
    let batches = IdxDataSetIterator::new(file("images-idx3"), file("labels-idx1"), 10, 32)?.shuffled(7)?;
    Ok(NormalizingIterator::new(batches, Normalizer::image(0., 1., 16.)))
}

fn perceptron() -> NetworkConfig {
    NetworkConfig::builder()
        .seed(1)
        .updater(Updater::adam(3e-3))
        .input_type(InputType::feed_forward(64))
        .layer(Dense::new(64).activation(Activation::Relu))
        .layer(OutputLayer::new(10, Loss::Mcxent))
}

fn convolutional() -> NetworkConfig {
    NetworkConfig::builder()
        .seed(1)
        .updater(Updater::adam(3e-3))
        .input_type(InputType::convolutional(1, 8, 8))
        .layer(Convolution2D::new(16, (3, 3)).padding(1).activation(Activation::Relu))
        .layer(Subsampling::new(PoolingType::Max, (2, 2)))
        .layer(Convolution2D::new(32, (3, 3)).padding(1).activation(Activation::Relu))
        .layer(Subsampling::new(PoolingType::Max, (2, 2)))
        .layer(OutputLayer::new(10, Loss::Mcxent))
}

/// Bytes of the host that arrays and workspaces have.
fn bytes() -> u64 {
    gc::collect(); // what was dropped last waits for the next call
    Device::Cpu.memory().active
}

fn learn(name: &str, mut net: Network) -> Result<Evaluation> {
    println!("{name}: {} parameters", net.num_params());
    let (mut train, mut test, begun) = (digits("train")?, digits("test")?, Instant::now());
    let mut after_first = 0;
    for epoch in 1..=EPOCHS {
        net.fit(&mut train)?;
        let accuracy = net.evaluate(&mut test)?.accuracy();
        let memory = match epoch {
            1 => {
                after_first = bytes();
                format!("{after_first} bytes")
            }
            _ if bytes() == after_first => "the same".to_owned(),
            _ => format!("{} bytes", bytes()),
        };
        if epoch == 1 || epoch % 8 == 0 {
            println!("epoch {epoch:2}: {:.1} % of the test digits are read, {memory}", 100. * accuracy);
        }
    }
    println!("{:.1} s", begun.elapsed().as_secs_f64());
    net.evaluate(&mut test)
}

fn main() -> Result<()> {
    learn("perceptron", perceptron().build()?)?;
    let found = learn("convolutional network", convolutional().build()?)?;
    println!("{}", found.stats());
    Ok(())
}
