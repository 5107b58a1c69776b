//! The crate under test.
