//! Arrays of workspaces: ways out of one and into another.
//!
//! Each of these copies, unless the array is where it shall be: then it is another handle of it. Shape and dtype stay,
//! and so does the gradient, which flows back through the copy; only `detach` ends it, and `leverage` where there is
//! no workspace further out, since it detaches then.

use std::rc::Rc;

use crate::base::{
    call::Call,
    error::{Error, Result},
};
use crate::device::Device;
use crate::memory::{
    proxy::Proxy,
    registry,
    threads::with_context,
    workspace::{arena::Arena, inside, outside, validity::CycleId},
};
use crate::ops::elementwise::unary::copy_of;

/// A copy that may still be under way.
///
/// [`wait`](Duplication::wait) gives the array when it is complete; a drop waits too.
#[derive(Debug)]
#[must_use = "a drop waits for the copy, and lets it go"]
pub struct Duplication {
    array: Option<Proxy>,
    device: Device,
}

impl Duplication {
    /// Waits for the copy, and gives it.
    ///
    /// # Errors
    /// Those of the device's work.
    #[track_caller]
    pub fn wait(mut self) -> Result<Proxy> {
        self.device.synchronize()?;
        self.array.take().ok_or_else(|| Error::msg("a copy is taken once"))
    }
}

impl Drop for Duplication {
    fn drop(&mut self) {
        if self.array.is_some() {
            // What failed meanwhile is the answer of the next waiting call.
            self.device.wait_silently();
        }
    }
}

