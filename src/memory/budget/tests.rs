//! Nodes and their ends.

use std::sync::mpsc::channel;

use super::*;
use crate::device::Device;
use crate::memory::{
    manager::{NdManager, in_budget},
    threads::with_context,
    workspace::{
        Workspace,
        config::{ResetPolicy, WorkspaceConfig},
    },
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

/// A manager with a budget below so many others, and their nodes, its own first.
fn nested(levels: usize) -> (Vec<NdManager>, Vec<u32>) {
    let mut managers = vec![NdManager::new_base_manager(&Device::Cpu).expect("a manager")];
    for _ in 0..levels {
        let below = managers[0].new_sub_manager().expect("it is open");
        managers.insert(0, below);
    }
    for manager in &managers {
        manager.set_budget(Budget::new().max_bytes(1 << 20)).expect("it is open");
    }
    let nodes = managers.iter().map(|manager| in_budget(manager, |number, _| number)).collect();
    (managers, nodes)
}

/// Charges an array to a node, as a thread does, and frees it.
fn come_and_go(number: u32) {
    let with_array = charge_at_once(number, 100, true);
    if with_array.is_none() {
        charge(number, 100).expect("room").settle();
    }
    if with_array != Some(true) && !count_at_once(number) {
        count_array(number, 0, false).expect("room").settle();
    }
    uncount_array(number, 0);
    discharge(number, 100);
}

#[test]
fn an_array_after_another_one_writes_to_no_node() {
    let (_managers, nodes) = nested(3);
    let written = || nodes.iter().map(|&number| format!("{:?}", node(number))).collect::<Vec<_>>();
    come_and_go(nodes[0]);
    let before = written();
    for _ in 0..100 {
        come_and_go(nodes[0]);
    }
    assert_eq!(written(), before);
}

#[test]
fn what_a_thread_keeps_begins_anew_when_its_numbers_are_full() {
    let (_managers, nodes) = nested(0);
    let arrays = (1 << 23) + 1000;
    (0..arrays).for_each(|_| come_and_go(nodes[0]));
    let found = usage(nodes[0]);
    assert_eq!((found.arrays, found.total_arrays, found.total_bytes), (0, arrays, arrays * 100));
}

#[test]
fn a_node_ends_with_its_manager_whatever_idle_threads_keep_of_it() {
    let lives = |number: u32| node(number).refs.load(Ordering::Relaxed) >> 32;
    let (managers, nodes) = nested(1);
    let before: Vec<u64> = nodes.iter().map(|&number| lives(number)).collect();
    let ((ready, is_ready), (done, is_done)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        let below = nodes[0];
        scope.spawn(move || {
            with_context(|_| come_and_go(below));
            ready.send(()).expect("it is waited for");
            let _ = is_done.recv();
        });
        is_ready.recv().expect("no panic");
        managers[1].close().expect("it is open");
        let now: Vec<u64> = nodes.iter().map(|&number| lives(number)).collect();
        assert_eq!(now, [before[0] + 1, before[1] + 1], "each has ended");
        drop(done);
    });
}

#[test]
fn more_than_can_be_counted_is_told_with_what_to_end() {
    let call = crate::base::call::Call::here("set_budget");
    let told = "set_budget: number of budgets is 2^28; it must be less; close some managers or destroy some workspaces \
                first";
    assert_eq!(too_many(call).to_string(), format!("{told} (called at {})", call.site));
    let told = "add: number of arrays is 2^28; it must be less; close some first";
    assert_eq!(crate::memory::storage::full("add").to_string(), told);
}
