//! Whose an array is: what managers and handles do together. Moving an array to another owner, lending it, letting it
//! go.

use crate::base::{
    call::Call,
    error::{Closer, Error, Result},
};
use crate::memory::{
    budget::{self, NoBytes},
    loan,
    manager::NdManager,
    owner::{self, Entry, Owner, Refused},
    pressure,
    proxy::Proxy,
    reclaim,
    registry::{self, Pinned},
    switch,
    threads::{ThreadContext, with_context},
    workspace::validity::{self, CycleId},
};

/// # Memory: who owns the array
impl Proxy {
    /// The manager that owns or has borrowed the array; the system manager of its device if its handles own it, or a
    /// cycle of a workspace ends it.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager, Tensor};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let w = model.zeros(3, DType::F32)?;
    /// let bias = w.manager()?.zeros(3, DType::F32)?; // beside it, whoever made `w`
    /// assert_eq!(bias.manager()?.uuid(), model.uuid());
    /// assert!(Tensor::zeros(3, DType::F32, &Device::Cpu)?.manager()?.is_system());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    #[track_caller]
    pub fn manager(&self) -> Result<NdManager> {
        let call = Call::here("manager");
        call.named(switch::check(call.op))?;
        match self.owner(call)? {
            Owner::Manager(id) => NdManager::of(id).ok_or_else(|| registry::stale(call, self.key)),
            Owner::Handles | Owner::Cycle(_) => {
                let device = self.with_pinned(call, |array| array.storage.buffer().device().clone())?;
                Ok(NdManager::system(&device))
            }
        }
    }

    /// Whether its handles own the array: neither a manager nor a workspace ends it.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let manager = NdManager::new_base_manager(&Device::Cpu)?;
    /// let x = manager.zeros(3, DType::F32)?;
    /// let y = x.detach(); // another array with the same bytes
    /// assert!(!x.is_detached()? && y.is_detached()?);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    #[track_caller]
    pub fn is_detached(&self) -> Result<bool> {
        Ok(self.owner(Call::here("is_detached"))? == Owner::Handles)
    }

