//! Budgets of managers and workspaces, as programs see them: set, asked, and reserved from.

use crate::base::{
    call::Call,
    error::{Error, Result},
    system, units,
};
use crate::device::Device;
use crate::memory::{
    budget::{self, Budget, BudgetUse, NoBytes},
    manager::{self, NdManager},
    owner::{Owner, manager_key},
    pressure, reclaim, switch,
    threads::with_context,
    workspace::Workspace,
};

/// A limit as `NDGC_MAX_BYTES` is read, for [`Device::set_limit`](crate::Device::set_limit) and [`Budget`]: `800m`,
/// `1.5g`, `2 GiB`, `50%` of the memory that the process may have, a number of bytes, or `none`.
///
/// ```
/// use ndgc::memory::parse_limit;
///
/// assert_eq!(parse_limit("800m")?, Some(800 << 20));
/// assert_eq!(parse_limit("none")?, None);
/// assert!(parse_limit("50%")? > parse_limit("1m")?);
/// assert!(parse_limit("some").is_err());
/// # Ok::<(), ndgc::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`](crate::Error::Argument) for another text.
#[track_caller]
pub fn parse_limit(text: &str) -> Result<Option<u64>> {
    let call = Call::here("parse_limit");
    let wrong = || Error::argument(call, "text", format!("{text:?}"), "like 800m, 2g, 50% or none");
    units::parse_limit(text, system::physical_bytes()).ok_or_else(wrong)
}

/// # Budgets: how much it may have
impl NdManager {
    /// Sets what this manager and all below it may have together; a manager below may have a budget of its own, within
    /// this one. What they have already is charged, and may be more. Returns the budget before. The first budget of a
    /// manager is a walk over all arrays below it; another one changes four numbers. Those below that had one before go
    /// on with their figures ([`NdManager::budget_use`]), without what was reserved of them: the first one here ends
    /// that.
    ///
    /// Bytes are charged to the manager that an array is made for, before there is memory, until they are free, whoever
    /// shares them: views, gradients. An array that [moves](crate::Proxy::attach) takes its bytes along, or stays
    /// where it was. It takes those of its whole storage: one that is detached takes them out of the budget also if
    /// arrays that stay share the storage. Not charged are mapped files and other memory of others, and arrays of
    /// workspaces: of these whole blocks are, if [`Workspace::charge_to`] says so.
    ///
    /// A refusal ends in [`Error::OutOfMemory`](crate::Error::OutOfMemory), after all that may free bytes
    /// ([`memory::on_pressure`](crate::memory::on_pressure)), and leaves everything as it was.
    ///
    /// ```
    /// # use ndgc::{Budget, DType, Device, Error, NdManager};
    /// let server = NdManager::new_base_manager(&Device::Cpu)?;
    /// let tenant = server.new_sub_manager()?;
    /// tenant.set_budget(Budget::new().max_bytes(1 << 10))?;
    /// let x = server.zeros(1 << 11, DType::U8)?;
    /// assert!(matches!(x.attach(&tenant), Err(Error::OutOfMemory(_)))); // it would bring its bytes along
    /// assert_eq!((server.array_count(), tenant.array_count()), (1, 0)); // and stays
    /// let before = tenant.set_budget(Budget::new().max_bytes(1 << 12))?;
    /// assert_eq!(before.max_bytes, Some(1 << 10));
    /// x.attach(&tenant)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ManagerClosed`](crate::Error::ManagerClosed); [`Error::SystemManager`](crate::Error::SystemManager),
    /// for which [`Device::set_limit`](crate::Device::set_limit) is there.
    #[track_caller]
    pub fn set_budget(&self, budget: Budget) -> Result<Budget> {
        let call = Call::here("set_budget");
        call.named(switch::check(call.op))?;
        // What is dead is not charged to it.
        with_context(reclaim::drain_all);
        let set = |number, is_new| if is_new { Budget::new() } else { budget::set(number, &budget) };
        manager::own_budget(self, call, &budget, set)
    }

