//! Where the CUDA libraries lie when the loader does not find them by itself.
//!
//! The loader knows the folders of the system and those of `LD_LIBRARY_PATH` at the start of the process. A toolkit
//! often lies elsewhere. What is opened here by its path is found by its name afterwards.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::device::cuda::raw;

/// What is opened, in an order in which each finds what it needs.
const LIBRARIES: [&str; 4] = ["libnvrtc-builtins.so", "libnvrtc.so", "libcublasLt.so", "libcublas.so"];

/// Folders in which toolkits lie.
fn folders() -> Vec<PathBuf> {
    let mut homes: Vec<PathBuf> = Vec::new();
    for said in ["CUDA_HOME", "CUDA_PATH"] {
        homes.extend(std::env::var_os(said).map(PathBuf::from));
    }
    homes.push("/usr/local/cuda".into());
    let mut folders = Vec::new();
    for home in homes {
        folders.extend([home.join("lib64"), home.join("targets/x86_64-linux/lib")]);
    }
    folders
}

/// The folders that were searched, for messages.
pub(super) fn searched() -> String {
    let folders: Vec<_> = folders().iter().map(|folder| folder.display().to_string()).collect();
    format!("the loader's folders, {}", folders.join(", "))
}

/// Opens the libraries in the folders of toolkits, once, unless the loader finds them by itself.
pub(super) fn locate() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if raw::are_found() {
            return;
        }
        for folder in folders() {
            let opened = LIBRARIES.iter().filter(|name| newest(&folder, name).is_some_and(|file| open(&file))).count();
            if opened > 0 {
                return;
            }
        }
    });
}

/// The file of a library with the highest version in its name.
fn newest(folder: &Path, name: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|file| file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))).max()
}

fn open(file: &Path) -> bool {
    CString::new(file.as_os_str().as_bytes()).is_ok_and(|path| raw::open(&path))
}
