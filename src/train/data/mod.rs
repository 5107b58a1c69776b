//! Data for training and evaluation: batches with masks, where they come from, and how they are made ahead.
//!
//! A batch is a [`DataSet`], or a [`MultiDataSet`] for networks with several inputs or outputs. Batches come from
//! iterators of the standard library that can also begin again ([`DataIterator`]), so that `for`, `take` and `map` work
//! on them, and every element is a [`Result`](ndgc::Result).
//!
//! | batches come from | |
//! |---|---|
//! | a list, a function | [`ListDataIterator`], [`FnDataIterator`] |
//! | arrays, npy files | [`ArrayDataIterator`], which also shuffles |
//! | IDX, the files of MNIST | [`IdxDataSetIterator`] |
//! | text between commas, however long | [`CsvDataSetIterator`] |
//! | another iterator, normalised | [`NormalizingIterator`] |
//! | another iterator, made ahead | [`AsyncDataIterator`] |
//!
//! Examples may have ids ([`DataSet::with_example_ids`]), which all of these hand on.

mod arrays;
mod csv;
mod data_set;
mod examples;
mod files;
mod iterator;
mod lease;
mod normalizer;
pub(super) mod numbers;
mod prefetched;

pub use arrays::{
    ArrayDataIterator, ArrayDataSetIterator, ArrayMultiDataSetIterator, FnDataIterator, ListDataIterator,
    ListDataSetIterator,
};
pub use csv::{CsvDataSetIterator, CsvLabels};
pub use data_set::{DataSet, MultiDataSet};
pub use examples::Examples;
pub use files::{IdxDataSetIterator, read_idx};
pub use iterator::{DataIterator, DataSetIterator, MultiDataSetIterator};
pub use normalizer::{Normalizer, NormalizingIterator};
pub use prefetched::{
    AsyncDataIterator, AsyncDataSetIterator, AsyncMultiDataSetIterator, AsyncShieldDataSetIterator,
    AsyncShieldMultiDataSetIterator, Leased,
};
