//! The contenders: each prepares a workload in its own library's usual spelling.

mod burn;
mod candle;
mod floor;
mod ndarray_;
#[cfg(feature = "ndgc")]
mod ndgc_;

use crate::work::Work;

/// One library.
pub struct Rival {
    pub name: &'static str,
    /// Its package in `Cargo.lock`, for the version.
    pub package: &'static str,
    pub prepare: fn(Work) -> Case,
}

/// One workload, ready to run in one library.
pub struct Case {
    /// What this contender computes: the elements of the result, or the losses of the first training steps.
    pub sample: Vec<f32>,
    /// Runs that many iterations.
    pub run: Box<dyn FnMut(u64)>,
}

impl Case {
    /// A case whose iteration is `once`; the loop is compiled with it, so an iteration costs no indirect call.
    pub fn new(sample: Vec<f32>, mut once: impl FnMut() + 'static) -> Case {
        Case { sample, run: Box::new(move |iterations| (0..iterations).for_each(|_| once())) }
    }
}

/// All contenders; the first is the baseline that ratios are quoted against.
pub fn all() -> Vec<Rival> {
    vec![
        #[cfg(feature = "ndgc")]
        Rival { name: "ndgc", package: "ndgc", prepare: ndgc_::prepare },
        Rival { name: "candle", package: "candle-core", prepare: candle::prepare },
        Rival { name: "burn-flex", package: "burn", prepare: burn::prepare },
        Rival { name: "ndarray", package: "ndarray", prepare: ndarray_::prepare },
        Rival { name: "floor", package: "gemm", prepare: floor::prepare },
    ]
}
