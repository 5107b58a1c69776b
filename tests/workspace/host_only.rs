//! Host-only arrays: the second sample of ND4J's guide, on a simulated device. R16, W62.

use ndgc::{
    AllocationPolicy, DType, Device, Error, LearningPolicy, LocationPolicy, MirroringPolicy, Sim, SimConfig,
    SpillPolicy, Tensor, Workspace, WorkspaceConfig,
};

use crate::workspace::support::{alone, leak, refusal, sum, values};

/// As the guide has it.
fn sample() -> WorkspaceConfig {
    WorkspaceConfig::builder()
        .policy_allocation(AllocationPolicy::Strict)
        .policy_learning(LearningPolicy::FirstLoop)
        .policy_mirroring(MirroringPolicy::HostOnly)
        .policy_spill(SpillPolicy::External)
        .build()
        .unwrap()
}

/// Runs `body` on a simulated device, and asks of it that nothing went wrong there.
fn on_sim(body: impl FnOnce(&Device, &Sim) + Send) {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let Device::Sim(sim) = &device else { panic!("it is one") };
        body(&device, sim);
        device.synchronize().unwrap();
        assert_eq!(sim.violations(), []);
    });
}

#[test]
fn r16_the_sample_a_cache_on_the_host_from_which_arrays_are_brought_to_the_device() {
    on_sim(|device, _| {
        let mut epochs = Vec::new();
        for _ in 0..3 {
            let _cache = Workspace::enter_on(device, "CACHE", &sample()).unwrap();
            let batches: Vec<Tensor> = (0..10).map(|i| Tensor::full(f64::from(i), 100, device).unwrap()).collect();
            let mut total = 0.;
            for batch in &batches {
                assert!(batch.is_attached() && batch.device().is_cpu());
                let _step = Workspace::enter_on(device, "STEP", &WorkspaceConfig::default()).unwrap();
                let on_device = batch.unsafe_duplication().unwrap();
                assert!(on_device.device() == device && on_device.is_attached());
                total += (&on_device * 2.).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
            }
            epochs.push(total);
        }
        assert_eq!(epochs, [9000.; 3]);
        let stats = Workspace::find("CACHE").unwrap().stats();
        assert_eq!((stats.cycles, stats.externals, stats.location), (3, 0, "ram of the host (host-only)"));
        assert_eq!((&stats.device, stats.size), (&device.to_string(), 10 * 832));
    });
}

#[test]
fn r16_a_host_only_array_is_the_hosts_and_no_address_on_the_device_can_be_had() {
    on_sim(|device, _| {
        let (on_host, on_device) = (Device::Cpu.memory().active, device.memory().active);
        let cycle = Workspace::enter_on(device, "CACHE", &sample()).unwrap();
        let array = Tensor::full(2f64, 1000, device).unwrap();
        assert!(array.device().is_cpu() && array.is_attached());
        assert_eq!(device.memory().active, on_device);
        assert!(Device::Cpu.memory().active - on_host >= 8000);
        // What gives an address gives one of the host, in DLPack's words device type 1.
        let pack = array.to_dlpack().unwrap();
        assert_eq!(pack.managed().dl_tensor.device.device_type, 1);
        drop(pack);
        assert_eq!(array.with_slice(|slice: &[f64]| slice[999]).unwrap(), 2.);
        // It does not mix with arrays of the device, and nothing moves without being asked.
        let there = Tensor::ones(1000, DType::F64, &Device::sim(SimConfig::default())).unwrap();
        assert!(matches!(there.add(&array), Err(Error::DeviceMismatch { .. })));
        assert!(matches!(array.add(&there), Err(Error::DeviceMismatch { .. })));
        let workspace = cycle.workspace();
        cycle.leave();
        leak(array.unsafe_duplication());
        workspace.destroy().unwrap();
        assert_eq!((Device::Cpu.memory().active, device.memory().active), (on_host, on_device));
    });
}

#[test]
fn w62_zeros_are_zeros_in_every_cycle() {
    on_sim(|device, _| {
        for cycle in 0..10 {
            let _cache = Workspace::enter_on(device, "CACHE", &sample()).unwrap();
            let zeros = Tensor::zeros((10, 10), DType::F64, device).unwrap();
            let empty = Tensor::empty((10, 10), DType::F64, device).unwrap();
            assert!(zeros.device().is_cpu() && empty.device().is_cpu());
            assert_eq!((sum(&zeros), sum(&empty)), (0., 0.), "cycle {cycle}");
            zeros.fill_(119.).unwrap();
            empty.fill_(120.).unwrap();
        }
    });
}

