//! The structures of DLPack, and what they call dtypes and devices.
//!
//! The layout is that of version 1 of the standard; [`DLManagedTensor`] is the form before it, which most libraries
//! still speak.

use std::ffi::c_void;

use crate::base::{dtype::DType, error::Result};
use crate::device::Device;
use crate::ops::call::compose::argument;

/// The device of a [`DLTensor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// 1 is the host, 2 a CUDA device, 3 pinned host memory, 13 managed CUDA memory.
    pub device_type: i32,
    /// Its number.
    pub device_id: i32,
}

/// The element type of a [`DLTensor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// 0 is a signed integer, 1 an unsigned one, 2 a float, 4 bfloat, 5 complex, 6 bool, 10 a float
    /// of 8 bits with 4 of exponent and no infinity.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// 1, but for vectors.
    pub lanes: u16,
}

/// Where an array lies.
#[derive(Debug)]
#[repr(C)]
pub struct DLTensor {
    /// Address that `byte_offset` counts from.
    pub data: *mut c_void,
    /// Its device.
    pub device: DLDevice,
    /// Number of axes.
    pub ndim: i32,
    /// Element type.
    pub dtype: DLDataType,
    /// Size along each axis.
    pub shape: *mut i64,
    /// Elements from one index to the next along each axis; null for row-major order.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// An array with the function that gives it back: the form without a version.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensor {
    /// Where it lies.
    pub dl_tensor: DLTensor,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Called once, by whoever uses the array last.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// The version of the structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLPackVersion {
    /// Another one lays out the structures differently.
    pub major: u32,
    /// Another one only adds.
    pub minor: u32,
}

/// An array with the function that gives it back.
#[derive(Debug)]
#[repr(C)]
pub struct DLManagedTensorVersioned {
    /// The version that it was made by.
    pub version: DLPackVersion,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Called once, by whoever uses the array last.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: nobody may write to it. Bit 1: it is a copy.
    pub flags: u64,
    /// Where it lies.
    pub dl_tensor: DLTensor,
}

pub(super) const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };
pub(super) const READ_ONLY: u64 = 1;

/// The kinds of numbers, as the first letters of a dtype's name, and their codes.
const CODES: [(&str, u8); 7] = [("bool", 6), ("f8e4m3", 10), ("bf", 4), ("i", 0), ("u", 1), ("f", 2), ("c", 5)];

/// What DLPack calls a dtype.
pub(super) fn code_of(dtype: DType) -> DLDataType {
    let code = CODES.iter().find(|(kind, _)| dtype.as_str().starts_with(kind)).map_or(3, |&(_, code)| code);
    DLDataType { code, bits: (8 * dtype.size_in_bytes()) as u8, lanes: 1 }
}

/// The dtype that DLPack calls so.
pub(super) fn dtype_of(code: DLDataType) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| code_of(dtype) == code)
}

/// Where DLPack says that arrays of a device are.
pub(super) fn place_of(op: &'static str, device: &Device) -> Result<DLDevice> {
    match device {
        Device::Cpu => Ok(DLDevice { device_type: 1, device_id: 0 }),
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => Ok(DLDevice { device_type: 2, device_id: cuda.ordinal() as i32 }),
        Device::Sim(_) => argument(op, "device", device, "the host or a CUDA device: a simulated one has no addresses"),
    }
}

/// Whether arrays that DLPack says are there can be used by the device.
pub(super) fn reaches(device: &Device, there: DLDevice) -> bool {
    match (device, there.device_type) {
        (Device::Cpu, 1 | 3) => true,
        #[cfg(feature = "cuda")]
        (Device::Cuda(cuda), 2 | 13) => i32::try_from(cuda.ordinal()) == Ok(there.device_id),
        _ => false,
    }
}