/// # Memory: between workspaces
impl Proxy {
    /// A copy in the workspace around the current one; a detached copy if there is none, which as [`Proxy::detach`]
    /// makes it leads to no gradient. A detached array, or one that is there already, is given as it is. `backward` of
    /// a copy in a workspace goes through the current cycle as long as that goes on.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::default();
    /// let _outer = Workspace::enter("EPOCH", &config)?;
    /// let best = {
    ///     let _inner = Workspace::enter("STEP", &config)?;
    ///     Tensor::new(&[1f32, 2.], &Device::Cpu)?.leverage()?
    /// };
    /// assert_eq!(best.to_vec1::<f32>()?, [1., 2.]); // lives as long as the cycle of EPOCH
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::LeakedArray`]; [`Error::StaleArray`]; as of a copy.
    #[track_caller]
    pub fn leverage(&self) -> Result<Proxy> {
        let call = Call::here("leverage");
        if !self.must_move(call)? {
            return Ok(self.clone());
        }
        match with_context(|context| context.workspaces.enclosing()) {
            Some(arena) => self.copied_to(call, &arena),
            None => self.try_detach(),
        }
    }

    /// A copy in the open workspace of this thread with this name. A detached array, or one that is there already, also
    /// of an older entry that goes on, is given as it is.
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::default();
    /// let epoch = Workspace::enter("EPOCH", &config)?;
    /// let best = Workspace::cycle("STEP", &config, || Tensor::new(&[1f32, 2.], &Device::Cpu)?.leverage_to("EPOCH"))?;
    /// assert_eq!(best.to_vec1::<f32>()?, [1., 2.]); // STEP ended
    /// epoch.leave();
    /// assert!(!best.is_open());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Workspace`] if there is none of this name, or it is not open; [`Error::LeakedArray`];
    /// [`Error::StaleArray`]; as of a copy.
    #[track_caller]
    pub fn leverage_to(&self, id: &str) -> Result<Proxy> {
        let call = Call::here("leverage_to");
        if !self.must_move(call)? {
            return Ok(self.clone());
        }
        match with_context(|context| context.workspaces.find(id)).filter(|arena| arena.is_open()) {
            Some(arena) => self.copied_to(call, &arena),
            None => {
                let open = with_context(|context| context.workspaces.open_names());
                let why = format!("no workspace of this name is open on this thread; open are {open:?}");
                Err(Error::workspace(call, id, why))
            }
        }
    }

    /// As [`Proxy::leverage_to`]; of an array of a workspace a detached copy if no workspace of this name is open,
    /// which leads to no gradient.
    ///
    /// # Errors
    /// [`Error::LeakedArray`]; [`Error::StaleArray`]; as of a copy.
    #[track_caller]
    pub fn leverage_or_detach(&self, id: &str) -> Result<Proxy> {
        if !self.must_move(Call::here("leverage_or_detach"))? {
            return Ok(self.clone());
        }
        let is_open = with_context(|context| context.workspaces.find(id)).is_some_and(|arena| arena.is_open());
        if is_open { self.leverage_to(id) } else { self.try_detach() }
    }

    /// A copy in the current workspace, of a detached array too; one that is there already is given as it is. With no
    /// current workspace: the array as it is, or if `detach` a detached one ([`Proxy::detach`]), which leads to no
    /// gradient: of an array of no workspace with the same bytes.
    ///
    /// # Errors
    /// [`Error::LeakedArray`]; [`Error::StaleArray`]; as of a copy.
    #[track_caller]
    pub fn migrate(&self, detach: bool) -> Result<Proxy> {
        let call = Call::here("migrate");
        self.must_move(call)?;
        match with_context(|context| context.workspaces.innermost()) {
            Some(arena) => self.copied_to(call, &arena),
            None if detach => self.try_detach(),
            None => Ok(self.clone()),
        }
    }

    /// A copy in the current workspace and on its device; without one on the device that the array is kept for: for
    /// host-only arrays that of their workspace. Complete when this returns.
    ///
    /// "Unsafe" is ND4J's word for a copy of the raw bytes; here it is an ordinary one, of views as of whole arrays.
    ///
    /// # Errors
    /// [`Error::LeakedArray`]; [`Error::StaleArray`]; as of [`Proxy::to_device`].
    #[track_caller]
    pub fn unsafe_duplication(&self) -> Result<Proxy> {
        self.unsafe_duplication_async()?.wait()
    }

    /// As [`Proxy::unsafe_duplication`], without waiting for the copy. The array may be dropped, closed or end with its
    /// cycle meanwhile.
    ///
    /// # Errors
    /// As of [`Proxy::unsafe_duplication`].
    #[track_caller]
    pub fn unsafe_duplication_async(&self) -> Result<Duplication> {
        let call = Call::here("unsafe_duplication");
        self.must_move(call)?;
        if let Some(arena) = with_context(|context| context.workspaces.innermost()) {
            let array = self.copied_into(call, &arena)?;
            return Ok(Duplication { array: Some(array), device: arena.memory.clone() });
        }
        let kept_for = registry::cycle_of(self.key())
            .and_then(|cycle| with_context(|context| context.workspaces.device_of(cycle)));
        let device = kept_for.unwrap_or_else(|| self.device().clone());
        let array = if *self.device() == device { copy_of(call, self)? } else { self.to_device(&device)? };
        Ok(Duplication { array: Some(array), device })
    }

    /// Whether the array is of a workspace; an error if it ended.
    fn must_move(&self, call: Call) -> Result<bool> {
        if !self.is_open() {
            return Err(registry::stale(call, self.key()));
        }
        Ok(self.is_attached())
    }

    /// A copy in an open workspace, unless the array is there already. One of an older entry outlives what is made now;
    /// one of an older cycle of a ring does not.
    fn copied_to(&self, call: Call, arena: &Rc<Arena>) -> Result<Proxy> {
        let is_there = |own: CycleId| own == arena.cycle() || (!arena.is_ring() && arena.owns(own.scope()));
        if registry::cycle_of(self.key()).is_some_and(is_there) {
            return Ok(self.clone());
        }
        self.copied_into(call, arena)
    }

    /// A copy in an open workspace, on its device, or on the host if its arrays are host-only.
    fn copied_into(&self, call: Call, arena: &Rc<Arena>) -> Result<Proxy> {
        if arena.memory == arena.device {
            let is_there = *self.device() == arena.device;
            let copy = || if is_there { copy_of(call, self) } else { self.to_device(&arena.device) };
            return call.named(inside(arena, copy));
        }
        let there = call.named(outside(|| self.to_device(&arena.memory)))?;
        // The workspace takes it as an array of its device.
        call.named(inside(arena, || there.to_device(&arena.device)))
    }
}
