//! Host memory for arrays: 64-byte aligned blocks, kept for reuse.
//!
//! Sizes are rounded to 8 classes a doubling (at most 12.5 % over), from 64 bytes. Blocks up to 32 KiB wait
//! in the thread that freed them, so that the usual allocation and its free touch nothing shared; larger ones,
//! and what a thread has too many of, wait in a common store, which takes the best fit within 12.5 %. What
//! the common store did not need for a whole period goes back to the system.
//!
//! # Counting
//! `active` counts the bytes asked for. Each thread keeps a difference of at most 64 KiB to itself, so the sum
//! over all threads is exact whenever it is read, and the peak is exact for one thread and at most 64 KiB too high
//! for each further one; with a limit set, every request is counted at once.

use std::alloc::{self as system, Layout};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::base::{env, units::parse_size};
use crate::device::{
    Device,
    budget::{AllocError, MemoryStats},
    buffer::{Buffer, Span},
};

/// Alignment of every block: a cache line, and the widest vector.
const ALIGN: usize = 64;
/// Blocks up to this size wait in their thread.
const STOCK_BLOCK_BYTES_MAX: usize = 32 << 10;
/// Classes up to that size.
const STOCK_CLASSES: usize = 56;
/// Bytes of one class that a thread keeps.
const STOCK_CLASS_BYTES: usize = 128 << 10;
/// The difference a thread keeps to itself.
const DELTA_BYTES: i64 = 64 << 10;
/// Requests to the common store between two looks at what is not needed.
const PERIOD: u32 = 4096;
const NO_LIMIT: u64 = u64::MAX;

/// A free block. Sends like the bytes it is.
struct Block(NonNull<u8>);

// SAFETY: a free block is memory that nobody else refers to.
#[allow(unsafe_code)]
unsafe impl Send for Block {}

/// Class and size of a request: size is a multiple of 64 with 8 steps a doubling.
#[inline]
fn class_of(bytes: usize) -> (usize, usize) {
    let units = bytes.div_ceil(ALIGN);
    if units <= 8 {
        return (units - 1, units * ALIGN);
    }
    let shift = (units - 1).ilog2() as usize - 3;
    let step = (units - 1) >> shift;
    (shift * 8 + step, ((step + 1) << shift) * ALIGN)
}

/// The size a block for `bytes` has: a class, or whole pages above 1 MiB.
#[inline]
fn rounded(bytes: usize) -> usize {
    if bytes > 1 << 20 { bytes.next_multiple_of(4096) } else { class_of(bytes).1 }
}

fn layout(size: usize) -> Option<Layout> {
    let align = match size {
        0..0x1_0000 => ALIGN,
        0x1_0000..0x40_0000 => 4096,
        _ => 2 << 20,
    };
    Layout::from_size_align(size, align).ok()
}

/// A block from the system.
#[cold]
fn system_alloc(size: usize, zeroed: bool) -> Option<NonNull<u8>> {
    let layout = layout(size)?;
    // SAFETY: `size` is at least 64.
    #[allow(unsafe_code)]
    let ptr = NonNull::new(unsafe { if zeroed { system::alloc_zeroed(layout) } else { system::alloc(layout) } })?;
    #[cfg(all(target_os = "linux", not(miri)))]
    if size >= 4 << 20 {
        // SAFETY: advice about a range that was just allocated; it changes no contents.
        #[allow(unsafe_code)]
        unsafe {
            libc::madvise(ptr.as_ptr().cast(), size, libc::MADV_HUGEPAGE);
        }
    }
    Some(ptr)
}

#[cold]
fn system_free(block: &Block, size: usize) {
    if let Some(layout) = layout(size) {
        // SAFETY: the block came from `system_alloc` with this size, and is in no list any more.
        #[allow(unsafe_code)]
        unsafe {
            system::dealloc(block.0.as_ptr(), layout);
        }
    }
}

/// Blocks in one piece of a list.
const PIECE: usize = 1024;

/// Free blocks of one size in the common store, in pieces, so that a long list never moves when it grows.
#[derive(Default)]
struct List {
    pieces: Vec<Vec<Block>>,
    len: usize,
    /// Fewest blocks since the last look: so many were not needed.
    low: usize,
}

