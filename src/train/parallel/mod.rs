//! Training and answering on several threads: [`ParallelModel`] is what is trained by several workers, [`Model`] what
//! answers requests, [`Communicator`] what joins workers.

mod communicator;
mod inference;
mod model;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "cuda")]
mod nccl;
mod network;
mod wrapper;

pub use communicator::{Communicator, ThreadCommunicator};
pub use inference::{InferenceMode, ParallelInference, ParallelInferenceBuilder};
pub use model::{Model, ParallelModel};
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, MpiCommunicator};
#[cfg(feature = "cuda")]
pub use nccl::NcclCommunicator;
pub use wrapper::{ParallelWrapper, ParallelWrapperBuilder, TrainingMode};
