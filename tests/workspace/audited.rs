//! What a reader of the workspaces found: what a cycle has to do with graphs that keep nothing of it.

use std::cell::RefCell;
use std::sync::Arc;

use ndgc::nn::Prefetch;
use ndgc::{
    Budget, CpuStorage, CustomOp1, DType, DebugMode, Device, Error, Layout, LearningPolicy, ResetPolicy, Result, Shape,
    SimConfig, Tensor, TensorExt, Var, Workspace, WorkspaceConfig, WorkspaceCycle, checkpoint, memory,
};

use crate::workspace::rings::{in_use, ring};
use crate::workspace::support::{alone, basic, doubles, filled, loop_first, loop_over_time, refusal, sum, values};

/// Its operand.
struct Same;

impl CustomOp1 for Same {
    fn name(&self) -> &'static str {
        "same"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), *layout.shape()))
    }
}

#[test]
fn an_operation_of_ones_own_without_a_gradient_ties_no_later_graph_to_its_cycle() {
    // Broken by: what it kept of the cycle for a step that is not made, and is the next one's then.
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let loss = {
            let _cycle = Workspace::enter("STEP", &basic().build().unwrap()).unwrap();
            let _same = doubles(2).apply_op1(Same).unwrap();
            let _out = Workspace::scope_out();
            w.sqr().unwrap().sum_all().unwrap()
        };
        assert_eq!(values(loss.backward().unwrap().get(&w).unwrap()), [4., 6.]);
    });
}

/// Its operand, after which another array is closed.
struct Closes(Tensor);

impl CustomOp1 for Closes {
    fn name(&self) -> &'static str {
        "closes"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.close();
        Ok((storage.clone(), *layout.shape()))
    }
}

#[test]
fn an_operation_that_closes_its_own_operand_ties_no_later_graph_to_its_cycle() {
    // Broken by: what it kept of the cycle before it found that an operand was closed.
    alone(|| {
        let w = Var::new([2f64, 3.], &Device::Cpu).unwrap();
        let of_one = || {
            let x = doubles(2);
            x.apply_op1(Closes(x.clone()))
        };
        let of_two = || {
            let (x, y) = (doubles(2), doubles(2));
            let other = y.clone();
            let closes = move |x: &[Tensor]| {
                other.close();
                x[0].sqr()
            };
            checkpoint(closes, &[&x, &y])
        };
        let all: [&dyn Fn() -> Result<Tensor>; 2] = [&of_one, &of_two];
        for fails in all {
            let loss = {
                let _cycle = Workspace::enter("STEP", &basic().build().unwrap()).unwrap();
                let error = fails().unwrap_err();
                assert!(matches!(error, Error::StaleArray(_)), "{error}");
                let _out = Workspace::scope_out();
                w.sqr().unwrap().sum_all().unwrap()
            };
            assert_eq!(values(loss.backward().unwrap().get(&w).unwrap()), [4., 6.]);
        }
    });
}

/// What a panic may carry.
struct Carried;

impl Drop for Carried {
    fn drop(&mut self) {
        panic!("no luck");
    }
}

#[test]
fn a_producer_whose_panic_panics_again_is_an_error() {
    alone(|| {
        let ring = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached).overallocation_limit(4.);
        let batches = Prefetch::new(&ring.build().unwrap(), 2, |n| match n {
            0 => Ok(Some(doubles(4))),
            _ => std::panic::panic_any(Carried),
        });
        let mut batches = batches.unwrap();
        for _ in 0..2 {
            assert_eq!(sum(&batches.next().unwrap().unwrap()), 4.);
            let error = batches.next().unwrap().unwrap_err().to_string();
            assert!(error.contains("panicked") && batches.next().is_none(), "{error}");
            batches.reset().unwrap();
        }
    });
}

#[test]
fn zeros_that_fail_keep_no_bytes_of_a_plan() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let Device::Sim(sim) = &device else { panic!("it is simulated") };
        let config = WorkspaceConfig::builder().policy_learning(LearningPolicy::Planned).build().unwrap();
        {
            let _cycle = Workspace::enter_on(&device, "STEP", &config).unwrap();
            // What is asked of the driver is there from here on.
            drop(Tensor::ones(16, DType::F32, &device).unwrap());
            sim.fail_call(Some(1));
            Tensor::zeros(1024, DType::F32, &device).unwrap_err();
            sim.fail_call(None);
            drop(Tensor::ones(1024, DType::F32, &device).unwrap());
        }
        let plan = Workspace::find("STEP").unwrap().stats().plan.unwrap();
        assert_eq!((plan.requests, plan.alive), (3, 4096));
    });
}

/// Memory of a test's own, whose end destroys a workspace of the thread.
struct Destroying;

impl AsRef<[u8]> for Destroying {
    fn as_ref(&self) -> &[u8] {
        &[0; 16]
    }
}

impl Drop for Destroying {
    fn drop(&mut self) {
        Workspace::find("STEP").unwrap().destroy().unwrap();
    }
}

#[test]
fn no_cycle_begins_of_a_workspace_that_ends_with_what_the_call_reaps() {
    // Broken by: asking whether it was destroyed before the user's drop runs, and not after it.
    alone(|| {
        let step = Workspace::for_current_thread("STEP", &basic().build().unwrap()).unwrap();
        // It waits for the next call.
        drop(Tensor::from_shared(Arc::new(Destroying), 0..16, DType::U8, 16, &Device::Cpu).unwrap());
        let why = refusal(step.activate());
        assert!(why.contains("it was destroyed"), "{why}");
        assert!(!step.is_open() && Workspace::find("STEP").is_none());
        assert_eq!(step.stats().size, 0);
    });
}

