//! Files mapped into memory: what users ask for with a promise about a file. Apart from the layers, since networks'
//! files and workspaces both do.
//!
//! The unsafe code passes on what callers promise: that nobody changes a file while it is mapped.

#![allow(unsafe_code)]

use std::fs::File;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::device::host::mapped::MappedBytes;
use crate::nn::VarBuilder;
use crate::quantized::gguf_file::MmapedContent;
use crate::safetensors::MmapedSafetensors;
use crate::{DType, Device, Error, Result, WorkspaceConfigBuilder};

impl MmapedSafetensors {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// [`Error::File`].
    ///
    /// # Safety
    /// As [`MmapedSafetensors::multi`].
    #[track_caller]
    pub unsafe fn new<P: AsRef<Path>>(path: P) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::multi(&[path]) }
    }

    /// Maps several files and reads their headers.
    ///
    /// ```
    /// # use ndgc::{Device, Error, Tensor, safetensors::MmapedSafetensors};
    /// let path = std::env::temp_dir().join(format!("ndgc-mapped-{}.safetensors", std::process::id()));
    /// Tensor::new(&[1f32, 2.], &Device::Cpu)?.save_safetensors("w", &path)?;
    /// // SAFETY: nobody else knows of the file.
    /// let weights = unsafe { MmapedSafetensors::multi(&[&path])? };
    /// let w = weights.load("w", &Device::Cpu)?; // the file's own bytes: nothing is copied
    /// assert_eq!(w.to_vec1::<f32>()?, [1., 2.]);
    /// assert!(matches!(w.affine_(2., 0.), Err(Error::ReadOnly { .. })));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::File`].
    ///
    /// # Safety
    /// Nobody changes the files while an array of them lives: what is read would change under the reader. A file that
    /// is cut short ends the process with SIGBUS when bytes behind its new end are read.
    #[track_caller]
    pub unsafe fn multi<P: AsRef<Path>>(paths: &[P]) -> Result<Self> {
        let mut all = Vec::with_capacity(paths.len());
        for path in paths {
            let path = path.as_ref();
            // SAFETY: the caller's promise.
            let mapping = unsafe { map(path)? };
            all.push((path, mapping));
        }
        Self::of(all)
    }
}

/// Maps a file.
///
/// # Safety
/// As [`MmapedSafetensors::multi`].
#[track_caller]
unsafe fn map(path: &Path) -> Result<Arc<dyn AsRef<[u8]> + Send + Sync>> {
    let site = Location::caller();
    let fail = |error: std::io::Error| Error::file(Some(path), None, format!("cannot be mapped: {error}")).at(site);
    let special = || fail(std::io::Error::other("it is not a regular file"));
    // Before it is opened: a pipe without a writer is waited for.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(special());
    }
    let file = File::open(path).map_err(fail)?;
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(special());
    }
    // SAFETY: the bytes are those of the file until the mapping is dropped, since nobody changes it by the caller's
    // promise.
    let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
    let counted = MappedBytes::new(map.len());
    Ok(Arc::new(MappedFile { map, _counted: counted }))
}

/// A mapping, whose bytes are counted.
struct MappedFile {
    map: Mmap,
    _counted: MappedBytes,
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl MmapedContent {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// [`Error::File`].
    ///
    /// # Safety
    /// As [`MmapedSafetensors::multi`].
    #[track_caller]
    pub unsafe fn new<P: AsRef<Path>>(path: P) -> Result<Self> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { map(path.as_ref())? };
        Self::of(path.as_ref(), bytes)
    }
}

impl VarBuilder<'_> {
    /// Mapped files of safetensors: weights of their dtype on the host are the files' own bytes.
    ///
    /// # Errors
    /// As [`MmapedSafetensors::multi`].
    ///
    /// # Safety
    /// As [`MmapedSafetensors::multi`].
    #[track_caller]
    pub unsafe fn from_mmaped_safetensors<P: AsRef<Path>>(paths: &[P], dtype: DType, dev: &Device) -> Result<Self> {
        // SAFETY: the caller's promise.
        let tensors = unsafe { MmapedSafetensors::multi(paths)? };
        Ok(Self::from_backend(Box::new(tensors), dtype, dev.clone()))
    }
}

impl WorkspaceConfigBuilder {
    /// The file of a mapped workspace. It is made if it is not there, is as long as it is or as `initial_size`,
    /// whichever is more, and stays; without a path, the file is a temporary one, which nobody else can open.
    ///
    /// ```
    /// # use ndgc::{DType, Device, LocationPolicy, Tensor, Workspace, WorkspaceConfig};
    /// let path = std::env::temp_dir().join(format!("ndgc-workspace-{}", std::process::id()));
    /// let builder = WorkspaceConfig::builder().policy_location(LocationPolicy::Mmap).initial_size(4096);
    /// // SAFETY: nobody else knows of the file.
    /// let config = unsafe { builder.temp_file_path(&path) }.build()?;
    /// Workspace::cycle("FILE", &config, || Tensor::ones(3, DType::F32, &Device::Cpu).map(drop))?;
    /// let found = Workspace::cycle("FILE", &config, || Tensor::empty(3, DType::F32, &Device::Cpu)?.to_vec1::<f32>())?;
    /// assert_eq!(found, [1.; 3]); // what the file has there
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// # Safety
    /// While a workspace of these settings lives, nobody else writes to the file or shortens it: no other process, and
    /// no other handle of this one. Arrays would change under their readers, and an access behind a new end ends the
    /// process with SIGBUS. Workspaces keep each other out by a lock, but that is advisory: programs that do not ask
    /// for it are not kept out.
    pub unsafe fn temp_file_path(self, path: impl Into<PathBuf>) -> Self {
        self.with_file(path.into())
    }
}
