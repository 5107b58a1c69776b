//! Cells in pages that never move and are never freed, with free lists in batches.
//!
//! A cell is found by its index with one load and an addition, from any thread, for ever: that is what lets
//! a proxy be a number, and a drop find its slot without a lock. Pages hold 1,024 cells each, so that growing
//! touches a bounded amount of fresh memory at a time. A slab that has grown to the size of a large page of the system
//! takes its further ones in pieces of that size: where cells are visited at random, most of the time goes into finding
//! their pages.
//!
//! Free cells wait in the thread that will use them (`threads.rs`) and move between threads in batches.

use std::cell::Cell as Own;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

use crate::base::{
    sync::{AtomicRef, AtomicU32, Ordering, fill},
    system::{LARGE_PAGE, advise_large_pages},
};

/// Cells of a page.
const PAGE: usize = 1024;
/// Pages of a slab.
const PAGES: usize = 1 << 18;
/// Cells that move at a time between a thread and the slab.
const BATCH: usize = 64;
/// Free cells that a thread keeps at most.
const STOCK_MAX: usize = 4 * BATCH;

/// What a slab is made of.
pub(crate) trait Cell: Send + Sync + Sized + 'static {
    /// Where its pages are. A static of its own, all zeros, so that a program's file has no room for it.
    fn pages() -> &'static Pages<Self>;

    /// One that was never used.
    fn fresh() -> Self;
}

/// Where the pages of a slab are.
#[derive(Debug)]
pub(crate) struct Pages<T: 'static>([AtomicRef<[T; PAGE]>; PAGES]);

impl<T: Sync> Pages<T> {
    pub(crate) const fn new() -> Self {
        Pages([const { AtomicRef::none() }; PAGES])
    }
}

/// Declares a slab: a static of this name, of cells that begin as this value.
macro_rules! slab {
    ($vis:vis $name:ident: $cell:ty = $fresh:expr) => {
        $vis static $name: $crate::memory::slab::Slab<$cell> = $crate::memory::slab::Slab::new();

        impl $crate::memory::slab::Cell for $cell {
            #[inline(always)]
            fn pages() -> &'static $crate::memory::slab::Pages<Self> {
                static PAGES: $crate::memory::slab::Pages<$cell> = $crate::memory::slab::Pages::new();
                &PAGES
            }

            fn fresh() -> Self {
                $fresh
            }
        }
    };
}

pub(crate) use slab;

/// Free cells, in batches, so that the list of them never moves much when it grows.
struct Free {
    batches: Vec<Vec<u32>>,
    /// Lists that were batches and will be again.
    empty: Vec<Vec<u32>>,
}

/// How far a slab has grown.
struct Grown<T: 'static> {
    /// Cells ever handed out.
    used: u32,
    /// Memory for the next pages.
    room: &'static mut [MaybeUninit<T>],
}

#[cold]
fn not_made() -> ! {
    panic!("an index is handed out after its page is made")
}

/// Cells of one type. Made once, as a static, by [`slab!`].
pub(crate) struct Slab<T: 'static> {
    grown: Mutex<Grown<T>>,
    free: Mutex<Free>,
    /// Cells ever handed out, to be read without the lock.
    extent: AtomicU32,
}

impl<T: Cell> std::fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slab({} cells)", self.extent())
    }
}

impl<T: Cell> Slab<T> {
    /// An empty slab.
    pub(crate) const fn new() -> Self {
        Slab {
            grown: Mutex::new(Grown { used: 0, room: &mut [] }),
            free: Mutex::new(Free { batches: Vec::new(), empty: Vec::new() }),
            extent: AtomicU32::new(0),
        }
    }

    /// The cell with this index, which came from [`Slab::refill`].
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> &'static T {
        let Some(page) = T::pages().0[index as usize / PAGE].load() else { not_made() };
        &page[index as usize % PAGE]
    }

    /// Cells ever handed out: every index is below.
    pub(crate) fn extent(&self) -> u32 {
        // Acquire: pairs with the Release in `grow`.
        self.extent.load(Ordering::Acquire)
    }

    /// A free cell of a list that a table keeps, or of the slab. `None` if that is full.
    pub(crate) fn take_from(&self, list: &mut Vec<u32>) -> Option<u32> {
        list.pop().or_else(|| {
            self.refill(list);
            list.pop()
        })
    }

    /// Adds free cells to `list`: returned ones if there are any, else fresh ones. `false` if the slab is full.
    #[cold]
    pub(crate) fn refill(&self, list: &mut impl Extend<u32>) -> bool {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut batch) = free.batches.pop() else {
            drop(free);
            return self.grow(list);
        };
        list.extend(batch.drain(..));
        free.empty.push(batch);
        true
    }

    /// Takes free cells back.
    #[cold]
    pub(crate) fn give_back(&self, cells: impl Iterator<Item = u32>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = free.empty.pop().unwrap_or_default();
        batch.extend(cells);
        let list = if batch.is_empty() { &mut free.empty } else { &mut free.batches };
        list.push(batch);
    }

    fn grow(&self, list: &mut impl Extend<u32>) -> bool {
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        let first = grown.used;
        let page = first as usize / PAGE;
        if page >= PAGES {
            return false;
        }
        if (first as usize).is_multiple_of(PAGE) {
            let Some(page_of_cells) = next_page(page, &mut grown.room) else { return false };
            T::pages().0[page].store(Some(page_of_cells));
        }
        grown.used += BATCH as u32;
        // Release: pairs with the Acquire in `extent`.
        self.extent.store(grown.used, Ordering::Release);
        // Highest first: the list is a stack, and cells are best used in ascending order.
        list.extend((first..first + BATCH as u32).rev());
        true
    }
}

