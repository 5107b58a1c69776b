//! Bytes: what workspaces are charged for and give back, limits, arrays closed by hand. A1 to A3, A5, A6.

use std::sync::Arc;

use ndgc::{
    DType, Device, Error, LearningPolicy, LocationPolicy, ResetPolicy, SimConfig, SpillPolicy, Tensor, Workspace,
    WorkspaceConfig, destroy_all_workspaces_for_current_thread, gc,
};

use crate::common::{in_child, is_child};
use crate::workspace::support::{alone, basic, doubles, el, filled, loop_first, sum, values};

/// Bytes in use, after everything dead was reclaimed.
fn active(device: &Device) -> u64 {
    gc::collect();
    device.memory().active
}

#[test]
fn a1_an_array_is_closeable_until_it_is_closed() {
    alone(|| {
        let array = doubles(10);
        assert!(array.is_closeable());
        array.close();
        assert!(!array.is_closeable() && array.is_released());
        let before = active(&Device::Cpu);
        for _ in 0..100 {
            let array = doubles(1000);
            assert!(array.is_closeable() && Device::Cpu.memory().active > before);
            array.close();
            assert_eq!(Device::Cpu.memory().active, before, "at once");
        }
    });
}

#[test]
fn a1_neither_a_view_nor_an_array_of_a_workspace_is_closeable() {
    alone(|| {
        let matrix = Tensor::ones((10, 10), DType::F64, &Device::Cpu).unwrap();
        let row = matrix.get(3).unwrap();
        assert!(!row.is_closeable());
        // Nor is what it is a view of: closing that would not give the bytes back.
        assert!(!matrix.is_closeable());
        drop(row);
        gc::collect();
        assert!(matrix.is_closeable());
        let cycle = Workspace::enter("A1", &basic().build().unwrap()).unwrap();
        let attached = doubles(10);
        assert!(!attached.is_closeable());
        // Closing it is no error, as it is none anywhere; its bytes come back with the cycle.
        let offset = cycle.stats().offset;
        attached.close();
        assert_eq!(cycle.stats().offset, offset);
        assert!(attached.detach().is_released());
    });
}

#[test]
fn a1_a_closed_array_is_an_error_and_a_view_of_it_lives_on() {
    alone(|| {
        let array = filled(3., 10);
        let view = array.narrow(0, 2, 3).unwrap();
        array.close();
        assert!(matches!(array.add(&doubles(10)), Err(Error::StaleArray(_))));
        assert!(matches!(doubles(10).add(&array), Err(Error::StaleArray(_))));
        // ND4J refuses the view as well. Here views share the bytes and not the life: its numbers are still its own.
        assert_eq!(values(&view), [3.; 3]);
    });
}

#[test]
fn a2_arrays_blocks_spills_and_pins_are_counted_and_all_sums_return_to_0() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        assert_eq!(active(&device), 0);
        let detached = Tensor::ones(1000, DType::F64, &device).unwrap();
        assert_eq!(active(&device), 8000u64.next_multiple_of(256).min(active(&device)));
        let with_array = active(&device);
        assert!(with_array >= 8000);
        let config = basic().policy_spill(SpillPolicy::External).build().unwrap();
        let workspace = Workspace::for_current_thread_on(&device, "A2", &config).unwrap();
        let with_block = active(&device);
        assert!(with_block - with_array >= 10 << 20, "a block counts as a whole");
        {
            let cycle = workspace.activate().unwrap();
            let _inside = Tensor::ones(1000, DType::F64, &device).unwrap();
            assert_eq!(active(&device), with_block, "what is inside of it does not count again");
            let _spilled = Tensor::ones(2 << 20, DType::F64, &device).unwrap();
            assert_eq!(cycle.stats().spilled, 16 << 20);
            assert!(active(&device) - with_block >= 16 << 20);
        }
        assert_eq!(active(&device), with_block, "spills go with the cycle");
        workspace.destroy().unwrap();
        assert_eq!(active(&device), with_array);
        detached.close();
        assert_eq!(active(&device), 0);
        device.synchronize().unwrap();
        let Device::Sim(sim) = &device else { panic!("it is one") };
        assert_eq!(sim.violations(), []);
    });
}

#[test]
fn a2_pinned_bytes_of_a_ring_and_host_only_bytes_return_too() {
    alone(|| {
        let before = active(&Device::Cpu);
        let ring = loop_first()
            .initial_size(4096)
            .policy_learning(LearningPolicy::None)
            .policy_reset(ResetPolicy::EndOfBufferReached)
            .build()
            .unwrap();
        for _ in 0..10 {
            let cycle = Workspace::enter("A2_RING", &ring).unwrap();
            let _fits = doubles(100);
            let _too_large = doubles(1000);
            let stats = cycle.stats();
            assert!(stats.pinned + stats.spilled >= el(1000), "{stats:?}");
            assert!(active(&Device::Cpu) - before >= 4096 + el(1000));
        }
        let device = Device::sim(SimConfig::default());
        let host_only = basic().policy_mirroring(ndgc::MirroringPolicy::HostOnly).build().unwrap();
        let with_ring = active(&Device::Cpu);
        let _cache = Workspace::for_current_thread_on(&device, "A2_HOST", &host_only).unwrap();
        assert!(active(&Device::Cpu) - with_ring >= 10 << 20, "they are the host's");
        assert_eq!(active(&device), 0);
        destroy_all_workspaces_for_current_thread().unwrap();
        assert_eq!(active(&Device::Cpu), before);
    });
}

