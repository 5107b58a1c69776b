//! Workspaces: arrays that end with the round of the loop that made them, in bytes that the next round uses again.
//!
//! What you learn: a cycle takes every array that is made while it runs, and ends all at once; a workspace learns its
//! size in the first cycle, and where needs vary its block grows to the longest, so that the system is asked for memory
//! a few times in all; a result leaves by `detach()`, and a handle that was left over is an error wherever it is used;
//! one that plans lets arrays that do not live together share bytes.
//!
//! ```text
//! $ cargo run --release --example 05_workspaces
//! 100 cycles: 242 arrays each, 2 requests for memory in all
//! Op [exp] X argument uses leaked workspace pointer from workspace [SAME]: array … in cycle 100, ended with its cycle; …
//! cycle  steps   asked for       block  requests
//!     1      8    21.4 KiB    27.8 KiB         2
//!     2     11    29.4 KiB    38.2 KiB         4
//!     4     19    50.6 KiB    65.8 KiB         6
//!     7     26    69.2 KiB    89.9 KiB         8
//!    13     36    95.8 KiB   124.5 KiB        10
//!    28     49   130.3 KiB   169.4 KiB        12
//!    33     64   170.1 KiB   221.2 KiB        14
//!    40     85   225.9 KiB   293.7 KiB        16
//! the other cycles asked for no memory
//! planned: 242 arrays, 3.0 KiB as against 69.2 KiB, 3.0 KiB of which live at once; 99 of 100 cycles by plan
//! ```

use ndgc::nn::{self, LSTM, RNN, VarBuilder, VarMap};
use ndgc::{DType, Device, Error, LearningPolicy, Result, SpillPolicy, Tensor, Workspace, WorkspaceConfig, no_grad};

/// Runs a sequence of this many steps through the network. Returns what the last step gives.
fn forward(lstm: &LSTM, steps: usize) -> Result<Tensor> {
    let x = Tensor::ones((steps, 1, 8), DType::F32, &Device::Cpu)?;
    no_grad(|| {
        let start = lstm.zero_state(1)?;
        let last = (0..steps).try_fold(start, |state, time| lstm.step(&x.get(time)?, &state))?;
        Ok(last.h().clone())
    })
}

fn main() -> Result<()> {
    let variables = VarMap::new();
    let lstm = nn::lstm(8, 32, Default::default(), VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu))?;

    // Cycles of one length: the first one learns, and from the second on nothing is asked for.
    let config = WorkspaceConfig::default();
    let mut leaked = None;
    for _ in 0..100 {
        Workspace::cycle("SAME", &config, || {
            leaked = Some(forward(&lstm, 20)?); // a mistake: it lies in the workspace
            Ok::<_, Error>(())
        })?;
    }
    let stats = Workspace::find("SAME").expect("entered above").stats();
    println!("100 cycles: {} arrays each, {} requests for memory in all", stats.arrays, stats.system_allocations);
    if let Some(Err(error)) = leaked.map(|array| array.exp()) {
        println!("{error}");
    }

    // Sequences of 8 to 85 steps: what a longer cycle needs lies beside the block, which grows for the next one.
    let config = WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate).build()?;
    println!("cycle  steps   asked for       block  requests");
    let mut known = 0;
    for (cycle, steps) in (0..40).map(|i| 8 + i * 13 % (8 + 2 * i)).enumerate() {
        let last = Workspace::cycle("SEQUENCE", &config, || Ok::<_, Error>(forward(&lstm, steps)?.detach()))?;
        assert!(last.to_vec2::<f32>()?[0].iter().all(|value| value.is_finite())); // a copy, outside
        let stats = Workspace::find("SEQUENCE").expect("entered above").stats();
        if stats.system_allocations > known {
            known = stats.system_allocations;
            let [asked, block] = [stats.last_cycle, stats.size].map(|bytes| format!("{:.1} KiB", bytes as f64 / 1024.));
            println!("{:5}  {steps:5}  {asked:>10}  {block:>10}  {known:8}", cycle + 1);
        }
    }
    println!("the other cycles asked for no memory");

    // The first cycle once more, with a workspace that learns which arrays live when.
    let config = WorkspaceConfig::builder().policy_learning(LearningPolicy::Planned).build()?;
    for _ in 0..100 {
        Workspace::cycle("PLANNED", &config, || forward(&lstm, 20).map(drop))?;
    }
    let planned = Workspace::find("PLANNED").expect("entered above").stats();
    let plan = planned.plan.expect("it plans");
    let [size, plain, alive] = [planned.size, stats.size, plan.alive].map(|bytes| bytes as f64 / 1024.);
    println!(
        "planned: {} arrays, {size:.1} KiB as against {plain:.1} KiB, {alive:.1} KiB of which live at once; \
         {} of 100 cycles by plan",
        planned.arrays, plan.planned_cycles
    );
    Ok(())
}
