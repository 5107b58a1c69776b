//! Data for training and evaluation: batches with masks, where they come from, and how they are made ahead.
//!
//! A batch is a [`DataSet`], or a [`MultiDataSet`] for networks with several inputs or outputs. Batches come from
//! iterators of the standard library that can also begin again ([`DataIterator`]), so that `for`, `take` and `map` work
//! on them, and every element is a [`Result`](ndgc::Result).

mod arrays;
mod data_set;
mod iterator;

pub use arrays::{ArrayDataSetIterator, FnDataIterator, ListDataIterator, ListDataSetIterator};
pub use data_set::{DataSet, MultiDataSet};
pub use iterator::{DataIterator, DataSetIterator, MultiDataSetIterator};