    /// Its own budget; without limits if it has none of its own, or is closed.
    pub fn budget(&self) -> Budget {
        manager::in_budget(self, |number, is_own| if is_own { budget::limits(number) } else { Budget::new() })
    }

    /// What is charged to the budget that it is within: its own, or that of the nearest manager above with one. `None`
    /// without one, and of a closed manager. Dead arrays are closed first, those of all threads.
    ///
    /// ```
    /// # use ndgc::{Budget, DType, Device, NdManager};
    /// let tenant = NdManager::new_base_manager(&Device::Cpu)?;
    /// tenant.set_budget(Budget::new())?; // no limits, but figures
    /// let x = tenant.zeros(1000, DType::U8)?;
    /// let part = x.narrow(0, 0, 10)?;
    /// x.close();
    /// let used = tenant.budget_use().expect("it has a budget");
    /// assert_eq!((used.bytes, used.arrays, used.peak_arrays), (1000, 1, 2)); // the view keeps the bytes
    /// # drop(part);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn budget_use(&self) -> Option<BudgetUse> {
        switch::check("budget_use").ok()?;
        // What is queued is dead.
        with_context(reclaim::drain_all);
        manager::in_budget(self, |number, _| (number != 0).then(|| budget::usage(number)))
    }

    /// Whether an array of so many bytes would be within all budgets above it now: of what others reserved it takes
    /// nothing, and what the program's caches would give does not count. Dead arrays are closed first, those of all
    /// threads. Another thread may be faster; [`NdManager::reserve`] keeps them. A closed manager has room for none.
    pub fn can_fit(&self, bytes: u64) -> bool {
        if switch::check("can_fit").is_err() {
            return false;
        }
        with_context(reclaim::drain_all);
        let refused = |number| budget::refuses(number, bytes, 0).or_else(|| budget::full(number));
        manager::in_budget(self, |number, _| self.is_open() && refused(number).is_none())
    }

    /// Keeps so many bytes of its budget, and of those above, free for arrays of the managers within that budget, and
    /// for workspaces that are charged to them, until the guard drops: for the decision whether to begin a piece of
    /// work. They draw on it in the order in which they are made; reservations of one budget are one pot. Where there
    /// is no room it is looked for, as for an array. Without a budget it does nothing.
    ///
    /// ```
    /// # use ndgc::{Budget, DType, Device, NdManager};
    /// let tenant = NdManager::new_base_manager(&Device::Cpu)?;
    /// tenant.set_budget(Budget::new().max_bytes(1 << 20))?;
    /// let room = tenant.reserve(1 << 19)?;
    /// assert!(tenant.reserve((1 << 19) + 1).is_err());
    /// let x = tenant.zeros((256, 512), DType::F32)?; // 512 KiB, out of what was reserved
    /// assert_eq!(tenant.budget_use().unwrap().bytes, 1 << 19);
    /// drop(room); // nothing of it is left
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory); [`Error::ManagerClosed`](crate::Error::ManagerClosed).
    #[track_caller]
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        let call = Call::here("reserve");
        call.named(switch::check(call.op))?;
        // Kept from here on: the manager may be closed meanwhile, and the number be another's.
        let number = manager::in_budget(self, |number, _| {
            budget::retain(number);
            number
        });
        let room = Reservation { number, bytes: 0 };
        if !self.is_open() {
            return Err(self.closed_error(call));
        }
        call.named(room.filled(call.op, self.device(), bytes))
    }
}

/// Bytes of a budget that are kept free; made by [`NdManager::reserve`] and [`Workspace::reserve`]. Its drop frees what
/// is left of them.
#[derive(Debug)]
#[must_use = "the bytes are free again when it drops, with `let _ = ...` at once; name it, as in `let _room = ...`"]
pub struct Reservation {
    number: u32,
    bytes: u64,
}

