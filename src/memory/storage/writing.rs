//! Who may write into the bytes of arrays, beside those who read them (`storage.rs`).
//!
//! - Bytes that the writer alone uses: it exchanges the word `users` for the one that says that it writes. Whoever
//!   announced an array with them before would have taken the word from it, and whoever does so later fails to. Its own
//!   record is all that is left to look at: no barrier, and no other thread is disturbed.
//! - Bytes of all threads: the writer sets the word, issues the heavy barrier and looks at all hazard records. If
//!   nobody else uses an array with this storage, the bytes are the writer's alone from here on.
//!
//! So a write into bytes that another thread is reading (or the reverse) cannot happen, and a loop that changes arrays
//! that only its own thread uses makes no system call.

use crate::base::{
    error::{Error, Result},
    sync::{Ordering, wait_turn},
};
use crate::memory::{
    hazard::{PLACES, USER},
    registry::{self, Pinned},
    storage::{SHARED, Storage, StorageCell, WRITES, alone},
    threads::{self, ThreadContext, ThreadRecord},
};

/// Turns of waiting that a writer leaves to readers which it kept waiting.
const TURNS_LEFT: u32 = 64;

impl StorageCell {
    /// Has the readers of all arrays with these bytes ask. The caller set [`WRITES`] and will issue the heavy barrier.
    fn have_asked(&self) {
        // Relaxed: written before the storage was published, and here, under the word that says who writes.
        if let Some(slot) = self.unasked.load(Ordering::Relaxed).checked_sub(1) {
            self.unasked.store(0, Ordering::Relaxed);
            registry::guard(slot);
        }
    }
}

impl Storage {
    /// The right to write into the buffer. `own`: the array to be written, as this thread announces it. `None`: another
    /// thread is writing, or reads and does not end soon; let go of everything and try again. Invariant I7 (design.md).
    pub(crate) fn write(&self, context: &ThreadContext, op: &'static str, own: &Pinned<'_>) -> Result<Option<Writing>> {
        if self.buffer().is_read_only() {
            return Err(Error::ReadOnly { op, array: registry::describe(own.key), site: None });
        }
        let (cell, mine) = (self.cell, alone(context));
        // Relaxed: a wish. Somebody could not read while this thread or another one wrote, and is at it: it comes
        // first.
        if cell.wanted.load(Ordering::Relaxed) != 0 {
            cell.wanted.store(0, Ordering::Relaxed);
            (0..TURNS_LEFT).for_each(|_| std::hint::spin_loop());
        }
        // Relaxed: the exchange below decides.
        let users = cell.users.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `Writing::drop` and in `share`; writers follow each other, and follow
        // those who announced an array before they shared the bytes.
        if (users != SHARED && users != mine)
            || cell.users.compare_exchange(users, users | WRITES, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return Ok(None);
        }
        let mut writing = Writing { cell, after: users, written: false };
        if users == SHARED {
            cell.have_asked();
            threads::barrier();
        }
        let mut turns = 0;
        while let Some(user) = self.other_reader(context, own.place, users == SHARED) {
            if let Some(by) = user {
                return Err(Error::in_use(op, registry::describe(own.key), by));
            }
            if turns > 256 {
                return Ok(None);
            }
            wait_turn(&mut turns);
        }
        writing.after = mine;
        writing.written = true;
        Ok(Some(writing))
    }

    /// Whether other threads may be using the bytes, so that a write would issue the heavy barrier.
    pub(crate) fn is_shared(&self) -> bool {
        // Relaxed: a guess, which the exchange in `claim` confirms.
        self.cell.users.load(Ordering::Relaxed) == SHARED
    }

    /// Somebody else who announces an array with this storage, on this thread or on `all`; with a name if waiting for
    /// him is no use.
    fn other_reader(&self, context: &ThreadContext, own: usize, all: bool) -> Option<Option<&'static str>> {
        let mut found = None;
        let mut look = |record: &'static ThreadRecord| {
            let mine = std::ptr::eq(record, context.record);
            let used = if mine { context.used_places.get() } else { PLACES };
            for (place, value) in record.hazards.first_places(used) {
                if (mine && place == own) || registry::storage_of((value & !USER) - 1) != Some(self.id()) {
                    continue;
                }
                let who = match (mine, value & USER != 0) {
                    (true, _) => Some("a call further up on this thread"),
                    (false, true) => Some("a closure on another thread"),
                    (false, false) => None,
                };
                found = Some(found.flatten().or(who));
            }
        };
        if all {
            threads::for_each_record(look)
        } else {
            look(context.record)
        }
        found
    }
}

/// Makes the bytes of several storages this thread's alone, by one barrier for all; those that somebody is using stay
/// as they are. The caller is about to write into each.
pub(crate) fn claim(context: &ThreadContext, storages: &[Storage]) {
    let taken = |storage: &&Storage| {
        // Acquire: as in `write`.
        storage.cell.users.compare_exchange(SHARED, WRITES, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let taken: Vec<&Storage> = storages.iter().filter(taken).collect();
    if taken.is_empty() {
        return;
    }
    taken.iter().for_each(|storage| storage.cell.have_asked());
    threads::barrier();
    let mut read = vec![false; taken.len()];
    threads::for_each_record(|record| {
        for (_, value) in record.hazards.places() {
            let found = registry::storage_of((value & !USER) - 1);
            for (read, storage) in read.iter_mut().zip(&taken) {
                *read |= found == Some(storage.id());
            }
        }
    });
    for (storage, read) in taken.iter().zip(read) {
        let after = if read { SHARED } else { alone(context) };
        // Release: as in `Writing::drop`; nothing was written.
        storage.cell.users.store(after, Ordering::Release);
    }
}

/// The right to write into a storage's buffer in place; given up on drop.
#[derive(Debug)]
pub(crate) struct Writing {
    cell: &'static StorageCell,
    /// Who uses the bytes afterwards.
    after: u32,
    /// Whether there was anything to write: nobody else read.
    written: bool,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Writing { cell, after, written } = *self;
        // Relaxed: only the writer changes it; published by the Release below.
        cell.version.store(cell.version.load(Ordering::Relaxed) + u64::from(written), Ordering::Relaxed);
        // Release: pairs with the Acquire in `write`, `claim` and `is_readable`: what was written is seen, and the
        // version.
        cell.users.store(after, Ordering::Release);
    }
}
