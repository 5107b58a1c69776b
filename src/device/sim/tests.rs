//! Programs on simulated devices: right ones are right in every order, wrong ones are found out.

use std::sync::mpsc;

mod parts;

use super::*;
use crate::base::{dtype::DType, error::Error, layout::Layout, shape::Shape};
use crate::device::{
    Device,
    budget::AllocError,
    buffer::Buffer,
    kernel::{BinaryOp, Kernel, OwnedView},
    stream::Driver,
};

/// Elements of the arrays that random programs use.
const SIZES: [usize; 3] = [5, 100, 700];

/// Arrays that they have at once, at most.
const LIVE_MAX: usize = 13;

fn steps(count: usize) -> usize {
    if cfg!(miri) { count / 20 } else { count }
}

/// Seeds, with blocks that are the driver's own and with blocks sub-allocated from segments.
fn seeds() -> impl Iterator<Item = (u64, usize)> {
    [0, 1 << 14, 1 << 20].into_iter().flat_map(|segment_bytes| (0..6).map(move |seed| (seed, segment_bytes)))
}

/// An array and the values it has to have.
struct Known {
    buffer: Buffer,
    values: Vec<f32>,
}

fn view_of(buffer: &Buffer) -> OwnedView {
    let elements = buffer.span().bytes() / 4;
    OwnedView::new(buffer.span(), DType::F32, Layout::contiguous(Shape::from(elements)))
}

fn buffer(sim: &Sim, bytes: usize, zeroed: bool) -> Granted<Buffer> {
    Device::Sim(sim.clone()).alloc(bytes, zeroed)
}

fn fresh(sim: &Sim, elements: usize) -> Granted<Buffer> {
    buffer(sim, elements * 4, false)
}

fn filled(sim: &Sim, elements: usize, value: f64) -> Buffer {
    let buffer = fresh(sim, elements).expect("enough memory");
    sim.launch(&Kernel::Fill { dst: view_of(&buffer), value }).expect("no failure was asked for");
    buffer
}

fn read(sim: &Sim, buffer: &Buffer) -> Result<Vec<f32>> {
    let mut bytes = Vec::new();
    sim.download(&view_of(buffer), &mut |part| bytes.extend_from_slice(part))?;
    assert_eq!(bytes.len(), buffer.span().bytes());
    Ok(bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect())
}

fn add(lhs: &Buffer, rhs: &Buffer, dst: &Buffer) -> Kernel {
    Kernel::Binary { op: BinaryOp::Add, lhs: view_of(lhs), rhs: view_of(rhs), dst: view_of(dst) }
}

/// A random program: arrays that are made, combined, changed in place, read and dropped on random streams.
struct Program {
    sim: Sim,
    known: Vec<Known>,
    random: u64,
    wrong: usize,
}

impl Program {
    fn new(config: SimConfig) -> Self {
        Program { random: config.seed + 1, sim: Sim::new(config), known: Vec::new(), wrong: 0 }
    }

