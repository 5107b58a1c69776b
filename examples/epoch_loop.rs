//! The epoch loop: one network, trained on digits as a careless user writes it, in five ways of ending arrays.
//!
//! In the first four, every array of the training hangs on one long-lived manager, and nothing is closed by hand:
//! - `leaky`: the switch is off. What a step makes stays until the manager closes.
//! - `reclaiming`: the switch is on. What nobody holds any more is closed by the next call.
//! - `scoped`: the switch is off, and each step has a sub-manager that it closes: what experts do by hand.
//! - `workspace`: the switch is off, and each step is a cycle of a workspace, whose memory the next step uses again.
//! - `network`: the switch is off, and `ndgc::train` has the loop: the same layers, trained by `fit`.
//!
//! ```text
//! cargo run --release --example epoch_loop
//! cargo run --release --example epoch_loop -- --modes leaky,reclaiming --scan-gradients --plot loop.png
//! cargo run --release --example epoch_loop -- --device cuda
//! NDGC=on cargo run --release --example epoch_loop
//! ```
//!
//! Each mode runs in a child process, so that its resident memory is its own. The parent prints a table and writes a
//! plot (`target/epoch_loop.svg` unless `--plot` says otherwise): of live memory, and of the seconds if
//! `--scan-gradients` made them grow with the leak; with `--beside` of seconds and resident memory, beside what other
//! systems needed.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use ndgc::nn::{Adam, AdamConfig, Mlp, Module, Optimizer, SGD};
use ndgc::{
    AllocationPolicy, DType, Device, Generator, NdManager, Place, SpillPolicy, Tensor, Workspace, WorkspaceConfig, gc,
    memory, no_grad,
};

#[path = "epoch_loop/args.rs"]
mod args;
#[path = "epoch_loop/beside.rs"]
mod beside;
#[path = "epoch_loop/data.rs"]
mod data;
#[path = "epoch_loop/digits.rs"]
mod digits;
#[path = "epoch_loop/network.rs"]
mod network;
#[path = "epoch_loop/panel.rs"]
mod panel;
#[path = "epoch_loop/plot.rs"]
mod plot;
#[path = "epoch_loop/progress.rs"]
mod progress;
#[path = "epoch_loop/report.rs"]
mod report;

use args::{Args, Mode, Request};
use digits::{Digits, PIXELS};
use report::{Line, Row, StepReport};

/// Numbers in and out of each layer.
const SIZES: [usize; 4] = [PIXELS, 128, 64, 10];
/// Learning rates of both optimizers.
const SGD_RATE: f64 = 0.1;
const ADAM_RATE: f64 = 1e-3;
/// Adam's, so small that it does not matter to which root it is added: DL4J's formula, and so `network`'s, differs
/// there.
const EPSILON: f64 = 1e-12;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("epoch_loop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<()> {
    match args::parse(std::env::args_os().skip(1))? {
        Request::Help => print!("{}", args::help()),
        Request::Run(args) => match args.child {
            Some(mode) => child(&args, mode)?,
            None => parent(&args)?,
        },
    }
    Ok(())
}

// ------------------------------------------------------------------------------------------------ the parent

/// Runs each mode in a child, draws its progress, and tells what was seen.
fn parent(args: &Args) -> Result<()> {
    let others = args.beside.as_deref().map(beside::read).transpose()?; // before the time is spent
    let mut rows = Vec::new();
    for &mode in &args.modes {
        watch(args, mode, &mut rows)?;
    }
    print!("{}", report::table(&rows));
    println!("\n{}", report::verdict(&rows));
    if let Some(path) = &args.json {
        report::write_json(path, &rows)?;
    }
    let data = match &args.data {
        Some(_) => "real digits",
        None => "drawn digits",
    };
    let subtitle = format!(
        "{}MLP 784-128-64-10 on {}, {} {data}, batch {}, {}, seed {}{}",
        if others.is_some() { "ndgc: " } else { "" },
        args.device.clone().or_else(|| std::env::var("NDGC_DEVICE").ok()).unwrap_or_else(|| "cpu".to_owned()),
        args.images,
        args.batch,
        args.optimizer,
        args.seed,
        if args.scan_gradients { ", every step walks all arrays" } else { "" }
    );
    let content =
        plot::Content { rows: &rows, subtitle: &subtitle, scanned: args.scan_gradients, beside: others.as_ref() };
    plot::write(&args.plot, content)?;
    println!("The plot is in {}.", args.plot.display());
    Ok(())
}

