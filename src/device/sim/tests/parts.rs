//! Blocks that their owner divides: parts are ordered as the block, and each begins anew.

use super::*;
use crate::device::buffer::ArenaPart;

const BLOCK_BYTES: usize = 1 << 16;
/// Where parts begin: less than what blocks are aligned to.
const ALIGN: usize = 64;

/// An owner that gives parts of its block to arrays, cycle by cycle.
struct BlockOwner {
    sim: Sim,
    block: Buffer,
    used: usize,
}

impl BlockOwner {
    fn new(config: SimConfig) -> Self {
        let sim = Sim::new(config);
        let block = buffer(&sim, BLOCK_BYTES, false).expect("enough memory");
        BlockOwner { sim, block, used: 0 }
    }

    fn suballocate_at(&self, offset: usize, elements: usize) -> Result<Span> {
        Device::Sim(self.sim.clone()).suballocate(&self.block, offset, elements * 4)
    }

    fn suballocate(&mut self, elements: usize) -> Span {
        let part = self.suballocate_at(self.used, elements).expect("inside");
        self.used = (self.used + elements * 4).next_multiple_of(ALIGN);
        part
    }

    fn filled(&mut self, elements: usize, value: f64) -> Span {
        let part = self.suballocate(elements);
        self.sim.launch(&Kernel::Fill { dst: whole(part), value }).expect("submitted");
        part
    }

    fn sum(&mut self, lhs: Span, rhs: Span) -> Span {
        let dst = self.suballocate(lhs.bytes() / 4);
        let kernel = Kernel::Binary { op: BinaryOp::Add, lhs: whole(lhs), rhs: whole(rhs), dst: whole(dst) };
        self.sim.launch(&kernel).expect("submitted");
        dst
    }

    fn read(&self, part: Span) -> Vec<f32> {
        let mut bytes = Vec::new();
        self.sim.download(&whole(part), &mut |part| bytes.extend_from_slice(part)).expect("submitted");
        assert_eq!(bytes.len(), part.bytes());
        bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect()
    }

    /// Gives the block back, and looks whether that was all.
    fn end(self) {
        let BlockOwner { sim, block, .. } = self;
        let found = sim.violations().len();
        drop(block);
        sim.trim();
        assert_eq!((sim.stats().active, sim.stats().cached, sim.pending()), (0, 0, 0));
        assert_eq!(sim.0.device.driver().lock().heap_bytes(), 0);
        assert_eq!(sim.violations().len(), found, "no use of a part was left when the block went");
    }
}

fn whole(part: Span) -> OwnedView {
    OwnedView::new(part, DType::F32, Layout::contiguous(Shape::from(part.bytes() / 4)))
}

#[test]
fn a_part_keeps_the_number_of_its_block_and_never_leaves_it() {
    let arena = BlockOwner::new(SimConfig { segment_bytes: 1 << 20, ..SimConfig::default() });
    let part = arena.suballocate_at(ALIGN, 5).expect("inside");
    assert_eq!((part.block(), part.bytes()), (arena.block.span().block(), 20));
    assert_eq!(part.ptr().addr().get(), arena.block.span().ptr().addr().get() + ALIGN);
    assert_ne!(part.block(), 0, "so that the pool orders it");
    assert_eq!(arena.suballocate_at(BLOCK_BYTES, 0).expect("empty").bytes(), 0);
    for (offset, elements) in [(BLOCK_BYTES, 1), (BLOCK_BYTES - 3, 1), (0, BLOCK_BYTES), (usize::MAX, 2)] {
        assert!(
            matches!(arena.suballocate_at(offset, elements), Err(Error::Argument { op: "suballocate", .. })),
            "{offset}"
        );
    }
    let host = Device::Cpu.alloc(256, false).expect("enough memory");
    let part = Device::Cpu.suballocate(&host, 64, 192).expect("inside");
    assert_eq!(part.ptr().addr().get(), host.span().ptr().addr().get() + 64);
    assert!(Device::Cpu.suballocate(&host, 64, 193).is_err());
    assert_eq!(arena.sim.violations(), []);
    arena.end();
}

#[test]
fn cycles_on_one_stream_are_clean_and_wait_for_nothing() {
    let mut arena = BlockOwner::new(SimConfig::default());
    for cycle in 0..20 {
        arena.used = 0;
        let (a, b) = (arena.filled(100, cycle.into()), arena.filled(100, 1.0));
        let c = arena.sum(a, b);
        assert_eq!(arena.read(c), [f32::from(cycle as i16) + 1.0; 100]);
    }
    let calls = arena.sim.calls();
    assert_eq!((calls.allocations, calls.records, calls.waits, calls.synchronisations), (1, 0, 0, 0));
    assert_eq!(arena.sim.violations(), []);
    arena.end();
}

