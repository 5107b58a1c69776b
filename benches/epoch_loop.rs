//! The training step of the epoch loop, in the ways of ending arrays, interleaved in one run.
//!
//! `scoped` closes a sub-manager for each step; `reclaiming` is the same code on one manager with the switch on, and
//! `workspace` in a cycle of a workspace with the switch off; `scoped` with the switch on has nothing left to reclaim,
//! which shows what the switch itself costs. `network` is the same MLP through `fit_batch`. The ratios are those of medians over interleaved rounds, printed at the
//! end; DJL's own acceptance figures (growth of bytes and of time over the epochs of three small trainings) follow.
//!
//! ```text
//! cargo bench --bench epoch_loop
//! ```

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ndgc::nn::{Adam, Mlp, Module, Optimizer, SGD};
use ndgc::train::{Activation, DataSet, Dense, InputType, Loss, Network, NetworkConfig, OutputLayer, Updater};
use ndgc::{DType, Device, Generator, NdManager, Tensor, Workspace, WorkspaceConfig, gc};

const BATCH: usize = 32;

struct Step {
    manager: NdManager,
    model: Mlp,
    optimizer: Adam,
    images: Vec<f32>,
    labels: Vec<u32>,
    network: Network,
}

impl Step {
    fn new() -> Self {
        let manager = NdManager::new_base_manager(&Device::Cpu).expect("manager");
        let mut random = Generator::new(7);
        let model = Mlp::new(&[784, 128, 64, 10], &mut random, &manager).expect("model");
        let optimizer = Adam::new(model.variables(), 1e-3).expect("optimizer");
        let images = random.uniform(0.0, 1.0, BATCH * 784, DType::F32, &Device::Cpu).expect("images");
        let images = images.to_vec::<f32>().expect("host");
        let labels = (0..BATCH as u32).map(|i| i % 10).collect();
        let config = NetworkConfig::builder().updater(Updater::adam(1e-3)).input_type(InputType::feed_forward(784));
        let config = config.layer(Dense::new(128).activation(Activation::Relu));
        let config = config.layer(Dense::new(64).activation(Activation::Relu));
        let network = config.layer(OutputLayer::new(10, Loss::SparseMcxent)).build().expect("network");
        Step { manager, model, optimizer, images, labels, network }
    }

    fn run(&mut self, manager: &NdManager) -> f32 {
        let x = manager.from_slice(&self.images, (BATCH, 784)).expect("batch");
        let y = manager.from_slice(&self.labels, BATCH).expect("labels");
        let loss = self.model.forward(&x).and_then(|logits| logits.cross_entropy(&y)).expect("loss");
        self.optimizer.backward_step(&loss).expect("step");
        loss.to_scalar().expect("scalar")
    }

    fn scoped(&mut self) {
        let scope = self.manager.new_sub_manager().expect("open");
        self.run(&scope);
        scope.close().expect("open");
    }

    fn careless(&mut self) {
        let manager = self.manager.clone();
        self.run(&manager);
    }

    fn in_network(&mut self) {
        let x = self.manager.from_slice(&self.images, (BATCH, 784)).expect("batch");
        let y = self.manager.from_slice(&self.labels, BATCH).expect("labels");
        self.network.fit_batch(&DataSet::new(x, y).expect("as many")).expect("step");
    }

    fn in_workspace(&mut self) {
        let _cycle = Workspace::enter("STEP", &WorkspaceConfig::default()).expect("memory");
        self.careless();
    }
}