/// The page with this number, of fresh cells.
fn next_page<T: Cell>(number: usize, room: &mut &'static mut [MaybeUninit<T>]) -> Option<&'static [T; PAGE]> {
    if room.len() < PAGE {
        *room = more_room(number);
    }
    let (page, rest) = std::mem::take(room).split_at_mut_checked(PAGE)?;
    *room = rest;
    fill(page, T::fresh).try_into().ok()
}

/// Memory for the pages from this one on: for one, while the slab is small, then an eighth of what it has, in large
/// pages.
fn more_room<T>(number: usize) -> &'static mut [MaybeUninit<T>] {
    let bytes = PAGE * size_of::<T>();
    if number * bytes < LARGE_PAGE {
        return Box::leak(Box::new_uninit_slice(PAGE));
    }
    let room = (number * bytes / 8).next_multiple_of(LARGE_PAGE);
    // So much more that the first cell can be where a large page begins.
    let cells = room.div_ceil(bytes) * PAGE;
    let all = Box::leak(Box::new_uninit_slice(cells + LARGE_PAGE / size_of::<T>() + 1));
    advise_large_pages(all);
    let start = all.as_ptr().addr();
    let before = (start.next_multiple_of(LARGE_PAGE) - start).div_ceil(size_of::<T>());
    &mut all[before..before + cells]
}

/// Free cells of one slab that wait in the thread that will use them: the first `len`, the last of which is taken next.
pub(crate) struct Stock {
    len: Own<usize>,
    cells: [Own<u32>; STOCK_MAX],
}

impl std::fmt::Debug for Stock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stock({} cells)", self.len.get())
    }
}

impl Default for Stock {
    fn default() -> Self {
        Stock { len: Own::new(0), cells: [const { Own::new(0) }; STOCK_MAX] }
    }
}

impl Extend<u32> for &Stock {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cells: I) {
        for cell in cells {
            self.cells[self.len.get()].set(cell);
            self.len.set(self.len.get() + 1);
        }
    }
}

impl Stock {
    /// The cell that is taken next.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<u32> {
        Some(self.cells.get(self.len.get().checked_sub(1)?)?.get())
    }

    /// A cell that is here.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<u32> {
        let next = self.next()?;
        self.len.set(self.len.get() - 1);
        Some(next)
    }

    /// A cell that is here, or comes from the slab. `None` if that is full.
    #[inline(always)]
    pub(crate) fn take<T: Cell>(&self, slab: &'static Slab<T>) -> Option<u32> {
        self.pop().or_else(|| self.refilled(slab))
    }

    #[cold]
    #[inline(never)]
    fn refilled<T: Cell>(&self, slab: &'static Slab<T>) -> Option<u32> {
        // What comes at a time is no more than what a thread keeps.
        slab.refill(&mut &*self);
        self.pop()
    }

    /// Whether a cell can be put in, and none goes back.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.len.get() < STOCK_MAX
    }

    /// Puts a cell in. Half of a stock that is full goes back before.
    #[inline(always)]
    pub(crate) fn put<T: Cell>(&self, cell: u32, slab: &'static Slab<T>) {
        if !self.has_room() {
            self.give_back(STOCK_MAX / 2, slab);
        }
        self.cells[self.len.get()].set(cell);
        self.len.set(self.len.get() + 1);
    }

    /// All but the first `keep` go back.
    #[cold]
    #[inline(never)]
    fn give_back<T: Cell>(&self, keep: usize, slab: &'static Slab<T>) {
        let len = self.len.replace(keep);
        slab.give_back(self.cells[keep..len].iter().map(Own::get));
    }

    /// Everything goes back.
    pub(crate) fn empty<T: Cell>(&self, slab: &'static Slab<T>) {
        self.give_back(0, slab);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Cells of any size lie in large pages, the first at the begin of one. What the system gives is its own matter.
    #[test]
    fn a_large_slab_lies_in_large_pages() {
        let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let is_given = mode.contains("[always]") || mode.contains("[madvise]");
        let mut unaligned = Box::<[u8]>::new_uninit_slice(2 * LARGE_PAGE + 4000);
        assert_eq!(advise_large_pages(&mut unaligned[999..]) >= LARGE_PAGE, is_given);
        for number in [100, 1000] {
            let room = more_room::<[u64; 13]>(number);
            assert!(room.len() >= (number / 8).min(LARGE_PAGE / 104) && room.len().is_multiple_of(PAGE));
            assert!(room.as_ptr().addr() % LARGE_PAGE < 104);
        }
    }
}
