//! The handle: a key, and nothing else.

use crate::base::error::{Closer, Error, Result, Site};
use crate::memory::{
    key::Key,
    loan,
    manager::NdManager,
    owner::{self, Owner, Refused},
    reclaim,
    registry::{self, OwnedArray, Pinned, TakenOver},
    switch,
    threads::{ThreadContext, with_context},
    workspace::validity::{self, CycleId},
};

/// A tensor, by its key: what users hold. Also exported as `Tensor`.
///
/// A proxy is 8 bytes and owns a share in the *handle* of an array, not the array: that belongs to an
/// [`NdManager`], or to its handles if it was made with a device or [detached](Proxy::detach). `clone` gives
/// another handle of the same array. Dropping one never blocks, allocates, locks, calls a device or panics; the
/// last drop puts the key into the reclaim queue, from where a later call, on any thread, closes the array.
/// (For an array of a manager only while [the switch](crate::gc) is on.)
///
/// A proxy may be used, cloned and dropped on any thread. One whose array was closed gives
/// [`Error::StaleArray`] wherever it is used, never other data.
///
/// # Methods by subject
///
/// - [The handle](#memory-the-handle-and-which-array-it-is-of), [life and end](#memory-whether-the-array-lives-and-its-end),
///   [owners](#memory-who-owns-the-array), [bytes](#memory-the-bytes-of-the-array),
///   [workspaces](#memory-between-workspaces), [`detach`](Proxy::detach), [`copy`](Proxy::copy), [`intern`](Proxy::intern)
/// - [What the array is](#what-the-array-is), [reading its elements](#reading-the-elements)
/// - [Making arrays](#making-arrays-of-values), [indexing](#indexing-by-items-of-several-kinds), [shape](#shape-views),
///   [dtype and device](#other-dtypes-and-devices)
/// - [Arithmetic](#element-by-element-arithmetic), [functions](#element-by-element-functions),
///   [comparisons](#element-by-element-comparisons), [reductions](#reductions-sums-means-extremes),
///   [products](#linear-algebra-products-of-matrices), [networks](#networks-convolutions)
/// - [Gradients](#gradients-going-back), [operations of your own](#operations-of-your-own-made-of-others),
///   [in place](#in-place-numbers-and-copies), [exchange](#exchange-with-other-libraries-by-dlpack), [files](#files-npy)
///
/// What other libraries call by another name is there under it too, as an alias, which says so.
///
/// ```
/// # use ndgc::{Proxy, Device, DType};
/// assert_eq!(size_of::<Option<Proxy>>(), 8);
/// let a = Proxy::zeros((2, 3), DType::F32, &Device::Cpu)?;
/// let b = a.clone(); // the same array
/// drop(a);
/// assert_eq!(b.dims(), [2, 3]);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub struct Proxy {
    key: Key,
}

const _: () = assert!(size_of::<Proxy>() == 8 && size_of::<Option<Proxy>>() == 8);

impl Clone for Proxy {
    #[inline]
    fn clone(&self) -> Self {
        registry::slot(self.key.index()).core.add_proxy();
        Proxy { key: self.key }
    }
}

impl Drop for Proxy {
    #[inline]
    fn drop(&mut self) {
        registry::drop_proxy(self.key);
    }
}

/// # Memory: the handle, and which array it is of
impl Proxy {
    /// Takes over a count: of `create` or `upgrade`.
    #[inline]
    pub(crate) fn from_key(key: Key) -> Self {
        Proxy { key }
    }

    /// The array's key.
    #[inline]
    pub fn key(&self) -> Key {
        self.key
    }

    /// A proxy for a key, if its array is open and has at least one handle. The registry is weak: a key keeps
    /// nothing alive.
    pub fn from_registry(key: Key) -> Option<Self> {
        registry::upgrade(key).map(Proxy::from_key)
    }

    /// The array's public identity, derived from its key.
    pub fn uuid(&self) -> uuid::Uuid {
        self.key.uuid()
    }

    /// The name given by [`Proxy::set_name`].
    pub fn name(&self) -> Option<String> {
        registry::name(self.key)
    }

