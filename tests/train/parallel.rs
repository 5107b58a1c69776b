//! Several workers: training with models and iterators that fail, panic and run out of memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ndgc::train::{
    ArrayDataSetIterator, AsyncDataSetIterator, Communicator, DataIterator, DataSet, FnDataIterator,
    ListDataSetIterator, MultiDataSet, ParallelModel, ParallelWrapper, ThreadCommunicator, TrainingMode,
};
use ndgc::{DType, Device, Error, Result, Tensor, Var, gc, no_grad};

use crate::common::{in_child, is_child};

use super::both::both;
use super::parallel_inference::{named, quietly, rows};

/// What a toy does instead of a step, at a step of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Error,
    Panic,
    Memory,
    /// A panic of the worker of this rank as it is told so.
    Rank,
    /// An error before the first step.
    Epoch,
    /// An error, or at 1 a panic, behind the last step.
    EpochEnd,
}

/// `x w + b` of two columns, trained by descent with momentum on squared errors.
struct Toy {
    params: Vec<Var>,
    velocity: Vec<Tensor>,
    steps: u64,
    rate: f64,
    /// Shared by all replicas: the steps of all of them, and at which of them what happens.
    all_steps: Arc<AtomicUsize>,
    fault: Arc<Mutex<Option<(usize, Fault)>>>,
}

impl Toy {
    fn new(start: f64) -> Self {
        let var = |dims: &[usize]| Var::from_tensor(&Tensor::full(start, dims, &Device::Cpu).unwrap()).unwrap();
        let params = vec![var(&[2, 1]), var(&[1])];
        let velocity = params.iter().map(|var| var.zeros_like().unwrap().try_detach().unwrap()).collect();
        let (all_steps, fault) = (Arc::default(), Arc::default());
        Toy { params, velocity, steps: 0, rate: 0.02, all_steps, fault }
    }

    fn slopes(&self, batch: &MultiDataSet) -> Result<(f64, Vec<Tensor>)> {
        let step = self.all_steps.fetch_add(1, SeqCst);
        let fault = *self.fault.lock().unwrap();
        match fault {
            Some((at, Fault::Error)) if at == step => return Err(Error::msg("a step of no luck")),
            Some((at, Fault::Panic)) if at == step => panic!("a step of no luck"),
            Some((at, Fault::Memory)) if at == step => {
                Tensor::zeros((1usize << 40, 1usize << 10), DType::F64, &Device::Cpu)?;
            }
            _ => {}
        }
        if batch.num_examples() == 0 {
            // As of a model that divides by the number of examples.
            let lost = |var: &Var| Tensor::full(f64::NAN, var.dims(), &Device::Cpu);
            return Ok((f64::NAN, self.params.iter().map(lost).collect::<Result<_>>()?));
        }
        let [w, b] = [&self.params[0], &self.params[1]];
        let error = batch.features[0].matmul(w)?.broadcast_add(b)?.sub(&batch.labels[0])?;
        let score = error.mul(&error)?.mean_all()?;
        let grads = score.backward()?;
        let of = |var: &Var| grads.get(var).unwrap().try_detach()?.copy();
        Ok((score.to_scalar::<f64>()?, self.params.iter().map(of).collect::<Result<_>>()?))
    }

    fn step(&mut self, batch: &DataSet) {
        self.fit_batch(&batch.clone().into()).unwrap();
    }

    fn numbers(&self) -> Vec<f64> {
        self.params.iter().flat_map(|var| var.as_detached_tensor().to_vec::<f64>().unwrap()).collect()
    }
}

impl ParallelModel for Toy {
    type WorkspaceMode = ();

    fn replica(&self) -> Result<Self> {
        let mut other = Toy::new(0.);
        other.params = self.params.iter().map(|var| Var::from_tensor(&var.copy()?)).collect::<Result<_>>()?;
        other.velocity = self.velocity.iter().map(Tensor::copy).collect::<Result<_>>()?;
        (other.steps, other.rate) = (self.steps, self.rate);
        (other.all_steps, other.fault) = (Arc::clone(&self.all_steps), Arc::clone(&self.fault));
        Ok(other)
    }

