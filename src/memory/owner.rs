//! Who owns an array: its handles, or a manager, in whose list it is linked.
//!
//! A manager's arrays form doubly linked lists through their slots, in four shards so that threads rarely meet.
//! A shard is locked for a few instructions at a time; whether the manager is open or capped is part of what
//! the lock guards, so that attaching and closing cannot cross.
//!
//! # Moving and ending
//! Whoever wants to move or end an array first *takes* it from its owner; the owner field is then `NOBODY`
//! until it is put somewhere or closed. Only one thread holds a taken array, so moves and ends exclude each
//! other, and the phase of a slot is changed by the taker alone. What is taken to be put somewhere goes on being
//! counted by the budget of the owner that it had ([`Counted`]), so that nobody gets its place meanwhile.
//!
//! The maker of an array that its handles or its cycle own closes it without taking it, where it alone uses it: by an
//! exchange of the state (`Slot::close_at_once`). So whoever else takes one from these says so in the state before, as
//! who reads it does (`ArraySlot::is_looked_for`): of the two, one finds the other.

use std::sync::LazyLock;

use dashmap::DashMap;

use crate::base::sync::{AtomicU32, AtomicU64, BiasedLock, Inside, Ordering, wait_turn};
use crate::memory::{
    budget::{self, Count, OverBudget},
    hazard::heavy,
    key::Key,
    registry::slots::{ArraySlot, NOBODY, slot, storage_of},
    slab::slab,
    slot::{LENT, OPEN, generation_of},
    storage,
    threads::{self, ThreadContext},
    workspace::validity::CycleId,
};

/// Shards of a manager's list.
pub(crate) const SHARDS: usize = 4;
/// The owner of an array that its handles own.
pub(crate) const HANDLES: u32 = u32::MAX;
/// Set in the owner of an array that ends with a cycle of a workspace, and in `HANDLES`; the slot says which cycle.
pub(crate) const UNLISTED: u32 = 1 << 30;
/// The owner of an array that ends with a cycle of a workspace.
const OF_CYCLE: u32 = UNLISTED;

/// One shard of a manager's arrays.
#[derive(Debug, Default)]
pub(crate) struct OwnerList {
    /// Index + 1 of the first slot.
    head: u32,
    pub(crate) count: u32,
    /// Which life of the core this is; 0 while it belongs to no manager.
    life: u64,
    open: bool,
    capped: bool,
    /// The number of the budget that it is within (`budget.rs`).
    budget: u32,
}

/// The part of a manager that arrays refer to. Lives in a slab and is used again.
#[derive(Debug)]
pub(crate) struct Core {
    shards: [Shard; SHARDS],
    /// The manager's key in the tree, as a number.
    key: AtomicU64,
    /// As in the shards, to be read without a lock.
    life: AtomicU64,
    budget: AtomicU32,
    /// The number of the budget, while new arrays are taken.
    payer: AtomicU32,
}

#[derive(Debug)]
#[repr(align(128))]
struct Shard(BiasedLock<OwnerList>);

impl Shard {
    /// By whoever looks at it.
    fn with<R>(&self, f: impl FnOnce(&mut OwnerList) -> R) -> R {
        self.0.with(mark(), interrupt, f)
    }

    /// By who makes arrays or ends them, which mostly is one thread.
    #[inline(always)]
    fn with_own<R>(&self, f: impl FnOnce(&mut OwnerList) -> R) -> R {
        let record = threads::record();
        let light = || record.iter().for_each(|record| record.hazards.barrier());
        self.0.with_own(record.map(|record| &record.inside), light, interrupt, f)
    }
}

/// The calling thread's, if it has one.
fn mark() -> Option<&'static Inside> {
    threads::record().map(|record| &record.inside)
}

/// The heavy barrier, by a thread that may have no thread record, while another one has or had one.
fn interrupt() {
    heavy(u32::MAX);
}

slab!(CORES: Core = Core {
    shards: std::array::from_fn(|_| Shard(BiasedLock::new(OwnerList::default()))),
    key: AtomicU64::new(0),
    life: AtomicU64::new(0),
    budget: AtomicU32::new(0),
    payer: AtomicU32::new(0),
});

/// A manager as an owner: its core, and in which life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ManagerId {
    /// A whole word, so that a copy is not wider than what was written.
    core: u64,
    life: u64,
}