    /// Names the array, for dumps and errors.
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    pub fn set_name(&self, name: &str) -> Result<()> {
        if !self.is_open() {
            return Err(registry::stale("set_name", self.key));
        }
        registry::set_name(self.key, name);
        Ok(())
    }

    /// Where the array was made.
    pub fn created_at(&self) -> Option<Site> {
        registry::created(self.key.index())
    }

    /// Handles of the array, this one included.
    pub fn handle_count(&self) -> usize {
        registry::slot(self.key.index()).core.proxies() as usize
    }

    /// Whether both are handles of one array.
    pub fn is_same(&self, other: &Proxy) -> bool {
        self.key == other.key
    }
}

/// # Memory: whether the array lives, and its end
impl Proxy {
    /// Whether the array can be used: it was not closed.
    pub fn is_open(&self) -> bool {
        registry::is_open(self.key)
    }

    /// The opposite of [`Proxy::is_open`]: DJL's name.
    pub fn is_released(&self) -> bool {
        !self.is_open()
    }

    /// Ends the array now, for all its handles. Its bytes come back at once, or when the last operation that is
    /// using them lets go. Closing twice is harmless.
    #[track_caller]
    pub fn close(&self) {
        self.close_as(Closer::User, std::panic::Location::caller());
    }

    /// Ends the array for a reason that its errors tell.
    pub(crate) fn close_as(&self, closer: Closer, site: Site) {
        if !switch::forked() {
            with_context(|context| registry::close(context, self.key, closer, site));
        }
    }
}

/// # Memory: who owns the array
impl Proxy {
    /// The manager that owns or has borrowed the array; the system manager of its device if its handles own it.
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    #[track_caller]
    pub fn manager(&self) -> Result<NdManager> {
        match self.owner("manager")? {
            Owner::Manager(id) => NdManager::of(id).ok_or_else(|| registry::stale("manager", self.key)),
            Owner::Handles | Owner::Cycle(_) => {
                let device = self.with_pinned("manager", |array| array.storage.buffer().device().clone())?;
                Ok(NdManager::system(&device))
            }
        }
    }

    /// Whether its handles own the array: no manager ends it.
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    pub fn is_detached(&self) -> Result<bool> {
        Ok(self.owner("is_detached")? == Owner::Handles)
    }

    /// Whether the array ends with a cycle of a [`Workspace`](crate::Workspace), or ended with one.
    pub fn is_attached(&self) -> bool {
        registry::cycle_of(self.key).is_some()
    }

    /// Whether no workspace ended the array: it is of none, or of a cycle that goes on (`isInScope` of ND4J).
    pub fn is_in_scope(&self) -> bool {
        registry::is_in_scope(self.key)
    }

    /// Whether [`Proxy::close`] would give bytes back at once: the array is open, no view or gradient shares its bytes, and
    /// they are not a workspace's.
    pub fn is_closeable(&self) -> bool {
        let alone = |array: &Pinned<'_>| array.storage.references() == 1 && array.storage.part().is_none();
        self.with_pinned("is_closeable", alone).unwrap_or(false)
    }

    /// Makes `manager` the owner. All or nothing: if the manager refuses, the array stays where it was. Ends
    /// any lending of the array.
    ///
    /// # Errors
    /// [`Error::StaleArray`]; [`Error::ManagerClosed`] and [`Error::ManagerCapped`] of the target.
    pub fn attach(&self, manager: &NdManager) -> Result<()> {
        self.move_to("attach", manager, false)
    }

    /// Lends the array to `manager`: until that closes, it is the owner; then the array goes back to the nearest
    /// lender that is open, and ends if none is. Works on a capped manager too.
    ///
    /// # Errors
    /// [`Error::StaleArray`]; [`Error::ManagerClosed`] of the borrower; [`Error::SystemManager`], which never
    /// closes and so could not give the array back.
    pub fn temp_attach(&self, manager: &NdManager) -> Result<()> {
        if manager.is_system() {
            return Err(Error::SystemManager { op: "temp_attach" });
        }
        self.move_to("temp_attach", manager, true)
    }

