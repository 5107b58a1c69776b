//! The same training without a loop of one's own: `ndgc::train` has layers, steps, workspaces and evaluation.
//!
//! The network begins with the weights that the other modes draw, and gets the same batches; so its losses are theirs,
//! to seven digits: it adds up the numbers of a batch in another order, which after some thousand steps shows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ndgc::nn::Mlp;
use ndgc::train::{
    Activation, ArrayDataSetIterator, DataSet, Dense, InputType, Loss, Moments, Network, NetworkConfig, OutputLayer,
    TrainingListener, Updater,
};
use ndgc::{Device, Error, Generator, gc};

use super::args::{Args, Mode, Optimizer};
use super::data::Split;
use super::{ADAM_RATE, Data, EPSILON, PIXELS, Result, SGD_RATE, SIZES, Steps, report, say};

/// Trains for all epochs.
pub(crate) fn train(args: &Args, device: &Device, data: &Split) -> Result<()> {
    let mut random = Generator::new(args.seed);
    let mut net = network(args.optimizer, &Mlp::new(&SIZES, &mut random, device)?, device)?;
    let told = Told::default();
    net.add_listener(told.clone());
    for epoch in 1..=args.epochs {
        let begun = Instant::now();
        let order = random.permutation(data.train.labels.len())?;
        // Owned by their handles: this training has no manager.
        let images = Data::new(device, &data.train, &order)?;
        told.begin(Steps::new(epoch, order.len().div_ceil(args.batch), device));
        net.fit(batches(&images, args.batch)?)?;
        device.synchronize()?;
        let seconds = begun.elapsed().as_secs_f64();
        images.close();
        let all: Vec<usize> = (0..data.test.labels.len()).collect();
        let images = Data::new(device, &data.test, &all)?;
        let accuracy = net.evaluate(batches(&images, args.batch)?)?.accuracy();
        images.close();
        // The views of the last batch wait for the next call, and keep the images until then.
        gc::collect();
        let row = told.with(|steps| steps.row(Mode::Network, seconds, accuracy))?;
        say(&report::row_line(&row)?)?;
    }
    super::write_page(args, Mode::Network)
}

/// The network, with the weights of a model. A layer has them as `[in, out]`, a `Linear` as `[out, in]`.
fn network(optimizer: Optimizer, model: &Mlp, device: &Device) -> Result<Network> {
    let updater = match optimizer {
        Optimizer::Sgd => Updater::sgd(SGD_RATE),
        Optimizer::Adam => Updater::Adam(Moments { epsilon: EPSILON, ..Moments::new(ADAM_RATE) }),
    };
    let [_, wide, narrow, classes] = SIZES;
    let net = NetworkConfig::builder()
        .updater(updater)
        .device(device)
        .input_type(InputType::feed_forward(PIXELS))
        .layer(Dense::new(wide).activation(Activation::Relu))
        .layer(Dense::new(narrow).activation(Activation::Relu))
        .layer(OutputLayer::new(classes, Loss::SparseMcxent))
        .build()?;
    for (layer, pair) in model.variables().chunks(2).enumerate() {
        net.set_param(&format!("{layer}_W"), &pair[0].t()?)?;
        net.set_param(&format!("{layer}_b"), pair[1].as_tensor())?;
    }
    Ok(net)
}

fn batches(data: &Data, rows: usize) -> Result<ArrayDataSetIterator> {
    Ok(ArrayDataSetIterator::new(DataSet::new(data.images.clone(), data.labels.clone())?, rows)?)
}

/// Notes each step: one half is the network's, the other the loop's.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Option<Steps>>>);

impl Told {
    fn begin(&self, steps: Steps) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(steps);
    }

    fn with<T>(&self, f: impl FnOnce(&mut Steps) -> T) -> ndgc::Result<T> {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.as_mut().map(f).ok_or_else(|| Error::msg("no epoch has begun"))
    }
}

impl TrainingListener for Told {
    fn iteration_done(&mut self, net: &Network) -> ndgc::Result<()> {
        self.with(|steps| steps.step(net.score()))?.map_err(|error| Error::msg(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use ndgc::nn::Module;

    use super::super::{data, optimizer};
    use super::*;

    #[test]
    fn its_losses_are_those_of_the_loop() {
        let digits = data::synthetic(96, 3).train;
        let order: Vec<usize> = (0..96).collect();
        let data = Data::new(&Device::Cpu, &digits, &order).expect("memory");
        for kind in [Optimizer::Sgd, Optimizer::Adam] {
            let model = Mlp::new(&SIZES, &mut Generator::new(7), &Device::Cpu).expect("memory");
            let mut net = network(kind, &model, &Device::Cpu).expect("a network");
            let mut optimizer = optimizer(kind, &model).expect("memory");
            for step in 0..12 {
                let rows = data.rows(step % 3 * 32, 32);
                let [images, labels] =
                    [&data.images, &data.labels].map(|all| all.narrow(0, rows.start, rows.len()).expect("rows"));
                let loss = model.forward(&images).and_then(|logits| logits.cross_entropy(&labels)).expect("a loss");
                optimizer.backward_step(&loss).expect("a step");
                let by_hand = f64::from(loss.to_scalar::<f32>().expect("a number"));
                let by_fit = net.fit_arrays(&images, &labels).expect("a step");
                assert!((by_hand - by_fit).abs() <= 1e-6 * by_hand, "{kind}, step {step}: {by_hand} and {by_fit}");
            }
        }
    }
}