impl List {
    fn push(&mut self, block: Block) {
        match self.pieces.last_mut() {
            Some(piece) if piece.len() < PIECE => piece.push(block),
            _ => self.pieces.push(vec![block]),
        }
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Block> {
        let piece = self.pieces.last_mut()?;
        let block = piece.pop();
        // The first piece stays when it is empty: lists of few blocks need no memory of their own again and again.
        if piece.is_empty() && self.pieces.len() > 1 {
            self.pieces.pop();
        }
        self.len -= usize::from(block.is_some());
        self.low = self.low.min(self.len);
        block
    }
}

#[derive(Default)]
struct Store {
    lists: BTreeMap<usize, List>,
    requests: u32,
}

impl Store {
    /// The smallest block that is large enough and at most an eighth larger.
    fn take(&mut self, size: usize) -> Option<(Block, usize)> {
        self.requests += 1;
        if self.requests == PERIOD {
            self.requests = 0;
            self.decay();
        }
        for (&found, list) in self.lists.range_mut(size..=size + size / 8) {
            if let Some(block) = list.pop() {
                COUNTS.cached.fetch_sub(found as i64, Ordering::Relaxed);
                return Some((block, found));
            }
        }
        None
    }

    fn put(&mut self, block: Block, size: usize) {
        COUNTS.cached.fetch_add(size as i64, Ordering::Relaxed);
        self.lists.entry(size).or_default().push(block);
    }

    /// Frees what was not needed for a whole period.
    fn decay(&mut self) {
        self.lists.retain(|&size, list| {
            for _ in 0..list.low {
                if let Some(block) = list.pop() {
                    COUNTS.cached.fetch_sub(size as i64, Ordering::Relaxed);
                    system_free(&block, size);
                }
            }
            list.low = list.len;
            list.len > 0
        });
    }

    fn clear(&mut self) -> u64 {
        let mut bytes = 0;
        for (size, list) in std::mem::take(&mut self.lists) {
            for block in list.pieces.iter().flatten() {
                bytes += size as u64;
                system_free(block, size);
            }
        }
        COUNTS.cached.fetch_sub(bytes as i64, Ordering::Relaxed);
        bytes
    }
}

static STORE: Mutex<Option<Store>> = Mutex::new(None);

fn store<R>(f: impl FnOnce(&mut Store) -> R) -> R {
    let mut store: MutexGuard<'_, Option<Store>> = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    f(store.get_or_insert_default())
}

/// Sums over all threads; all statistics, read by nobody for anything but reports and the limit.
struct Totals {
    active: AtomicI64,
    peak: AtomicI64,
    cached: AtomicI64,
    limit: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

static COUNTS: Totals = Totals {
    active: AtomicI64::new(0),
    peak: AtomicI64::new(0),
    cached: AtomicI64::new(0),
    limit: AtomicU64::new(NO_LIMIT),
    hits: AtomicU64::new(0),
    misses: AtomicU64::new(0),
};

/// The part of the counts that one thread keeps to itself. Written by its thread alone.
#[derive(Default)]
struct Share {
    active: AtomicI64,
    /// The most that `active` was since it was moved to the common count.
    high: AtomicI64,
    cached: AtomicI64,
    hits: AtomicU64,
}

static SHARES: Mutex<Vec<&'static Share>> = Mutex::new(Vec::new());
static FREE_SHARES: Mutex<Vec<&'static Share>> = Mutex::new(Vec::new());

impl Share {
    fn take() -> &'static Share {
        let free = FREE_SHARES.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| {
            let share: &'static Share = Box::leak(Box::default());
            SHARES.lock().unwrap_or_else(PoisonError::into_inner).push(share);
            share
        })
    }

    /// Adds to one of this thread's own numbers. Relaxed: one writer, and readers only sum.
    #[inline]
    fn add(counter: &AtomicI64, by: i64) -> i64 {
        let now = counter.load(Ordering::Relaxed) + by;
        counter.store(now, Ordering::Relaxed);
        now
    }

