//! Nodes and their ends.

use super::*;
use crate::memory::workspace::{
    Workspace,
    config::{ResetPolicy, WorkspaceConfig},
};

#[test]
fn the_node_of_a_workspace_ends_with_it_and_its_last_byte() {
    let named = || WORKSPACES.lock().expect("no panic").iter().filter(|(_, name)| **name == *"NODE").count();
    let config = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached).initial_size(4096);
    let config = config.overallocation_limit(1.).build().expect("no contradiction");
    let leased = std::thread::spawn(move || {
        let workspace = Workspace::for_current_thread("NODE", &config).expect("memory");
        workspace.set_budget(Budget::new().max_bytes(1 << 20)).expect("it lives");
        let _cycle = workspace.activate().expect("it is closed");
        workspace.lease().expect("a ring")
    });
    let lease = leased.join().expect("no panic");
    assert_eq!(named(), 1, "its thread ended, and the lease keeps the block");
    drop(lease);
    assert_eq!(named(), 0);
}