    fn run(config: SimConfig, count: usize) -> Self {
        let mut program = Program::new(config);
        program.steps(count);
        program
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            let stream = self.draw(4);
            let sim = self.sim.clone();
            sim.on_stream(stream, || self.step());
        }
        (0..self.known.len()).for_each(|i| self.check(i));
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }

    /// Twice if need be: a call that failed on request left everything as it was.
    fn insist<T>(call: impl Fn() -> Result<T>) -> T {
        match call() {
            Ok(value) => value,
            Err(Error::Device { message, .. }) if message.contains("on request") => call().expect("the second time"),
            Err(other) => panic!("an error that nobody asked for: {other}"),
        }
    }

    fn fresh(&self, elements: usize) -> Buffer {
        Self::insist(|| {
            fresh(&self.sim, elements).map_err(|error| match error {
                AllocError::Failed(error) => error,
                AllocError::Exhausted => Error::msg("exhausted"),
            })
        })
    }

    fn step(&mut self) {
        if self.known.len() == LIVE_MAX {
            let dropped = self.draw(LIVE_MAX);
            self.known.swap_remove(dropped);
        }
        let elements = SIZES[self.draw(3)];
        let value = self.draw(100) as f32;
        let same: Vec<_> = (0..self.known.len()).filter(|&i| self.known[i].values.len() == elements).collect();
        let pick = |at: usize| same[at % same.len().max(1)];
        let (a, b, choice) = (self.draw(1000), self.draw(1000), self.draw(6));
        match choice {
            2 | 3 if same.len() > 1 => self.combine(pick(a), pick(b)),
            4 if same.len() > 1 && pick(a) != pick(b) => self.add_assign(pick(a), pick(b)),
            5 if !same.is_empty() => self.check(pick(a)),
            1 => {
                let buffer = self.fresh(elements);
                let bytes: Vec<u8> = (0..elements).flat_map(|i| (value + i as f32).to_ne_bytes()).collect();
                Self::insist(|| self.sim.upload(buffer.span(), &bytes));
                self.known.push(Known { buffer, values: (0..elements).map(|i| value + i as f32).collect() });
            }
            _ => {
                let buffer = self.fresh(elements);
                let fill = Kernel::Fill { dst: view_of(&buffer), value: value.into() };
                Self::insist(|| self.sim.launch(&fill));
                self.known.push(Known { buffer, values: vec![value; elements] });
            }
        }
    }

    fn combine(&mut self, a: usize, b: usize) {
        let (a, b) = (&self.known[a], &self.known[b]);
        let buffer = self.fresh(a.values.len());
        let values = a.values.iter().zip(&b.values).map(|(a, b)| a + b).collect();
        Self::insist(|| self.sim.launch(&add(&a.buffer, &b.buffer, &buffer)));
        self.known.push(Known { buffer, values });
    }

    fn add_assign(&mut self, a: usize, b: usize) {
        let (dst, rhs) = (view_of(&self.known[a].buffer), view_of(&self.known[b].buffer));
        Self::insist(|| self.sim.launch(&Kernel::BinaryAssign { op: BinaryOp::Add, dst, rhs }));
        let rhs = self.known[b].values.clone();
        self.known[a].values.iter_mut().zip(rhs).for_each(|(a, b)| *a += b);
    }

    fn check(&mut self, i: usize) {
        let known = &self.known[i];
        self.wrong += usize::from(Self::insist(|| read(&self.sim, &known.buffer)) != known.values);
    }

    /// Drops everything, gives everything back, and looks whether that was all.
    fn end(mut self) {
        self.known.clear();
        let stats = self.sim.stats();
        assert_eq!(stats.active, 0);
        assert_eq!(self.sim.0.device.driver().lock().heap_bytes(), stats.cached, "all bytes are in the pool");
        assert_eq!(self.sim.trim(), stats.cached);
        assert_eq!(self.sim.0.device.driver().lock().heap_bytes(), 0);
        assert_eq!((self.sim.stats().cached, self.sim.pending()), (0, 0));
        assert_eq!(self.sim.calls().frees, self.sim.stats().misses, "each block went once");
    }
}

#[test]
fn random_programs_on_four_streams_are_ordered_and_right() {
    for (seed, segment_bytes) in seeds() {
        let program = Program::run(SimConfig { seed, segment_bytes, ..SimConfig::default() }, steps(2000));
        assert_eq!(program.sim.violations(), [], "seed {seed}");
        assert_eq!(program.wrong, 0, "seed {seed}");
        let calls = program.sim.calls();
        assert!(calls.waits > 0 && calls.records <= calls.waits, "seed {seed}: {calls:?}");
        assert!(program.sim.stats().hits > calls.allocations, "seed {seed}: blocks are used again");
        program.end();
    }
}

#[test]
fn without_order_between_streams_the_checker_objects_and_values_go_wrong() {
    let mut wrong = 0;
    for (seed, segment_bytes) in seeds() {
        let config = SimConfig { seed, segment_bytes, order_streams: false, ..SimConfig::default() };
        let program = Program::run(config, steps(2000));
        let violations = program.sim.violations();
        assert!(violations.iter().any(|v| matches!(v, Violation::Unordered { .. })), "seed {seed}");
        wrong += program.wrong;
        program.end();
    }
    assert!(wrong > 0, "the order that is drawn exposes missing waits");
}

