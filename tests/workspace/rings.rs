//! What the tests of sizes share: rings, learned sizes, cycles whose values are checked.

use ndgc::{
    AllocationPolicy, Device, Error, LearningPolicy, ResetPolicy, Result, Tensor, Workspace, WorkspaceConfig,
    WorkspaceConfigBuilder, WorkspaceStats,
};

pub(crate) const MIB: u64 = 1 << 20;

/// Bytes of a ring's block that was learned from that need.
pub(crate) fn padded(need: u64) -> u64 {
    ((need as f64 * 1.3) as u64).next_multiple_of(64)
}

pub(crate) fn strict() -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder().policy_allocation(AllocationPolicy::Strict)
}

pub(crate) fn over_time(cycles: u32) -> WorkspaceConfigBuilder {
    strict().policy_learning(LearningPolicy::OverTime).cycles_before_initialization(cycles)
}

/// A ring of so many blocks beside the first.
pub(crate) fn ring(more: u32) -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached).overallocation_limit(f64::from(more))
}

pub(crate) fn strict_ring() -> WorkspaceConfigBuilder {
    strict().policy_reset(ResetPolicy::EndOfBufferReached)
}

/// A new workspace of the host.
pub(crate) fn made(id: &str, config: WorkspaceConfigBuilder) -> Workspace {
    Workspace::for_current_thread(id, &config.build().unwrap()).unwrap()
}

pub(crate) fn assert_filled(array: &Tensor, value: f64) {
    assert_eq!(array.to_vec::<f64>().unwrap(), vec![value; array.elem_count()]);
}

/// Runs a cycle that makes arrays of so many doubles, no two alike, and finds all of them as they were made. The
/// numbers before its end.
pub(crate) fn cycle_on(workspace: &Workspace, sizes: &[usize]) -> WorkspaceStats {
    let cycle = workspace.activate().unwrap();
    let base = 1000. * cycle.stats().generation as f64;
    let make = |(n, &size)| Tensor::full(base + n as f64, size, workspace.device()).unwrap();
    let arrays: Vec<Tensor> = sizes.iter().enumerate().map(make).collect();
    arrays.iter().enumerate().for_each(|(n, array)| assert_filled(array, base + n as f64));
    cycle.stats()
}

/// As [`cycle_on`]. The numbers after its end.
pub(crate) fn cycle(workspace: &Workspace, sizes: &[usize]) -> WorkspaceStats {
    cycle_on(workspace, sizes);
    workspace.stats()
}

pub(crate) fn cycles(workspace: &Workspace, count: usize, sizes: &[usize]) {
    (0..count).for_each(|_| drop(cycle(workspace, sizes)));
}

/// Bytes in use on a device.
pub(crate) fn in_use(device: &Device) -> u64 {
    ndgc::gc::collect();
    device.memory().active
}

/// Asserts that a request was refused by a full workspace.
#[track_caller]
pub(crate) fn assert_full(result: Result<Tensor>) {
    match result {
        Err(Error::WorkspaceFull(_)) => {}
        other => panic!("a full workspace was to refuse, not {other:?}"),
    }
}