fn watch(args: &Args, mode: Mode, rows: &mut Vec<Row>) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(args.for_child(mode))
        .env_remove("NDGC") // the child sets the switch by its mode
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("the child has no output")?;
    let mut bar = None;
    for line in BufReader::new(output).lines() {
        match report::parse_line(&line?)? {
            Line::Progress(step) => bar
                .get_or_insert_with(|| progress::Progress::new(mode, args.epochs, step.steps))
                .step(step.epoch, step.step, step.loss),
            Line::Row(row) => {
                bar.get_or_insert_with(|| progress::Progress::new(mode, args.epochs, row.steps)).epoch_done(&row);
                rows.push(row);
            }
        }
    }
    drop(bar);
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the {mode} run ended with {status}").into()) }
}

// ------------------------------------------------------------------------------------------------ the training

fn child(args: &Args, mode: Mode) -> Result<()> {
    let mut data = match &args.data {
        Some(dir) => data::load(dir, Some(args.images), args.seed)?,
        None => data::synthetic(args.images, args.seed),
    };
    standardise(&mut data);
    match mode {
        Mode::Reclaiming => gc::on(),
        Mode::Leaky | Mode::Scoped | Mode::Workspace | Mode::Network => gc::off(),
    }
    if args.report.is_some() {
        memory::set_trace(memory::TraceMode::Full);
        memory::set_trace_bytes(1 << 30);
    }
    let device = args.device.as_deref().map_or_else(Device::from_env, str::parse)?;
    match mode {
        Mode::Network => network::train(args, &device, &data),
        _ => by_hand(args, mode, device, &data),
    }
}

/// Writes the page of `--report`, before what the run still has is given back.
fn write_page(args: &Args, mode: Mode) -> Result<()> {
    if let Some(page) = &args.report {
        let title = format!("epoch_loop: {mode}, {} epochs", args.epochs);
        report::write_page(page, &memory::timeline().to_html(&title))?;
    }
    Ok(())
}

/// All epochs of a mode whose loop is here.
fn by_hand(args: &Args, mode: Mode, device: Device, data: &data::Split) -> Result<()> {
    let manager = NdManager::new_base_manager(&device)?;
    manager.set_name("training");
    let mut random = Generator::new(args.seed);
    let model = Mlp::new(&SIZES, &mut random, &manager)?;
    let optimizer = optimizer(args.optimizer, &model)?;
    // A test of the network needs more than a step of the training: the block grows for it, once.
    let config = WorkspaceConfig::builder()
        .policy_allocation(AllocationPolicy::Strict)
        .policy_spill(SpillPolicy::Reallocate)
        .shrink_after(None)
        .build()?;
    let mut training = Training { args, mode, device, manager, model, optimizer, random, config };
    for epoch in 1..=args.epochs {
        let row = training.epoch(epoch, &data.train, &data.test)?;
        say(&report::row_line(&row)?)?;
    }
    write_page(args, mode)
}

fn optimizer(kind: args::Optimizer, model: &Mlp) -> Result<Box<dyn Optimizer>> {
    let adam = AdamConfig { rate: ADAM_RATE, eps: EPSILON, ..AdamConfig::default() };
    Ok(match kind {
        args::Optimizer::Sgd => Box::new(SGD::new(model.variables(), SGD_RATE)?),
        args::Optimizer::Adam => Box::new(Adam::with_config(model.variables(), adam)?),
    })
}