#[test]
fn a2_a_mapped_workspace_is_not_charged_as_memory() {
    alone(|| {
        let before = active(&Device::Cpu);
        let config =
            WorkspaceConfig::builder().initial_size(64 << 20).policy_location(LocationPolicy::Mmap).build().unwrap();
        let cycle = Workspace::enter("A2_MAPPED", &config).unwrap();
        let array = doubles(1 << 20);
        assert_eq!((cycle.stats().size, cycle.stats().location), (64 << 20, "mapped file"));
        assert_eq!(active(&Device::Cpu), before, "the system can write it out at any time");
        assert_eq!(sum(&array), f64::from(1 << 20));
    });
}

#[test]
fn a3_a_handle_is_shared_by_threads_and_copies_on_devices_are_their_own() {
    // ND4J has an array per device, each thread seeing its device's. Here a thread uses the devices it names: a handle
    // is one array for all threads, and `to_device` makes those of the others.
    alone(|| {
        let devices = [Device::Cpu, Device::sim(SimConfig::default()), Device::sim(SimConfig::default())];
        let host = filled(1., 10);
        let copies: Arc<Vec<Tensor>> =
            Arc::new(devices.iter().map(|d| host.copy().unwrap().to_device(d).unwrap()).collect());
        std::thread::scope(|scope| {
            for (index, copy) in copies.iter().enumerate() {
                scope.spawn(move || copy.fill_(index as f64 + 2.).map(drop).unwrap());
            }
        });
        let seen = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| copies.iter().map(sum).collect::<Vec<_>>())).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(seen, vec![vec![20., 30., 40.]; 4], "an update is seen by every thread, on its device alone");
        assert_eq!(values(&host), [1.; 10]);
        for (copy, device) in copies.iter().zip(&devices) {
            assert_eq!(copy.device(), device);
            copy.copy_(&host.to_device(device).unwrap()).unwrap();
        }
        assert_eq!(copies.iter().map(sum).collect::<Vec<_>>(), [10.; 3], "and a later one too");
    });
}

/// Runs `body` with a limit of `room` bytes beyond what is in use.
fn limited<R>(device: &Device, room: u64, body: impl FnOnce() -> R) -> R {
    struct Restore<'a>(&'a Device, Option<u64>);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            self.0.set_limit(self.1);
        }
    }
    let _restore = Restore(device, device.set_limit(Some(active(device) + room)));
    body()
}

#[test]
fn a5_a_limit_admits_what_fits_and_refuses_what_does_not() {
    alone(|| {
        for device in [Device::Cpu, Device::sim(SimConfig::default())] {
            limited(&device, 10_000, || {
                let first = Tensor::ones(1024, DType::F64, &device).unwrap();
                let refused = Tensor::ones(1024, DType::F64, &device);
                assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
                assert_eq!(sum(&first), 1024.);
                drop(first);
                Tensor::ones(1024, DType::F64, &device).map(drop).unwrap();
            });
            let _both = [(); 2].map(|()| Tensor::ones(1024, DType::F64, &device).unwrap());
        }
    });
}

#[test]
fn a5_a_limit_holds_for_workspaces_too() {
    alone(|| {
        for device in [Device::Cpu, Device::sim(SimConfig::default())] {
            let config = loop_first().build().unwrap();
            limited(&device, 10_000, || {
                let refused = Workspace::enter_on(&device, "A5_BLOCK", &basic().build().unwrap());
                let Err(Error::OutOfMemory(oom)) = refused else { panic!("{refused:?}") };
                assert_eq!((oom.op, oom.requested), ("workspace", 10 << 20));
                assert!(Workspace::find("A5_BLOCK").is_none() && Workspace::current().is_none());
                let cycle = Workspace::enter_on(&device, "A5", &config).unwrap();
                let first = Tensor::ones(1024, DType::F64, &device).unwrap();
                let before = cycle.stats();
                let refused = Tensor::ones(1024, DType::F64, &device);
                assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
                assert_eq!(cycle.stats(), before, "as before");
                assert_eq!(sum(&first), 1024.);
            });
            let _cycle = Workspace::enter_on(&device, "A5", &config).unwrap();
            let both = [(); 2].map(|()| Tensor::ones(1024, DType::F64, &device).unwrap());
            assert_eq!(both.iter().map(sum).sum::<f64>(), 2048.);
            drop(_cycle);
            destroy_all_workspaces_for_current_thread().unwrap();
        }
    });
}