/// Where an array is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Its handles own it.
    Handles,
    /// This manager owns it.
    Manager(ManagerId),
    /// It ends with this cycle of a workspace.
    Cycle(CycleId),
}

/// Why a manager took no array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Closed,
    Capped,
    OverBudget(OverBudget),
}

/// How an array comes to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It is new.
    Made,
    /// Somebody moves it there.
    Moved,
    /// Somebody lends it: to a capped manager too.
    Lent,
    /// It comes back: to a capped manager too, and beyond a budget.
    Returned,
    /// It stays after all, where it was: as above, and its bytes are charged to whom they were.
    Stays,
}

impl Entry {
    /// Whether no budget refuses it.
    fn is_forced(self) -> bool {
        matches!(self, Entry::Returned | Entry::Stays)
    }
}

/// The budget that goes on counting an array which was taken to be put somewhere; 0 when one of another owner does, or
/// none did. When it drops the array is counted no more.
#[derive(Debug, Default)]
pub(crate) struct Counted(u32);

impl Counted {
    /// Puts the array into the hands of its new owner, as [`put`]. Refused, it is counted as before.
    pub(crate) fn put(
        &mut self,
        place: (u32, &ArraySlot),
        owner: Owner,
        entry: Entry,
    ) -> std::result::Result<(), Refused> {
        put_from(place, owner, entry, self.0)?;
        budget::release(std::mem::take(&mut self.0));
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        budget::uncount_array(self.0, 0);
        budget::release(self.0);
    }
}

/// Who lent an array, by its slot: the nearest one last (`loan.rs`).
pub(crate) static LENDERS: LazyLock<DashMap<u32, Vec<Owner>>> = LazyLock::new(DashMap::new);

/// Ends all lending of an array: it goes back or is closed.
pub(crate) fn forget_lenders(index: u32) {
    if slot(index).core.state() & LENT != 0 {
        LENDERS.remove(&index);
        slot(index).core.clear(LENT);
    }
}

impl ManagerId {
    /// Opens a core for a manager with this key, within a budget.
    pub(crate) fn open(key: u64, budget: u32) -> Option<Self> {
        static FREE: std::sync::Mutex<Vec<u32>> = std::sync::Mutex::new(Vec::new());
        static LIVES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let mut free = FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let core = CORES.take_from(&mut free)?;
        // Relaxed: only its being different matters.
        let life = LIVES.fetch_add(1, Ordering::Relaxed);
        let cell = CORES.get(core);
        // Release: pairs with the Acquire in `manager_key`.
        cell.key.store(key, Ordering::Release);
        // Relaxed: a guess for who reads it without a lock.
        cell.budget.store(budget, Ordering::Relaxed);
        // Release: pairs with the Acquire in `owner_of` and `payer`: the core was empty before this.
        cell.life.store(life, Ordering::Release);
        for shard in &cell.shards {
            let list = OwnerList { head: 0, count: 0, life, open: true, capped: false, budget };
            shard.0.restart(mark(), interrupt, list);
        }
        // Release: pairs with the Acquire in `payer`. Last: who still caps the manager that was here does so before it.
        cell.payer.store(budget, Ordering::Release);
        Some(ManagerId { core: core.into(), life })
    }

    /// Gives a closed and empty core back.
    pub(crate) fn give_back(self) {
        CORES.give_back(std::iter::once(self.core as u32));
    }

