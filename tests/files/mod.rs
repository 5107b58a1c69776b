//! Files: round trips of every dtype, shape and layout on every device, files that other programs wrote, and hostile
//! bytes, for which `hostile` is a bounded run of what a fuzzer would do.

mod audited;
mod exchange;
mod fixtures;
mod gguf;
mod hostile;
mod others;
mod pickles;
#[path = "../fuzz/read.rs"]
mod read;
mod refusals;
mod roundtrips;
mod support;
mod writing;