#[test]
fn r16_every_creation_in_it_makes_host_arrays() {
    on_sim(|device, _| {
        let _cache = Workspace::enter_on(device, "CACHE", &sample()).unwrap();
        let made = [
            Tensor::new([1f64, 2.], device).unwrap(),
            Tensor::from_slice(&[1f64, 2.], 2, device).unwrap(),
            Tensor::from_vec(vec![1f64, 2.], 2, device).unwrap(),
            Tensor::from_vec(vec![1f64; 1000], 1000, device).unwrap(),
            Tensor::arange(1f64, 3., device).unwrap(),
            Tensor::rand(0f64, 1., 10, device).unwrap(),
            Tensor::randn(0f64, 1., 10, device).unwrap(),
            Tensor::new([1f64, 2.], &Device::Cpu).unwrap().to_device(device).unwrap(),
        ];
        for (index, array) in made.iter().enumerate() {
            assert!(array.device().is_cpu() && array.is_attached(), "{index}: {array:?}");
        }
        assert_eq!(values(&made[4]), [1., 2.]);
    });
}

#[test]
fn r16_duplication_brings_views_and_every_dtype_to_the_device() {
    on_sim(|device, _| {
        for dtype in DType::ALL {
            let copies = {
                let _cache = Workspace::enter_on(device, "CACHE", &sample()).unwrap();
                let array = Tensor::arange(0f64, 6., &Device::Cpu).unwrap().reshape((2, 3)).unwrap();
                let array = array.to_dtype(dtype).unwrap().to_device(device).unwrap();
                assert!(array.is_attached() && array.dtype() == dtype);
                let sources = [array.clone(), array.t().unwrap(), array.narrow(1, 1, 2).unwrap()];
                let host =
                    sources.each_ref().map(|source| source.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap());
                // Out of all workspaces: owned by its handles, on the device that the cache is for.
                let _out = Workspace::scope_out();
                (sources.map(|source| source.unsafe_duplication().unwrap()), host)
            };
            for (copy, host) in copies.0.iter().zip(&copies.1) {
                assert!(copy.device() == device && !copy.is_attached() && copy.dtype() == dtype, "{copy:?}");
                assert_eq!(&copy.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), host, "{dtype}");
            }
        }
    });
}

#[test]
fn r16_a_duplication_under_way_is_complete_when_its_token_was_waited_for_or_dropped() {
    on_sim(|device, sim| {
        let cycle = Workspace::enter_on(device, "CACHE", &sample()).unwrap();
        let array = Tensor::full(3f64, 1000, device).unwrap();
        let out = Workspace::scope_out();
        let first = array.unsafe_duplication_async().unwrap();
        let second = array.unsafe_duplication_async().unwrap();
        assert!(sim.pending() > 0, "they are under way");
        drop(second);
        assert_eq!(sim.pending(), 0, "the drop waited");
        let third = array.unsafe_duplication_async().unwrap();
        drop(out);
        // The source may end meanwhile.
        cycle.leave();
        {
            let _next = Workspace::enter_on(device, "CACHE", &sample()).unwrap();
            let over = Tensor::full(-1f64, 1000, device).unwrap();
            assert_eq!(sum(&over), -1000.);
        }
        let (first, third) = (first.wait().unwrap(), third.wait().unwrap());
        assert_eq!(sim.pending(), 0);
        leak(array.exp());
        assert_eq!((sum(&first), sum(&third)), (3000., 3000.));
        assert!(first.device() == device && !first.is_attached());
    });
}

#[test]
fn r16_on_the_host_a_host_only_workspace_is_an_ordinary_one_and_says_so() {
    alone(|| {
        for _ in 0..2 {
            let cycle = Workspace::enter("CACHE", &sample()).unwrap();
            assert_eq!(cycle.stats().location, "ram (host-only)");
            let array = Tensor::ones(10, DType::F64, &Device::Cpu).unwrap();
            assert!(array.is_attached());
            let copy = array.unsafe_duplication().unwrap();
            assert!(copy.is_attached() && !copy.is_same(&array));
            assert!(copy.add(&array).unwrap().is_attached());
        }
    });
}

#[test]
fn r15_a_device_refuses_mapped_memory_unless_its_arrays_are_the_hosts() {
    on_sim(|device, _| {
        let mapped = || WorkspaceConfig::builder().initial_size(1 << 20).policy_location(LocationPolicy::Mmap);
        let refused = refusal(Workspace::enter_on(device, "FILE", &mapped().build().unwrap()));
        assert!(refused.contains("choose LocationPolicy::Ram or MirroringPolicy::HostOnly"), "{refused}");
        let on_host = mapped().policy_mirroring(MirroringPolicy::HostOnly).build().unwrap();
        let _cycle = Workspace::enter_on(device, "FILE", &on_host).unwrap();
        assert_eq!(sum(&Tensor::ones(10, DType::F64, device).unwrap()), 10.);
    });
}