#[test]
fn without_order_at_reuse_the_checker_objects() {
    for (seed, segment_bytes) in seeds() {
        let config = SimConfig { seed, segment_bytes, order_reuse: false, ..SimConfig::default() };
        let program = Program::run(config, steps(2000));
        assert!(!program.sim.violations().is_empty(), "seed {seed}");
        program.end();
    }
}

#[test]
fn one_seed_gives_one_run() {
    let outcome = |_| {
        let program = Program::run(SimConfig { seed: 3, order_streams: false, ..SimConfig::default() }, steps(1000));
        (program.wrong, program.sim.violations(), program.sim.calls())
    };
    let [first, second] = [0, 1].map(outcome);
    assert!(first == second);
}

#[test]
fn a_program_on_one_stream_makes_no_event_call() {
    for (seed, segment_bytes) in seeds() {
        let mut program = Program::new(SimConfig { seed, segment_bytes, ..SimConfig::default() });
        for _ in 0..steps(2000) {
            program.step();
        }
        let calls = program.sim.calls();
        assert_eq!((calls.records, calls.waits, calls.synchronisations), (0, 0, 0));
        assert_eq!((program.wrong, program.sim.violations()), (0, vec![]));
        program.end();
    }
}

#[test]
fn every_call_that_can_fail_leaves_everything_as_it_was() {
    for n in 1.. {
        let mut program = Program::new(SimConfig { seed: n, memory_bytes: 40 << 10, ..SimConfig::default() });
        program.sim.fail_call(Some(n));
        program.steps(steps(200));
        program.known.clear();
        program.sim.trim();
        let reported = program.sim.synchronize();
        let over = program.sim.0.device.driver().lock().fail_in.is_some();
        program.sim.fail_call(None);
        assert!(reported.is_ok() || !over, "call {n}");
        assert_eq!((program.wrong, program.sim.violations()), (0, vec![]), "call {n}");
        program.sim.trim();
        assert_eq!(program.sim.stats().cached, 0, "call {n}");
        assert_eq!(program.sim.0.device.driver().lock().heap_bytes(), 0, "call {n}");
        if over {
            assert!(n > 50, "the program made few calls: {n}");
            break;
        }
    }
}

#[test]
fn a_launch_that_failed_leaves_nothing_to_wait_for() {
    let sim = Sim::new(SimConfig::default());
    drop(fresh(&sim, 25).expect("enough memory"));
    sim.synchronize().expect("nothing fails");
    let waited = sim.calls().synchronisations;
    assert_eq!(waited, 1, "asking the driver for bytes is submitted too");
    sim.fail_call(Some(1));
    assert!(matches!(buffer(&sim, 100, true), Err(AllocError::Failed(Error::Device { call: "launch", .. }))));
    assert_eq!((sim.stats().active, sim.stats().cached, sim.pending()), (0, 256, 0));
    sim.synchronize().expect("nothing fails");
    assert_eq!(sim.calls().synchronisations, waited, "no tick was counted");
}

#[test]
fn a_failure_while_trimming_is_reported_by_the_next_waiting_call() {
    let sim = Sim::new(SimConfig::default());
    drop(filled(&sim, 100, 1.0));
    sim.fail_call(Some(2));
    assert_eq!(sim.trim(), 0, "the wait succeeded, the free did not");
    assert!(matches!(sim.synchronize(), Err(Error::Device { call: "free", .. })));
    assert!(sim.synchronize().is_ok(), "once");
    assert_eq!(sim.trim(), 512);
}

