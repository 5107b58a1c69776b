//! Training, evaluating and serving networks: a configuration of layers becomes a [`Network`], whose steps lie in
//! workspaces of its own; batches come from iterators, made ahead if wanted; [`ParallelWrapper`] trains with several
//! workers, [`ParallelInference`] answers many callers; evaluations read arrays and make none. The words are DL4J's.
//!
//! ```
//! use ndgc::train::{Activation, DataSet, Dense, InputType, ListDataSetIterator, Loss};
//! use ndgc::train::{NetworkConfig, OutputLayer, Updater};
//! use ndgc::{Device, Tensor};
//!
//! let mut network = NetworkConfig::builder()
//!     .seed(1)
//!     .updater(Updater::adam(0.1))
//!     .input_type(InputType::feed_forward(2))
//!     .layer(Dense::new(8).activation(Activation::Tanh))
//!     .layer(OutputLayer::new(2, Loss::Mcxent))
//!     .build()?;
//! let xor = DataSet::new(
//!     Tensor::new(&[[0f32, 0.], [0., 1.], [1., 0.], [1., 1.]], &Device::Cpu)?,
//!     Tensor::new(&[[1f32, 0.], [0., 1.], [0., 1.], [1., 0.]], &Device::Cpu)?,
//! )?;
//! network.fit_epochs(ListDataSetIterator::new(vec![xor.clone()]), 100)?;
//! assert_eq!(network.output(&xor.features)?.argmax(1)?.to_vec1::<u32>()?, [0, 1, 1, 0]);
//! # Ok::<(), ndgc::Error>(())
//! ```
//!
//! Everything here stands on the public interface alone. `docs/train.md` has it with its figures.
#![forbid(unsafe_code)]

pub mod data;
mod durable;
pub mod evaluation;
pub mod network;
pub mod parallel;
mod place;
mod shared;

pub use data::*;
pub use evaluation::*;
pub use network::*;
pub use parallel::*;
