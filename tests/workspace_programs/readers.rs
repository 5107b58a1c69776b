//! Readers on other threads that are still reading when a cycle ends.

use std::sync::mpsc;

use ndgc::{DType, Device, Error, Proxy, Tensor, Workspace, WorkspaceConfig};

use crate::workspace_programs::alone;

fn config() -> WorkspaceConfig {
    WorkspaceConfig::builder().initial_size(64 << 10).build().unwrap()
}

fn full(value: f32) -> Proxy {
    Tensor::full(value, 1000, &Device::Cpu).unwrap()
}

/// Reads `array` in a closure on another thread while `meanwhile` runs here, and asks that it did not change.
fn while_read(array: &Proxy, value: f32, meanwhile: impl FnOnce()) {
    let (reading, is_reading) = mpsc::channel();
    let (done, is_done) = mpsc::channel::<()>();
    // `done` moves in: should `meanwhile` panic, the reader does not wait for it any more.
    std::thread::scope(move |scope| {
        let reader = scope.spawn(move || {
            array.with_slice(|values: &[f32]| {
                reading.send(()).unwrap();
                is_done.recv().unwrap();
                assert!(values.iter().all(|v| *v == value), "overwritten while it was read");
            })
        });
        is_reading.recv().unwrap();
        meanwhile();
        done.send(()).unwrap();
        reader.join().unwrap().unwrap();
    });
    assert!(matches!(array.to_vec::<f32>(), Err(Error::LeakedArray(_))));
}

#[test]
fn a_cycle_that_ends_under_a_reader_leaves_its_bytes_alone() {
    let _alone = alone();
    let cycle = Workspace::enter("READ", &config()).unwrap();
    let array = full(1.);
    while_read(&array, 1., || {
        cycle.leave();
        let cycle = Workspace::enter("READ", &config()).unwrap();
        assert_eq!(cycle.stats().renewals, 1);
        let _others: Vec<Proxy> = (0..8).map(|_| full(2.)).collect();
    });
}

/// Two entries of the workspace inside its cycle end, then the cycle: each of the three could use the bytes again.
#[test]
fn a_nested_entry_that_ends_under_a_reader_leaves_its_bytes_alone() {
    let _alone = alone();
    let config = config();
    let outer = Workspace::enter("READ", &config).unwrap();
    let between = Workspace::enter("BETWEEN", &config).unwrap();
    let nested = Workspace::enter("READ", &config).unwrap();
    let deeper = Workspace::enter("BETWEEN", &config).unwrap();
    let deepest = Workspace::enter("READ", &config).unwrap();
    let array = full(1.);
    while_read(&array, 1., || {
        deepest.leave();
        deeper.leave();
        let _first = full(2.);
        nested.leave();
        between.leave();
        let _second = full(3.);
        outer.leave();
        let cycle = Workspace::enter("READ", &config).unwrap();
        assert_eq!(cycle.stats().renewals, 1);
        let _others: Vec<Proxy> = (0..8).map(|_| full(4.)).collect();
    });
}

#[test]
fn a_workspace_that_is_destroyed_under_a_reader_leaves_its_bytes_alone() {
    let _alone = alone();
    let cycle = Workspace::enter("READ", &config()).unwrap();
    let array = full(1.);
    while_read(&array, 1., || {
        let workspace = cycle.workspace();
        cycle.leave();
        workspace.destroy().unwrap();
        let _others: Vec<Proxy> = (0..80).map(|_| Tensor::zeros(4000, DType::F32, &Device::Cpu).unwrap()).collect();
    });
}

/// The gradient graph ends with the cycle whose values it saved; it is never another cycle's data.
#[test]
fn saved_values_end_with_their_cycle() {
    let _alone = alone();
    let config = config();
    let x = ndgc::Var::from_tensor(&full(3.)).unwrap();
    let kept = {
        let _cycle = Workspace::enter("GRAD", &config).unwrap();
        let square = x.as_tensor().sqr().unwrap();
        let out = square.sqr().unwrap().sum_all().unwrap();
        let _out = Workspace::scope_out();
        (&out + 0.).unwrap()
    };
    for _ in 0..3 {
        let _cycle = Workspace::enter("GRAD", &config).unwrap();
        let _others: Vec<Proxy> = (0..8).map(|_| full(7.)).collect();
    }
    assert!(matches!(kept.backward(), Err(ndgc::Error::GraphEnded { .. })));
}