    /// Moves the difference to the common count.
    fn settle(&self) {
        let delta = self.active.load(Ordering::Relaxed);
        self.active.store(0, Ordering::Relaxed);
        let before = COUNTS.active.fetch_add(delta, Ordering::Relaxed);
        COUNTS.peak.fetch_max(before + self.high.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Counts bytes of a new block.
    #[inline]
    fn charge(&self, bytes: usize) {
        let now = Share::add(&self.active, bytes as i64);
        if now > self.high.load(Ordering::Relaxed) {
            self.high.store(now, Ordering::Relaxed);
            if now > DELTA_BYTES {
                self.settle();
            }
        }
    }
}

/// What a thread keeps.
struct Stock {
    share: &'static Share,
    lists: RefCell<[Vec<Block>; STOCK_CLASSES]>,
}

impl Stock {
    fn new() -> Self {
        read_limit_once();
        Stock { share: Share::take(), lists: RefCell::new([const { Vec::new() }; STOCK_CLASSES]) }
    }

    #[inline]
    fn take(&self, class: usize, size: usize) -> Option<Block> {
        let block = self.lists.borrow_mut()[class].pop()?;
        Share::add(&self.share.cached, -(size as i64));
        let hits = &self.share.hits;
        hits.store(hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Some(block)
    }

    #[inline]
    fn put(&self, class: usize, size: usize, block: Block) {
        let list = &mut self.lists.borrow_mut()[class];
        let most = (STOCK_CLASS_BYTES / size).clamp(4, 64);
        if list.len() >= most {
            let half = most / 2;
            Share::add(&self.share.cached, -((half * size) as i64));
            store(|store| list.drain(..half).for_each(|block| store.put(block, size)));
        } else if list.capacity() == 0 {
            list.reserve_exact(64);
        }
        list.push(block);
        Share::add(&self.share.cached, size as i64);
    }

    fn empty(&self) {
        for (class, list) in self.lists.borrow_mut().iter_mut().enumerate() {
            let size = class_size(class);
            Share::add(&self.share.cached, -((list.len() * size) as i64));
            store(|store| list.drain(..).for_each(|block| store.put(block, size)));
        }
    }
}

fn class_size(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * ALIGN;
    }
    let (shift, step) = ((class - 8) / 8, (class - 8) % 8 + 8);
    ((step + 1) << shift) * ALIGN
}

impl Drop for Stock {
    fn drop(&mut self) {
        self.empty();
        self.share.settle();
        FREE_SHARES.lock().unwrap_or_else(PoisonError::into_inner).push(self.share);
    }
}

thread_local! {
    static STOCK: Stock = Stock::new();
}

fn read_limit_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for name in ["NDGC_MAX_BYTES", "NDGC_MAX_PHYSICAL_BYTES"] {
            let Some(text) = env::var(name) else { continue };
            match parse_size(&text, physical_bytes()) {
                Some(bytes) => {
                    let _ = COUNTS.limit.fetch_min(bytes, Ordering::Relaxed);
                }
                None => eprintln!("ndgc: {name}={text} is not understood; it may be like 800m, 2g or 50%"),
            }
        }
    });
}