#[test]
fn parts_used_on_two_streams_are_ordered_as_their_block() {
    for (seed, segment_bytes) in seeds() {
        let mut arena = BlockOwner::new(SimConfig { seed, segment_bytes, ..SimConfig::default() });
        let sim = arena.sim.clone();
        for cycle in 0..20 {
            arena.used = 0;
            let value = f64::from(cycle);
            let a = arena.filled(100, value);
            let b = sim.on_stream(1, || arena.filled(100, 1.0));
            let c = sim.on_stream(1, || arena.sum(a, b));
            let d = arena.sum(c, a);
            assert_eq!(arena.read(d), [2.0 * value as f32 + 1.0; 100], "seed {seed}, cycle {cycle}");
        }
        assert!(sim.calls().waits > 0, "the order is made");
        assert_eq!(sim.violations(), [], "seed {seed}");
        arena.end();
    }
}

/// A random program of cycles. Returns how many values were wrong.
fn random_cycles(arena: &mut BlockOwner, seed: u64) -> usize {
    let mut draw = Program::new(SimConfig { seed, ..SimConfig::default() });
    let sim = arena.sim.clone();
    let mut wrong = 0;
    for _ in 0..steps(60) {
        arena.used = 0;
        let mut known: Vec<(Span, f32)> = Vec::new();
        for _ in 0..draw.draw(30) {
            let (stream, elements) = (draw.draw(4), SIZES[draw.draw(2)]);
            let (a, b, value) = (draw.draw(1000), draw.draw(1000), draw.draw(100) as f32);
            let same: Vec<_> = known.iter().filter(|(part, _)| part.bytes() == elements * 4).copied().collect();
            let made = sim.on_stream(stream, || match same.len() {
                0 => (arena.filled(elements, value.into()), value),
                n if a % 2 == 0 => {
                    let ((lhs, x), (rhs, y)) = (same[a % n], same[b % n]);
                    (arena.sum(lhs, rhs), x + y)
                }
                _ => (arena.filled(elements, value.into()), value),
            });
            known.push(made);
        }
        wrong += known.iter().filter(|(part, value)| arena.read(*part).iter().any(|found| found != value)).count();
    }
    wrong
}

#[test]
fn random_cycles_on_four_streams_are_ordered_and_right_and_the_order_is_needed() {
    for (seed, segment_bytes) in seeds() {
        let config = SimConfig { seed, segment_bytes, ..SimConfig::default() };
        let mut arena = BlockOwner::new(config.clone());
        assert_eq!(random_cycles(&mut arena, seed), 0, "seed {seed}");
        assert_eq!(arena.sim.violations(), [], "seed {seed}");
        arena.end();
        let mut arena = BlockOwner::new(SimConfig { order_streams: false, ..config });
        random_cycles(&mut arena, seed);
        let found = arena.sim.violations();
        assert!(found.iter().any(|violation| matches!(violation, Violation::Unordered { .. })), "seed {seed}");
    }
}

#[test]
fn a_part_that_begins_anew_counts_as_unwritten_and_its_neighbours_do_not() {
    let mut arena = BlockOwner::new(SimConfig::default());
    let [a, b, c] = [1.0, 2.0, 3.0].map(|value| arena.filled(10, value));
    let again = arena.suballocate_at(ALIGN, 10).expect("where the second is");
    assert_eq!((again.ptr(), arena.read(a), arena.read(c)), (b.ptr(), vec![1.0; 10], vec![3.0; 10]));
    assert_eq!(arena.sim.violations(), []);
    arena.read(again);
    assert!(matches!(arena.sim.violations()[..], [Violation::Uninitialised { block: 0, byte: 0, .. }]));
    arena.sim.launch(&Kernel::Fill { dst: whole(again), value: 4.0 }).expect("submitted");
    assert_eq!(arena.read(again), [4.0; 10]);
    assert_eq!(arena.sim.violations().len(), 1, "written by now");
    arena.end();
}

#[test]
fn a_read_of_what_was_partly_given_to_somebody_else_is_found() {
    let mut arena = BlockOwner::new(SimConfig::default());
    let stale = arena.filled(100, 1.0);
    assert_eq!(arena.read(stale), [1.0; 100]);
    arena.suballocate_at(2 * ALIGN, 10).expect("inside");
    assert_eq!(arena.sim.violations(), []);
    arena.read(stale);
    assert!(matches!(arena.sim.violations()[..], [Violation::Uninitialised { byte: 0, .. }]), "its first byte");
    let whole_block = OwnedView::new(arena.block.span(), DType::U8, Layout::contiguous(Shape::from(BLOCK_BYTES)));
    arena.sim.launch(&Kernel::Fill { dst: whole_block, value: 0.0 }).expect("submitted");
    assert_eq!(arena.read(stale), [0.0; 100], "all parts were written at once");
    assert_eq!(arena.sim.violations().len(), 1);
    arena.end();
}