    /// Whether the array ends with a cycle of a [`Workspace`](crate::Workspace), or ended with one.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let cycle = Workspace::enter("STEP", &WorkspaceConfig::default())?;
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// let y = x.detach(); // a copy, outside
    /// drop(cycle);
    /// assert!(x.is_attached() && !x.is_in_scope()); // it ended with its cycle
    /// assert!(!y.is_attached() && y.is_in_scope());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn is_attached(&self) -> bool {
        registry::cycle_of(self.key).is_some()
    }

    /// Whether no workspace ended the array: it is of none, or of a cycle that goes on (`isInScope` of ND4J).
    pub fn is_in_scope(&self) -> bool {
        registry::is_in_scope(self.key)
    }

    /// The name of the workspace whose cycle the array ends with, also of another thread's. `None` if it is of none, or
    /// ended with its cycle, and in a forked child.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let _cycle = Workspace::enter("STEP", &WorkspaceConfig::default())?;
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.workspace_id().as_deref(), Some("STEP"));
    /// assert_eq!(x.detach().workspace_id(), None);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[doc(alias = "getParentWorkspace")]
    pub fn workspace_id(&self) -> Option<String> {
        let cycle = registry::cycle_of(self.key).filter(|_| self.is_in_scope() && !switch::forked())?;
        Some(validity::about(cycle).workspace)
    }

    /// Whether [`Proxy::close`] would give bytes back at once: the array is open, no view or gradient shares its bytes,
    /// and they are not a workspace's.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let row = x.get(0)?;
    /// assert!(!x.is_closeable()); // the row would keep the bytes
    /// drop(row);
    /// ndgc::gc::collect(); // or any other call
    /// assert!(x.is_closeable());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn is_closeable(&self) -> bool {
        let alone = |array: &Pinned<'_>| array.storage.references() == 1 && array.storage.part().is_none();
        self.with_pinned("is_closeable", alone).unwrap_or(false)
    }

    /// Makes `manager` the owner. All or nothing: if the manager refuses, the array stays where it was. Ends
    /// any lending of the array.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let batch = model.new_sub_manager()?;
    /// let x = batch.zeros(3, DType::F32)?;
    /// x.attach(&model)?;
    /// batch.close()?;
    /// assert!(x.is_open());
    /// assert!(x.attach(&batch).is_err()); // a closed one takes none: it stays where it was
    /// assert_eq!(model.array_count(), 1);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`]; [`Error::Workspace`] for an array of a running cycle; [`Error::ManagerClosed`],
    /// [`Error::ManagerCapped`] and, for its budget, [`Error::OutOfMemory`] of the target.
    #[track_caller]
    pub fn attach(&self, manager: &NdManager) -> Result<()> {
        self.move_to(Call::here("attach"), manager, false)
    }

    /// Lends the array to `manager`: until that closes, it is the owner; then the array goes back to the nearest
    /// lender that is open, and ends if none is. Works on a capped manager too.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let w = model.zeros(3, DType::F32)?;
    /// let step = model.new_sub_manager()?;
    /// w.temp_attach(&step)?;
    /// let y = w.exp()?; // belongs to `step`, as `w` does for now
    /// step.close()?;
    /// assert!(w.is_open() && !y.is_open()); // `w` is the model's again
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`]; [`Error::Workspace`] for an array of a running cycle; [`Error::ManagerClosed`] and, for
    /// its budget, [`Error::OutOfMemory`] of the borrower; [`Error::SystemManager`], which never closes and so could
    /// not give the array back.
    #[track_caller]
    pub fn temp_attach(&self, manager: &NdManager) -> Result<()> {
        let call = Call::here("temp_attach");
        if manager.is_system() {
            return Err(Error::system_manager(call));
        }
        self.move_to(call, manager, true)
    }

    pub(crate) fn move_to(&self, call: Call, manager: &NdManager, lending: bool) -> Result<()> {
        call.named(switch::check(call.op))?;
        with_context(|context| {
            reclaim::on_call(context);
            let payer = match manager.owner() {
                Owner::Manager(id) if budget::is_in_use() => id.budget(),
                _ => 0,
            };
            let passed = budget::soft_passed(payer);
            let mut attempt = || self.try_move(context, call, manager, lending);
            if let Err(why) = attempt() {
                let asked = match &why {
                    NoBytes::Budget(refusal) => refusal.asked as usize,
                    NoBytes::Exhausted | NoBytes::Failed(_) => 0,
                };
                call.named(pressure::recover(context, (call.op, manager.device(), asked), why, &mut attempt))?;
            }
            // As a request does, and with no lock held: the program's reclaimers may do what they like.
            if payer != 0 && (budget::passes_soft_arrays(payer, 0) | (budget::soft_passed(payer) != passed)) {
                let bytes = self.with_pinned(call.op, |array| array.storage.buffer().span().bytes());
                pressure::relieve(context, manager.device(), bytes.unwrap_or(0), (payer, 0));
            }
            Ok(())
        })
    }

    /// One try of a move. Refused, the array is where it was.
    fn try_move(
        &self,
        context: &ThreadContext,
        call: Call,
        manager: &NdManager,
        lending: bool,
    ) -> std::result::Result<(), NoBytes> {
        let (index, cell) = (self.key.index(), registry::slot(self.key.index()));
        if let Some(cycle) = registry::cycle_of(self.key) {
            let is_open = self.is_open();
            return Err(NoBytes::Failed(if is_open { stays(call, cycle) } else { registry::stale(call, self.key) }));
        }
        let Some((before, mut counted)) = owner::take_to_move(context, cell, self.key.generation()) else {
            return Err(NoBytes::Failed(registry::stale(call, self.key)));
        };
        let entry = if lending { Entry::Lent } else { Entry::Moved };
        let lenders = if lending { None } else { loan::end(index) };
        if lending {
            loan::begin(index, before);
        }
        let Err(refused) = counted.put((index, cell), manager.owner(), entry) else { return Ok(()) };
        if lending {
            loan::undo(index);
        }
        loan::restore(index, lenders);
        if counted.put((index, cell), before, Entry::Stays).is_err() {
            // The old owner closed in the meantime, and takes its array with it.
            registry::close_taken(context, &[self.key], Closer::Manager, None);
        }
        Err(match refused {
            Refused::OverBudget(refusal) => NoBytes::Budget(refusal),
            refused => NoBytes::Failed(manager.refusal(call.op, refused).of(call)),
        })
    }
}

/// # Whose arrays are: caps, attaching, lending
impl NdManager {
    /// Whether it takes no further arrays but those that are lent to it.
    pub fn is_capped(&self) -> bool {
        matches!(self.owner(), Owner::Manager(id) if !switch::forked() && id.is_capped())
    }

    /// Lets it take no further arrays, for ever: to find code that leaves results with a long-lived manager. Arrays
    /// lent elsewhere come back all the same, others may be lent to it, and sub-managers may be made.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Error, NdManager};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let w = model.ones(3, DType::F32)?;
    /// model.cap()?;
    /// assert!(matches!(w.exp(), Err(Error::ManagerCapped { .. }))); // it would stay with the model
    /// let step = model.new_sub_manager()?;
    /// let y = step.ones(3, DType::F32)?.add(&w)?; // belongs to `step`, as its first operand does
    /// assert_eq!((model.array_count(), y.to_vec1::<f32>()?), (1, vec![2.; 3]));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SystemManager`]; [`Error::ManagerClosed`].
    #[track_caller]
    pub fn cap(&self) -> Result<()> {
        let call = Call::here("cap");
        call.named(switch::check(call.op))?;
        let Owner::Manager(id) = self.owner() else { return Err(Error::system_manager(call)) };
        if !self.is_open() {
            return Err(self.closed_error(call));
        }
        id.cap();
        Ok(())
    }

    /// Makes this manager's parent the owner of an array, and returns a handle of the same array: to carry a
    /// result out of a scope. Below the system manager the array's handles become its owner. One of a running cycle of
    /// a workspace stays with that.
    ///
    /// ```
    /// # use ndgc::{DType, Device, NdManager};
    /// let model = NdManager::new_base_manager(&Device::Cpu)?;
    /// let step = model.new_sub_manager()?;
    /// let x = step.ones(3, DType::F32)?;
    /// let sum = step.ret(&x.sum_all()?)?;
    /// step.close()?;
    /// assert!(!x.is_open());
    /// assert_eq!(sum.to_scalar::<f32>()?, 3.); // the model's now
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`]; [`Error::ManagerClosed`]; [`Error::ManagerCapped`] and, for its budget,
    /// [`Error::OutOfMemory`] of the parent.
    #[track_caller]
    pub fn ret(&self, array: &Proxy) -> Result<Proxy> {
        // One of a workspace stays with its cycle, which ends it whatever manager there is.
        let call = Call::here("ret");
        let parent = self.parent_for(call)?;
        if let Some(parent) = parent.filter(|_| !(array.is_attached() && array.is_open())) {
            array.move_to(call, &parent, false)?;
        }
        Ok(array.clone())
    }

    /// Makes this manager the owner of an array, and returns a handle of the same array.
    ///
    /// # Errors
    /// As [`Proxy::attach`].
    #[track_caller]
    pub fn ret_to(&self, array: &Proxy) -> Result<Proxy> {
        array.attach(self)?;
        Ok(array.clone())
    }

    /// Attaches several arrays.
    ///
    /// # Errors
    /// As [`Proxy::attach`]; those before the one that fails stay attached.
    #[track_caller]
    pub fn attach_all(&self, arrays: &[Proxy]) -> Result<()> {
        for array in arrays {
            array.attach(self)?;
        }
        Ok(())
    }

    /// Lends several arrays to this manager.
    ///
    /// # Errors
    /// As [`Proxy::temp_attach`]; those before the one that fails stay lent.
    #[track_caller]
    pub fn temp_attach_all(&self, arrays: &[Proxy]) -> Result<()> {
        for array in arrays {
            array.temp_attach(self)?;
        }
        Ok(())
    }
}

/// The refusal to give an array of a workspace to a manager.
#[cold]
fn stays(call: Call, cycle: CycleId) -> Error {
    let why = "the array's bytes are the workspace's; detach() gives an array that can be attached";
    Error::workspace(call, &validity::about(cycle).workspace, why)
}
