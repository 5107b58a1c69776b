//! Arrays in files: where the program allows it, what memory has no room for gets its bytes in a file.
//!
//! Each such array has a temporary file of its own, without a name, whose room on the disk is taken before. The system
//! keeps of it in memory what it likes, so it counts as mapped, and no limit on the host's bytes admits or refuses it.

use std::path::{Path, PathBuf};

use crate::base::{env, error::Result};
use crate::device::{budget::AllocError, host::mapped::MappedBlock};

static FOLDER: env::Folder = env::Folder::new("NDGC_SPILL");

/// Sets the folder; returns the one before.
///
/// # Errors
/// [`Error::File`](crate::Error::File): no file can be made there.
pub(crate) fn set_folder(folder: Option<&Path>) -> Result<Option<PathBuf>> {
    if let Some(folder) = folder {
        MappedBlock::create_in(folder, 1)?;
    }
    Ok(FOLDER.set(folder))
}

/// The folder, if there is one.
pub(crate) fn folder() -> Option<PathBuf> {
    FOLDER.get()
}

/// Whether there is a folder.
pub(crate) fn is_allowed() -> bool {
    folder().is_some()
}

/// A file with so many bytes, which are zero.
#[cold]
pub(crate) fn file(bytes: usize) -> std::result::Result<MappedBlock, AllocError> {
    let folder = folder().ok_or(AllocError::Exhausted)?;
    MappedBlock::create_in(&folder, bytes).map_err(AllocError::Failed)
}
