//! Training by several processes: this executable, run again by `mpirun`, with the part to play in `NDGC_TEST_RANK`.
//! Every part is played with the switch off and on.
#![allow(clippy::unwrap_used)] // a test ends with the first surprise

use std::process::{self, Command};
use std::slice::from_ref;

use ndgc::train::{
    ArrayDataSetIterator, Communicator, DataSet, Dense, FnDataIterator, InputType, Loss, Mpi, Network, NetworkConfig,
    OutputLayer, ParallelWrapper, TrainingMode, Updater,
};
use ndgc::{DType, Device, Error, Generator, Result, Tensor, bf16, f16};

const PART: &str = "NDGC_TEST_RANK";

/// What a part is called, and what each of its processes does.
type Part = fn(&mut Mpi) -> String;
const PARTS: [(&str, Part); 12] = [
    ("sums", sums),
    ("bits", bits),
    ("pieces", pieces),
    ("abort", abort),
    ("panic", panic),
    ("leave", leave),
    ("sizes", sizes),
    ("dtype", dtype),
    ("train", train),
    ("iterator", iterator),
    ("uneven", uneven),
    ("kill", kill),
];

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

/// What the ranks said, with the switch in this position. A part that hangs is ended, with 124.
fn play(part: &str, ranks: usize, switch: &str) -> Said {
    let mut command = Command::new("timeout");
    command.args(["600", "mpirun", "--oversubscribe", "-n", &ranks.to_string()]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "the_part_of_a_rank", "--nocapture", "--test-threads=1"]);
    // Containers have no other user.
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    let output = command.env(PART, part).env("NDGC", switch).env_remove("NDGC_DEVICE").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// What each rank said, in their order; all ended well.
fn answers(part: &str, ranks: usize) -> Vec<Vec<String>> {
    let answers = ["off", "on"].map(|switch| {
        let said = play(part, ranks, switch);
        assert_eq!(said.code, Some(0), "{part} of {ranks}, switch {switch}\n{}\n{}", said.out, said.err);
        let of = |rank: usize| {
            let begin = format!("<{rank}>");
            let own = said.out.split(&begin).nth(1).unwrap_or_else(|| panic!("rank {rank} said nothing: {}", said.out));
            own.split("</>").next().unwrap().to_owned()
        };
        (0..ranks).map(of).collect()
    });
    answers.into()
}

/// Not a test by itself: what `mpirun` runs.
#[test]
fn the_part_of_a_rank() {
    let Ok(name) = std::env::var(PART) else { return };
    let part = PARTS.iter().find(|(part, _)| *part == name).unwrap().1;
    let mut mpi = Mpi::start().unwrap();
    let answer = part(&mut mpi);
    println!("<{}>{answer}</>", mpi.rank());
}

/// The text of an error, without the line here that called what failed.
fn said<T>(result: Result<T>) -> String {
    let Err(error) = result else { return "no error".to_owned() };
    let text = error.to_string();
    let Some(site) = error.site() else { return text };
    assert_eq!(site.file(), file!(), "{text}");
    text.replace(&format!(" (called at {site})"), "")
}

fn sums(mpi: &mut Mpi) -> String {
    let again = said(Mpi::start());
    assert!(again.contains("started before"), "{again}");
    let (rank, size) = (mpi.rank() as f64, mpi.size() as f64);
    let mut group = mpi.communicator().unwrap();
    assert!(said(mpi.communicator()).contains("there is a communicator"));
    let all = size * (size + 1.) / 2.; // 1 + 2 + ...
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let rows = Tensor::arange(0u32, 6, &Device::Cpu).unwrap().reshape((2, 3)).unwrap().to_dtype(dtype).unwrap();
        let columns = rows.affine(rank + 1., 0.).unwrap().t().unwrap();
        let none = Tensor::zeros((0, 2), dtype, &Device::Cpu).unwrap();
        let own = Tensor::full(rank + 1., (), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let simulated = rows.to_device(&Device::sim(Default::default())).unwrap();
        group.all_reduce(&[columns.clone(), none, own.clone(), simulated.clone()], 0.5).unwrap();
        let read = |array: &Tensor| array.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(read(&columns), [0., 3., 1., 4., 2., 5.].map(|x| x * all / 2.), "{dtype:?}");
        assert_eq!(read(&own), [all / 2.]);
        assert_eq!(read(&simulated), [0., 1., 2., 3., 4., 5.].map(|x| x * size / 2.));
    }
    // Sums of halves that no half can hold, and their mean, which one can.
    let large = Tensor::full(f16::from_f32(60000.), 3, &Device::Cpu).unwrap();
    let fine = Tensor::full(bf16::from_f32(1.), 3, &Device::Cpu).unwrap();
    group.all_reduce(&[large.clone(), fine.clone()], 1. / size).unwrap();
    assert_eq!(large.to_vec::<f16>().unwrap(), [f16::from_f32(60000.); 3]);
    assert_eq!(fine.to_vec::<bf16>().unwrap(), [bf16::from_f32(1.); 3]);
    group.all_reduce(&[], 1.).unwrap();
    drop(group);
    mpi.communicator().unwrap().all_reduce(&[own_ones()], 1.).unwrap();
    String::new()
}

