//! The vocabulary.

mod dtype;
mod layout;
mod order;
mod shape;
mod units;