    fn fit_batch(&mut self, batch: &MultiDataSet) -> Result<f64> {
        let (score, gradients) = self.gradients(batch)?;
        self.apply_gradients(&gradients, score)?;
        Ok(score)
    }

    fn gradients(&mut self, batch: &MultiDataSet) -> Result<(f64, Vec<(String, Tensor)>)> {
        let (score, slopes) = self.slopes(batch)?;
        Ok((score, ["w", "b"].map(str::to_owned).into_iter().zip(slopes).collect()))
    }

    fn apply_gradients(&mut self, gradients: &[(String, Tensor)], _score: f64) -> Result<()> {
        self.steps += 1;
        no_grad(|| {
            for ((var, velocity), (_, gradient)) in self.params.iter().zip(&self.velocity).zip(gradients) {
                velocity.affine_(0.9, 0.)?;
                velocity.add_(gradient)?;
                var.as_detached_tensor().sub_(&velocity.affine(self.rate, 0.)?)?;
            }
            Ok(())
        })
    }

    fn parameters(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(["w", "b"].map(str::to_owned).into_iter().zip(self.params.iter().map(Var::as_detached_tensor)).collect())
    }

    fn updater_state(&mut self) -> Result<Vec<(String, Tensor)>> {
        Ok(["w", "b"].map(str::to_owned).into_iter().zip(self.velocity.iter().cloned()).collect())
    }

    fn iteration(&self) -> u64 {
        self.steps
    }

    fn set_iteration(&mut self, iteration: u64) {
        self.steps = iteration;
    }

    fn set_rank(&mut self, rank: usize) {
        let fault = *self.fault.lock().unwrap();
        if fault == Some((rank, Fault::Rank)) {
            panic!("a rank of no luck");
        }
    }

    fn begin_epoch(&mut self) -> Result<()> {
        let fault = *self.fault.lock().unwrap();
        if matches!(fault, Some((_, Fault::Epoch))) { Err(Error::msg("an epoch of no luck")) } else { Ok(()) }
    }

    fn end_epoch(&mut self) -> Result<()> {
        let fault = *self.fault.lock().unwrap();
        match fault {
            Some((0, Fault::EpochEnd)) => Err(Error::msg("an end of no luck")),
            Some((_, Fault::EpochEnd)) => panic!("an end of no luck"),
            _ => Ok(()),
        }
    }

    fn set_workspace_mode(&mut self, _mode: &()) -> Result<()> {
        Ok(())
    }
}

/// Rows of `y = 3 x0 - 2 x1 + 1`.
fn examples(n: usize) -> DataSet {
    let x: Vec<f64> = (0..2 * n).map(|i| ((i * 37 + 11) % 23) as f64 / 10. - 1.).collect();
    let y: Vec<f64> = x.chunks(2).map(|x| 3. * x[0] - 2. * x[1] + 1.).collect();
    let of = |all: Vec<f64>, columns| Tensor::from_vec(all, (n, columns), &Device::Cpu).unwrap();
    DataSet::new(of(x, 2), of(y, 1)).unwrap()
}

fn batches(n: usize, size: usize) -> ArrayDataSetIterator {
    ArrayDataSetIterator::new(examples(n), size).unwrap()
}

fn assert_equal(wrapper: &ParallelWrapper<Toy>) {
    let all = wrapper.replicas().unwrap();
    let numbers = |replica: &[(String, Tensor)]| -> Vec<u64> {
        replica.iter().flat_map(|(_, array)| array.to_vec::<f64>().unwrap()).map(f64::to_bits).collect()
    };
    assert!(all.iter().all(|replica| numbers(replica) == numbers(&all[0])), "replicas are equal to the last bit");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    both(|| {
        let builder = || ParallelWrapper::builder(Toy::new(0.));
        for wrong in [builder().workers(0), builder().averaging_frequency(0)] {
            assert!(matches!(wrong.build(), Err(Error::Argument { .. })));
        }
        assert!(ThreadCommunicator::group(0).is_err());
    });
}