fn own_ones() -> Tensor {
    Tensor::ones(3, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn sums_of_all_dtypes_and_layouts() {
    answers("sums", 1);
    answers("sums", 3);
    answers("sums", 4);
}

/// The bits of numbers whose sum depends on the order.
fn bits(mpi: &mut Mpi) -> String {
    let mut group = mpi.communicator().unwrap();
    let mut text = String::new();
    for count in [1, 7, 1001, 100_003] {
        let of = |rank| {
            let small = Generator::new(rank as u64).normal(0., 1., count, DType::F32, &Device::Cpu).unwrap();
            small.mul(&small.affine(9., 0.).unwrap().exp().unwrap()).unwrap()
        };
        let uneven = of(mpi.rank());
        let double = uneven.to_dtype(DType::F64).unwrap().affine(1. / 3., 0.).unwrap();
        group.all_reduce(&[uneven.clone(), double.clone()], 0.5).unwrap();
        let sum = of(0);
        (1..mpi.size()).for_each(|rank| drop(sum.add_(&of(rank)).unwrap()));
        let sum = sum.affine(0.5, 0.).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(uneven.to_vec::<f32>().unwrap(), sum, "in the order of the ranks");
        let mix = |all: u64, bits: u64| (all ^ bits).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let found = uneven.to_vec::<f32>().unwrap().iter().fold(0, |all, x| mix(all, x.to_bits().into()));
        let found = double.to_vec::<f64>().unwrap().iter().fold(found, |all, x| mix(all, x.to_bits()));
        text += &format!("{found:x} ");
    }
    text
}

#[test]
fn all_ranks_have_the_same_bits() {
    for ranks in [2, 3, 4] {
        for ranks in answers("bits", ranks) {
            assert!(ranks.iter().all(|one| *one == ranks[0] && one.len() > 20), "{ranks:?}");
        }
    }
}

/// More than one call of MPI is given.
fn pieces(mpi: &mut Mpi) -> String {
    let count = (1 << 24) + 5;
    let own: Vec<f32> = (0..count).map(|at| (at % 1000 + mpi.rank()) as f32).collect();
    let own = Tensor::from_vec(own, count, &Device::Cpu).unwrap();
    mpi.communicator().unwrap().all_reduce(from_ref(&own), 1.).unwrap();
    let (size, ranks) = (mpi.size(), (0..mpi.size()).sum::<usize>());
    let found = own.to_vec::<f32>().unwrap();
    assert!(found.iter().enumerate().all(|(at, x)| *x == (at % 1000 * size + ranks) as f32));
    String::new()
}

#[test]
fn long_arrays_go_in_pieces() {
    answers("pieces", 3);
}

fn one_sum(group: &mut impl Communicator) -> String {
    said(group.all_reduce(&[own_ones()], 1.))
}

fn abort(mpi: &mut Mpi) -> String {
    let mut group = mpi.communicator().unwrap();
    assert_eq!(one_sum(&mut group), "no error");
    if mpi.rank() == 2 {
        group.abort("no luck");
    }
    let (first, second) = (one_sum(&mut group), one_sum(&mut group));
    assert_eq!(first, second);
    group.abort("more of it");
    first
}

fn panic(mpi: &mut Mpi) -> String {
    let mut group = mpi.communicator().unwrap();
    let rank = mpi.rank();
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        assert_ne!(rank, 1, "this rank panics");
        one_sum(&mut group)
    }));
    done.unwrap_or_default()
}

fn leave(mpi: &mut Mpi) -> String {
    let mut group = mpi.communicator().unwrap();
    if mpi.rank() == 3 { String::new() } else { one_sum(&mut group) }
}

fn sizes(mpi: &mut Mpi) -> String {
    let count = if mpi.rank() == 1 { 4 } else { 3 };
    let own = Tensor::ones(count, DType::F32, &Device::Cpu).unwrap();
    let text = said(mpi.communicator().unwrap().all_reduce(from_ref(&own), 1.));
    assert_eq!(own.to_vec::<f32>().unwrap(), vec![1.; count]);
    text
}

fn dtype(mpi: &mut Mpi) -> String {
    let dtype = if mpi.rank() == 1 { DType::I64 } else { DType::F32 };
    let own = Tensor::ones(3, dtype, &Device::Cpu).unwrap();
    let result = mpi.communicator().unwrap().all_reduce(&[own], 1.);
    assert_eq!(matches!(result, Err(Error::UnsupportedDType { .. })), mpi.rank() == 1);
    said(result)
}

#[test]
fn a_rank_that_fails_is_named_by_the_others() {
    let parts = [
        ("abort", 2, "rank 2 failed: no luck"),
        ("panic", 1, "rank 1 failed: it panicked"),
        ("leave", 3, "rank 3 is gone before the others"),
        ("dtype", 1, "rank 1 failed: MpiCommunicator::all_reduce"),
    ];
    for (part, failed, why) in parts {
        for ranks in answers(part, 4) {
            for (rank, text) in ranks.iter().enumerate().filter(|(rank, _)| *rank != failed) {
                assert!(text.starts_with(&format!("all_reduce: rank {rank} cannot go on: {why}")), "{part}: {text}");
            }
        }
    }
    for text in answers("sizes", 4).concat() {
        assert!(text.contains("different sizes"), "{text}");
    }
}

