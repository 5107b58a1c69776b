//! The threads of kernels: one private pool, made when first needed.
//!
//! Its size is `NDGC_THREADS`, or what the system offers. The global pool of the process is the program's
//! and never used. A caller that is itself a worker of some pool does its work alone: waiting for another
//! pool, it would run foreign jobs in the middle of an operation.

use std::sync::{Once, OnceLock};

use bytemuck::{Pod, cast_slice_mut};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::base::{env, say::say};
use crate::cpu::rows::{Piece, Piece2, Row2, Row3};

/// Elements below which an elementwise kernel stays on its thread: about the time it takes to wake one.
pub const ELEMENTS_MIN: usize = 256 << 10;
/// Elements of a chunk are a multiple of this, so that chunks begin on lines of their own.
const CHUNK_STEP: usize = 1024;

/// Threads wanted: `NDGC_THREADS` if it is a positive number. Says once that another value is none.
pub fn size() -> usize {
    static ONCE: Once = Once::new();
    let text = env::var("NDGC_THREADS");
    let wanted = text.as_ref().and_then(|text| text.parse().ok()).filter(|&threads| threads > 0);
    if let (Some(text), None) = (&text, wanted) {
        ONCE.call_once(|| say(format_args!("NDGC_THREADS={text} is not understood; it may be a number from 1 on")));
    }
    wanted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The pool; `None` if one thread is all there is, or if this thread works for a pool already.
pub fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let make = || {
        let threads = size();
        let name = |i| format!("ndgc-cpu-{i}");
        // A system without room for more threads is served by the caller's.
        (threads > 1).then(|| ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build().ok()).flatten()
    };
    let pool = POOL.get_or_init(make).as_ref()?;
    rayon::current_thread_index().is_none().then_some(pool)
}

/// The pool and the size of chunks for `len` elements, if they are worth it.
pub(super) fn plan(len: usize) -> Option<(&'static ThreadPool, usize)> {
    let pool = if len < ELEMENTS_MIN { None } else { pool() }?;
    // More chunks than threads: one that starts late takes fewer.
    let chunk = len.div_ceil(4 * pool.current_num_threads()).next_multiple_of(CHUNK_STEP);
    Some((pool, chunk))
}

/// Bytes that one thread copies at a time; fewer than four times this many are copied by the thread that asks: on a
/// machine in a cloud others wake in some 50 us, in which it copies 512 KiB itself.
const COPY: usize = 512 << 10;

/// Copies bytes between slices of one length; many of them by several threads, since one does not keep up with the bus
/// to a device.
pub fn copy(to: &mut [u8], from: &[u8]) {
    match if to.len() < 4 * COPY { None } else { pool() } {
        Some(pool) => items(pool, to, COPY, &|i: usize, to: &mut [u8]| {
            to.copy_from_slice(&from[i * COPY..][..to.len()]);
        }),
        None => to.copy_from_slice(from),
    }
}

/// Slices that are divided together, at most. Who has fewer leaves the others empty.
pub(super) const SLICES: usize = 4;

/// What is done with an item: its number, and its piece of each slice. A trait of its own as in `rows.rs`.
trait Item: Sync {
    fn run(&self, i: usize, pieces: [&mut [u8]; SLICES]);
}

impl<F: Fn(usize, [&mut [u8]; SLICES]) + Sync> Item for F {
    fn run(&self, i: usize, pieces: [&mut [u8]; SLICES]) {
        self(i, pieces);
    }
}

/// Calls `f` with every item, whose pieces have that many bytes, on the threads of the pool that this one works for:
/// the one place in which work is divided, once for all types. Who knows the elements sees them as such again inside.
fn divide(slices: [&mut [u8]; SLICES], sizes: [usize; SLICES], first: usize, f: &dyn Item) {
    let count = slices[0].len().div_ceil(sizes[0]);
    if count <= 1 {
        return if count == 1 {
            f.run(first, slices)
        };
    }
    let half = count / 2;
    let (mut before, mut after) = (slices, <[&mut [u8]; SLICES]>::default());
    for n in 0..SLICES {
        (before[n], after[n]) = std::mem::take(&mut before[n]).split_at_mut(half * sizes[n]);
    }
    rayon::join(|| divide(before, sizes, first, f), || divide(after, sizes, first + half, f));
}