#[test]
fn an_access_to_a_part_that_is_not_ordered_is_found_once() {
    let mut arena = BlockOwner::new(SimConfig { order_streams: false, ..SimConfig::default() });
    let a = arena.filled(100, 1.0);
    arena.sim.clone().on_stream(1, || arena.filled(100, 2.0));
    assert_eq!(arena.sim.violations().len(), 1, "the block may not be there yet");
    arena.suballocate_at(ALIGN, 10).expect("inside");
    let by = |stream| move |found: &Use| found.kernel == "fill" && found.stream == Some(stream);
    arena.sim.on_stream(1, || arena.sim.launch(&Kernel::Fill { dst: whole(a), value: 3.0 }).expect("submitted"));
    let found = arena.sim.violations();
    let [Violation::Unordered { first, second, .. }] = &found[1..] else { panic!("one more: {found:?}") };
    assert!(by(0)(first) && by(1)(second), "{found:?}");
}

#[test]
fn a_part_is_zeroed_as_a_buffer_is() {
    let arena = BlockOwner::new(SimConfig::default());
    let host = Device::Cpu;
    let part = arena.suballocate_at(ALIGN, 10).expect("inside");
    let block = host.alloc(256, false).expect("enough memory");
    let middle = host.suballocate(&block, 64, 64).expect("inside");
    let at = ArenaPart { block: 0, scope: 0, stamp: 0 };
    let own = |span| Buffer::from_arena(span, Device::Cpu, at);
    own(block.span()).as_mut().upload(&[1; 256]).expect("done");
    arena.sim.zero(part).and_then(|()| arena.sim.zero(arena.suballocate_at(0, 0)?)).expect("submitted");
    own(middle).as_mut().zero().expect("done");
    // SAFETY: a block that is alive, and that nobody writes any more.
    #[allow(unsafe_code)]
    let bytes = unsafe { std::slice::from_raw_parts(block.span().ptr().as_ptr(), block.span().bytes()) };
    assert_eq!((&bytes[..64], &bytes[64..128], &bytes[128..]), (&[1; 64][..], &[0; 64][..], &[1; 128][..]));
    assert_eq!((arena.read(part), arena.sim.violations()), (vec![0.0; 10], vec![]));
    assert_eq!(arena.sim.calls().launches, 1, "none for no bytes");
    arena.end();
}

#[test]
fn what_a_captured_section_suballocates_is_its_own_while_it_lives() {
    let mut arena = BlockOwner::new(SimConfig::default());
    let sim = arena.sim.clone();
    let input = arena.filled(10, 1.0);
    let (captured, sum) = sim.0.device.capture(|| Ok(arena.sum(input, input))).expect("nothing is refused");
    assert_eq!(captured.blocks(), 1, "the whole block is the section's");
    for _ in 0..2 {
        sim.0.device.replay(&captured).expect("submitted");
        assert_eq!(arena.read(sum), [2.0; 10]);
    }
    arena.used = 2 * ALIGN;
    let free = arena.filled(10, 7.0);
    sim.0.device.replay(&captured).expect("submitted");
    assert_eq!((arena.read(free), sim.violations()), (vec![7.0; 10], vec![]), "the section does not reach it");
    arena.suballocate_at(ALIGN, 10).expect("inside");
    assert!(matches!(sim.violations()[..], [Violation::Shared { block: 0 }]), "the next replay writes there");
    sim.0.device.release(captured);
    arena.suballocate_at(ALIGN, 10).expect("inside");
    assert_eq!(sim.violations().len(), 1, "nobody has it any more");
    arena.end();
}

#[test]
fn nothing_is_suballocated_while_another_thread_captures() {
    let arena = BlockOwner::new(SimConfig::default());
    let refused = arena.sim.0.device.capture(|| {
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| arena.suballocate_at(0, 10).err()).join());
        Ok(elsewhere.expect("no panic"))
    });
    let (captured, answer) = refused.expect("the section itself did nothing wrong");
    assert!(matches!(answer, Some(Error::Capture { .. })), "{answer:?}");
    arena.sim.0.device.release(captured);
    arena.end();
}

#[test]
fn a_replay_finds_its_parts_unwritten_each_time() {
    let mut arena = BlockOwner::new(SimConfig::default());
    let sim = arena.sim.clone();
    let section = || {
        let early = arena.suballocate(10);
        arena.sum(early, early);
        sim.launch(&Kernel::Fill { dst: whole(early), value: 1.0 })
    };
    let (captured, ()) = sim.0.device.capture(section).expect("nothing is refused");
    for replays in 1..4 {
        sim.0.device.replay(&captured).expect("submitted");
        let holes = |found: &&Violation| matches!(found, Violation::Uninitialised { byte: 0, .. });
        assert_eq!(sim.violations().iter().filter(holes).count(), 2 * replays, "both operands, each time");
    }
    sim.0.device.release(captured);
    arena.end();
}
