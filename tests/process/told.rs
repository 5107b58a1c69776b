//! What is said on standard error, and printed, where nobody reads it any more.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use ndgc::train::{
    DataSet, EvaluativeListener, InputType, InvocationType, ListDataSetIterator, Loss, MemoryListener, NetworkConfig,
    OutputLayer, ScoreListener, TimeListener,
};
use ndgc::{DType, Device, NdManager, Tensor};

const PART: &str = "told";
const PRINTS: &str = "prints";
/// What a part prints when it begins.
const BEGINS: &str = "it begins";

/// A process that plays a part when its standard input ends.
fn waiting(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::the_part_of_a_child", "--nocapture", "--test-threads=1"]);
    for name in ["NDGC", "NDGC_DEVICE", "NDGC_MAX_BYTES"] {
        command.env_remove(name);
    }
    command.env(super::PART, part).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn what_cannot_be_said_ends_nothing() {
    let mut child = waiting(PART).env("NDGC_TRACE", "some").env("NDGC_LEAKS", "some").spawn().unwrap();
    drop(child.stderr.take());
    // Now it may begin.
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{:?}\n{out}", output.status);
}

#[test]
fn a_training_whose_lines_nobody_reads_goes_on() {
    let mut child = waiting(PRINTS).spawn().unwrap();
    // What the test program itself prints would end it.
    let (mut out, mut line) = (BufReader::new(child.stdout.take().unwrap()), String::new());
    while !line.contains(BEGINS) {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended");
    }
    drop(out);
    // Now it may go on.
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// What the tests above run in a process of their own.
pub(super) fn play(part: &str) -> bool {
    match part {
        PART => say(),
        PRINTS => print(),
        _ => return false,
    }
    true
}

fn say() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
    let _x = manager.zeros(4, DType::F32).unwrap();
    manager.close().unwrap();
}

fn print() {
    println!("{BEGINS}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let config = NetworkConfig::builder().input_type(InputType::feed_forward(2));
    let mut net = config.layer(OutputLayer::new(2, Loss::Mcxent)).build().unwrap();
    let x = Tensor::new([[0f32, 1.], [1., 0.]], &Device::Cpu).unwrap();
    let batches = ListDataSetIterator::new(vec![DataSet::new(x.clone(), x).unwrap()]);
    net.add_listener(ScoreListener(1));
    net.add_listener(TimeListener::new(1));
    net.add_listener(MemoryListener(1));
    net.add_listener(EvaluativeListener::new(batches.clone(), 1, InvocationType::EpochEnd));
    net.fit_epochs(batches, 3).unwrap();
    assert_eq!((net.iteration(), net.epoch()), (3, 3));
    // The test program would fail to say that it succeeded.
    std::process::exit(0);
}