/// Shifts and scales all pixels so that those of the training images have mean 0 and deviation 1.
fn standardise(data: &mut data::Split) {
    let pixels = &data.train.images;
    let mean = pixels.iter().map(|&p| f64::from(p)).sum::<f64>() / pixels.len() as f64;
    let variance = pixels.iter().map(|&p| (f64::from(p) - mean).powi(2)).sum::<f64>() / pixels.len() as f64;
    let (mean, scale) = (mean as f32, 1.0 / variance.sqrt().max(1e-6) as f32);
    for pixel in data.train.images.iter_mut().chain(&mut data.test.images) {
        *pixel = (*pixel - mean) * scale;
    }
}

/// One line for the parent, at once.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

struct Training<'a> {
    args: &'a Args,
    mode: Mode,
    device: Device,
    manager: NdManager,
    model: Mlp,
    optimizer: Box<dyn Optimizer>,
    random: Generator,
    config: WorkspaceConfig,
}

impl Training<'_> {
    /// One pass over the training images, and a look at the test images.
    fn epoch(&mut self, epoch: usize, train: &Digits, test: &Digits) -> Result<Row> {
        let begun = Instant::now();
        let order = self.random.permutation(train.labels.len())?;
        let steps = order.len().div_ceil(self.args.batch);
        let data = Data::new(&self.manager, train, &order)?;
        let mut done = Steps::new(epoch, steps, &self.device);
        for i in 0..steps {
            let rows = data.rows(i * self.args.batch, self.args.batch);
            let loss = self.in_scope(|training, manager| training.step(manager, &data, rows))?;
            done.step(f64::from(loss))?;
        }
        self.device.synchronize()?;
        let seconds = begun.elapsed().as_secs_f64();
        data.close();
        let accuracy = self.accuracy(test)?;
        Ok(done.row(self.mode, seconds, accuracy))
    }

    /// Runs `f` with the manager for its arrays: the long-lived one, or in `scoped` one that is closed afterwards. In
    /// `workspace` its arrays end with a cycle, whoever the manager is.
    fn in_scope<T>(&mut self, f: impl FnOnce(&mut Self, &NdManager) -> Result<T>) -> Result<T> {
        if self.mode == Mode::Scoped {
            let scope = self.manager.new_sub_manager()?;
            let result = f(self, &scope);
            scope.close()?;
            return result;
        }
        let manager = self.manager.clone();
        if self.mode == Mode::Workspace {
            let _cycle = Workspace::enter_on(&self.device, "STEP", &self.config)?;
            return f(self, &manager);
        }
        f(self, &manager)
    }

    /// Forward, loss, gradients, update. Returns the loss.
    fn step(&mut self, manager: &NdManager, data: &Data, rows: Range<usize>) -> Result<f32> {
        if self.args.scan_gradients {
            scan_gradients(&self.manager)?;
        }
        let (images, labels) = self.batch(manager, data, rows)?;
        let logits = self.model.forward(&images)?;
        let loss = logits.cross_entropy(&labels)?;
        self.optimizer.backward_step(&loss)?;
        Ok(loss.to_scalar::<f32>()?)
    }

    /// The share of images whose most likely class is right.
    fn accuracy(&mut self, data: &Digits) -> Result<f64> {
        let count = data.labels.len();
        let data = Data::new(&self.manager, data, &(0..count).collect::<Vec<_>>())?;
        let mut right = 0.0;
        for start in (0..count).step_by(256) {
            right += self.in_scope(|training, manager| {
                no_grad(|| {
                    let (images, labels) = training.batch(manager, &data, data.rows(start, 256))?;
                    let classes = training.model.forward(&images)?.argmax(1)?;
                    Ok(classes.eq(&labels)?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?)
                })
            })?;
        }
        data.close();
        Ok(right / count as f64)
    }

    /// The images and labels of a batch: views of all. They belong to the manager of all, in `scoped` to that of the
    /// step; in `workspace` to their handles.
    fn batch(&self, manager: &NdManager, data: &Data, rows: Range<usize>) -> Result<(Tensor, Tensor)> {
        let batch = [&data.images, &data.labels].map(|all| {
            let view = all.narrow(0, rows.start, rows.len())?;
            if self.mode == Mode::Scoped {
                view.attach(manager)?;
            }
            Ok::<_, ndgc::Error>(view)
        });
        let [images, labels] = batch;
        Ok((images?, labels?))
    }
}