    fn shard(self, shard: usize) -> &'static Shard {
        &CORES.get(self.core as u32).shards[shard % SHARDS]
    }

    /// Closes all shards to newcomers.
    pub(crate) fn shut(self) {
        self.refuse(|list| list.open = false);
    }

    /// New arrays are refused from now on, as `how` notes in each shard: they are charged to nobody before they are.
    fn refuse(self, how: impl Fn(&mut OwnerList)) {
        for shard in 0..SHARDS {
            self.shard(shard).with(|list| {
                if list.life == self.life {
                    how(list);
                    // Relaxed: a guess, as in `payer`. Under the lock: `set_budget` came before, or finds it refuse.
                    CORES.get(self.core as u32).payer.store(0, Ordering::Relaxed);
                }
            });
        }
    }

    /// The number of the budget that bytes for a new array are charged to before there are any. 0 also if the array
    /// will be refused: it takes nothing of what is reserved then, and of a manager that has the core now.
    #[inline]
    pub(crate) fn payer(self) -> u32 {
        let core = CORES.get(self.core as u32);
        // Acquire: pairs with the Release in `open` and `set_budget`: who finds a later life's number finds that life.
        let payer = core.payer.load(Ordering::Acquire);
        // Of this life it is a guess: whoever links the array reads what it needs under a lock.
        // Acquire: as in `owner_of`.
        if core.life.load(Ordering::Acquire) == self.life { payer } else { 0 }
    }

    /// Lets no further array in, except those that come back from a borrower.
    pub(crate) fn cap(self) {
        self.refuse(|list| list.capped = true);
    }

    pub(crate) fn is_capped(self) -> bool {
        self.shard(0).with(|list| list.life == self.life && list.capped)
    }

    /// The number of its budget: exact while the tree is locked.
    pub(crate) fn budget(self) -> u32 {
        // Relaxed: whoever puts an array into a list reads the number there.
        CORES.get(self.core as u32).budget.load(Ordering::Relaxed)
    }

    /// Puts it within another budget, with all that it has. The caller holds the lock of the tree.
    pub(crate) fn set_budget(self, to: u32) {
        let core = CORES.get(self.core as u32);
        // Relaxed: as above.
        core.budget.store(to, Ordering::Relaxed);
        for shard in 0..SHARDS {
            self.shard(shard).with(|list| {
                // Release: pairs with the Acquire in `payer`. Under the lock: as in `refuse`.
                core.payer.store(if list.open && !list.capped { to } else { 0 }, Ordering::Release);
                let from = std::mem::replace(&mut list.budget, to);
                // The way up is as long as the program likes, and of many managers most have nothing.
                let above = if list.head == 0 { 0 } else { budget::common(from, to) };
                list.for_each(|index| {
                    // Neither can be refused.
                    let _ = budget::count_array(to, above, true).map(Count::settle);
                    budget::uncount_array(from, above);
                    let moves = |payer: u32, _: u32| payer == from || payer == 0;
                    let _ = storage_of(index).map(|id| storage::charge(id, to, true, moves));
                });
            });
        }
    }

    /// Arrays it owns.
    pub(crate) fn count(self) -> usize {
        (0..SHARDS).map(|s| self.shard(s).with(|l| if l.life == self.life { l.count as usize } else { 0 })).sum()
    }

    /// Takes up to `most` arrays of one shard at once. The answer is the budget that counts them, until each is put
    /// somewhere or [uncounted](budget::uncount_array); the caller releases it after that.
    pub(crate) fn take_some(self, shard: usize, most: usize, taken: &mut Vec<Key>) -> u32 {
        self.shard(shard).with(|list| {
            while taken.len() < most && list.head != 0 && list.life == self.life {
                let index = list.head - 1;
                let cell = slot(index);
                list.unlink(cell);
                // Release: pairs with the Acquire in `take`.
                cell.owner.store(NOBODY, Ordering::Release);
                // Open and taken: it keeps this generation until it is closed or put somewhere.
                taken.push(Key::new(index, generation_of(cell.core.state())));
            }
            budget::retain(list.budget);
            list.budget
        })
    }

    /// Calls `f` with the index of each array of a shard, under its lock.
    pub(crate) fn for_each(self, shard: usize, f: &mut dyn FnMut(u32)) {
        self.shard(shard).with(|list| {
            if list.life == self.life {
                list.for_each(f);
            }
        });
    }
}

impl OwnerList {
    // Relaxed throughout: the links are guarded by the lock of the shard.
    fn link(&mut self, index: u32, cell: &ArraySlot) {
        cell.prev.store(0, Ordering::Relaxed);
        cell.next.store(self.head, Ordering::Relaxed);
        if self.head != 0 {
            slot(self.head - 1).prev.store(index + 1, Ordering::Relaxed);
        }
        self.head = index + 1;
        self.count += 1;
    }

    fn for_each(&self, mut f: impl FnMut(u32)) {
        let mut at = self.head;
        while at != 0 {
            f(at - 1);
            at = slot(at - 1).next.load(Ordering::Relaxed);
        }
    }

    /// Counts an array that comes in with the budget, and charges its bytes to it. Until now it was counted by the
    /// budget `counted`, or by none; budgets above both do not notice.
    #[inline(never)]
    fn charge(&self, cell: &ArraySlot, entry: Entry, counted: u32) -> std::result::Result<(), Refused> {
        let takes = |id| storage::take_ahead_of(id, self.budget);
        if counted == 0 && self.budget != 0 && cell.storage_id().is_some_and(takes) {
            return Ok(());
        }
        self.charge_anew(cell, entry, counted)
    }