#[test]
fn a_kernel_that_fails_is_reported_once_by_whatever_waits_first() {
    let sim = Sim::new(SimConfig::default());
    let (src, dst) = (filled(&sim, 4, 1.0), filled(&sim, 2, 0.0));
    let ids = buffer(&sim, 8, false).expect("enough memory");
    sim.upload(ids.span(), &[1u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat()).expect("submitted");
    let ids = OwnedView::new(ids.span(), DType::U32, Layout::contiguous(Shape::from(2)));
    let select = Kernel::IndexSelect { src: view_of(&src), ids, axis: 0, dst: view_of(&dst) };
    assert!(sim.launch(&select).is_ok(), "nobody has looked at the ids yet");
    assert!(fresh(&sim, 10).is_ok(), "an allocation does not report it");
    assert_eq!(sim.trim(), 256, "nor does a trim");
    assert!(matches!(read(&sim, &src), Err(Error::IndexOutOfRange { index: 9, dim: 4, .. })));
    assert_eq!(read(&sim, &src).expect("reported already"), [1.0; 4]);
    assert!(sim.synchronize().is_ok());
}

#[test]
fn work_is_deferred_until_somebody_waits() {
    let sim = Sim::new(SimConfig::default());
    let a = filled(&sim, 3, 1.0);
    let b = sim.on_stream(1, || filled(&sim, 3, 2.0));
    assert_eq!(sim.pending(), 2);
    let c = sim.on_stream(2, || {
        let c = fresh(&sim, 3).expect("enough memory");
        sim.launch(&add(&a, &b, &c)).map(|()| c).expect("submitted")
    });
    drop((a, b));
    assert_eq!(sim.pending(), 3, "a drop waits for nothing");
    assert_eq!(read(&sim, &c).expect("right"), [3.0; 3]);
    assert_eq!((sim.pending(), sim.calls().waits), (0, 2));
    for _ in 0..1000 {
        drop(filled(&sim, 3, 0.0));
    }
    assert!(sim.pending() <= 256, "but only so much is");
}

#[test]
fn uninitialised_reads_are_found_by_the_byte() {
    let sim = Sim::new(SimConfig::default());
    let a = fresh(&sim, 10).expect("enough memory");
    let part = |start, len| {
        let layout = Layout::contiguous(Shape::from(10)).narrow(0, start, len).expect("inside");
        OwnedView::new(a.span(), DType::F32, layout)
    };
    sim.launch(&Kernel::Fill { dst: part(0, 6), value: 1.0 }).expect("submitted");
    let mut count = 0;
    sim.download(&part(2, 4), &mut |part| count += part.len()).expect("copies the whole span");
    assert_eq!(count, 40);
    assert_eq!(sim.violations(), []);
    sim.download(&part(2, 6), &mut |_| {}).expect("reads what nobody wrote");
    assert!(matches!(sim.violations()[..], [Violation::Uninitialised { block: 0, byte: 24, .. }]));
    drop(a);
    let again = fresh(&sim, 10).expect("enough memory");
    let zeroed = buffer(&sim, 40, true).expect("enough memory");
    assert_eq!(read(&sim, &zeroed).expect("zeroes are written"), [0.0; 10]);
    assert_eq!(sim.violations().len(), 1);
    assert!(read(&sim, &again).is_ok());
    assert_eq!(sim.violations().len(), 2, "a block handed out again counts as unwritten");
}

#[test]
fn uses_after_the_end_and_overlaps_are_found_and_harmless() {
    let sim = Sim::new(SimConfig::default());
    let a = filled(&sim, 8, 1.0);
    let dead = view_of(&a);
    drop(a);
    sim.launch(&Kernel::Fill { dst: dead, value: 2.0 }).expect("the bytes are still there");
    let by = |block: Option<u64>, name: &str| {
        let violations = sim.violations();
        let Some(Violation::UseAfterFree { block: found, by }) = violations.last() else { return false };
        *found == block && by.kernel == name
    };
    assert!(by(Some(0), "fill"));
    sim.trim();
    let gone = sim.upload(dead.span(), &[0; 32]).expect_err("nothing is there");
    let name = format!("sim:{}", sim.ordinal());
    let told = "an operand lies outside the device's memory, or has another size than the host's bytes";
    assert_eq!(gone.to_string(), format!("{name}: upload failed: {told}"));
    assert!(by(None, "upload"));
    sim.free(dead.span());
    assert!(by(None, "free"));
    let b = filled(&sim, 8, 1.0);
    let overlapping = Kernel::copy(view_of(&b), view_of(&b));
    let refused = sim.launch(&overlapping).expect_err("it would read what it writes");
    let told = "launch failed: an operand that is written overlaps another one";
    assert_eq!(refused.to_string(), format!("{name}: {told}"));
    assert!(matches!(sim.violations().last(), Some(Violation::Overlap { block: 1, .. })));
}

#[test]
fn blocks_of_one_segment_are_checked_each_for_itself() {
    let sim = Sim::new(SimConfig { segment_bytes: 1 << 20, ..SimConfig::default() });
    let (a, b) = (filled(&sim, 8, 1.0), filled(&sim, 8, 2.0));
    assert_eq!(sim.calls().allocations, 1);
    let dead = view_of(&a);
    drop(a);
    assert_eq!(read(&sim, &b).expect("alive"), [2.0; 8]);
    assert_eq!(sim.violations(), []);
    sim.launch(&Kernel::Fill { dst: dead, value: 2.0 }).expect("the bytes are still there");
    assert!(matches!(sim.violations()[..], [Violation::UseAfterFree { block: Some(0), .. }]));
    let again = fresh(&sim, 8).expect("enough memory");
    assert_eq!(again.span().ptr(), dead.span().ptr());
    read(&sim, &again).expect("poison");
    assert!(matches!(sim.violations()[1..], [Violation::Uninitialised { byte: 0, .. }]));
    assert_eq!(read(&sim, &b).expect("alive"), [2.0; 8]);
    assert_eq!(sim.violations().len(), 2);
}

#[test]
fn bytes_that_somebody_has_are_not_handed_out() {
    let sim = Sim::new(SimConfig { segment_bytes: 1 << 20, ..SimConfig::default() });
    let a = filled(&sim, 100, 1.0);
    let driver = sim.0.device.driver();
    let inside = a.span().ptr().map_addr(|at| at.checked_add(256).expect("small"));
    driver.handed_out(Span::new(inside, 10));
    assert!(matches!(sim.violations()[..], [Violation::Shared { block: 0 }]));
}

#[test]
fn a_capture_does_not_survive_calls_that_it_cannot_hold() {
    let sim = Sim::new(SimConfig::default());
    let a = filled(&sim, 4, 1.0);
    let driver = sim.0.device.driver();
    let alloc = || -> Result<()> {
        match driver.alloc(0, 256) {
            Err(AllocError::Failed(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    };
    let spoiling: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("alloc", &alloc),
        ("upload", &|| driver.upload(0, a.span(), &[0; 16])),
        ("synchronize", &|| driver.synchronize(1)),
        ("record", &|| driver.record(1)),
        ("wait", &|| driver.wait(0, 1)),
        ("launch", &|| driver.launch(1, &Kernel::Fill { dst: view_of(&a), value: 2.0 })),
    ];
    let name = format!("sim:{}", sim.ordinal());
    let spoilt = || {
        let error = driver.end_capture(0).expect_err("there is no section");
        assert_eq!(error.to_string(), format!("{name}: end_capture failed: the capture was spoilt, or never begun"));
    };
    for (made, call) in spoiling {
        driver.begin_capture(0).expect("nothing is captured");
        let error = call().expect_err("no section holds it");
        assert_eq!(error.to_string(), format!("{name}: {made} failed: not while a stream is captured"));
        spoilt();
        assert_eq!(read(&sim, &a).expect("works again"), [1.0; 4]);
    }
    spoilt();
}

#[test]
fn memory_of_others_is_no_part_of_a_section() {
    let sim = Sim::new(SimConfig::default());
    let a = filled(&sim, 4, 1.0);
    let theirs = Device::Cpu.alloc(16, true).expect("memory of the host");
    let lent = OwnedView::new(Span::new(theirs.span().ptr(), 16), DType::F32, Layout::contiguous(Shape::from(4)));
    let section = || sim.launch(&Kernel::copy(lent, view_of(&a)));
    let refused = sim.0.device.capture(section).map(drop).expect_err("no graph keeps it");
    let told = "memory of others cannot be part of a captured section; copy it before";
    assert_eq!(refused.to_string(), format!("sim:{}: {told}", sim.ordinal()));
    assert_eq!(read(&sim, &a).expect("works as before"), [1.0; 4]);
}

#[test]
fn reuse_on_the_same_stream_is_free_and_on_another_costs_one_wait() {
    let sim = Sim::new(SimConfig::default());
    drop(filled(&sim, 100, 1.0));
    drop(filled(&sim, 100, 2.0));
    assert_eq!((sim.calls().allocations, sim.calls().records, sim.calls().waits), (1, 0, 0));
    sim.on_stream(3, || drop(filled(&sim, 100, 3.0)));
    assert_eq!((sim.calls().allocations, sim.calls().records, sim.calls().waits), (1, 1, 1));
    sim.synchronize().expect("nothing fails");
    drop(filled(&sim, 100, 4.0));
    assert_eq!((sim.calls().records, sim.calls().waits), (1, 1), "the host has waited already");
    assert_eq!(sim.violations(), []);
}

#[test]
fn exhausted_memory_is_trimmed_and_asked_for_again() {
    let sim = Sim::new(SimConfig { memory_bytes: 8192, ..SimConfig::default() });
    let (a, b) = (filled(&sim, 1024, 1.0), filled(&sim, 512, 2.0));
    drop(a);
    let c = filled(&sim, 1200, 3.0);
    assert_eq!((sim.calls().frees, sim.stats().cached, sim.stats().active), (1, 0, 4800 + 2048));
    assert!(matches!(fresh(&sim, 1024), Err(AllocError::Exhausted)));
    assert!(matches!(buffer(&sim, usize::MAX, false), Err(AllocError::Exhausted)));
    assert_eq!(read(&sim, &b).expect("kept"), [2.0; 512]);
    assert_eq!(read(&sim, &c).expect("kept"), [3.0; 1200]);
}

#[test]
fn limits_and_refusals_leave_no_trace() {
    let sim = Sim::new(SimConfig::default());
    let a = filled(&sim, 100, 1.0);
    assert_eq!(sim.set_limit(Some(1000)), None);
    assert!(matches!(fresh(&sim, 151), Err(AllocError::Exhausted)));
    let b = fresh(&sim, 150).expect("exactly the limit");
    assert_eq!(sim.set_limit(None), Some(1000));
    sim.refuse_allocation(Some(2));
    let before = sim.stats();
    let empty = buffer(&sim, 0, true).expect("does not count");
    drop(fresh(&sim, 1).expect("the first"));
    assert!(matches!(fresh(&sim, 1), Err(AllocError::Exhausted)));
    assert!(fresh(&sim, 1).is_ok(), "the third");
    assert_eq!((sim.stats().active, before.peak), (before.active, 1000));
    drop((a, b, empty));
    sim.reset_peak();
    assert_eq!((sim.stats().active, sim.stats().peak), (0, 0));
}

#[test]
fn threads_with_streams_of_their_own_pass_arrays_on() {
    [0, 1 << 20].into_iter().for_each(pass_on);
}

fn pass_on(segment_bytes: usize) {
    let sim = Sim::new(SimConfig { segment_bytes, ..SimConfig::default() });
    let rounds = steps(400);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::channel::<Known>()).unzip();
    std::thread::scope(|scope| {
        for (i, inbox) in receivers.into_iter().enumerate() {
            let (sim, outbox) = (sim.clone(), senders[(i + 1) % 4].clone());
            scope.spawn(move || {
                stream::on_stream(i, || {
                    for round in 0..rounds {
                        let value = (i * rounds + round) as f32;
                        let buffer = filled(&sim, SIZES[round % 3], value.into());
                        let _ = outbox.send(Known { buffer, values: vec![value; SIZES[round % 3]] });
                        let Ok(theirs) = inbox.recv() else { return };
                        let sum = fresh(&sim, theirs.values.len()).expect("enough memory");
                        sim.launch(&add(&theirs.buffer, &theirs.buffer, &sum)).expect("submitted");
                        drop(theirs.buffer);
                        let expected: Vec<_> = theirs.values.iter().map(|v| v + v).collect();
                        assert!(read(&sim, &sum).expect("right") == expected, "thread {i}, round {round}");
                    }
                });
            });
        }
        drop(senders);
    });
    assert_eq!((sim.violations(), sim.stats().active), (vec![], 0));
}