/// The steps of an epoch so far.
#[derive(Debug)]
struct Steps {
    epoch: usize,
    steps: usize,
    device: Device,
    begun: Instant,
    first_step_seconds: f64,
    count: usize,
    total: f64,
}

impl Steps {
    fn new(epoch: usize, steps: usize, device: &Device) -> Self {
        let (device, begun) = (device.clone(), Instant::now());
        Steps { epoch, steps, device, begun, first_step_seconds: 0.0, count: 0, total: 0.0 }
    }

    /// Notes a step and its loss, and tells the parent now and then.
    fn step(&mut self, loss: f64) -> Result<()> {
        if self.count == 0 {
            self.device.synchronize()?;
            self.first_step_seconds = self.begun.elapsed().as_secs_f64();
        }
        (self.count, self.total) = (self.count + 1, self.total + loss);
        if progress::due(self.count, self.steps) {
            let (epoch, step, steps, loss) = (self.epoch, self.count, self.steps, self.mean());
            say(&report::progress_line(&StepReport { epoch, step, steps, loss })?)?;
        }
        Ok(())
    }

    fn mean(&self) -> f64 {
        self.total / self.count as f64
    }

    /// The epoch's row, with what memory is like now.
    fn row(&self, mode: Mode, seconds: f64, accuracy: f64) -> Row {
        let (memory, arrays) = (self.device.memory(), gc::stats());
        Row {
            mode,
            epoch: self.epoch,
            seconds,
            steps: self.steps,
            first_step_seconds: self.first_step_seconds,
            live_arrays: arrays.live,
            live_bytes: memory.active,
            dead_arrays: arrays.dead(),
            held_bytes: memory.active + memory.cached,
            peak_bytes: memory.peak,
            resident_bytes: resident_bytes(),
            loss: self.mean(),
            accuracy,
        }
    }
}

/// All images and labels, in some order, as two arrays of a manager or of their handles.
struct Data {
    images: Tensor,
    labels: Tensor,
    count: usize,
}

impl Data {
    fn new<P: Place + ?Sized>(at: &P, digits: &Digits, order: &[usize]) -> Result<Self> {
        let count = order.len();
        let mut pixels = Vec::with_capacity(count * PIXELS);
        for &i in order {
            pixels.extend_from_slice(&digits.images[i * PIXELS..(i + 1) * PIXELS]);
        }
        let labels: Vec<u32> = order.iter().map(|&i| digits.labels[i]).collect();
        let images = Tensor::from_vec(pixels, (count, PIXELS), at)?;
        Ok(Data { images, labels: Tensor::from_vec(labels, count, at)?, count })
    }

    /// So many rows, or what is left of them.
    fn rows(&self, start: usize, most: usize) -> Range<usize> {
        start..self.count.min(start + most)
    }

    /// Ends both; views of them that somebody has go on.
    fn close(&self) {
        self.images.close();
        self.labels.close();
    }
}

/// What DJL 0.20 did before each step: it walked every array of the engine to find those with gradients. The cost of a
/// step then grows with everything that was ever left behind.
fn scan_gradients(manager: &NdManager) -> Result<usize> {
    let mut tracked = 0;
    for array in manager.managed_arrays() {
        tracked += usize::from(array.track_op());
    }
    Ok(tracked)
}

/// Bytes of this process in physical memory; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}