    /// As [`OwnerList::charge`], of what was not counted with its bytes, or by another budget, or whose bytes are a
    /// gradient's as well.
    #[cold]
    #[inline(never)]
    fn charge_anew(&self, cell: &ArraySlot, entry: Entry, counted: u32) -> std::result::Result<(), Refused> {
        let ahead = cell.storage_id().map_or(0, storage::take_ahead);
        if ahead != 0 && counted == 0 && ahead == self.budget {
            return Ok(());
        }
        budget::revoke_array(ahead);
        let is_charged = is_charged_to(cell, self.budget);
        if counted == 0 && is_charged && budget::count_at_once(self.budget) {
            return Ok(());
        }
        let above = if counted == 0 { 0 } else { budget::common(counted, self.budget) };
        let count = budget::count_array(self.budget, above, entry.is_forced()).map_err(Refused::OverBudget)?;
        if !is_charged && let Err(refusal) = charge_bytes(cell, self.budget, entry, counted) {
            count.revoke();
            return Err(Refused::OverBudget(refusal));
        }
        count.settle();
        budget::uncount_array(counted, above);
        Ok(())
    }

    fn unlink(&mut self, cell: &ArraySlot) {
        let (prev, next) = (cell.prev.load(Ordering::Relaxed), cell.next.load(Ordering::Relaxed));
        match prev {
            0 => self.head = next,
            prev => slot(prev - 1).next.store(next, Ordering::Relaxed),
        }
        if next != 0 {
            slot(next - 1).prev.store(prev, Ordering::Relaxed);
        }
        self.count -= 1;
    }
}

/// Takes an array, of which the caller has a count, from its owner. `None` if it is not open (any more): somebody else
/// ended it. Invariant I5 (design.md).
#[inline]
pub(crate) fn take(context: &ThreadContext, cell: &ArraySlot, generation: u32) -> Option<Owner> {
    take_for(context, cell, generation, false).map(|(owner, _)| owner)
}

/// As [`take`], to put it somewhere.
pub(crate) fn take_to_move(context: &ThreadContext, cell: &ArraySlot, generation: u32) -> Option<(Owner, Counted)> {
    take_for(context, cell, generation, true).map(|(owner, counted)| (owner, Counted(counted)))
}

/// As [`take`], or with `moves` as [`take_to_move`]: the second value is what [`Counted`] has.
#[inline]
fn take_for(context: &ThreadContext, cell: &ArraySlot, generation: u32, moves: bool) -> Option<(Owner, u32)> {
    let mut turns = 0;
    loop {
        let state = cell.core.state();
        if state & OPEN == 0 || generation_of(state) != generation {
            return None;
        }
        // Acquire: pairs with the Release stores to `owner`.
        match cell.owner.load(Ordering::Acquire) {
            NOBODY => wait_turn(&mut turns),
            // Its maker may be closing it by an exchange of its state alone, which fails if this came first.
            HANDLES | OF_CYCLE if !cell.is_looked_for(context, state) => {}
            owner @ (HANDLES | OF_CYCLE) => {
                // Acquire: as above.
                let taken = cell.owner.compare_exchange(owner, NOBODY, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return Some((unlisted(cell, owner), 0));
                }
            }
            owner => {
                if let Some((id, counted)) = take_from(cell, owner, moves) {
                    return Some((Owner::Manager(id), counted));
                }
            }
        }
    }
}

/// As [`take`], by the caller that gave up the last count. Whoever takes an array from its handles or its cycle has a
/// count, and gives it up later: such an owner nobody can change any more, and it is read, not exchanged.
#[inline(always)]
pub(crate) fn take_orphan(context: &ThreadContext, cell: &ArraySlot, generation: u32) -> bool {
    // Acquire: pairs with the Release stores to `owner`. Relaxed would do for what was taken: it came before the last
    // count.
    match cell.owner.load(Ordering::Acquire) {
        HANDLES | OF_CYCLE => true,
        owner if owner != NOBODY && take_from(cell, owner, false).is_some() => true,
        _ => take(context, cell, generation).is_some(),
    }
}