#[test]
fn one_worker_trains_as_the_model_alone() {
    both(|| {
        let mut alone = Toy::new(0.);
        for _ in 0..3 {
            batches(40, 8).for_each(|batch| alone.step(&batch.unwrap()));
        }
        for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
            let wrapper = ParallelWrapper::builder(Toy::new(0.)).workers(1).training_mode(mode).workspace_mode(());
            let mut wrapper = wrapper.build().unwrap();
            for _ in 0..3 {
                wrapper.fit(batches(40, 8)).unwrap();
            }
            let model = wrapper.into_model().unwrap();
            assert_eq!(model.iteration(), 15);
            for (own, wanted) in model.numbers().into_iter().zip(alone.numbers()) {
                assert!((own - wanted).abs() < 1e-12, "{mode:?}: {own} and {wanted}");
            }
        }
    });
}

#[test]
fn shared_gradients_are_those_of_one_large_batch() {
    both(|| {
        for workers in [2, 3, 5] {
            // The last round has fewer batches than workers, and the last batch fewer rows.
            let (n, size) = (61, 4);
            let mut alone = Toy::new(0.);
            let mut wrapper = ParallelWrapper::builder(Toy::new(0.)).workers(workers);
            wrapper = wrapper.training_mode(TrainingMode::SharedGradients);
            let mut wrapper = wrapper.build().unwrap();
            for _ in 0..4 {
                batches(n, size * workers).for_each(|batch| alone.step(&batch.unwrap()));
                wrapper.fit(batches(n, size)).unwrap();
                assert_equal(&wrapper);
            }
            assert_eq!(wrapper.model().iteration(), alone.iteration());
            for (own, wanted) in wrapper.model().numbers().into_iter().zip(alone.numbers()) {
                assert!((own - wanted).abs() < 1e-12, "{workers} workers: {own} and {wanted}");
            }
        }
    });
}

#[test]
fn parameters_are_averaged_at_the_end_whatever_the_frequency() {
    both(|| {
        for workers in [2, 3] {
            for frequency in [1, 2, 5, 100] {
                for prefetch in [0, 3] {
                    let wrapper = ParallelWrapper::builder(Toy::new(0.)).workers(workers).prefetch_buffer(prefetch);
                    let mut wrapper = wrapper.averaging_frequency(frequency).build().unwrap();
                    let mut reference: Vec<Toy> = (0..workers).map(|_| Toy::new(0.)).collect();
                    for n in [44, 4, 0, 61] {
                        wrapper.fit(batches(n, 4)).unwrap();
                        assert_equal(&wrapper);
                        averaged(&mut reference, n, frequency);
                        for (own, wanted) in wrapper.model().numbers().into_iter().zip(reference[0].numbers()) {
                            assert!((own - wanted).abs() < 1e-12, "{workers} workers, {frequency}: {own} and {wanted}");
                        }
                    }
                    assert!(wrapper.score().is_some());
                }
            }
        }
    });
}

/// The same on one thread, as plainly as can be.
fn averaged(toys: &mut [Toy], n: usize, frequency: usize) {
    let all: Vec<DataSet> = batches(n, 4).collect::<Result<_>>().unwrap();
    let mut rounds = all.chunks(toys.len()).enumerate().peekable();
    while let Some((round, some)) = rounds.next() {
        some.iter().zip(toys.iter_mut()).for_each(|(batch, toy)| toy.step(batch));
        if (round + 1) % frequency != 0 && rounds.peek().is_some() {
            continue;
        }
        for place in 0..2 {
            let param = |toy: &Toy| toy.params[place].as_detached_tensor();
            let mean = |of: &dyn Fn(&Toy) -> Tensor| {
                let sum = toys[1..].iter().fold(of(&toys[0]).copy().unwrap(), |sum, toy| sum.add(&of(toy)).unwrap());
                sum.affine(1. / toys.len() as f64, 0.).unwrap()
            };
            let (params, velocity) = (mean(&param), mean(&|toy| toy.velocity[place].clone()));
            for toy in toys.iter() {
                param(toy).copy_(&params).unwrap();
                toy.velocity[place].copy_(&velocity).unwrap();
            }
        }
    }
}

