//! A timeline: what happened to memory in a run, as a page, and for the tools that you know.
//!
//! What you learn: `memory::set_trace` (or `NDGC_TRACE=full`) notes each storage with its line and manager, in rings of
//! bounded size; `memory::timeline` gives spans and events; `to_html` is one page that needs no network, in which a line
//! that grows is marked; `write_pytorch_snapshot` is for the viewer at pytorch.org/memory_viz, `write_chrome_json` for
//! Perfetto, `to_folded` for flame graphs.
//!
//! ```text
//! $ cargo run --release --example 14_timeline
//! 100 steps: … spans, peak …, 102 of them go on
//! training;examples/14_timeline.rs:38:35 25600
//! training;examples/14_timeline.rs:46:27 131072
//! workspace [STEP];workspace [STEP] …
//! in target/timeline: run.html, snapshot.pickle, chrome.json, live.folded
//! ```

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

use ndgc::{DType, Device, NdManager, Tensor, Workspace, WorkspaceConfig, gc, memory};

const STEPS: usize = 100;

/// A step: its arrays end with a cycle of a workspace, but for the one that a list keeps.
fn step(manager: &NdManager, weights: &Tensor, history: &mut Vec<Tensor>) -> ndgc::Result<()> {
    let x = manager.ones((64, 256), DType::F32)?;
    let cycle = Workspace::enter("STEP", &WorkspaceConfig::default())?;
    let y = x.matmul(weights)?.relu()?;
    drop(cycle);
    let _ = y; // it ended with the cycle
    history.push(kept(manager)?);
    Ok(())
}

/// What grows: 256 bytes a step.
fn kept(manager: &NdManager) -> ndgc::Result<Tensor> {
    manager.ones(64, DType::F32)?.affine(0.5, 0.)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    gc::on();
    memory::set_trace(memory::TraceMode::Full);
    let manager = NdManager::new_base_manager(&Device::Cpu)?;
    manager.set_name("training");
    let weights = manager.ones((256, 128), DType::F32)?;
    let mut history = Vec::new();
    for _ in 0..STEPS {
        step(&manager, &weights, &mut history)?;
    }
    // More than there is: a refusal is an event too.
    assert!(manager.zeros(1 << 50, DType::U8).is_err());
    gc::collect();
    memory::set_trace(memory::TraceMode::Off);

    let timeline = memory::timeline();
    let alive = timeline.spans.iter().filter(|span| span.end.is_none()).count();
    println!(
        "{STEPS} steps: {} spans, peak {}, {alive} of them go on",
        timeline.spans.len(),
        ndgc::Bytes(timeline.peak())
    );
    let folded = timeline.to_folded();
    print!("{folded}");

    let folder = Path::new("target/timeline");
    fs::create_dir_all(folder)?;
    timeline.write_html(folder.join("run.html"), "a hundred steps")?;
    timeline.write_pytorch_snapshot(&mut BufWriter::new(File::create(folder.join("snapshot.pickle"))?))?;
    timeline.write_chrome_json(&mut BufWriter::new(File::create(folder.join("chrome.json"))?))?;
    fs::write(folder.join("live.folded"), folded)?;
    println!("in {}: run.html, snapshot.pickle, chrome.json, live.folded", folder.display());
    Ok(())
}
