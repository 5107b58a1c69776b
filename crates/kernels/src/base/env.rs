//! The environment: the names that are known, each read where it is used.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use crate::base::say::say;

const KNOWN: [&str; 12] = [
    "NDGC",
    "NDGC_CACHE_DIR",
    "NDGC_CRASH_REPORT",
    "NDGC_DEVICE",
    "NDGC_DEVICE_SPILL",
    "NDGC_LEAKS",
    "NDGC_MAX_BYTES",
    "NDGC_MAX_PHYSICAL_BYTES",
    "NDGC_REQUIRE_CUDA",
    "NDGC_SPILL",
    "NDGC_THREADS",
    "NDGC_TRACE",
];

/// What our own tests and benchmarks begin their names with.
const OWN: [&str; 2] = ["NDGC_BENCH_", "NDGC_TEST_"];

/// The value of a variable, without blanks; `None` if it is not set or empty.
pub fn var(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().trim().to_owned();
    (!value.is_empty()).then_some(value)
}

/// A folder that a variable names: without blanks around it if it is text, which names of folders need not be; `None`
/// if it is not set or empty.
pub fn folder(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name)?;
    let folder = value.to_str().map_or_else(|| PathBuf::from(&value), |text| PathBuf::from(text.trim()));
    (!folder.as_os_str().is_empty()).then_some(folder)
}

/// Says once which `NDGC*` variables mean nothing here: a misspelt one would be ignored in silence.
pub fn warn_unknown_once() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("NDGC_")
                && !KNOWN.contains(&name.as_ref())
                && !OWN.iter().any(|own| name.starts_with(own))
            {
                let known = KNOWN.join(", ");
                say(format_args!("the environment variable {name} is not known; known are {known}"));
            }
        }
    });
}

/// A folder that a variable names until the program sets another one, or none.
#[derive(Debug)]
pub struct Folder {
    variable: &'static str,
    /// The outer `None` before anybody asked.
    set: Mutex<Option<Option<PathBuf>>>,
}

impl Folder {
    /// The one that this variable names.
    pub const fn new(variable: &'static str) -> Self {
        Folder { variable, set: Mutex::new(None) }
    }

    /// The folder, if there is one.
    pub fn get(&self) -> Option<PathBuf> {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.get_or_insert_with(|| folder(self.variable)).clone()
    }

    /// Sets it; returns the one before.
    pub fn set(&self, folder: Option<&Path>) -> Option<PathBuf> {
        let before = self.get();
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.map(Path::to_path_buf));
        before
    }
}