#[cfg(target_os = "linux")]
fn physical_bytes() -> Option<u64> {
    // SAFETY: two calls that return numbers.
    #[allow(unsafe_code)]
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    Some(u64::try_from(pages).ok()? * u64::try_from(page).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn physical_bytes() -> Option<u64> {
    None
}

/// Counts a request before it is served. `false` if the limit forbids it.
#[inline]
fn charge(share: Option<&Share>, bytes: usize) -> bool {
    let limit = COUNTS.limit.load(Ordering::Relaxed);
    match share {
        Some(share) if limit == NO_LIMIT => {
            share.charge(bytes);
            true
        }
        _ => charge_common(share, bytes, limit),
    }
}

#[cold]
fn charge_common(share: Option<&Share>, bytes: usize, limit: u64) -> bool {
    if let Some(share) = share {
        share.settle();
    }
    // What other threads keep to themselves counts as well.
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let most = most.saturating_sub(sum(|share| share.active.load(Ordering::Relaxed)));
    let charged = COUNTS.active.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |active| {
        active.checked_add(bytes as i64).filter(|&now| now <= most)
    });
    match charged {
        Ok(before) => {
            COUNTS.peak.fetch_max(before + bytes as i64, Ordering::Relaxed);
            true
        }
        Err(_) => false,
    }
}

#[inline]
fn discharge(share: Option<&Share>, bytes: usize) {
    match share {
        Some(share) => {
            if Share::add(&share.active, -(bytes as i64)) < -DELTA_BYTES {
                share.settle();
            }
        }
        None => {
            COUNTS.active.fetch_sub(bytes as i64, Ordering::Relaxed);
        }
    }
}

/// Bytes for an array.
#[inline]
fn alloc_bytes(stock: Option<&Stock>, bytes: usize, zeroed: bool) -> Result<(NonNull<u8>, usize), AllocError> {
    let share = stock.map(|stock| stock.share);
    if !charge(share, bytes) {
        return Err(AllocError::Exhausted);
    }
    let found = if bytes <= STOCK_BLOCK_BYTES_MAX {
        let (class, size) = class_of(bytes);
        stock.and_then(|stock| stock.take(class, size)).map(|block| (block, size)).or_else(|| from_store(size))
    } else {
        from_store(rounded(bytes))
    };
    match found {
        Some((block, size)) => {
            if zeroed {
                // SAFETY: the block is `size >= bytes` bytes of ours alone.
                #[allow(unsafe_code)]
                unsafe {
                    block.0.as_ptr().write_bytes(0, bytes);
                }
            }
            Ok((block.0, size))
        }
        None => fresh(share, bytes, zeroed),
    }
}

fn from_store(size: usize) -> Option<(Block, usize)> {
    let found = store(|store| store.take(size));
    if found.is_some() {
        COUNTS.hits.fetch_add(1, Ordering::Relaxed);
    }
    found
}

#[cold]
fn fresh(share: Option<&Share>, bytes: usize, zeroed: bool) -> Result<(NonNull<u8>, usize), AllocError> {
    COUNTS.misses.fetch_add(1, Ordering::Relaxed);
    let size = rounded(bytes);
    let block = system_alloc(size, zeroed).or_else(|| {
        trim();
        system_alloc(size, zeroed)
    });
    match block {
        Some(ptr) => Ok((ptr, size)),
        None => {
            discharge(share, bytes);
            Err(AllocError::Exhausted)
        }
    }
}

/// Bytes for an array on the host: uninitialised, or zeroed. An empty request touches nothing.
#[inline]
pub(crate) fn alloc(bytes: usize, zeroed: bool) -> Result<Buffer, AllocError> {
    if bytes == 0 {
        return Ok(Buffer::from_pool(Span::new(NonNull::<Aligned>::dangling().cast(), 0), Device::Cpu, 0));
    }
    let (ptr, size) = STOCK
        .try_with(|stock| alloc_bytes(Some(stock), bytes, zeroed))
        .unwrap_or_else(|_| alloc_bytes(None, bytes, zeroed))?;
    Ok(Buffer::from_pool(Span::new(ptr, bytes), Device::Cpu, size))
}

/// Counts bytes that did not come from here as if they had. `false`: a limit does not admit them.
pub(crate) fn count(bytes: usize) -> bool {
    STOCK.try_with(|stock| charge(Some(stock.share), bytes)).unwrap_or_else(|_| charge(None, bytes))
}

/// Takes back what [`count`] counted.
pub(crate) fn discount(bytes: usize) {
    if STOCK.try_with(|stock| discharge(Some(stock.share), bytes)).is_err() {
        discharge(None, bytes);
    }
}

/// Uninitialised bytes, at least one, and the size of their block, for [`free`]: if this thread has a block in stock,
/// and no limit is set.
#[inline]
pub(crate) fn alloc_at_once(bytes: usize) -> Option<(NonNull<u8>, usize)> {
    if bytes > STOCK_BLOCK_BYTES_MAX || COUNTS.limit.load(Ordering::Relaxed) != NO_LIMIT {
        return None;
    }
    let (class, size) = class_of(bytes);
    let taken = STOCK.try_with(|stock| {
        let block = stock.take(class, size)?;
        stock.share.charge(bytes);
        Some(block.0)
    });
    taken.ok().flatten().map(|ptr| (ptr, size))
}

#[repr(align(64))]
struct Aligned;

/// Takes back what [`alloc`] gave: a span, and the size of its block.
#[inline]
pub(crate) fn free(span: Span, size: usize) {
    if size == 0 {
        return;
    }
    let bytes = span.bytes();
    let kept = STOCK.try_with(|stock| {
        discharge(Some(stock.share), bytes);
        if size <= STOCK_BLOCK_BYTES_MAX {
            stock.put(class_of(size).0, size, Block(span.ptr()));
        } else {
            store(|store| store.put(Block(span.ptr()), size));
        }
    });
    if kept.is_err() {
        discharge(None, bytes);
        store(|store| store.put(Block(span.ptr()), size));
    }
}

fn sum(number: impl Fn(&Share) -> i64) -> i64 {
    SHARES.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|share| number(share)).sum()
}