#[test]
fn a_workspace_that_ends_as_memory_for_its_block_is_looked_for_gets_none() {
    // Broken by: another try after each step, whatever became of the workspace.
    alone(|| {
        Workspace::set_debug_mode(DebugMode::Disabled);
        let step = Workspace::for_current_thread("STEP", &loop_over_time().build().unwrap()).unwrap();
        let cycle = step.activate().unwrap();
        drop(doubles(512));
        cycle.leave();
        step.set_budget(Budget::new().max_bytes(100)).unwrap();
        let _ends = memory::on_pressure("ends it", 0, |_| {
            let found = Workspace::find("STEP").unwrap();
            found.set_budget(Budget::new()).unwrap();
            found.destroy().unwrap();
        });
        let why = refusal(step.initialize());
        assert!(why.contains("it was destroyed"), "{why}");
        assert_eq!(step.stats().size, 0);
    });
}

thread_local! {
    /// The cycle of a test, for who leaves it inside of a call, and what that one made then.
    static OPEN: RefCell<Option<WorkspaceCycle>> = const { RefCell::new(None) };
    static MADE: RefCell<Option<Tensor>> = const { RefCell::new(None) };
}

/// Leaves the cycle, begins the next one, and makes an array in it.
fn begin_again() {
    if let Some(cycle) = OPEN.take() {
        let step = cycle.workspace();
        cycle.leave();
        OPEN.set(Some(step.activate().unwrap()));
        MADE.set(Some(filled(7., 16)));
    }
}

/// What was made then is what it was.
fn assert_made() {
    assert_eq!(values(&MADE.take().unwrap()), [7.; 16]);
    drop(OPEN.take());
}

#[test]
fn what_a_call_has_of_a_cycle_that_a_reclaimer_ended_is_not_written() {
    // Broken by: a first result that is written after the next cycle, which began while room for a second one was
    // looked for, gave its bytes to another array.
    alone(|| {
        Workspace::set_debug_mode(DebugMode::Disabled);
        let x = doubles(16);
        let config = basic().initial_size(128).max_size(128).build().unwrap();
        OPEN.set(Some(Workspace::enter("STEP", &config).unwrap()));
        let limit = Device::Cpu.set_limit(Some(in_use(&Device::Cpu)));
        let _ends = memory::on_pressure("ends it", 0, |_| {
            Device::Cpu.set_limit(None);
            begin_again();
        });
        let answer = x.cummax(0);
        Device::Cpu.set_limit(limit);
        let why = refusal(answer);
        assert!(why.starts_with("cummax: workspace [STEP]: its cycle ended"), "{why}");
        assert_made();
    });
}

#[test]
fn bytes_of_a_cycle_that_a_reclaimer_ended_become_no_array() {
    // Broken by: a soft limit, at which the program's code runs after there are bytes.
    alone(|| {
        Workspace::set_debug_mode(DebugMode::Disabled);
        let step = Workspace::for_current_thread("STEP", &loop_first().build().unwrap()).unwrap();
        step.set_budget(Budget::new().soft_bytes(64)).unwrap();
        OPEN.set(Some(step.activate().unwrap()));
        let _ends = memory::on_pressure("ends it", 0, |_| begin_again());
        let why = refusal(Tensor::ones(16, DType::F64, &Device::Cpu));
        assert!(why.starts_with("ones: workspace [STEP]: its cycle ended"), "{why}");
        assert_made();
    });
}

#[test]
fn a_cycle_of_a_ring_that_a_reclaimer_left_is_none_that_a_call_takes_bytes_of() {
    // Broken by: a look whether the cycle goes on, as one of a ring does after it was left, until a later request of
    // the call, made in the next cycle, takes the bytes that the call has of it.
    alone(|| {
        Workspace::set_debug_mode(DebugMode::Disabled);
        let step = Workspace::for_current_thread("STEP", &ring(1).build().unwrap()).unwrap();
        step.set_budget(Budget::new().soft_bytes(64)).unwrap();
        OPEN.set(Some(step.activate().unwrap()));
        let _leaves = memory::on_pressure("leaves it", 0, |_| begin_again());
        let why = refusal(Tensor::ones(16, DType::F64, &Device::Cpu));
        assert!(why.starts_with("ones: workspace [STEP]: its cycle ended"), "{why}");
        assert_made();
    });
}

/// An array that begins the next cycle whenever it is asked for.
struct Ending(Tensor);

impl AsRef<Tensor> for Ending {
    fn as_ref(&self) -> &Tensor {
        begin_again();
        &self.0
    }
}

#[test]
fn what_is_joined_is_not_written_to_a_cycle_that_a_part_ended() {
    // Broken by: asking for a part, which is the program's code, between the request for the result and its writing.
    alone(|| {
        Workspace::set_debug_mode(DebugMode::Disabled);
        let parts = [Ending(doubles(16)), Ending(doubles(16))];
        OPEN.set(Some(Workspace::enter("STEP", &basic().build().unwrap()).unwrap()));
        for (op, answer) in [("cat", Tensor::cat(&parts, 0)), ("stack", Tensor::stack(&parts, 0))] {
            let why = refusal(answer);
            assert!(why.starts_with(&format!("{op}: workspace [STEP]: its cycle ended")), "{why}");
        }
        assert_made();
    });
}
