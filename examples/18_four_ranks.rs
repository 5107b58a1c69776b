//! One network trained by four processes, each with data of its own: `mpirun` starts them, here or on many machines.
//!
//! What you learn: `ParallelWrapper` takes what joins its worker with others, and the rest of the program stays as it
//! was; each rank reads its own part of the data; one of them writes checkpoints, all of them read it. `--fail 2` lets
//! rank 2 fail in the middle of the third epoch, which the others end with an error that names it; `--kill 2` kills its
//! process, and `mpirun` ends the others. After either, `--continue` goes on from the last checkpoint, to the same
//! parameters. `--measure` times sums instead: by MPI, or if there is one process by threads.
//!
//! ```text
//! $ mpirun --oversubscribe -n 4 target/release/examples/18_four_ranks
//! 4 ranks, 109386 parameters
//! Averaging
//! epoch 1: score …
//! epoch 2: score …
//! epoch 3: score …
//! epoch 4: score …
//! the score fell; parameters are equal on all ranks: …
//! SharedGradients
//! epoch 1: score …
//! epoch 2: score …
//! epoch 3: score …
//! epoch 4: score …
//! the score fell; parameters are equal on all ranks: …
//! ```
//!
//! Before: `cargo build --release --features mpi --example 18_four_ranks`, which needs Open MPI and libclang (Debian:
//! `apt-get install libopenmpi-dev openmpi-bin libclang-dev`). In a container, as root: `mpirun --allow-run-as-root`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::slice::from_ref;
use std::time::Instant;

use lexopt::prelude::{Long, ValueExt};
use ndgc::train::{
    Activation, ArrayDataSetIterator, Communicator, DataIterator, DataSet, Dense, FnDataIterator, InputType, Loss, Mpi,
    Network, NetworkConfig, OutputLayer, ParallelWrapper, ThreadCommunicator, TrainingMode, Updater,
};
use ndgc::{DType, Device, Error, Generator, Result, Tensor};

const EPOCHS: u64 = 4;
/// Of a rank, in an epoch.
const BATCHES: usize = 16;
const BATCH: usize = 32;

#[derive(Default)]
struct Args {
    fail: Option<usize>,
    kill: Option<usize>,
    goes_on: bool,
    measures: bool,
}

impl Args {
    fn read() -> std::result::Result<Self, lexopt::Error> {
        let (mut args, mut words) = (Args::default(), lexopt::Parser::from_env());
        while let Some(word) = words.next()? {
            match word {
                Long("fail") => args.fail = Some(words.value()?.parse()?),
                Long("kill") => args.kill = Some(words.value()?.parse()?),
                Long("continue") => args.goes_on = true,
                Long("measure") => args.measures = true,
                other => return Err(other.unexpected()),
            }
        }
        Ok(args)
    }
}

/// Ten pictures of 28 by 28 pixels, each seen through noise many times: other noise on each rank.
fn digits(rank: usize) -> Result<DataSet> {
    let count = BATCHES * BATCH;
    let pictures = Generator::new(1).uniform(0., 1., (10, 784), DType::F32, &Device::Cpu)?;
    let classes = Tensor::from_vec((0..count).map(|i| (i % 10) as u32).collect::<Vec<_>>(), count, &Device::Cpu)?;
    let noise = Generator::new(2 + rank as u64).normal(0., 0.5, (count, 784), DType::F32, &Device::Cpu)?;
    let labels = Tensor::eye(10, DType::F32, &Device::Cpu)?.index_select(&classes, 0)?;
    DataSet::new(pictures.index_select(&classes, 0)?.add(&noise)?, labels)
}

fn network() -> Result<Network> {
    NetworkConfig::builder()
        .seed(42) // the same everywhere, so that all begin with the same parameters
        .updater(Updater::adam(1e-3))
        .input_type(InputType::feed_forward(784))
        .layer(Dense::new(128).activation(Activation::Relu))
        .layer(Dense::new(64).activation(Activation::Relu))
        .layer(OutputLayer::new(10, Loss::Mcxent))
        .build()
}

/// One number for all bits of the parameters.
fn bits(net: &Network) -> Result<u32> {
    let mut all = 0u32;
    for (_, var) in net.params() {
        let numbers = var.as_detached_tensor().to_vec::<f32>()?;
        all = numbers.iter().fold(all, |all, x| (all ^ x.to_bits()).wrapping_mul(0x9e37_79b1).rotate_left(13));
    }
    Ok(all)
}

/// The numbers of all ranks: each adds its own to zeros.
fn gather(mpi: &mut Mpi, own: u32) -> Result<Vec<u32>> {
    let mut all = vec![0.; mpi.size()];
    all[mpi.rank()] = f64::from(own);
    let all = Tensor::from_vec(all, mpi.size(), &Device::Cpu)?;
    mpi.communicator()?.all_reduce(from_ref(&all), 1.)?;
    Ok(all.to_vec1::<f64>()?.into_iter().map(|number| number as u32).collect())
}

