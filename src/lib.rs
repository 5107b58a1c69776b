//! A tensor runtime whose subject is memory: **who owns a tensor, when its bytes come back, and how you find out when
//! they don't.**
//!
//! A [`Proxy`] (under its other name [`Tensor`]) is a counted handle of 8 bytes. It does not own the array: an
//! [`NdManager`] does, or, for arrays made with a [`Device`], all handles together, or the cycle of a [`Workspace`]
//! that it was made in.
//!
//! # Start here
//!
//! Make a [`Device`], then arrays on it. Every operation is a method of [`Proxy`], or of its trait [`TensorExt`], and
//! returns a [`Result`].
//!
//! ```
//! use ndgc::{DType, Device, NdManager, Tensor};
//!
//! let x = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?; // owned by its handles
//! assert_eq!(x.matmul(&x)?.to_vec2::<f32>()?, [[7., 10.], [15., 22.]]);
//!
//! let batch = NdManager::new_base_manager(&Device::Cpu)?; // or by a manager, which ends what it owns
//! let y = batch.ones((2, 2), DType::F32)?.add(&x)?;
//! batch.close()?;
//! assert!(y.to_vec2::<f32>().is_err()); // an error that says who closed it, and where
//! # ndgc::gc::collect();
//! # Ok::<(), ndgc::Error>(())
//! ```
//!
//! | question | where |
//! |---|---|
//! | Which operations are there? What are their shapes, errors and owners? | [`Proxy`], [`TensorExt`] |
//! | Who owns an array, and when does it end? | [`NdManager`] |
//! | What happens to an array whose last handle is gone? | [`gc`]: the switch, and collecting by hand |
//! | What is alive, with how many bytes, made where? What grows? | [`memory`], [`NdManager::report`], [`NdManager::debug_dump`], [`Device::memory`] |
//! | What happens to memory while a program runs? | [`memory::watch`](memory::watch()) |
//! | What happened to memory in a run, as a page? | [`memory::timeline`](memory::timeline()) |
//! | What would another pool have done with it? | [`memory::Recording`] |
//! | How much may be alive, and what happens where there is no more? | [`Budget`], [`NdManager::set_budget`], [`memory::on_pressure`], [`OutOfMemory`] |
//! | How does a loop use the same bytes in each round? | [`Workspace`], [`WorkspaceConfig`] |
//! | How are gradients taken? | [`Var`], [`Proxy::backward`], [`no_grad`], [`checkpoint`] |
//! | Where are layers, losses and optimisers? | [`nn`] |
//! | How are networks trained, evaluated and served? | [`train`] |
//! | How are arrays read and written? | [`npy`], [`npz`], [`safetensors`], [`pickle`], [`ndar`] |
//! | How are models of a few bits a weight loaded and used? | [`quantized`] |
//! | How does memory come from other libraries, or go to them? | [`dlpack`], [`Proxy::from_shared`], [`Proxy::from_blob`] |
//! | How are parts of an array named? | [`s!`], [`IndexOp`], [`Proxy::slice`] |
//! | How is a whole expression written, in one buffer? | [`t!`] |
//! | How is a stream's order tested without a GPU? | [`Device::sim`], [`Sim`] |
//! | What may go wrong? | [`Error`] |
//!
//! `docs/guide.md` has the memory model in pictures, `examples` a course in programs; `design.md` says how it
//! works, and why so.

// In their tests the lower layers do less than the upper ones ask for.
#![cfg_attr(any(loom, test), allow(dead_code, unreachable_pub, unused_imports))]

/// The README's examples, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The guide's examples, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

/// The examples of training, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/train.md")]
struct Training;

/// The examples for users of ND4J, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/nd4j.md")]
struct ForUsersOfNd4j;

/// The example for users of candle, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../docs/candle.md")]
struct ForUsersOfCandle;

// Methods of arrays stand in their docs in the order of these modules and those below them: memory first.
pub(crate) mod base;
#[cfg(not(loom))]
pub(crate) mod device;
pub mod memory;

#[cfg(not(loom))]
pub(crate) mod array;
// What stands above is no part of the program of the tests that are beside the code: they are of the layers up to here.
#[cfg(not(any(loom, test)))]
pub(crate) mod ops;

#[cfg(not(any(loom, test)))]
pub(crate) mod io;
#[cfg(not(any(loom, test)))]
pub mod nn;
#[cfg(not(any(loom, test)))]
mod promised;
#[cfg(not(any(loom, test)))]
pub mod quantized;
// It stands on the names that programs use.
#[cfg(not(any(loom, test)))]
extern crate self as ndgc;
#[cfg(not(any(loom, test)))]
pub mod train;