#[test]
fn a_worker_that_diverged_is_seen_in_the_score() {
    both(|| {
        let mut wrapper = ParallelWrapper::builder(Toy::new(0.)).averaging_frequency(9).build().unwrap();
        assert_eq!(wrapper.score(), None);
        let lost = DataSet::new(examples(4).features, examples(4).labels.affine(f64::NAN, 0.).unwrap()).unwrap();
        wrapper.fit(ListDataSetIterator::new(vec![examples(4), lost])).unwrap();
        assert!(wrapper.score().unwrap().is_nan());
    });
}

/// Of the updater, of schedules, and of listeners.
#[test]
fn a_batch_without_examples_is_no_step() {
    both(|| {
        let mut alone = Toy::new(0.);
        [8, 12].into_iter().for_each(|n| alone.step(&examples(n)));
        for (workers, frequency) in [(1, 1), (1, 3), (2, 1), (2, 3), (3, 4), (3, 9)] {
            let wrapper = ParallelWrapper::builder(Toy::new(0.)).workers(workers).averaging_frequency(frequency);
            let mut wrapper = wrapper.build().unwrap();
            // In each round all have the same.
            let round = |n: usize| vec![examples(n); workers];
            let batches = [round(0), round(8), round(0), round(12), round(0)].concat();
            wrapper.fit(ListDataSetIterator::new(batches)).unwrap();
            let what = format!("{workers} workers, {frequency}");
            assert_eq!(wrapper.model().iteration(), 2, "{what}");
            for (own, wanted) in wrapper.model().numbers().into_iter().zip(alone.numbers()) {
                assert!((own - wanted).abs() < 1e-12, "{what}: {own} and {wanted}");
            }
            assert!(wrapper.score().unwrap().is_finite(), "{what}");
        }
        // A round in which one has examples is a step of all.
        let mut wrapper = ParallelWrapper::builder(Toy::new(0.)).build().unwrap();
        wrapper.fit(ListDataSetIterator::new(vec![examples(8), examples(0), examples(0), examples(0)])).unwrap();
        assert_eq!(wrapper.model().iteration(), 1);
        assert_equal(&wrapper);
        let numbers = wrapper.model().numbers();
        assert!(numbers.iter().all(|x| x.is_finite()) && numbers.iter().any(|&x| x != 0.), "{numbers:?}");
        // However rarely they are averaged: of eight batches one of the two has all that have examples.
        let mut wrapper = ParallelWrapper::builder(Toy::new(0.)).averaging_frequency(4).build().unwrap();
        wrapper.fit(ListDataSetIterator::new(vec![[examples(8), examples(0)]; 4].concat())).unwrap();
        assert_eq!(wrapper.model().iteration(), 4);
    });
}

/// NaN times 0 is NaN.
#[test]
fn what_counts_for_nothing_may_be_anything() {
    both(|| {
        let mut alone = Toy::new(0.);
        alone.step(&examples(8));
        for batches in [vec![examples(8), examples(0)], vec![examples(0), examples(8)]] {
            let wrapper = ParallelWrapper::builder(Toy::new(0.)).training_mode(TrainingMode::SharedGradients);
            let mut wrapper = wrapper.build().unwrap();
            wrapper.fit(ListDataSetIterator::new(batches)).unwrap();
            assert_eq!(wrapper.model().iteration(), 1);
            assert_equal(&wrapper);
            assert!(wrapper.score().unwrap().is_finite());
            for (own, wanted) in wrapper.model().numbers().into_iter().zip(alone.numbers()) {
                assert!((own - wanted).abs() < 1e-12, "{own} and {wanted}");
            }
        }
    });
}