    pub(crate) fn move_to(&self, op: &'static str, manager: &NdManager, lending: bool) -> Result<()> {
        switch::check(op)?;
        with_context(|context| {
            reclaim::on_call(context);
            let (index, cell) = (self.key.index(), registry::slot(self.key.index()));
            if let Some(cycle) = registry::cycle_of(self.key) {
                return Err(if self.is_open() { stays(op, cycle) } else { registry::stale(op, self.key) });
            }
            let Some(before) = owner::take(cell, self.key.generation()) else {
                return Err(registry::stale(op, self.key));
            };
            let lenders = if lending { None } else { loan::end(index) };
            if lending {
                loan::begin(index, before);
            }
            let Err(refused) = owner::put((index, cell), manager.owner(), lending) else { return Ok(()) };
            if lending {
                loan::undo(index);
            }
            loan::restore(index, lenders);
            if owner::put((index, cell), before, true).is_err() {
                // The old owner closed in the meantime, and takes its array with it.
                registry::close_taken(context, &[self.key], Closer::Manager, None);
            }
            Err(manager.refusal(op, refused))
        })
    }

    /// Puts an array that its handles own into the hands of another owner.
    ///
    /// # Errors
    /// [`Error::StaleArray`]: somebody found it by its key and closed it. What `refusal` makes of the owner's answer.
    pub(crate) fn give_to(
        self,
        context: &ThreadContext,
        op: &'static str,
        owner: Owner,
        refusal: impl FnOnce(Refused) -> Error,
    ) -> Result<Self> {
        let place = (self.key.index(), registry::slot(self.key.index()));
        let Some(before) = owner::take(place.1, self.key.generation()) else {
            return Err(registry::stale(op, self.key));
        };
        match owner::put(place, owner, false) {
            Ok(()) => Ok(self),
            Err(refused) => {
                // Where it was it may stay, unless that is a manager which closed meanwhile.
                if owner::put(place, before, true).is_err() {
                    registry::close_taken(context, &[self.key], Closer::Manager, None);
                }
                Err(refusal(refused))
            }
        }
    }

    /// Ends the array by this handle, if it is the only one, and gives what the array held to the caller. `Ok(Err(..))`
    /// is the handle again, if there are others.
    ///
    /// # Errors
    /// [`Error::StaleArray`] if somebody else ended it at the same time.
    pub(crate) fn take_over(
        self,
        context: &ThreadContext,
        op: &'static str,
    ) -> Result<std::result::Result<OwnedArray, Self>> {
        let key = self.key;
        let taken = match registry::take_over(context, key) {
            TakenOver::Shared => return Ok(Err(self)),
            TakenOver::Owned(array) => Ok(Ok(array)),
            TakenOver::Gone => Err(registry::stale(op, key)),
        };
        // Its count was given up.
        std::mem::forget(self);
        taken
    }

    #[inline(always)]
    pub(crate) fn owner(&self, op: &'static str) -> Result<Owner> {
        if owner::is_of_handles(self.key.index()) {
            return Ok(Owner::Handles);
        }
        owner::owner_of(self.key.index(), self.key.generation()).ok_or_else(|| registry::stale(op, self.key))
    }

    /// Reads the array's metadata.
    #[inline]
    pub(crate) fn with_pinned<R>(&self, op: &'static str, f: impl FnOnce(&Pinned<'_>) -> R) -> Result<R> {
        let (mut f, mut answer) = (Some(f), None);
        self.pinned(op, &mut |array| answer = f.take().map(|f| f(array)))?;
        Ok(answer.expect("what was announced was looked at"))
    }

    /// As [`Proxy::with_pinned`], by reference.
    fn pinned(&self, op: &'static str, f: &mut dyn FnMut(&Pinned<'_>)) -> Result<()> {
        switch::check(op)?;
        with_context(|context: &ThreadContext| {
            reclaim::on_call(context);
            let pins = registry::pin(context, op, [self.key], false)?;
            let [pinned] = pins.arrays();
            f(&pinned);
            Ok(())
        })
    }
}

/// The refusal to give an array of a workspace to a manager.
#[cold]
fn stays(op: &'static str, cycle: CycleId) -> Error {
    let why = "the array's bytes are the workspace's; detach() gives an array that can be attached".to_owned();
    Error::Workspace { op, workspace: validity::about(cycle).workspace, why }
}