/// Bytes of the host.
pub(crate) fn stats() -> MemoryStats {
    let common = COUNTS.active.load(Ordering::Relaxed);
    let active = common + sum(|share| share.active.load(Ordering::Relaxed));
    let limit = COUNTS.limit.load(Ordering::Relaxed);
    MemoryStats {
        active: active.max(0) as u64,
        peak: COUNTS.peak.load(Ordering::Relaxed).max(common + sum(|share| share.high.load(Ordering::Relaxed))) as u64,
        cached: (COUNTS.cached.load(Ordering::Relaxed) + sum(|share| share.cached.load(Ordering::Relaxed))).max(0)
            as u64,
        pinned: 0,
        limit: (limit != NO_LIMIT).then_some(limit),
        hits: COUNTS.hits.load(Ordering::Relaxed) + sum(|share| share.hits.load(Ordering::Relaxed) as i64) as u64,
        misses: COUNTS.misses.load(Ordering::Relaxed),
    }
}

/// Takes the peak as of now.
pub(crate) fn reset_peak() {
    let shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
    shares.iter().for_each(|share| share.high.store(share.active.load(Ordering::Relaxed), Ordering::Relaxed));
    drop(shares);
    COUNTS.peak.store(stats().active as i64, Ordering::Relaxed);
}

/// Sets the limit on active bytes; returns the one before.
pub(crate) fn set_limit(bytes: Option<u64>) -> Option<u64> {
    read_limit_once();
    let before = COUNTS.limit.swap(bytes.unwrap_or(NO_LIMIT), Ordering::Relaxed);
    (before != NO_LIMIT).then_some(before)
}

/// Gives this thread's blocks and the common store back to the system. Returns the bytes. The blocks that wait
/// in other threads come with those threads' end.
pub(crate) fn trim() -> u64 {
    let _ = STOCK.try_with(Stock::empty);
    store(Store::clear)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_an_eighth_and_never_shrink() {
        let mut last = 0;
        for bytes in (1..5000).chain((5..400).map(|i| i * 1017)) {
            let (class, size) = class_of(bytes);
            assert!(size >= bytes && size % ALIGN == 0, "{bytes} -> {size}");
            assert!(size <= bytes.next_multiple_of(ALIGN) * 9 / 8, "{bytes} -> {size}");
            assert_eq!(class_size(class), size);
            assert_eq!(class_of(size), (class, size), "a class holds its own size");
            assert!(class >= last);
            last = class;
        }
        assert_eq!(class_of(STOCK_BLOCK_BYTES_MAX).0, STOCK_CLASSES - 1);
    }

    #[test]
    fn recycled_blocks_are_zeroed_when_asked_and_aligned() {
        for bytes in [1usize, 64, 1000, 40_000, 70_000, 5 << 20] {
            let first = alloc(bytes, false).expect("memory");
            let ptr = first.span().ptr();
            assert_eq!(ptr.as_ptr() as usize % ALIGN, 0);
            if bytes >= 1 << 16 {
                assert_eq!(ptr.as_ptr() as usize % 4096, 0);
            }
            // SAFETY: `first` owns these bytes.
            #[allow(unsafe_code)]
            unsafe {
                ptr.as_ptr().write_bytes(0xAB, bytes);
            }
            drop(first);
            let again = alloc(bytes, true).expect("memory");
            // SAFETY: `again` owns these bytes, which were zeroed.
            #[allow(unsafe_code)]
            let seen = unsafe { std::slice::from_raw_parts(again.span().ptr().as_ptr(), bytes) };
            assert!(seen.iter().all(|&b| b == 0), "{bytes}");
        }
    }
}
