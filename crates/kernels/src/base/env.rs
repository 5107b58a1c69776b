//! The environment: the names that are known, each read where it is used.

use std::sync::Once;

const KNOWN: [&str; 10] = [
    "NDGC",
    "NDGC_CACHE_DIR",
    "NDGC_CRASH_REPORT",
    "NDGC_DEVICE",
    "NDGC_LEAKS",
    "NDGC_MAX_BYTES",
    "NDGC_MAX_PHYSICAL_BYTES",
    "NDGC_REQUIRE_CUDA",
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
                eprintln!("ndgc: the environment variable {name} is not known; known are {}", KNOWN.join(", "));
            }
        }
    });
}
