//! One workspace: cycles, offsets, ways out, leaked handles.

use ndgc::{
    AllocationPolicy, DType, Device, Error, LearningPolicy, Tensor, Workspace, WorkspaceConfig, WorkspaceConfigBuilder,
};

/// Bytes of `n` doubles, as the host rounds them.
fn el(n: u64) -> u64 {
    (8 * n).next_multiple_of(64)
}

fn basic() -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder()
        .initial_size(10 << 20)
        .max_size(10 << 20)
        .overallocation_limit(0.1)
        .policy_allocation(AllocationPolicy::Strict)
        .policy_learning(LearningPolicy::FirstLoop)
}

fn doubles(n: usize) -> Tensor {
    Tensor::ones(n, DType::F64, &Device::Cpu).expect("an array")
}

#[test]
fn w01_without_a_workspace_arrays_are_detached() -> ndgc::Result<()> {
    let sum = (doubles(10) + 1.)?.sum_all()?.to_scalar::<f64>()?;
    assert_eq!(sum, 20.);
    Ok(())
}

#[test]
fn w12_detach_leaves_the_offset_and_the_result_outlives_the_cycle() -> ndgc::Result<()> {
    let config = basic().build()?;
    let (kept, leaked) = {
        let cycle = Workspace::enter("W12", &config)?;
        let a = doubles(10);
        assert_eq!(cycle.stats().offset, el(10));
        let kept = a.detach();
        assert_eq!(cycle.stats().offset, el(10));
        assert!(a.is_attached() && a.is_in_scope() && !kept.is_attached());
        (kept, a)
    };
    assert!(Workspace::current().is_none());
    assert_eq!(kept.sum_all()?.to_scalar::<f64>()?, 10.);
    assert!(leaked.is_attached() && !leaked.is_in_scope());
    let error = kept.add(&leaked).expect_err("a leaked handle");
    assert!(
        error.to_string().starts_with("Op [add] Y argument uses leaked workspace pointer from workspace [W12]"),
        "{error}"
    );
    assert!(matches!(error, Error::LeakedArray(_)));
    println!("{error}");
    Ok(())
}

#[test]
fn a_loop_uses_its_bytes_again() -> ndgc::Result<()> {
    let config = WorkspaceConfig::default();
    for step in 0..10 {
        let cycle = Workspace::enter("AGAIN", &config)?;
        let a = doubles(100);
        let b = (&a * f64::from(step))?;
        assert_eq!(b.sum_all()?.to_scalar::<f64>()?, 100. * f64::from(step));
        println!("{:?}", cycle.stats());
    }
    Workspace::print_allocation_statistics();
    Ok(())
}

#[test]
fn r16_host_only_arrays_of_a_device_lie_on_the_host_and_are_brought_there() -> ndgc::Result<()> {
    let device = Device::sim(ndgc::SimConfig::default());
    let cache = WorkspaceConfig::builder().policy_mirroring(ndgc::MirroringPolicy::HostOnly).build()?;
    let full = WorkspaceConfig::default();
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let kept = Workspace::for_current_thread_on(&device, "CACHE", &cache)?;
    let cycle = kept.activate()?;
    let a = Tensor::from_slice(&values, (3, 4), &device)?;
    assert!(a.device().is_cpu() && a.is_attached());
    {
        let _step = Workspace::enter_on(&device, "STEP", &full)?;
        let b = a.narrow(1, 1, 2)?.unsafe_duplication()?;
        assert!(*b.device() == device && b.is_attached());
        assert_eq!(b.to_vec2::<f32>()?, [[1., 2.], [5., 6.], [9., 10.]]);
        // and back into the cache
        let c = b.leverage_to("CACHE")?;
        assert!(c.device().is_cpu() && c.is_attached());
        drop(b);
    }
    let _out = Workspace::scope_out();
    let d = a.unsafe_duplication_async()?.wait()?;
    assert!(*d.device() == device && !d.is_attached());
    assert_eq!(d.to_vec::<f32>()?, values);
    drop(cycle);
    Ok(())
}