/// Whether its handles or its cycle own an array at this moment.
#[inline(always)]
pub(crate) fn is_unlisted(cell: &ArraySlot) -> bool {
    // Acquire: pairs with the Release stores to `owner`.
    matches!(cell.owner.load(Ordering::Acquire), HANDLES | OF_CYCLE)
}

/// The owner of an array that is linked in no list.
#[inline]
fn unlisted(cell: &ArraySlot, owner: u32) -> Owner {
    match owner {
        HANDLES => Owner::Handles,
        _ => Owner::Cycle(cell.cycle_id()),
    }
}

/// The shard of its manager's list that an array is linked in: that of the thread that made it.
#[inline]
fn shard_of(cell: &ArraySlot) -> usize {
    cell.maker() as usize % SHARDS
}

/// Takes an array out of the list of a manager, by the owner field that was read. `moves`, and the second value: as in
/// [`take_for`].
#[inline(never)]
fn take_from(cell: &ArraySlot, owner: u32, moves: bool) -> Option<(ManagerId, u32)> {
    let core = owner - 1;
    // As in `link`.
    let (mut life, mut counted) = (0, 0);
    CORES.get(core).shards[shard_of(cell)].with_own(|list| {
        // It may have moved to another owner before the lock was held; its shard stays, since the caller has a count of
        // it. Relaxed: this core becomes and ceases to be the owner under this lock alone.
        if cell.owner.load(Ordering::Relaxed) == owner {
            list.unlink(cell);
            if moves {
                counted = list.budget;
                budget::retain(counted);
            } else {
                budget::uncount_array(list.budget, 0);
            }
            // Release: pairs with the Acquire in `take`.
            cell.owner.store(NOBODY, Ordering::Release);
            life = list.life;
        }
    });
    // A list that has an array is of some life.
    (life != 0).then(|| (ManagerId { core: core.into(), life }, counted))
}

/// Charges the bytes of an array to the budget of its new owner. A new one leaves those that are charged already where
/// they are, unless they are its alone. Of one that stays they may be charged to another: to that of an array that
/// shares them; those that were charged to the budget which counted it go along if its owner has another one since.
fn charge_bytes(cell: &ArraySlot, budget: u32, entry: Entry, counted: u32) -> std::result::Result<(), OverBudget> {
    let Some(id) = cell.storage_id() else { return Ok(()) };
    let moves = |payer: u32, references: u32| match entry {
        Entry::Made => payer == 0 || references == 1,
        Entry::Moved | Entry::Lent | Entry::Returned => true,
        Entry::Stays => payer == counted,
    };
    storage::charge(id, budget, entry.is_forced(), moves)
}

/// As [`charge_bytes`], of an array that its handles own. Those of a new one, as a step of a composed operation, stay
/// charged to whom they were made for; where its first operand had a manager until just now, that counts it no more.
#[cold]
#[inline(never)]
fn charge_nobody(cell: &ArraySlot, entry: Entry, counted: u32) {
    if entry != Entry::Made {
        // What is charged to nobody is never refused.
        let _ = charge_bytes(cell, 0, entry, counted);
    } else if let Some(id) = cell.storage_id() {
        storage::revoke_ahead(id);
    }
}

/// Whether the bytes of an array are charged to a budget, or to none.
#[inline]
fn is_charged_to(cell: &ArraySlot, budget: u32) -> bool {
    cell.storage_id().is_none_or(|id| storage::is_charged_to(id, budget))
}

/// Puts a taken (or new) array into the hands of its new owner.
#[inline(always)]
pub(crate) fn put(place: (u32, &ArraySlot), owner: Owner, entry: Entry) -> std::result::Result<(), Refused> {
    put_from(place, owner, entry, 0)
}

/// As [`put`], of an array that the budget `counted` goes on counting: until it is put, and if it is not.
#[inline(always)]
pub(crate) fn put_from(
    (index, cell): (u32, &ArraySlot),
    owner: Owner,
    entry: Entry,
    counted: u32,
) -> std::result::Result<(), Refused> {
    match owner {
        Owner::Handles => {
            if budget::is_in_use() {
                charge_nobody(cell, entry, counted);
            }
            budget::uncount_array(counted, 0);
            // Release: pairs with the Acquire in `take`.
            cell.owner.store(HANDLES, Ordering::Release);
            Ok(())
        }
        Owner::Cycle(_) => {
            // Release: as above. The cycle stands in the slot since the array was made.
            cell.owner.store(OF_CYCLE, Ordering::Release);
            Ok(())
        }
        Owner::Manager(id) if counted == 0 => link(index, cell, id, entry),
        Owner::Manager(id) => link_counted((index, cell), id, entry, counted),
    }
}

