//! Arrays in files: npy, npz, safetensors, NDAR, and PyTorch's. Uses only what users can use, and no unsafe code.
//!
//! # Invariants
//! - Whatever a file says of sizes is compared with the number of bytes that are there before memory is taken for it.
//! - A file that cannot be understood gives [`Error::File`](crate::Error::File), whatever its bytes, and never a panic.
//! - A failed read leaves no array behind, also not with a manager.
//! - A file is written beside its name and renamed at the end: a write that fails leaves what was there before.
#![forbid(unsafe_code)]

mod element;
pub(crate) mod input;
pub mod ndar;
pub mod npy;
mod npy_format;
pub mod npz;
mod output;
pub mod pickle;
pub mod safetensors;

use crate::base::order::sort_by;
use crate::{Result, Tensor};

/// Arrays with their names. Dropped before [`Loaded::done`], it closes them: a failed call leaves none behind.
#[derive(Debug, Default)]
struct Loaded(Vec<(String, Tensor)>);

impl Loaded {
    fn push(&mut self, name: String, array: Tensor) {
        self.0.push((name, array));
    }

    fn done(mut self) -> Vec<(String, Tensor)> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        for (_, array) in &self.0 {
            array.close();
        }
    }
}

/// Sorts what has names by them; of several with one name the last stays.
fn sort_by_name<T>(named: &mut Vec<(String, T)>) {
    named.reverse();
    sort_by(named, |a, b| a.0.cmp(&b.0));
    named.dedup_by(|a, b| a.0 == b.0);
}

/// What has this name, among what is sorted by names.
fn by_name<'a, T>(named: &'a [(String, T)], name: &str) -> Option<&'a (String, T)> {
    named.binary_search_by(|(own, _)| own.as_str().cmp(name)).ok().map(|at| &named[at])
}

/// Names an array, or closes it if that fails.
fn named(array: Tensor, name: &str) -> Result<Tensor> {
    match array.set_name(name) {
        Ok(()) => Ok(array),
        Err(error) => {
            array.close();
            Err(error)
        }
    }
}
