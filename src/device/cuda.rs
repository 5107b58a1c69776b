//! Looking for CUDA devices through the driver, which is loaded at run time: nothing is needed to build, and a machine
//! without a driver gets an error that says what was looked for.

use cudarc::driver::{
    result::{self, DriverError},
    sys,
};

use crate::base::error::{Error, Result};

/// A CUDA device that the driver shows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaInfo {
    /// Its number, as the driver counts.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
}

/// The CUDA devices of this machine. Arrays cannot be put on them: this version computes on the host and on the
/// simulated device.
///
/// # Errors
/// [`Error::DeviceUnavailable`] if there is no driver or no device, with what was looked for.
pub fn probe_cuda() -> Result<Vec<CudaInfo>> {
    let missing = |found: String| Error::DeviceUnavailable { device: "cuda".into(), found };
    // SAFETY: opens and closes the driver's library; it runs no code of ours.
    #[allow(unsafe_code)]
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("no driver library (libcuda.so, libcuda.so.1) was found".into()));
    }
    // The number alone: printing a `DriverError` calls into the driver.
    let failed = |call: &str, error: DriverError| missing(format!("{call} answered error {}", error.0 as u32));
    result::init().map_err(|error| failed("cuInit", error))?;
    let count = result::device::get_count().map_err(|error| failed("cuDeviceGetCount", error))?;
    (0..count)
        .map(|ordinal| {
            let device = result::device::get(ordinal).map_err(|error| failed("cuDeviceGet", error))?;
            let name = result::device::get_name(device).map_err(|error| failed("cuDeviceGetName", error))?;
            // SAFETY: `device` was just given by the driver.
            #[allow(unsafe_code)]
            let memory =
                unsafe { result::device::total_mem(device) }.map_err(|error| failed("cuDeviceTotalMem", error))?;
            Ok(CudaInfo { ordinal: ordinal as usize, name, memory_bytes: memory as u64 })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_gets_an_error_that_says_so() {
        match probe_cuda() {
            Ok(devices) => assert!(devices.iter().all(|device| device.memory_bytes > 0)),
            Err(error) => assert!(error.to_string().starts_with("cuda is not available: "), "{error}"),
        }
    }
}