#[cfg(not(any(loom, test)))]
pub use api::*;

#[cfg(all(not(any(loom, test)), feature = "bench"))]
#[doc(hidden)]
pub mod bench;

/// The public names.
#[cfg(not(any(loom, test)))]
mod api {
    pub use crate::array::autograd::{GraphReport, graph_report, is_grad_enabled, no_grad, node_count};
    pub use crate::base::context::Context;
    pub use crate::base::{
        blocks::{StridedBlocks, StridedIndex},
        dtype::{DType, FloatDType, IntDType, WithDType},
        error::{Closer, Error, Result, Site, StaleArray},
        layout::Layout,
        leak::{LeakedArray, WorkspaceFull, WorkspaceState},
        literal::NdLiteral,
        out_of_memory::{OutOfMemory, OutOfMemoryClass, RecoveryStep},
        shape::{Axes, D, Dim, Dims, MAX_RANK, Shape, ShapeWithOneHole, SizeOrHole, ToUsize2},
        units::Bytes,
    };
    #[cfg(feature = "cuda")]
    pub use crate::device::cuda::{Cuda, CudaInfo, NcclId, NcclRank, probe_cuda, probe_nccl};
    pub use crate::device::{
        Device, DeviceLocation,
        budget::MemoryStats,
        graph::Graph,
        kernel::CmpOp,
        sim::{Sim, SimCalls, SimConfig, Use, Violation},
    };
    pub use crate::io::{ndar, npy, npz, pickle, safetensors};
    pub use crate::memory::{
        admission::Reservation,
        budget::{Budget, BudgetUse},
        gc,
        key::Key,
        manager::NdManager,
        proxy::{Proxy, Tensor},
        report::{ArrayReport, ManagerReport, WorkspaceReport},
        workspace::{
            DEFAULT_WORKSPACE, ScopeOut, Workspace, WorkspaceCycle,
            arena::CycleLease,
            config::{
                AllocationPolicy, DebugMode, LearningPolicy, LocationPolicy, MirroringPolicy, ResetPolicy, SpillPolicy,
                WorkspaceConfig, WorkspaceConfigBuilder,
            },
            destroy_all_workspaces_for_current_thread,
            planning::{PlanDeviation, PlanStats},
            stats::WorkspaceStats,
        },
    };
    pub use crate::nn::module::{Module, ModuleT};
    #[cfg(feature = "linalg")]
    pub use crate::ops::linalg::factors as linalg;
    #[cfg(feature = "fft")]
    pub use crate::ops::linalg::fourier as fft;
    pub use crate::ops::{
        call::{compose::called_at, place::Place},
        create::random::Generator,
        elementwise::{
            expression::{AsTerm, Term},
            scalar::{Scalar, TensorOrScalar},
        },
        extension::TensorExt,
        grad::{
            backward::GradStore,
            checkpoint::checkpoint,
            custom::{
                CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3,
                MetalStorage, Storage, StorageRef,
            },
            var::Var,
        },
        index::indexer::{Ellipsis, IndexOp, NewAxis, TensorIndexer},
        nn::optim::claim,
        shape::pad::PadMode,
        workspace::{
            moves::Duplication,
            scoped::{Scope, Scoped},
        },
    };
    pub use float8::F8E4M3;
    pub use half::{bf16, f16};

    /// Alias of [`Key`]: candle's name.
    pub type TensorId = crate::Key;

    /// Alias of [`NdLiteral`]: candle's name.
    pub use crate::base::literal::NdLiteral as NdArray;

    /// What most programs use: `use ndgc::prelude::*;`.
    pub mod prelude {
        pub use crate::{
            D, DType, Device, Error, IndexOp, Module, ModuleT, NdManager, Result, Shape, Tensor, TensorExt, Var, gc,
        };
    }

    /// Numbers of any dtype, where candle has them.
    pub mod scalar {
        pub use crate::{Scalar, TensorOrScalar};
    }

    /// What storages can be asked, where candle has it.
    pub mod backend {
        pub use crate::ops::grad::custom::BackendStorage;
    }

    /// For operations of your own on vectors of the host, where candle has it.
    pub mod cpu_backend {
        pub use crate::CpuStorage;
        pub use crate::ops::grad::custom::{binary_map, unary_map};
    }

    /// Errors, where candle has them.
    pub mod error {
        pub use crate::{Context, Error, Result};
    }