/// The batches of an epoch. In the middle of the third something may happen to a rank.
fn batches(own: &DataSet, rank: usize, epoch: u64, args: &Args) -> Result<impl DataIterator<DataSet>> {
    let mut all = ArrayDataSetIterator::new(own.clone(), BATCH)?.shuffled(epoch)?;
    let strikes = |what: Option<usize>| epoch == 3 && what == Some(rank);
    let (fails, is_killed) = (strikes(args.fail), strikes(args.kill));
    Ok(FnDataIterator::new(move |at| {
        if at == BATCHES / 2 && fails {
            return Err(Error::msg("its data end here"));
        }
        if at == BATCHES / 2 && is_killed {
            Command::new("kill").args(["-9", &std::process::id().to_string()]).status().map_err(Error::msg)?;
        }
        all.next().transpose()
    }))
}

/// Where the checkpoint of a training is; on many machines, a folder that all of them see.
fn checkpoint(mode: TrainingMode) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/four_ranks");
    std::fs::create_dir_all(&folder).map_err(Error::msg)?;
    Ok(folder.join(format!("{mode:?}")))
}

fn learn(mpi: &mut Mpi, mode: TrainingMode, args: &Args) -> Result<()> {
    let (rank, is_first) = (mpi.rank(), mpi.rank() == 0);
    let say = |text: String| {
        if is_first {
            println!("{text}")
        }
    };
    say(format!("{mode:?}"));
    let path = checkpoint(mode)?;
    let goes_on = args.goes_on && path.with_extension("json").exists();
    let net = if goes_on { Network::load(&path, &Device::Cpu)? } else { network()? };
    let begin = net.iteration() / BATCHES as u64;
    let own = digits(rank)?;
    // Nobody writes before all have read.
    gather(mpi, 0)?;
    let wrapper = ParallelWrapper::builder(net).training_mode(mode).averaging_frequency(4);
    let mut wrapper = wrapper.communicator(Box::new(mpi.communicator()?)).build()?;
    let mut scores = Vec::new();
    for epoch in begin + 1..=EPOCHS {
        wrapper.fit(batches(&own, rank, epoch, args)?)?;
        let score = wrapper.score().ok_or_else(|| Error::msg("an epoch without a score"))?;
        say(format!("epoch {epoch}: score {score:.6}"));
        scores.push(score);
        if is_first {
            wrapper.model().save(&path)?;
        }
    }
    let net = wrapper.into_model()?; // leaves the communicator, so that there can be another one
    let all = gather(mpi, bits(&net)?)?;
    if all.iter().any(|bits| *bits != all[0]) {
        return Err(Error::msg(format!("the ranks have different parameters: {all:x?}")));
    }
    if scores.windows(2).any(|two| two[1] >= two[0]) {
        return Err(Error::msg(format!("the score did not fall: {scores:?}")));
    }
    say(format!("the score fell; parameters are equal on all ranks: {:08x}", all[0]));
    Ok(())
}

/// The middle of the times that something takes, in microseconds.
fn middle(mut what: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        what()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn time(group: &mut dyn Communicator, elements: usize) -> Result<f64> {
    let own = Tensor::ones(elements, DType::F32, &Device::Cpu)?;
    let scale = 1. / group.size() as f64;
    middle(|| group.all_reduce(from_ref(&own), scale))
}

fn measure(mpi: &mut Mpi) -> Result<()> {
    for elements in [1, 109_386, 1_000_000] {
        if mpi.size() > 1 {
            let time = time(&mut mpi.communicator()?, elements)?;
            if mpi.rank() == 0 {
                println!("{} processes by MPI, {elements} elements of f32: {time:.0} us", mpi.size());
            }
            continue;
        }
        for size in [2, 4] {
            let groups = ThreadCommunicator::group(size)?.into_iter();
            let threads: Vec<_> =
                groups.map(|mut group| std::thread::spawn(move || time(&mut group, elements))).collect();
            let times = threads.into_iter().map(|thread| thread.join().map_err(|_| Error::msg("a panic"))?);
            let times = times.collect::<Result<Vec<_>>>()?;
            println!("{size} threads, {elements} elements of f32: {:.0} us", times[0]);
        }
    }
    if mpi.size() == 1 {
        let (mut net, path, own) = (network()?, checkpoint(TrainingMode::Averaging)?, digits(0)?);
        let mut batches = ArrayDataSetIterator::new(own, BATCH)?;
        let epoch = middle(|| net.fit(&mut batches))?;
        println!("a step: {:.0} us; a checkpoint: {:.0} us", epoch / BATCHES as f64, middle(|| net.save(&path))?);
    }
    Ok(())
}

fn run(mpi: &mut Mpi, args: &Args) -> Result<()> {
    if args.measures {
        return measure(mpi);
    }
    if mpi.rank() == 0 {
        println!("{} ranks, {} parameters", mpi.size(), network()?.num_params());
    }
    learn(mpi, TrainingMode::Averaging, args)?;
    learn(mpi, TrainingMode::SharedGradients, args)
}

fn main() -> ExitCode {
    let args = match Args::read() {
        Ok(args) => args,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut mpi = match Mpi::start() {
        Ok(mpi) => mpi,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match run(&mut mpi, &args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // While MPI is there: `mpirun` ends the others soon after the first one.
            // At once, or what several processes write is mixed.
            let told = format!("rank {}: {error}\n", mpi.rank());
            eprint!("{told}");
            ExitCode::FAILURE
        }
    }
}
