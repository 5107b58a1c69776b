//! A network trained in twenty lines: layers in a row, `fit`, an evaluation, and what memory it took.
//!
//! What you learn: a configuration lists layers and settings; `fit` takes batches from an iterator; the arrays of a step
//! lie in workspaces, so that memory is the same after three steps and after a thousand; what `output` returns is yours.
//!
//! ```text
//! $ cargo run --release --example 11_train_a_network
//! ================================================================================
//! name (type)      in -> out             parameters  shapes                 inputs
//! ================================================================================
//! 0 (Dense)        [n, 784] -> [n, 128]  100480      W:[784, 128], b:[128]  input
//! 1 (Dense)        [n, 128] -> [n, 64]   8256        W:[128, 64], b:[64]    0
//! 2 (OutputLayer)  [n, 64] -> [n, 10]    650         W:[64, 10], b:[10]     1
//! --------------------------------------------------------------------------------
//! Total parameters: 109386
//! Trainable: 109386
//! Frozen: 0
//! ================================================================================
//!
//! epoch 1: score 0.0008
//! epoch 2: score 0.0004
//! epoch 3: score 0.0002
//! workspaces: 453952 bytes, and 0 requests for memory after the first epoch
//! accuracy 1.000 of 1024 digits
//! ```

use ndgc::train::{
    Activation, ArrayDataSetIterator, DataSet, Dense, Evaluation, IEvaluation, InputType, Loss, MemoryLine,
    NetworkConfig, OutputLayer, Updater, WorkspaceMode,
};
use ndgc::{DType, Device, Generator, Result, Tensor};

/// Ten pictures of 28 by 28 pixels, each seen through noise many times, and one-hot labels.
fn digits(count: usize, seed: u64) -> Result<DataSet> {
    let pictures = Generator::new(1).uniform(0., 1., (10, 784), DType::F32, &Device::Cpu)?;
    let classes = Tensor::from_vec((0..count).map(|i| (i % 10) as u32).collect::<Vec<_>>(), count, &Device::Cpu)?;
    let noise = Generator::new(seed).normal(0., 0.5, (count, 784), DType::F32, &Device::Cpu)?;
    let labels = Tensor::eye(10, DType::F32, &Device::Cpu)?.index_select(&classes, 0)?;
    DataSet::new(pictures.index_select(&classes, 0)?.add(&noise)?, labels)
}

fn main() -> Result<()> {
    let mut net = NetworkConfig::builder()
        .seed(42)
        .updater(Updater::adam(1e-3))
        .training_workspace_mode(WorkspaceMode::Enabled)
        .inference_workspace_mode(WorkspaceMode::Enabled)
        .input_type(InputType::feed_forward(784))
        .layer(Dense::new(128).activation(Activation::Relu))
        .layer(Dense::new(64).activation(Activation::Relu))
        .layer(OutputLayer::new(10, Loss::Mcxent))
        .build()?;
    println!("{}", net.summary());

    let mut train = ArrayDataSetIterator::new(digits(4096, 2)?, 32)?;
    let mut first = None;
    for epoch in 1..=3 {
        net.fit(&mut train)?;
        let memory = first.get_or_insert(MemoryLine::of(&net));
        assert_eq!(memory.bytes, MemoryLine::of(&net).bytes, "an epoch leaves nothing behind");
        println!("epoch {epoch}: score {:.4}", net.score());
    }

    let requests = MemoryLine::of(&net).requests - first.map_or(0, |first| first.requests);
    let bytes: u64 = net.workspaces().iter().map(|space| space.stats().size).sum();
    println!("workspaces: {bytes} bytes, and {requests} requests for memory after the first epoch");

    let test = digits(1024, 3)?;
    let mut evaluation = Evaluation::new(10);
    evaluation.eval(&test.labels, &net.output(&test.features)?, None)?;
    println!("accuracy {:.3} of {} digits", evaluation.accuracy(), test.num_examples());
    Ok(())
}