/// So many steps.
fn timed(step: &mut Step, on: bool, way: fn(&mut Step), steps: u64) -> Duration {
    let _switch = gc::scoped(on);
    let begun = Instant::now();
    (0..steps).for_each(|_| way(step));
    begun.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("epoch_loop/step");
    let mut step = Step::new();
    for (name, on, way) in [
        ("reclaiming", true, Step::careless as fn(&mut Step)),
        ("scoped", false, Step::scoped),
        ("workspace", false, Step::in_workspace),
        ("network", true, Step::in_network),
    ] {
        group.bench_function(name, |b| b.iter_custom(|n| timed(&mut step, on, way, n)));
    }
    group.finish();

    let (mut reclaiming, mut workspace, mut to_reclaiming, mut switch) = (vec![], vec![], vec![], vec![]);
    let mut network = vec![];
    let mut fifty = |on, way| timed(&mut step, on, way, 50).as_secs_f64();
    for _ in 0..60 {
        let scoped = fifty(false, Step::scoped);
        let careless = fifty(true, Step::careless);
        let cycle = fifty(false, Step::in_workspace);
        reclaiming.push(careless / scoped);
        workspace.push(cycle / scoped);
        to_reclaiming.push(cycle / careless);
        network.push(fifty(true, Step::in_network) / careless);
        // The network left its bytes in the caches.
        fifty(false, Step::scoped);
        let on = fifty(true, Step::scoped);
        switch.push(on / fifty(false, Step::scoped));
    }
    println!("step time, reclaiming to scoped: {:.4} (median of 60 pairs)", median(reclaiming));
    println!("step time, workspace to scoped: {:.4} (median of 60 pairs)", median(workspace));
    println!("step time, workspace to reclaiming: {:.4} (median of 60 pairs)", median(to_reclaiming));
    println!("step time, network to reclaiming: {:.4} (median of 60 pairs)", median(network));
    println!("step time, switch on to off with nothing orphaned: {:.4} (median of 60 pairs)", median(switch));
}

/// One epoch of a small training on a long-lived manager.
type Epoch = Box<dyn FnMut() -> ndgc::Result<()>>;

fn linear_regression(manager: &NdManager) -> ndgc::Result<Epoch> {
    let mut random = Generator::new(3);
    let w = ndgc::Var::zeros((1, 2), DType::F32, manager)?;
    let b = ndgc::Var::zeros(1, DType::F32, manager)?;
    let points = random.normal(0.0, 1.0, (1000, 2), DType::F32, manager)?;
    let truth = manager.create([[2f32, -3.4]])?;
    let targets = points.linear(&truth, None)?.affine(1.0, 4.2)?;
    let mut optimizer = SGD::new(vec![w.clone(), b.clone()], 0.03)?;
    Ok(Box::new(move || {
        for i in 0..100 {
            let (x, y) = (points.narrow(0, i * 10, 10)?, targets.narrow(0, i * 10, 10)?);
            let loss = ndgc::nn::loss::mse(&x.linear(&w, Some(&b))?, &y)?;
            optimizer.backward_step(&loss)?;
        }
        Ok(())
    }))
}

fn classifier(manager: &NdManager, sizes: &'static [usize]) -> ndgc::Result<Epoch> {
    let mut random = Generator::new(4);
    let model = Mlp::new(sizes, &mut random, manager)?;
    let data: Tensor = random.normal(0.0, 1.0, (512, sizes[0]), DType::F32, manager)?;
    let labels = manager.from_vec((0..512u32).map(|i| i % 10).collect(), 512)?;
    let mut optimizer = SGD::new(model.variables(), 0.1)?;
    Ok(Box::new(move || {
        for i in 0..16 {
            let logits = model.forward(&data.narrow(0, i * 32, 32)?)?;
            optimizer.backward_step(&logits.cross_entropy(&labels.narrow(0, i * 32, 32)?)?)?;
        }
        Ok(())
    }))
}

/// Growth from the second to the last epoch, in bytes and in time.
fn acceptance(_: &mut Criterion) {
    let _on = gc::scoped(true);
    let manager = &NdManager::new_base_manager(&Device::Cpu).expect("manager");
    let trainings: [(&str, Epoch); 3] = [
        ("linear regression from scratch", linear_regression(manager).expect("training")),
        ("softmax regression", classifier(manager, &[784, 10]).expect("training")),
        ("MLP", classifier(manager, &[784, 128, 64, 10]).expect("training")),
    ];
    for (name, mut epoch) in trainings {
        let mut seconds = Vec::new();
        let mut bytes = Vec::new();
        for _ in 0..100 {
            let begun = Instant::now();
            epoch().expect("an epoch");
            seconds.push(begun.elapsed().as_secs_f64());
            bytes.push(Device::Cpu.memory().active as i64);
        }
        let (early, late) = (median(seconds[1..31].to_vec()), median(seconds[70..].to_vec()));
        println!(
            "{name}: 100 epochs, growth {} B, time of the last 30 to epochs 2..31 (medians): {:.4}",
            bytes[99] - bytes[1],
            late / early
        );
    }
}

criterion_group!(benches, steps, acceptance);
criterion_main!(benches);