fn network() -> Network {
    let config = NetworkConfig::builder().seed(3).updater(Updater::adam(0.02)).input_type(InputType::feed_forward(2));
    config.layer(Dense::new(8)).layer(OutputLayer::new(1, Loss::Mse)).build().unwrap()
}

fn examples(seed: u64) -> DataSet {
    let x = Generator::new(seed).uniform(-1., 1., (64, 2), DType::F32, &Device::Cpu).unwrap();
    let y = x.narrow(1, 0, 1).unwrap().sub(&x.narrow(1, 1, 1).unwrap()).unwrap();
    DataSet::new(x, y).unwrap()
}

fn wrapper(mpi: &mut Mpi, mode: TrainingMode) -> ParallelWrapper<Network> {
    let wrapper = ParallelWrapper::builder(network()).training_mode(mode).averaging_frequency(3);
    wrapper.communicator(Box::new(mpi.communicator().unwrap())).build().unwrap()
}

fn train(mpi: &mut Mpi) -> String {
    let mut text = String::new();
    for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
        let mut wrapper = wrapper(mpi, mode);
        let own = examples(mpi.rank() as u64);
        let mut scores = Vec::new();
        for _ in 0..20 {
            wrapper.fit(ArrayDataSetIterator::new(own.clone(), 8).unwrap()).unwrap();
            scores.push(wrapper.score().unwrap());
        }
        assert!(scores[19] < 0.5 * scores[0], "{scores:?}");
        let net = wrapper.into_model().unwrap();
        for (_, var) in net.params() {
            let all = var.as_detached_tensor().to_vec::<f32>().unwrap();
            text += &all.iter().map(|x| format!("{:x} ", x.to_bits())).collect::<String>();
        }
        assert_eq!(net.iteration(), 160);
    }
    text
}

#[test]
fn all_ranks_learn_the_same() {
    for ranks in answers("train", 4) {
        assert!(ranks.iter().all(|one| *one == ranks[0] && one.len() > 200), "{ranks:?}");
    }
}

/// A rank whose data end with an error, then one whose data panic, in the middle of an epoch.
fn iterator(mpi: &mut Mpi) -> String {
    let mut text = String::new();
    for (mode, panics) in [(TrainingMode::Averaging, false), (TrainingMode::SharedGradients, true)] {
        let mut wrapper = wrapper(mpi, mode);
        let (own, rank) = (examples(1), mpi.rank());
        let batches = FnDataIterator::new(move |at| match (rank, at) {
            (2, 4) if panics => panic!("no more data"),
            (2, 4) => Err(Error::msg("no more data")),
            (_, ..9) => Ok(Some(own.clone())),
            _ => Ok(None),
        });
        let fit = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wrapper.fit(batches)));
        text += &fit.map_or("a panic".to_owned(), said);
        text += ";";
    }
    text
}

#[test]
fn a_rank_without_data_ends_all() {
    for ranks in answers("iterator", 4) {
        for (rank, text) in ranks.iter().enumerate() {
            let why = format!("all_reduce: rank {rank} cannot go on: rank 2 failed: the training was broken off;");
            let own = if rank == 2 { "no more data;a panic;".to_owned() } else { why.repeat(2) };
            assert_eq!(*text, own, "{ranks:?}");
        }
    }
}

/// A rank with half as many batches as the others.
fn uneven(mpi: &mut Mpi) -> String {
    let mut text = String::new();
    for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
        let mut wrapper = wrapper(mpi, mode);
        let (own, count) = (examples(1), if mpi.rank() == 2 { 3 } else { 6 });
        let fit = wrapper.fit(FnDataIterator::new(move |at| Ok((at < count).then(|| own.clone()))));
        text += &said(fit);
        text += ";";
    }
    text
}

#[test]
fn a_rank_with_fewer_batches_is_named_by_all() {
    for ranks in answers("uneven", 4) {
        for (rank, text) in ranks.iter().enumerate() {
            let why = "rank 2 is at the end of its batches, and others are not; give all ranks as many";
            assert_eq!(*text, format!("all_reduce: rank {rank} cannot go on: {why};").repeat(2), "{ranks:?}");
        }
    }
}

fn kill(mpi: &mut Mpi) -> String {
    let mut group = mpi.communicator().unwrap();
    assert_eq!(one_sum(&mut group), "no error");
    if mpi.rank() == 1 {
        Command::new("kill").args(["-9", &process::id().to_string()]).status().unwrap();
    }
    one_sum(&mut group)
}

#[test]
fn a_rank_that_is_killed_ends_all_and_mpirun_names_it() {
    for switch in ["off", "on"] {
        let said = play("kill", 3, switch);
        assert!(!matches!(said.code, Some(0 | 124)), "{:?}: {}", said.code, said.out);
        assert!(said.err.contains("rank 1") && said.err.contains("signal 9"), "{}", said.err);
    }
}
