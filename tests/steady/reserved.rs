//! What is reserved of a device, the live bytes and those kept for reuse, is after a cycle of a settled loop what it is
//! after a thousand more.

use ndgc::nn::{self, Adam, Mlp, Module, Optimizer};
use ndgc::{
    Budget, DType, Device, Generator, NdManager, Result, SimConfig, SpillPolicy, Tensor, Workspace, WorkspaceConfig,
    gc, memory,
};

use crate::alone;

/// A loop is settled after so many cycles.
const SETTLED: usize = 500;
const MORE: usize = 1000;

/// Runs a cycle again and again; `turn` says which of five it is, for those that are not all alike.
#[track_caller]
fn is_steady(what: &str, device: &Device, mut cycle: impl FnMut(usize) -> Result<()>) {
    let mut run = |from: usize, to: usize| {
        (from..to).for_each(|n| cycle(n % 5).unwrap());
        gc::collect();
        let stats = memory::stats(device);
        ["bytes.reserved", "bytes.current", "arrays.current"].map(|name| stats.get(name).unwrap())
    };
    let settled = run(0, SETTLED);
    let after = run(SETTLED, SETTLED + MORE);
    assert_eq!(after, settled, "{what} on {device}: reserved, live bytes and arrays");
}

fn each(body: impl Fn(&Device)) {
    for on in [false, true] {
        let _switch = gc::scoped(on);
        for device in [Device::Cpu, Device::sim(SimConfig::default())] {
            memory::trim(&device, memory::Trim::All);
            body(&device);
        }
    }
}

/// Some operations on arrays of a manager of their own, small and large.
fn request(parent: &NdManager, turn: usize) -> Result<()> {
    let request = parent.new_sub_manager()?;
    let x = request.ones((30, 40 + 100 * turn), DType::F32)?;
    let y = x.matmul(&x.t()?)?.softmax(1)?;
    Tensor::cat(&[&y, &y], 0)?.sum_all()?.to_scalar::<f32>()?;
    request.close()
}

#[test]
fn a_loop_of_operations_reserves_no_more_after_a_thousand_cycles() {
    alone(|| {
        each(|device| {
            let root = NdManager::new_base_manager(device).unwrap();
            is_steady("operations", device, |turn| request(&root, turn));
        });
    });
}

#[test]
fn a_loop_within_budgets_reserves_no_more_after_a_thousand_cycles() {
    alone(|| {
        each(|device| {
            let root = NdManager::new_base_manager(device).unwrap();
            root.set_budget(Budget::new().max_bytes(1 << 20).soft_bytes(1 << 16)).unwrap();
            is_steady("budgets", device, |turn| {
                assert!(root.zeros(2 << 20, DType::U8).is_err());
                let _room = root.reserve(1000)?;
                request(&root, turn)
            });
            assert_eq!(root.budget_use().unwrap().bytes, 0);
        });
    });
}

#[test]
fn a_training_reserves_no_more_after_a_thousand_steps() {
    alone(|| {
        each(|device| {
            let manager = NdManager::new_base_manager(device).unwrap();
            let model = Mlp::new(&[8, 16, 4], &mut Generator::new(1), &manager).unwrap();
            let mut adam = Adam::new(model.variables(), 0.01).unwrap();
            let labels = manager.from_slice(&[0i64, 1, 2, 3, 0, 1], 6).unwrap();
            is_steady("a training", device, |turn| {
                let batch = manager.new_sub_manager()?;
                let x = batch.ones((6, 8), DType::F32)?.affine(turn as f64, 0.)?;
                let loss = nn::loss::cross_entropy(&model.forward(&x)?, &labels)?;
                adam.backward_step(&loss)?;
                batch.close()
            });
        });
    });
}

#[test]
fn a_loop_of_workspaces_reserves_no_more_after_a_thousand_cycles() {
    alone(|| {
        each(|device| {
            let outer = WorkspaceConfig::default();
            let inner = WorkspaceConfig::builder().initial_size(1 << 10).policy_spill(SpillPolicy::Reallocate);
            let inner = inner.build().unwrap();
            is_steady("workspaces", device, |turn| {
                let _outer = Workspace::enter_on(device, "OUTER", &outer)?;
                let x = Tensor::ones((30, 40 + 100 * turn), DType::F32, device)?;
                let kept = {
                    let _inner = Workspace::enter_on(device, "INNER", &inner)?;
                    (&x + 1.)?.sum(1)?.leverage()?
                };
                kept.sum_all()?.try_detach()?.to_scalar::<f32>().map(drop)
            });
            ndgc::destroy_all_workspaces_for_current_thread().unwrap();
        });
    });
}
