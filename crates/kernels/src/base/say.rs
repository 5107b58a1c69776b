//! What is said on standard error. That may be closed, which is no reason to end a program.

use std::fmt;
use std::io::{Write as _, stderr};

/// Writes a line.
#[cold]
pub fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(stderr(), "ndgc: {text}");
}