/// DL4J's log of the averaged score.
#[test]
fn the_mean_score_is_said_after_each_averaging_to_who_asks_for_it() {
    const TEST: &str = "train::parallel::the_mean_score_is_said_after_each_averaging_to_who_asks_for_it";
    // Ten batches for two workers: five rounds.
    let cases =
        [(TrainingMode::Averaging, 1, 5usize), (TrainingMode::Averaging, 2, 3), (TrainingMode::SharedGradients, 1, 5)];
    if is_child() {
        for (mode, frequency, _) in cases {
            for reports in [false, true] {
                let wrapper = ParallelWrapper::builder(Toy::new(0.)).report_score_after_averaging(reports);
                let wrapper = wrapper.training_mode(mode).averaging_frequency(frequency);
                let mut wrapper = wrapper.build().unwrap();
                wrapper.fit(batches(40, 4)).unwrap();
                eprintln!("score: {}", wrapper.score().unwrap());
            }
        }
        return;
    }
    let said = String::from_utf8(in_child(TEST, &[]).stderr).unwrap();
    let (mut found, mut scores) = (Vec::new(), Vec::new());
    for line in said.lines() {
        match line.split_once(": ") {
            Some(("averaged score", score)) => scores.push(score),
            Some(("score", last)) => {
                assert!(scores.last().is_none_or(|score| *score == last), "{last} is the last of {scores:?}");
                found.push(scores.len());
                scores.clear();
            }
            _ => {}
        }
    }
    assert_eq!(found, cases.map(|(.., times)| [0, times]).concat(), "{said}");
}

#[test]
fn it_learns() {
    both(|| {
        for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
            let mut wrapper = ParallelWrapper::builder(Toy::new(0.)).training_mode(mode).build().unwrap();
            for _ in 0..60 {
                wrapper.fit(batches(60, 4)).unwrap();
            }
            assert!(wrapper.score().unwrap() < 1e-6, "{mode:?}: {:?}", wrapper.score());
            for (own, wanted) in wrapper.model().numbers().into_iter().zip([3., -2., 1.]) {
                assert!((own - wanted).abs() < 1e-2, "{own} and {wanted}");
            }
        }
    });
}

#[test]
fn a_fault_of_a_worker_ends_fit_with_it_and_all_goes_on() {
    quietly(|| {
        both(|| {
            for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
                for fault in [Fault::Error, Fault::Panic, Fault::Memory] {
                    for (at, frequency) in [(0, 1), (1, 1), (2, 4), (7, 3), (14, 1)] {
                        let toy = Toy::new(0.);
                        let (steps, faults) = (Arc::clone(&toy.all_steps), Arc::clone(&toy.fault));
                        *faults.lock().unwrap() = Some((at, fault));
                        let wrapper = ParallelWrapper::builder(toy).workers(3).averaging_frequency(frequency);
                        let mut wrapper = wrapper.training_mode(mode).build().unwrap();
                        let error = wrapper.fit(batches(60, 4)).unwrap_err();
                        match fault {
                            Fault::Memory => assert!(matches!(error, Error::OutOfMemory(_)), "{error}"),
                            _ => assert!(error.to_string().contains("a step of no luck"), "{error}"),
                        }
                        assert!(wrapper.model().numbers().iter().all(|x| x.is_finite()), "the model can be used");
                        *faults.lock().unwrap() = None;
                        steps.store(0, SeqCst);
                        wrapper.fit(batches(60, 4)).unwrap();
                        assert_eq!(steps.load(SeqCst), 15);
                        assert_equal(&wrapper);
                    }
                }
            }
        });
    });
}

/// Broken by: calls of the user's outside of what is caught, of which the worker's thread ended.
#[test]
fn a_panic_of_the_users_beside_a_step_ends_fit_with_it_and_all_goes_on() {
    quietly(|| {
        both(|| {
            for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
                for rank in 0..3 {
                    let toy = Toy::new(0.);
                    let faults = Arc::clone(&toy.fault);
                    *faults.lock().unwrap() = Some((rank, Fault::Rank));
                    let mut wrapper = ParallelWrapper::builder(toy).workers(3).training_mode(mode).build().unwrap();
                    let error = wrapper.fit(batches(60, 4)).unwrap_err();
                    assert!(matches!(error, Error::Invalid { op: "ParallelWrapper", .. }), "{error}");
                    assert!(error.to_string().contains("a rank of no luck"), "{error}");
                    assert!(wrapper.model().numbers().iter().all(|x| x.is_finite()), "the model can be used");
                    *faults.lock().unwrap() = None;
                    wrapper.fit(batches(60, 4)).unwrap();
                    assert_equal(&wrapper);
                }
            }
            let wrapper = ParallelWrapper::builder(Toy::new(0.)).communicator(Box::new(Rude));
            let mut wrapper = wrapper.build().unwrap();
            for _ in 0..2 {
                let error = wrapper.fit(batches(60, 4)).unwrap_err().to_string();
                assert!(error.contains("a sum of no luck"), "{error}");
            }
            assert!(wrapper.into_model().unwrap().numbers().iter().all(|x| x.is_finite()));
        });
    });
}