impl Reservation {
    /// Bytes that were reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// With so many bytes of its budget, which was retained for it.
    fn filled(mut self, op: &'static str, device: &Device, bytes: u64) -> Result<Self> {
        let number = self.number;
        let mut reserve = || budget::reserve(number, bytes).map_err(NoBytes::Budget);
        let what = (op, device, usize::try_from(bytes).unwrap_or(usize::MAX));
        reserve().or_else(|why| with_context(|context| pressure::recover(context, what, why, &mut reserve)))?;
        self.bytes = bytes;
        Ok(self)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // The parent's; a lock of it may be held for ever.
        if !switch::forked() {
            budget::unreserve(self.number, self.bytes);
        }
    }
}

/// # Its budget: how much it may have
impl Workspace {
    /// Sets what this workspace may have; returns what was set before.
    ///
    /// `max_bytes` bounds its block and all that lies beside it, blocks among them that wait because somebody still
    /// uses them: a lease, a reader on another thread, an export. They are charged before memory is taken, and stay
    /// charged until they are free, whichever thread drops them; what there is already is charged, and may be more.
    /// Files ([`LocationPolicy::Mmap`](crate::LocationPolicy::Mmap)) are not charged, what spills beside them is. A
    /// request that would pass the limit takes no more than it needs, and else ends in
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) of class [`OverBudget`](crate::OutOfMemoryClass::OverBudget),
    /// after all that may free bytes ([`memory::on_pressure`](crate::memory::on_pressure)), and leaves everything as it
    /// was. The end of a cycle never fails: a block that may not grow stays as it is, and requests beyond it lie beside
    /// it.
    ///
    /// Above `soft_bytes` dead arrays are closed and the program's caches asked for memory. `max_arrays` bounds the
    /// arrays that get bytes in one cycle, those of nested entries among them, and not views; with it each array takes
    /// the longer way that counts. Cycles that end with more than `soft_arrays` are counted.
    ///
    /// ```
    /// # use ndgc::{Budget, DType, Device, Error, OutOfMemoryClass, Tensor, Workspace, WorkspaceConfig};
    /// let step = Workspace::for_current_thread("STEP", &WorkspaceConfig::default())?;
    /// step.set_budget(Budget::new().max_bytes(1 << 20))?;
    /// let _cycle = step.activate()?;
    /// let _x = Tensor::zeros(600_000, DType::U8, &Device::Cpu)?;
    /// let Err(Error::OutOfMemory(told)) = Tensor::zeros(600_000, DType::U8, &Device::Cpu) else { panic!() };
    /// assert!(matches!(told.class, OutOfMemoryClass::OverBudget { manager, .. } if manager == "workspace [STEP]"));
    /// let _y = Tensor::zeros(400_000, DType::U8, &Device::Cpu)?; // there is room for it
    /// assert!(step.budget_use().is_some_and(|found| found.bytes <= 1 << 20 && found.refused == 1));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it was destroyed.
    #[track_caller]
    pub fn set_budget(&self, budget: Budget) -> Result<Budget> {
        let call = Call::here("set_budget");
        self.check(call)?;
        self.arena.set_budget(&budget).ok_or_else(|| budget::too_many(call))
    }

    /// Charges what it has, and will have, also to the budgets of a manager and of those above: one limit for what a
    /// tenant keeps and what its steps need. A manager without a budget of its own gets one, without limits; the
    /// workspace's own, if it has one, stays, and its [figures](Workspace::budget_use) begin anew. What it has already
    /// is charged, and may be more.
    ///
    /// Its bytes count there, not its arrays, and a refusal is told as of the manager whose budget it is. It stays
    /// charged to these budgets after the manager is closed, until it is destroyed and its bytes are free, or charged
    /// to another manager. Where a manager above gets its first budget later, those below it go on without the
    /// workspace, which stays charged to the former ones, with the limits that they had, until this is called again;
    /// else that changes nothing.
    ///
    /// ```
    /// # use ndgc::{Budget, DType, Device, Error, NdManager, OutOfMemoryClass, Tensor, Workspace, WorkspaceConfig};
    /// let tenant = NdManager::new_base_manager(&Device::Cpu)?;
    /// tenant.set_budget(Budget::new().max_bytes(1 << 20))?;
    /// let _weights = tenant.zeros(600_000, DType::U8)?;
    /// let step = Workspace::for_current_thread("STEP", &WorkspaceConfig::default())?;
    /// step.charge_to(&tenant)?;
    /// let _cycle = step.activate()?;
    /// let _x = Tensor::zeros(400_000, DType::U8, &Device::Cpu)?;
    /// let Err(Error::OutOfMemory(told)) = Tensor::zeros(400_000, DType::U8, &Device::Cpu) else { panic!() };
    /// assert!(matches!(told.class, OutOfMemoryClass::OverBudget { manager, .. } if manager == tenant.name()));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if it was destroyed; [`Error::ManagerClosed`], [`Error::SystemManager`].
    #[track_caller]
    pub fn charge_to(&self, manager: &NdManager) -> Result<()> {
        let call = Call::here("charge_to");
        self.check(call)?;
        let own = self.arena.budget_number();
        let above = if own == 0 { 0 } else { budget::parent_of(own) };
        // Networks ask before each cycle, on many threads: mostly there is nothing to do, and no lock to take. The node
        // above its own does not end, and is of one manager.
        if let Owner::Manager(id) = manager.owner()
            && above != 0
            && id.budget() == above
            && budget::manager_of(above) == manager_key(id)
            && manager.is_open()
        {
            return Ok(());
        }
        let place_below = |above, _| self.arena.open_budget(above, &self.arena.budget());
        manager::own_budget(manager, call, &Budget::new(), place_below)?.ok_or_else(|| budget::too_many(call))
    }

    /// Its budget; without limits if it has none.
    pub fn budget(&self) -> Budget {
        self.arena.budget()
    }

    /// What is charged to its budget; `None` without one. Of a destroyed workspace what somebody still uses.
    pub fn budget_use(&self) -> Option<BudgetUse> {
        self.arena.budget_use()
    }

    /// Whether so many bytes more than it has would be within its budget, and those that it is [charged
    /// to](Workspace::charge_to), now, and its cycle may make another array. What its block has free is not asked, nor
    /// what the program's caches would give; of what others reserved it takes nothing. Dead arrays are closed first,
    /// those of all threads. Without a budget all fits; a destroyed workspace has room for nothing.
    pub fn can_fit(&self, bytes: u64) -> bool {
        if switch::check("can_fit").is_err() || self.arena.is_destroyed() {
            return false;
        }
        with_context(reclaim::drain_all);
        let made = self.arena.budget_use().map_or(0, |found| found.arrays);
        let is_full = self.arena.budget().max_arrays.is_some_and(|most| made >= most);
        !is_full && budget::refuses(self.arena.budget_number(), bytes, 0).is_none()
    }

    /// Keeps so many bytes of its budget, and of those that it is [charged to](Workspace::charge_to), free for its
    /// blocks until the guard drops, as [`NdManager::reserve`] does for arrays: for the decision whether to begin a
    /// cycle. What is reserved counts as charged. A block that is free again, or that spilled in a cycle which ends, is
    /// not reserved anew. Charged to another manager meanwhile, the workspace leaves the reservation with its former
    /// budgets. Without a budget it does nothing.
    ///
    /// ```
    /// # use ndgc::{Budget, DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let step = Workspace::for_current_thread("STEP", &WorkspaceConfig::default())?;
    /// step.set_budget(Budget::new().max_bytes(1 << 20))?;
    /// let room = step.reserve(1 << 19)?;
    /// assert!(step.reserve((1 << 19) + 1).is_err());
    /// let _cycle = step.activate()?;
    /// let _x = Tensor::zeros(1 << 19, DType::U8, &Device::Cpu)?; // out of what was reserved
    /// assert_eq!(step.budget_use().map(|found| found.bytes), Some(1 << 19));
    /// drop(room); // nothing of it is left
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], with its budget or one above; [`Error::Workspace`] if it was destroyed.
    #[track_caller]
    pub fn reserve(&self, bytes: u64) -> Result<Reservation> {
        let call = Call::here("reserve");
        self.check(call)?;
        let number = self.arena.budget_number();
        budget::retain(number);
        call.named(Reservation { number, bytes: 0 }.filled(call.op, &self.arena.memory, bytes))
    }
}