#[test]
fn a5_endless_allocation_under_a_limit_goes_on() {
    alone(|| {
        let _switch = gc::scoped(true);
        for device in [Device::Cpu, Device::sim(SimConfig::default())] {
            limited(&device, 100_000, || {
                for i in 0..2000 {
                    let array = Tensor::full(f64::from(i), 1024, &device).unwrap();
                    assert_eq!(array.elem_count(), 1024);
                }
                let config = loop_first().build().unwrap();
                for i in 0..500 {
                    let _cycle = Workspace::enter_on(&device, "A5", &config).unwrap();
                    let array = Tensor::full(f64::from(i), 1024, &device).unwrap();
                    assert_eq!(array.add(&array).unwrap().elem_count(), 1024);
                }
                let stats = Workspace::find("A5").unwrap().stats();
                assert_eq!((stats.cycles, stats.externals, stats.renewals), (500, 0, 0));
            });
            destroy_all_workspaces_for_current_thread().unwrap();
        }
    });
}

#[test]
fn a6_a_workspace_grows_while_arrays_of_the_cycle_are_used() {
    alone(|| {
        let config = loop_first()
            .initial_size(el(10))
            .policy_spill(SpillPolicy::Reallocate)
            .policy_learning(LearningPolicy::None)
            .build()
            .unwrap();
        let cycle = Workspace::enter("A6", &config).unwrap();
        let fresh = cycle.stats();
        assert_eq!((fresh.size, fresh.offset, fresh.spilled, fresh.cycles), (el(10), 0, 0, 0));
        let inside = filled(1., 10);
        let beside = filled(2., 100);
        assert_eq!((cycle.stats().offset, cycle.stats().spilled), (el(10), el(100)));
        let both = inside.broadcast_as((10, 10)).unwrap().flatten_all().unwrap().add(&beside).unwrap();
        assert_eq!((sum(&inside), sum(&beside), sum(&both)), (10., 200., 300.));
        let needed = cycle.stats().this_cycle;
        cycle.leave();
        let cycle = Workspace::enter("A6", &config).unwrap();
        let grown = cycle.stats();
        assert_eq!(
            (grown.size, grown.offset, grown.this_cycle, grown.spilled),
            (needed, 0, 0, 0),
            "counters begin at 0"
        );
        let (inside, beside) = (filled(1., 10), filled(2., 100));
        assert_eq!((sum(&inside), sum(&beside), cycle.stats().externals), (10., 200., 0));
        assert_eq!(cycle.stats().offset, el(10) + el(100));
    });
}

#[test]
fn a6_memory_from_outside_is_not_the_workspaces() {
    alone(|| {
        let cycle = Workspace::enter("A6", &basic().build().unwrap()).unwrap();
        let outside = {
            let _out = Workspace::scope_out();
            // Large enough to be taken over as it is.
            Tensor::from_vec(vec![2f64; 4096], 4096, &Device::Cpu).unwrap()
        };
        let view = outside.narrow(0, 0, 10).unwrap();
        assert!(!view.is_attached(), "its bytes are not the workspace's");
        assert_eq!(cycle.stats().offset, 0);
        let inside = outside.add(&outside).unwrap();
        assert!(inside.is_attached());
        cycle.leave();
        assert_eq!((sum(&outside), sum(&view)), (8192., 20.));
    });
}

#[test]
fn a_workspace_that_spills_in_every_cycle_says_so_once_and_what_mends_it() {
    if is_child() {
        // Enough, more than it has in 15 cycles at a time, one that grows, and one that always spills.
        let config = |policy| {
            let builder = WorkspaceConfig::builder()
                .initial_size(1 << 10)
                .overallocation_limit(0.)
                .policy_learning(LearningPolicy::None);
            builder.policy_spill(policy).build().unwrap()
        };
        let cycles = |name: &str, policy, lengths: &[usize]| {
            for &length in lengths {
                Workspace::cycle(name, &config(policy), || Tensor::zeros(length, DType::U8, &Device::Cpu).map(drop))
                    .unwrap();
            }
        };
        cycles("ENOUGH", SpillPolicy::External, &[1024; 100]);
        cycles("SELDOM", SpillPolicy::External, &[[2048; 15].as_slice(), &[1024], &[2048; 15]].concat());
        cycles("GROWS", SpillPolicy::Reallocate, &[2048; 100]);
        cycles("SPILLS", SpillPolicy::External, &[[2048; 15].as_slice(), &[4096; 100]].concat());
        return;
    }
    let test = "workspace::accounting::a_workspace_that_spills_in_every_cycle_says_so_once_and_what_mends_it";
    let said = String::from_utf8(in_child(test, &[]).stderr).unwrap();
    let wanted = "ndgc: workspace [SPILLS] has 1.00 KiB and its last 16 cycles needed more, the last one 4.00 KiB; set \
                  policy_spill(SpillPolicy::Reallocate) or an initial_size of 4096";
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("ndgc:")).collect();
    assert_eq!(lines, [wanted]);
}