/// Neither adds up nor can be told to end.
struct Rude;

impl Communicator for Rude {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&mut self, _arrays: &[Tensor], _scale: f64) -> Result<()> {
        Err(Error::msg("a sum of no luck"))
    }

    fn abort(&mut self, _why: &str) {
        panic!("an abort of no luck");
    }
}

#[test]
fn a_fault_of_the_iterator_ends_fit_with_it_and_all_goes_on() {
    quietly(|| {
        both(|| {
            for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
                for panics in [false, true] {
                    for at in [0, 1, 2, 5, 8] {
                        let mut wrapper = ParallelWrapper::builder(Toy::new(0.)).workers(3).training_mode(mode);
                        wrapper = wrapper.averaging_frequency(2);
                        let mut wrapper = wrapper.build().unwrap();
                        let source = FnDataIterator::new(|n| match n == at {
                            true if panics => panic!("no batch"),
                            true => Err(Error::msg("no batch")),
                            false => Ok(Some(examples(4))),
                        });
                        let fit = catch_unwind(AssertUnwindSafe(|| wrapper.fit(source)));
                        match fit {
                            Ok(result) => assert_eq!(result.unwrap_err().to_string(), "no batch"),
                            Err(panic) => assert_eq!((panics, panic.downcast_ref()), (true, Some(&"no batch"))),
                        }
                        wrapper.fit(batches(60, 4)).unwrap();
                        assert_equal(&wrapper);
                    }
                }
            }
        });
    });
}