/// Links a taken (or new) array into the list of a manager.
#[inline(never)]
fn link(index: u32, cell: &ArraySlot, id: ManagerId, entry: Entry) -> std::result::Result<(), Refused> {
    link_from::<false>((index, cell), id, entry, 0)
}

/// As [`link`], of an array that a budget counts.
#[cold]
#[inline(never)]
fn link_counted(
    place: (u32, &ArraySlot),
    id: ManagerId,
    entry: Entry,
    counted: u32,
) -> std::result::Result<(), Refused> {
    link_from::<true>(place, id, entry, counted)
}

/// As [`link`]; with `IS_COUNTED` as [`link_counted`], of which there is one for each, so that each is in its place.
#[inline(always)]
fn link_from<const IS_COUNTED: bool>(
    (index, cell): (u32, &ArraySlot),
    id: ManagerId,
    entry: Entry,
    counted: u32,
) -> std::result::Result<(), Refused> {
    // Beside what the lock hands out: in one with it, it would be written in parts and read as a whole.
    let mut why = Refused::Closed;
    let is_linked = id.shard(shard_of(cell)).with_own(|list| {
        if !list.open || list.life != id.life {
            return false;
        }
        if list.capped && matches!(entry, Entry::Made | Entry::Moved) {
            why = Refused::Capped;
            return false;
        }
        if ((list.budget | counted) != 0 || (budget::is_in_use() && !is_charged_to(cell, 0)))
            && let Err(refused) = list.charge(cell, entry, counted)
        {
            why = refused;
            return false;
        }
        list.link(index, cell);
        // Release: pairs with the Acquire in `take`.
        cell.owner.store(id.core as u32 + 1, Ordering::Release);
        true
    });
    if is_linked { Ok(()) } else { Err(why) }
}

/// Waits a turn for an array that somebody took. `false`: it is not open any more.
#[cold]
fn is_moving(cell: &ArraySlot, generation: u32, turns: &mut u32) -> bool {
    let state = cell.core.state();
    let open = state & OPEN != 0 && generation_of(state) == generation;
    if open {
        wait_turn(turns);
    }
    open
}

/// Who owns an array now; waits while it is being moved. `None` if it is not open.
#[inline(always)]
pub(crate) fn owner_of(index: u32, generation: u32) -> Option<Owner> {
    let cell = slot(index);
    let mut turns = 0;
    loop {
        // Acquire: pairs with the Release stores to `owner`.
        match cell.owner.load(Ordering::Acquire) {
            HANDLES => return Some(Owner::Handles),
            OF_CYCLE => return Some(Owner::Cycle(cell.cycle_id())),
            NOBODY if !is_moving(cell, generation, &mut turns) => return None,
            NOBODY => {}
            owner => {
                let core = owner - 1;
                // Acquire: pairs with the Release in `ManagerId::open`. If that of a later life came first, the array
                // had left the core before it, and the second look finds it elsewhere, or in that life; if not, this is
                // the life that the first look found. (Three lives of a core between the two looks would not be told
                // apart.)
                let life = CORES.get(core).life.load(Ordering::Acquire);
                // Acquire: as above.
                if cell.owner.load(Ordering::Acquire) == owner {
                    return Some(Owner::Manager(ManagerId { core: core.into(), life }));
                }
            }
        }
    }
}

/// The key of the manager, as a number.
pub(crate) fn manager_key(id: ManagerId) -> u64 {
    // Acquire: pairs with the Release in `ManagerId::open`.
    CORES.get(id.core as u32).key.load(Ordering::Acquire)
}

/// The key of the manager that owns an array at this moment, as a number; 0 where its handles own it. None for one of a
/// workspace, and for one that is being moved, which is not waited for: the caller may be who moves it.
pub(crate) fn holder(cell: &ArraySlot) -> Option<u64> {
    // Acquire: pairs with the Release stores to `owner`, and in `ManagerId::open`.
    match cell.owner.load(Ordering::Acquire) {
        NOBODY | OF_CYCLE => None,
        HANDLES => Some(0),
        owner => Some(CORES.get(owner - 1).key.load(Ordering::Acquire)),
    }
}
