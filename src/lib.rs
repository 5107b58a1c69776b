#![doc = include_str!("../README.md")]

pub(crate) mod base;
#[cfg(not(loom))]
pub(crate) mod device;
pub(crate) mod memory;

#[cfg(not(loom))]
pub(crate) mod array;
#[cfg(not(loom))]
pub(crate) mod io;
#[cfg(not(loom))]
pub mod nn;
#[cfg(not(loom))]
pub(crate) mod ops;

#[cfg(not(loom))]
pub use api::*;

#[cfg(not(loom))]
#[doc(hidden)]
pub mod bench;

/// The public names.
#[cfg(not(loom))]
mod api {
    pub use crate::array::autograd::{GradStore, is_grad_enabled, no_grad, node_count};
    pub use crate::base::{
        dtype::{DType, WithDType},
        error::{Closer, Error, OutOfMemory, Result, Site, StaleArray},
        layout::Layout,
        shape::{Axes, D, Dim, Dims, MAX_RANK, Shape, ShapeWithOneHole, SizeOrHole, ToUsize2},
        units::Bytes,
    };
    #[cfg(feature = "cuda")]
    pub use crate::device::cuda::{Cuda, CudaInfo, probe_cuda};
    pub use crate::device::{
        Device,
        budget::MemoryStats,
        graph::Graph,
        kernel::CmpOp,
        sim::{Sim, SimCalls, SimConfig, Use, Violation},
    };
    pub use crate::io::{ndar, npy, npz, safetensors};
    pub use crate::memory::{
        gc,
        key::{Key, ManagerKey},
        manager::NdManager,
        proxy::Proxy,
        report::{ArrayReport, ManagerReport},
    };
    pub use crate::ops::{
        create::{NdLiteral, Place},
        dlpack,
        indexer::{Ellipsis, IndexOp, NewAxis, TensorIndexer},
        random::Generator,
        var::Var,
    };

    /// [`Proxy`] under the name that users of other crates know.
    pub type Tensor = crate::Proxy;
}