/// The system may list a thread for a moment after its end.
#[cfg(target_os = "linux")]
fn until_no_trainer_is_left() {
    let end = Instant::now() + Duration::from_secs(60);
    while named("ndgc-trainer").0 > 0 {
        assert!(Instant::now() < end, "the workers ended");
        thread::yield_now();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn threads_and_bytes_are_constant_over_epochs() {
    both(|| {
        // Of the test before.
        until_no_trainer_is_left();
        gc::collect();
        let before = Device::Cpu.memory().active;
        let mut wrapper = ParallelWrapper::builder(Toy::new(0.)).workers(2).averaging_frequency(3).build().unwrap();
        let mut epoch = || {
            Device::Cpu.reset_peak();
            wrapper.fit(batches(60, 4)).unwrap();
            gc::collect();
            assert_eq!(named("ndgc-trainer").0, 2, "the same threads go on");
            Device::Cpu.memory().active
        };
        epoch();
        let settled = epoch();
        for _ in 0..100 {
            assert!(epoch() <= settled);
        }
        drop(wrapper);
        gc::collect();
        assert_eq!(Device::Cpu.memory().active, before);
        until_no_trainer_is_left();
    });
}

#[test]
fn a_communicator_of_the_users_joins_wrappers() {
    both(|| {
        let group = ThreadCommunicator::group(2).unwrap();
        let ranks: Vec<_> = group
            .into_iter()
            .enumerate()
            .map(|(rank, own)| {
                thread::spawn(move || {
                    let wrapper = ParallelWrapper::builder(Toy::new(0.)).communicator(Box::new(own));
                    let mut wrapper = wrapper.averaging_frequency(2).build().unwrap();
                    let all = examples(60).rows(rank * 30, 30).unwrap();
                    for _ in 0..3 {
                        wrapper.fit(ArrayDataSetIterator::new(all.clone(), 6).unwrap()).unwrap();
                    }
                    wrapper.into_model().unwrap().numbers()
                })
            })
            .collect();
        let ranks: Vec<Vec<f64>> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert_eq!(ranks[0], ranks[1]);
        let several = ParallelWrapper::builder(Toy::new(0.));
        let one = ThreadCommunicator::group(1).unwrap().remove(0);
        assert!(several.communicator(Box::new(one)).workers(2).build().is_err());
    });
}

/// Broken by: a rank that waits for a sum with one that has no batch for it.
#[test]
fn a_rank_with_fewer_batches_is_named_by_all() {
    both(|| {
        for mode in [TrainingMode::Averaging, TrainingMode::SharedGradients] {
            let ranks: Vec<_> = ThreadCommunicator::group(3)
                .unwrap()
                .into_iter()
                .enumerate()
                .map(|(rank, own)| {
                    thread::spawn(move || {
                        let wrapper = ParallelWrapper::builder(Toy::new(0.)).communicator(Box::new(own));
                        let mut wrapper = wrapper.training_mode(mode).build().unwrap();
                        wrapper.fit(batches(24, 4)).unwrap();
                        let error = wrapper.fit(batches(if rank == 1 { 12 } else { 24 }, 4)).unwrap_err();
                        assert!(matches!(error, Error::Invalid { .. }), "{error}");
                        assert!(wrapper.into_model().unwrap().numbers().iter().all(|x| x.is_finite()));
                        error.to_string()
                    })
                })
                .collect();
            for (rank, error) in ranks.into_iter().map(|rank| rank.join().unwrap()).enumerate() {
                let why = format!("rank {rank} cannot go on: rank 1 is at the end of its batches, and others are not");
                assert!(error.contains(&why), "{mode:?}: {error}");
            }
        }
    });
}

/// Batches that cannot be begun with, or else not read.
struct Unread(&'static str);

impl Iterator for Unread {
    type Item = Result<DataSet>;

    fn next(&mut self) -> Option<Result<DataSet>> {
        Some(Err(Error::msg("no batch")))
    }
}

impl DataIterator<DataSet> for Unread {
    fn reset(&mut self) -> Result<()> {
        assert_ne!(self.0, "panic", "no batch");
        if self.0 == "reset" { Err(Error::msg("no batch")) } else { Ok(()) }
    }
}

/// Broken by: a rank that fails before its first step and says nothing, so that the others wait until its wrapper goes.
#[test]
fn a_rank_that_cannot_begin_is_named_by_the_others() {
    quietly(|| {
        both(|| {
            for fault in ["reset", "panic", "epoch", "read"] {
                let mut group = ThreadCommunicator::group(2).unwrap();
                let (other, own) = (group.remove(1), group.remove(0));
                let (say, hear) = mpsc::channel();
                let waits = thread::spawn(move || {
                    let wrapper = ParallelWrapper::builder(Toy::new(0.)).communicator(Box::new(other));
                    let error = wrapper.build().unwrap().fit(batches(24, 4)).unwrap_err();
                    say.send(error.to_string()).unwrap();
                });
                let toy = Toy::new(0.);
                if fault == "epoch" {
                    *toy.fault.lock().unwrap() = Some((0, Fault::Epoch));
                }
                let mut wrapper = ParallelWrapper::builder(toy).communicator(Box::new(own)).build().unwrap();
                let fit = catch_unwind(AssertUnwindSafe(|| wrapper.fit(Unread(fault))));
                assert_eq!(fit.is_err(), fault == "panic", "{fault}");
                assert!(!matches!(fit, Ok(Ok(()))), "{fault}");
                // The wrapper is still there.
                let heard = hear.recv_timeout(Duration::from_secs(60)).unwrap();
                assert!(heard.contains("rank 1 cannot go on: rank 0 failed: "), "{fault}: {heard}");
                waits.join().unwrap();
                drop(wrapper);
            }
        });
    });
}

/// Broken by: a rank that fails behind its last step and says nothing, so that the others wait for it in the next pass.
#[test]
fn a_rank_whose_epoch_cannot_end_is_named_by_the_others() {
    quietly(|| {
        both(|| {
            for (at, why) in [(0, "an end of no luck"), (1, "the training was broken off")] {
                let mut group = ThreadCommunicator::group(2).unwrap();
                let (other, own) = (group.remove(1), group.remove(0));
                let (say, hear) = mpsc::channel();
                let waits = thread::spawn(move || {
                    let wrapper = ParallelWrapper::builder(Toy::new(0.)).communicator(Box::new(other));
                    let mut wrapper = wrapper.build().unwrap();
                    wrapper.fit(batches(24, 4)).unwrap();
                    let error = wrapper.fit(batches(24, 4)).unwrap_err();
                    say.send(error.to_string()).unwrap();
                });
                let toy = Toy::new(0.);
                *toy.fault.lock().unwrap() = Some((at, Fault::EpochEnd));
                let mut wrapper = ParallelWrapper::builder(toy).communicator(Box::new(own)).build().unwrap();
                let fit = catch_unwind(AssertUnwindSafe(|| wrapper.fit(batches(24, 4))));
                assert_eq!(fit.is_err(), at == 1);
                assert!(!matches!(fit, Ok(Ok(()))), "{why}");
                // The wrapper is still there.
                let heard = hear.recv_timeout(Duration::from_secs(60)).unwrap();
                assert!(heard.contains(&format!("rank 1 cannot go on: rank 0 failed: {why}")), "{heard}");
                waits.join().unwrap();
                drop(wrapper);
            }
        });
    });
}

#[test]
fn a_rank_that_ends_or_aborts_ends_the_others() {
    both(|| {
        for dies in [false, true] {
            let mut group = ThreadCommunicator::group(3).unwrap();
            let mut first = group.remove(0);
            let others: Vec<_> = group
                .into_iter()
                .map(|mut own| thread::spawn(move || own.all_reduce(&[rows(1, 1, 1.)], 1.).unwrap_err().to_string()))
                .collect();
            if dies {
                drop(first)
            } else {
                first.abort("lost its mind")
            }
            for other in others {
                let error = other.join().unwrap();
                assert!(error.contains("rank 0"), "{error}");
            }
        }
    });
}

#[test]
fn an_iterator_made_ahead_feeds_workers_whole_batches() {
    both(|| {
        let source = FnDataIterator::new(|n| {
            let x = Tensor::full(n as f64, (4, 2), &Device::Cpu)?;
            Ok((n < 50).then_some(DataSet::new(x, Tensor::full(n as f64, (4, 1), &Device::Cpu)?)?))
        });
        let mut source = AsyncDataSetIterator::with_prefetch(source, 2).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let wrapper = ParallelWrapper::builder(Seen { seen: Arc::clone(&seen), toy: Toy::new(0.) }).workers(4);
        let mut wrapper = wrapper.prefetch_buffer(3).build().unwrap();
        for _ in 0..3 {
            wrapper.fit(&mut source).unwrap();
            let mut all = std::mem::take(&mut *seen.lock().unwrap());
            all.sort_unstable();
            assert_eq!(all, (0..50).collect::<Vec<_>>());
        }
    });
}

/// Looks at the batches, and does nothing else.
struct Seen {
    seen: Arc<Mutex<Vec<usize>>>,
    toy: Toy,
}

impl ParallelModel for Seen {
    type WorkspaceMode = ();

    fn replica(&self) -> Result<Self> {
        Ok(Seen { seen: Arc::clone(&self.seen), toy: self.toy.replica()? })
    }

    fn fit_batch(&mut self, batch: &MultiDataSet) -> Result<f64> {
        thread::yield_now();
        let all = [batch.features[0].to_vec::<f64>()?, batch.labels[0].to_vec::<f64>()?].concat();
        assert!(all.iter().all(|&x| x == all[0]), "a whole batch: {all:?}");
        self.seen.lock().unwrap().push(all[0] as usize);
        Ok(0.)
    }

    fn gradients(&mut self, batch: &MultiDataSet) -> Result<(f64, Vec<(String, Tensor)>)> {
        self.toy.gradients(batch)
    }

    fn apply_gradients(&mut self, _gradients: &[(String, Tensor)], _score: f64) -> Result<()> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<(String, Tensor)>> {
        self.toy.parameters()
    }

    fn updater_state(&mut self) -> Result<Vec<(String, Tensor)>> {
        self.toy.updater_state()
    }

    fn iteration(&self) -> u64 {
        0
    }

    fn set_iteration(&mut self, _iteration: u64) {}

    fn set_workspace_mode(&mut self, _mode: &()) -> Result<()> {
        Ok(())
    }
}
