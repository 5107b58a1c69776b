//! NumPy's `.npy`: one array. Reads versions 1 to 3, either byte order and either memory order; writes version 1 (the
//! others are for headers that no array here can have), little-endian and row-major, byte for byte as NumPy does.
//!
//! dtypes: all but f8e4m3 and bf16, which NumPy does not have.

use std::path::Path;

pub use super::npz::NpzTensors;

use super::input::Input;
use super::npy_format::{array, header, put};
use super::output::{self, OutputWriter};
use crate::{Device, Place, Result, Tensor};

/// Reads a file.
///
/// # Errors
/// [`Error::File`](crate::Error::File); as [`Tensor::zeros`].
///
/// ```
/// # use ndgc::{npy, Device, Tensor};
/// let path = std::env::temp_dir().join(format!("ndgc-{}.npy", std::process::id()));
/// Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?.write_npy(&path)?;
/// let array = npy::read(&path, &Device::Cpu)?;
/// assert_eq!(array.to_vec2::<f32>()?, [[1., 2.], [3., 4.]]);
/// # std::fs::remove_file(&path).map_err(ndgc::Error::msg)?;
/// # Ok::<(), ndgc::Error>(())
/// ```
#[track_caller]
pub fn read<F: AsRef<Path>, P: Place + ?Sized>(path: F, at: &P) -> Result<Tensor> {
    array(&mut Input::open(path.as_ref())?, at)
}

/// Reads the bytes of a file.
///
/// # Errors
/// As [`read`].
#[track_caller]
pub fn decode<P: Place + ?Sized>(bytes: &[u8], at: &P) -> Result<Tensor> {
    array(&mut Input::buffer(bytes), at)
}

/// Writes a file; the array may have any layout. Replaces a file of this name when it is complete.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType) for f8e4m3 and bf16;
/// [`Error::File`](crate::Error::File); as [`Tensor::to_vec`].
#[track_caller]
pub fn write<F: AsRef<Path>>(array: &Tensor, path: F) -> Result<()> {
    let header = header(array)?;
    output::save(path.as_ref(), |out| put(array, &header, out))
}

/// The bytes of a file.
///
/// # Errors
/// As [`write()`].
#[track_caller]
pub fn encode(array: &Tensor) -> Result<Vec<u8>> {
    let mut out = OutputWriter::new(Vec::new(), None);
    put(array, &header(array)?, &mut out)?;
    Ok(out.into_inner())
}

/// # Files: npy
impl Tensor {
    /// [`npy::read`](read) to the host.
    ///
    /// # Errors
    /// As [`npy::read`](read).
    #[track_caller]
    pub fn read_npy<F: AsRef<Path>>(path: F) -> Result<Self> {
        read(path, &Device::Cpu)
    }

    /// [`npy::write`](write()).
    ///
    /// # Errors
    /// As [`npy::write`](write()).
    #[track_caller]
    pub fn write_npy<F: AsRef<Path>>(&self, path: F) -> Result<()> {
        write(self, path)
    }
}
