//! Workspaces on a CUDA device.

use ndgc::{Error, MirroringPolicy, Result, Tensor, Var, Workspace, WorkspaceConfig};

use crate::pretend_cuda::{on_cuda, pretending};

/// A step of a small training; what leaves is the loss.
fn step(x: &Tensor, weight: &Var) -> Result<f32> {
    let loss = x.matmul(weight)?.relu()?.sqr()?.mean_all()?;
    let grads = loss.backward()?;
    let grad = grads.get(weight).ok_or_else(|| Error::msg("the weight has a gradient"))?;
    weight.set(&(weight.as_tensor() - (grad * 0.01)?)?)?;
    loss.to_scalar::<f32>()
}

#[test]
fn a_settled_loop_asks_the_driver_for_nothing_and_gets_the_same_addresses() {
    pretending(|pretend, device, _| {
        device.set_seed(5).unwrap();
        let x = Tensor::rand(0f32, 1f32, (8, 16), device).unwrap();
        let weight = Var::rand(-1f32, 1f32, (16, 4), device).unwrap();
        let config = WorkspaceConfig::default();
        let run = || Workspace::cycle_on(device, "CUDA", &config, || step(&x, &weight)).unwrap();
        let losses: Vec<f32> = (0..3).map(|_| run()).collect();
        let before = (pretend.calls(Some("cuMemAllocFromPoolAsync")), device.memory().active);
        let more: Vec<f32> = (0..10).map(|_| run()).collect();
        assert_eq!(
            (pretend.calls(Some("cuMemAllocFromPoolAsync")), device.memory().active),
            before,
            "{}",
            pretend.log()
        );
        assert!(losses.iter().chain(&more).is_sorted_by(|a, b| a > b), "{losses:?} {more:?}");
        let stats = Workspace::find("CUDA").unwrap().stats();
        assert!(stats.same_addresses >= 10 && stats.renewals == 0 && stats.spilled == 0, "{stats:?}");
        Workspace::find("CUDA").unwrap().destroy().unwrap();
    });
}

#[test]
fn a_handle_of_an_ended_cycle_is_an_error_and_a_detached_one_is_not() {
    on_cuda(|device, _| {
        let config = WorkspaceConfig::default();
        let mut handles = Vec::new();
        for i in 0..3 {
            let _cycle = Workspace::enter_on(device, "LEAK", &config).unwrap();
            let a = Tensor::full(i as f32, 100, device).unwrap();
            handles.push((a.detach(), a));
        }
        for (i, (kept, leaked)) in handles.iter().enumerate() {
            assert_eq!(kept.to_vec1::<f32>().unwrap(), [i as f32; 100]);
            assert!(matches!(kept.add(leaked), Err(Error::LeakedArray(_))));
        }
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn host_only_arrays_are_brought_to_the_device() {
    on_cuda(|device, _| {
        let config = WorkspaceConfig::builder().policy_mirroring(MirroringPolicy::HostOnly).build().unwrap();
        let cycle = Workspace::enter_on(device, "CACHE", &config).unwrap();
        let cached = Tensor::arange(0f32, 24f32, device).unwrap();
        assert!(cached.device().is_cpu());
        let _out = Workspace::scope_out();
        let there = cached.reshape((4, 6)).unwrap().unsafe_duplication_async().unwrap().wait().unwrap();
        assert!(there.device() == device && !there.is_attached());
        assert_eq!(there.sum_all().unwrap().to_scalar::<f32>().unwrap(), 276.);
        drop(cycle);
    });
}

#[test]
fn a_captured_section_neither_takes_nor_reads_arrays_of_a_workspace() {
    on_cuda(|device, _| {
        let config = WorkspaceConfig::default();
        let cycle = Workspace::enter_on(device, "CAPTURE", &config).unwrap();
        let own = Tensor::full(2f32, 8, device).unwrap();
        let kept = own.detach();
        drop(kept.sqr().unwrap().detach());
        let refused = device.capture(|| own.sqr());
        assert!(matches!(refused, Err(Error::Capture { .. })), "{refused:?}");
        let warm = {
            let _out = Workspace::scope_out();
            kept.sqr().unwrap()
        };
        drop(warm);
        ndgc::gc::collect();
        let (graph, squares) = device.capture(|| kept.sqr()).unwrap();
        assert!(!squares.is_attached());
        graph.replay().unwrap();
        assert_eq!(squares.to_vec1::<f32>().unwrap(), [4f32; 8]);
        drop(cycle);
    });
}