/// Calls `f` with every item's number and its piece of `d`, of `size` elements, on the pool of a thread that works for
/// one.
pub(super) fn items_here<D: Pod>(d: &mut [D], size: usize, f: &(dyn Piece<D> + Sync)) {
    let (d, sizes) = (cast_slice_mut::<D, u8>(d), [size * size_of::<D>(), 0, 0, 0]);
    divide([d, &mut [], &mut [], &mut []], sizes, 0, &|i: usize, [d, ..]: [&mut [u8]; SLICES]| {
        f.run(i, cast_slice_mut(d));
    });
}

/// As [`items_here`], on the threads of `pool`.
pub(super) fn items<D: Pod>(pool: &ThreadPool, d: &mut [D], size: usize, f: &(dyn Piece<D> + Sync)) {
    // By reference to what has no type, so that the way into the pool is there once.
    let (d, sizes) = (cast_slice_mut::<D, u8>(d), [size * size_of::<D>(), 0, 0, 0]);
    install(pool, [d, &mut [], &mut [], &mut []], sizes, &|i: usize, [d, ..]: [&mut [u8]; SLICES]| {
        f.run(i, cast_slice_mut(d));
    });
}

/// Calls `f` on a thread of `pool`; by reference, as in [`items`].
pub(super) fn inside(pool: &ThreadPool, f: &mut (dyn FnMut() + Send)) {
    pool.install(f);
}

fn install(pool: &ThreadPool, slices: [&mut [u8]; SLICES], sizes: [usize; SLICES], f: &dyn Item) {
    pool.install(|| divide(slices, sizes, 0, f));
}

/// As [`items`], with pieces of two slices, of that many elements each.
pub(super) fn items2<D: Pod, E: Pod>(
    pool: &ThreadPool,
    (d, e): (&mut [D], &mut [E]),
    [d_size, e_size]: [usize; 2],
    f: &(dyn Piece2<D, E> + Sync),
) {
    let sizes = [d_size * size_of::<D>(), e_size * size_of::<E>(), 0, 0];
    let slices: [&mut [u8]; SLICES] = [cast_slice_mut(d), cast_slice_mut(e), &mut [], &mut []];
    install(pool, slices, sizes, &|i: usize, [d, e, ..]: [&mut [u8]; SLICES]| {
        f.run(i, cast_slice_mut(d), cast_slice_mut(e));
    });
}

/// Calls `row` with pieces of `d`, on several threads if there are many elements. The first argument is where the
/// piece begins.
pub(super) fn split1<D: Pod>(d: &mut [D], row: &(dyn Piece<D> + Sync)) {
    split_lines(d, 1, row);
}

/// As [`split1`], where lines of so many elements stay together.
pub(super) fn split_lines<D: Pod>(d: &mut [D], line: usize, row: &(dyn Piece<D> + Sync)) {
    match plan(d.len()) {
        None => row.run(0, d),
        Some((pool, chunk)) => {
            let chunk = chunk.next_multiple_of(line);
            items(pool, d, chunk, &|i: usize, d: &mut [D]| row.run(i * chunk, d));
        }
    }
}

/// Calls `row` with pieces of slices of one length.
pub(super) fn split2<A: Sync, D: Pod>(a: &[A], d: &mut [D], row: &(dyn Row2<A, D> + Sync)) {
    split1(d, &|start: usize, d: &mut [D]| row.run(&a[start..start + d.len()], d));
}

/// As [`split1`], of the first `count` of several slices, which are of one length and written; the others are empty.
pub(super) fn split_all<D: Pod>(
    all: [&mut [D]; SLICES],
    count: usize,
    row: &(dyn Fn(usize, [&mut [D]; SLICES]) + Sync),
) {
    match plan(all[0].len()) {
        None => row(0, all),
        Some((pool, chunk)) => {
            let mut sizes = [0; SLICES];
            sizes[..count].fill(chunk * size_of::<D>());
            install(pool, cast_all(all), sizes, &|i: usize, all: [&mut [u8]; SLICES]| row(i * chunk, cast_all(all)));
        }
    }
}

fn cast_all<A: Pod, B: Pod>([a, b, c, d]: [&mut [A]; SLICES]) -> [&mut [B]; SLICES] {
    [cast_slice_mut(a), cast_slice_mut(b), cast_slice_mut(c), cast_slice_mut(d)]
}

/// Calls `row` with pieces of slices of one length.
pub(super) fn split3<A: Sync, B: Sync, D: Pod>(a: &[A], b: &[B], d: &mut [D], row: &(dyn Row3<A, B, D> + Sync)) {
    split1(d, &|start: usize, d: &mut [D]| {
        let part = start..start + d.len();
        row.run(&a[part.clone()], &b[part], d);
    });
}
