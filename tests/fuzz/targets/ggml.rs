//! Any bytes as a file: arrays or a typed error, and nothing else.
#![no_main]

#[path = "../read.rs"]
mod read;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    read::check(read::ggml, bytes);
});
