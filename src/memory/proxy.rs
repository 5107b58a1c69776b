//! What handles do: they count, and tell of their array; what calls do with one that is theirs alone.

use crate::base::{
    call::{Asked, Call},
    error::{Closer, Error, Result, Site},
};
use crate::memory::{
    key::Key,
    owner::{self, Entry, Owner, Refused},
    reclaim,
    registry::{self, OwnedArray, Pinned, TakenOver},
    switch,
    threads::{ThreadContext, with_context},
};

pub use crate::memory::handle::{Proxy, Tensor};

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
    /// The array's key.
    #[inline]
    pub fn key(&self) -> Key {
        self.key
    }

    /// A proxy for a key, if its array is open. The registry is weak: a key keeps nothing alive. An array whose last
    /// handle fell, and that was not closed yet (its manager keeps it, or it waits in the queue), has one again.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// let key = x.key();
    /// assert!(Tensor::from_registry(key).is_some_and(|found| found.is_same(&x)));
    /// drop(x);
    /// ndgc::gc::collect(); // or any other call
    /// assert!(Tensor::from_registry(key).is_none());
    /// # Ok::<(), ndgc::Error>(())
    /// ```
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
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let w = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// w.set_name("weights")?;
    /// w.close();
    /// let told = w.exp().unwrap_err().to_string();
    /// assert!(told.starts_with("exp: array `weights` ("), "{told}");
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::StaleArray`].
    #[track_caller]
    pub fn set_name(&self, name: &str) -> Result<()> {
        if !self.is_open() {
            return Err(registry::stale(Call::here("set_name"), self.key));
        }
        registry::set_name(self.key, name);
        Ok(())
    }

    /// Where the array was made.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// let y = x.exp()?;
    /// assert_eq!(y.created_at().map(|site| site.line()), Some(line!() - 1));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn created_at(&self) -> Option<Site> {
        registry::created(self.key.index())
    }

    /// Handles of the array, this one included.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor};
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// let y = x.clone(); // not a copy of the array
    /// assert!(y.is_same(&x) && x.handle_count() == 2);
    /// drop(y);
    /// assert_eq!(x.handle_count(), 1);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
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
    ///
    /// ```
    /// # use ndgc::{Closer, DType, Device, Error, Tensor};
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// let y = x.clone();
    /// x.close();
    /// let Err(Error::StaleArray(told)) = y.exp() else { panic!("`y` is a handle of the same array") };
    /// assert_eq!(told.closed_by, Closer::User);
    /// assert_eq!(y.dims(), [3]); // what it was like is still known
    /// # Ok::<(), ndgc::Error>(())
    /// ```
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

impl Proxy {
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
        let Some((before, mut counted)) = owner::take_to_move(context, place.1, self.key.generation()) else {
            return Err(registry::stale(op, self.key));
        };
        match counted.put(place, owner, Entry::Moved) {
            Ok(()) => Ok(self),
            Err(refused) => {
                // Where it was it may stay, unless that is a manager which closed meanwhile.
                if counted.put(place, before, Entry::Stays).is_err() {
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
    #[inline(always)]
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
    pub(crate) fn owner(&self, call: impl Into<Asked>) -> Result<Owner> {
        owner::owner_of(self.key.index(), self.key.generation()).ok_or_else(|| registry::stale(call, self.key))
    }

    /// Reads the array's metadata.
    #[inline]
    pub(crate) fn with_pinned<R>(&self, asked: impl Into<Asked>, mut f: impl FnMut(&Pinned<'_>) -> R) -> Result<R> {
        let mut answer = None;
        self.pinned(asked.into(), &mut |array| answer = Some(f(array)))?;
        Ok(answer.expect("what was announced was looked at"))
    }

    /// As [`Proxy::with_pinned`], by reference.
    fn pinned(&self, asked: Asked, f: &mut dyn FnMut(&Pinned<'_>)) -> Result<()> {
        let op = asked.op;
        asked.named(switch::check(op))?;
        asked.named(with_context(|context: &ThreadContext| {
            reclaim::on_call(context);
            let pins = registry::pin(context, op, [self.key], false)?;
            let [pinned] = pins.arrays();
            f(&pinned);
            Ok(())
        }))
    }
}
