//! stub
pub(crate) mod pool;
pub(crate) mod random;
use crate::base::error::Result;
use crate::device::kernel::Kernel;
/// stub
///
/// # Safety
/// stub
#[allow(unsafe_code)]
pub(crate) unsafe fn run(_kernel: &Kernel) -> Result<()> { Ok(()) }
