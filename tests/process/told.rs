//! What is said on standard error where nobody reads it any more.

use std::io::Read as _;
use std::process::{Command, Stdio};

use ndgc::{DType, Device, NdManager};

const PART: &str = "told";

#[test]
fn what_cannot_be_said_ends_nothing() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::the_part_of_a_child", "--nocapture", "--test-threads=1"]);
    for name in ["NDGC", "NDGC_DEVICE", "NDGC_MAX_BYTES"] {
        command.env_remove(name);
    }
    command.env(super::PART, PART).env("NDGC_TRACE", "some").env("NDGC_LEAKS", "some");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stderr.take());
    // Now it may begin.
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{:?}\n{out}", output.status);
}

/// What the test above runs in a process of its own.
pub(super) fn play(part: &str) -> bool {
    if part != PART {
        return false;
    }
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let _x = manager.zeros(4, DType::F32).unwrap();
    manager.close().unwrap();
    true
}