    /// Shapes, where candle has them.
    pub mod shape {
        pub use crate::{D, Dim, Dims, Shape, ShapeWithOneHole};
    }

    /// Layouts, where candle has them.
    pub mod layout {
        pub use crate::Layout;
    }

    #[doc(inline)]
    pub use crate::nn::streaming;

    /// The structures by which arrays come from other libraries and go to them without a copy
    /// ([`Proxy::from_dlpack`](crate::Proxy::from_dlpack), [`Proxy::to_dlpack`](crate::Proxy::to_dlpack)).
    pub mod dlpack {
        pub use crate::promised::{
            DlPack, Managed,
            dlpack::{DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor},
        };
    }

    /// Gradients, where candle has them.
    pub mod backprop {
        pub use crate::GradStore;
    }

    /// What the machine has, under candle's names.
    pub mod utils {
        /// Whether there is a CUDA device.
        pub fn cuda_is_available() -> bool {
            #[cfg(feature = "cuda")]
            return crate::probe_cuda().is_ok();
            #[cfg(not(feature = "cuda"))]
            false
        }

        /// Whether there is a device of Apple's that ndgc can use: never.
        pub fn metal_is_available() -> bool {
            false
        }

        /// Whether Intel's library is used: never.
        pub fn has_mkl() -> bool {
            false
        }

        /// Whether Apple's library is used: never.
        pub fn has_accelerate() -> bool {
            false
        }

        /// Threads that large arrays are split over.
        pub fn get_num_threads() -> usize {
            crate::device::cpu::threads::size()
        }

        /// Whether the program was compiled for processors with AVX2 alone. ndgc's kernels ask the processor itself.
        pub fn with_avx() -> bool {
            cfg!(target_feature = "avx2")
        }

        /// Whether the program was compiled for processors with NEON.
        pub fn with_neon() -> bool {
            cfg!(target_feature = "neon")
        }

        /// Whether the program was compiled for WebAssembly with vectors of 128 bits.
        pub fn with_simd128() -> bool {
            cfg!(target_feature = "simd128")
        }

        /// Whether the program was compiled for processors that convert halves alone.
        pub fn with_f16c() -> bool {
            cfg!(target_feature = "f16c")
        }
    }

    /// Reading for tests, with numbers rounded, under candle's names.
    pub mod test_utils {
        use crate::{DType, Result, Tensor};

        /// Asserts that two arrays have one shape and equal elements.
        ///
        /// # Errors
        /// As [`Tensor::eq`].
        ///
        /// # Panics
        /// If they differ.
        pub fn assert_tensor_eq(a: &Tensor, b: &Tensor) -> Result<()> {
            assert_eq!(a.shape(), b.shape());
            let equal = a.eq(b)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()?;
            assert_eq!(equal as usize, a.elem_count(), "{equal} of {} elements are equal", a.elem_count());
            Ok(())
        }

        fn rounded(x: f32, digits: i32) -> f32 {
            let by = 10f32.powi(digits);
            (x * by).round() / by
        }

        /// A scalar with that many decimals.
        ///
        /// # Errors
        /// As [`Tensor::to_scalar`].
        pub fn to_vec0_round(t: &Tensor, digits: i32) -> Result<f32> {
            Ok(rounded(t.to_vec0::<f32>()?, digits))
        }

        /// A vector with that many decimals.
        ///
        /// # Errors
        /// As [`Tensor::to_vec1`].
        pub fn to_vec1_round(t: &Tensor, digits: i32) -> Result<Vec<f32>> {
            Ok(t.to_vec1::<f32>()?.into_iter().map(|x| rounded(x, digits)).collect())
        }

        /// A matrix with that many decimals.
        ///
        /// # Errors
        /// As [`Tensor::to_vec2`].
        pub fn to_vec2_round(t: &Tensor, digits: i32) -> Result<Vec<Vec<f32>>> {
            let row = |row: Vec<f32>| row.into_iter().map(|x| rounded(x, digits)).collect();
            Ok(t.to_vec2::<f32>()?.into_iter().map(row).collect())
        }

        /// An array of three axes with that many decimals.
        ///
        /// # Errors
        /// As [`Tensor::to_vec3`].
        pub fn to_vec3_round(t: &Tensor, digits: i32) -> Result<Vec<Vec<Vec<f32>>>> {
            let row = |row: Vec<f32>| row.into_iter().map(|x| rounded(x, digits)).collect();
            let matrix = |matrix: Vec<Vec<f32>>| matrix.into_iter().map(row).collect();
            Ok(t.to_vec3::<f32>()?.into_iter().map(matrix).collect())
        }
    }
}
