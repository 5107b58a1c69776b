//! Cells in pages that never move and are never freed, with free lists in batches.
//!
//! A cell is found by its index with one load and an addition, from any thread, for ever: that is what lets
//! a proxy be a number, and a drop find its slot without a lock. Pages hold 1,024 cells each, so that growing
//! touches a bounded amount of fresh memory at a time.
//!
//! Free cells wait in the thread that will use them (`threads.rs`) and move between threads in batches.

use std::sync::{Mutex, PoisonError};

use crate::base::sync::{AtomicRef, AtomicU32, Ordering};

/// Cells of a page.
const PAGE: usize = 1024;
/// Pages of a slab.
const PAGES: usize = 1 << 18;
/// Cells that move at a time between a thread and the slab.
pub(crate) const BATCH: usize = 64;

/// Free cells, in batches, so that the list of them never moves much when it grows.
struct Free {
    batches: Vec<Vec<u32>>,
    /// Lists that were batches and will be again.
    empty: Vec<Vec<u32>>,
}

#[cold]
fn not_made() -> ! {
    panic!("an index is handed out after its page is made")
}

/// Cells of one type. Made once, as a static.
pub(crate) struct Slab<T: 'static> {
    pages: [AtomicRef<[T; PAGE]>; PAGES],
    /// Cells ever handed out, and with it the pages made.
    used: Mutex<u32>,
    free: Mutex<Free>,
    /// As `used`, to be read without the lock.
    extent: AtomicU32,
    make: fn() -> T,
}

impl<T: Sync> std::fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slab({} cells)", self.extent())
    }
}

impl<T: Sync> Slab<T> {
    /// An empty slab whose fresh cells are made by `make`.
    pub(crate) const fn new(make: fn() -> T) -> Self {
        Slab {
            pages: [const { AtomicRef::none() }; PAGES],
            used: Mutex::new(0),
            free: Mutex::new(Free { batches: Vec::new(), empty: Vec::new() }),
            extent: AtomicU32::new(0),
            make,
        }
    }

    /// The cell with this index, which came from [`Slab::refill`].
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> &'static T {
        // Acquire: pairs with the Release in `grow`; the page is filled before it is seen.
        let Some(page) = self.pages[index as usize / PAGE].load(Ordering::Acquire) else { not_made() };
        &page[index as usize % PAGE]
    }

    /// Cells ever handed out: every index is below.
    pub(crate) fn extent(&self) -> u32 {
        // Acquire: pairs with the Release in `grow`.
        self.extent.load(Ordering::Acquire)
    }

    /// Adds free cells to `list`: returned ones if there are any, else fresh ones. `false` if the slab is full.
    #[cold]
    pub(crate) fn refill(&self, list: &mut Vec<u32>) -> bool {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut batch) = free.batches.pop() else {
            drop(free);
            return self.grow(list);
        };
        list.append(&mut batch);
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

    fn grow(&self, list: &mut Vec<u32>) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *used;
        let page = first as usize / PAGE;
        if page >= PAGES {
            return false;
        }
        if (first as usize).is_multiple_of(PAGE) {
            let cells: Box<[T]> = (0..PAGE).map(|_| (self.make)()).collect();
            let Ok(cells) = cells.try_into() else { return false };
            // Release: pairs with the Acquire in `get`.
            self.pages[page].store(Some(Box::leak(cells)), Ordering::Release);
        }
        *used += BATCH as u32;
        // Release: pairs with the Acquire in `extent`.
        self.extent.store(*used, Ordering::Release);
        // Highest first: the list is a stack, and cells are best used in ascending order.
        list.extend((first..first + BATCH as u32).rev());
        true
    }
}
