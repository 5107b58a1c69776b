//! What the tests share: small arrays, the sizes that they have in a workspace, errors taken apart. Every test runs
//! inside [`alone`], for debug modes and byte counts belong to the process.

use ndgc::{
    AllocationPolicy, DType, Device, Error, LearningPolicy, Result, Tensor, Workspace, WorkspaceConfig,
    WorkspaceConfigBuilder,
};

use crate::common::text_of;

/// As the one that all tests share, on a thread of its own: what it left open ends before the next test counts bytes.
pub(crate) fn alone<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    crate::common::alone(|| std::thread::scope(|scope| scope.spawn(body).join()))
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Bytes of `n` doubles, as the host rounds them.
pub(crate) fn el(n: u64) -> u64 {
    (8 * n).next_multiple_of(64)
}

/// 10 MiB from the beginning.
pub(crate) fn basic() -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder()
        .initial_size(10 << 20)
        .max_size(10 << 20)
        .overallocation_limit(0.1)
        .policy_allocation(AllocationPolicy::Strict)
        .policy_learning(LearningPolicy::FirstLoop)
}

/// Exactly what the first cycle needed.
pub(crate) fn loop_first() -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder().policy_allocation(AllocationPolicy::Strict)
}

/// Exactly what cycles needed, when it is told to.
pub(crate) fn loop_over_time() -> WorkspaceConfigBuilder {
    loop_first().policy_learning(LearningPolicy::OverTime)
}

/// Ones of the host.
pub(crate) fn doubles(n: usize) -> Tensor {
    Tensor::ones(n, DType::F64, &Device::Cpu).unwrap()
}

/// Doubles of one value.
pub(crate) fn filled(value: f64, n: usize) -> Tensor {
    Tensor::full(value, n, &Device::Cpu).unwrap()
}

/// The sum of all doubles of an array.
pub(crate) fn sum(array: &Tensor) -> f64 {
    array.to_vec::<f64>().unwrap().iter().sum()
}

/// All elements.
pub(crate) fn values(array: &Tensor) -> Vec<f64> {
    array.to_vec().unwrap()
}

/// Runs `body` in a cycle of a workspace of the host.
pub(crate) fn in_cycle(id: &str, config: &WorkspaceConfig, body: impl FnOnce()) {
    let _cycle = Workspace::enter(id, config).unwrap();
    body();
}

/// The text of an error that must be [`Error::LeakedArray`].
#[track_caller]
pub(crate) fn leak<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(error @ Error::LeakedArray(_)) => text_of(&error),
        other => panic!("a leaked array was to be found, not {other:?}"),
    }
}

/// The text of an error that must be [`Error::Workspace`].
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(error @ Error::Workspace { .. }) => text_of(&error),
        other => panic!("a workspace was to refuse, not {other:?}"),
    }
}
