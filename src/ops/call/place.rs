//! Where a new array is put.

use crate::base::error::Error;
use crate::device::Device;
use crate::memory::{
    manager::NdManager,
    owner::{Owner, Refused},
};

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::device::Device {}
    impl Sealed for crate::memory::manager::NdManager {}
    impl<T: Sealed + ?Sized> Sealed for &T {}
}

/// Where a new array is put: a [`Device`] (its handles own it) or an [`NdManager`] (which owns it). Sealed.
pub trait Place: sealed::Sealed {
    /// The device of the array.
    fn device_of_place(&self) -> &Device;
    #[doc(hidden)]
    #[allow(private_interfaces)] // sealed: nobody outside implements or calls it
    fn owner(&self) -> Owner;
    #[doc(hidden)]
    fn takes_arrays(&self) -> bool;
    #[doc(hidden)]
    #[allow(private_interfaces)] // sealed: nobody outside implements or calls it
    fn refusal(&self, op: &'static str, refused: Refused) -> Error;
}

#[allow(private_interfaces)] // sealed: nobody outside implements or calls it
impl Place for Device {
    fn device_of_place(&self) -> &Device {
        self
    }

    fn owner(&self) -> Owner {
        Owner::Handles
    }

    fn takes_arrays(&self) -> bool {
        true
    }

    fn refusal(&self, _op: &'static str, _refused: Refused) -> Error {
        Error::msg("handles refuse no array")
    }
}

#[allow(private_interfaces)] // sealed: nobody outside implements or calls it
impl Place for NdManager {
    fn device_of_place(&self) -> &Device {
        self.device()
    }

    fn owner(&self) -> Owner {
        NdManager::owner(self)
    }

    fn takes_arrays(&self) -> bool {
        self.is_open()
    }

    fn refusal(&self, op: &'static str, refused: Refused) -> Error {
        NdManager::refusal(self, op, refused)
    }
}

#[allow(private_interfaces)] // sealed: nobody outside implements or calls it
impl<P: Place + ?Sized> Place for &P {
    fn device_of_place(&self) -> &Device {
        (**self).device_of_place()
    }

    fn owner(&self) -> Owner {
        (**self).owner()
    }

    fn takes_arrays(&self) -> bool {
        (**self).takes_arrays()
    }

    fn refusal(&self, op: &'static str, refused: Refused) -> Error {
        (**self).refusal(op, refused)
    }
}
