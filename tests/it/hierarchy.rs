//! Area A, behaviours 1 to 14: the tree of managers.

use std::thread;
use std::time::Duration;

use ndgc::{DType, Device, Error, NdManager, SimConfig, Tensor, gc};

use crate::common::system::busy;
use crate::it::support::{alone, base, block, both, live_bytes, mask, matrix, owned_by, vector};

#[test]
fn a01_a_base_manager_is_an_open_child_of_the_system_manager() {
    both(|device| {
        let system = NdManager::system(device);
        let before = system.manager_count();
        let manager = base(device);
        assert!(manager.is_open() && !manager.is_system());
        let parent = manager.parent().unwrap().unwrap();
        assert!(parent.is_system() && parent.is_open());
        assert_eq!(parent.device(), device);
        assert_eq!(system.manager_count(), before + 1);
    });
}

#[test]
fn a02_a_sub_manager_has_the_device_of_its_parent_unless_another_is_named() {
    both(|device| {
        let manager = base(device);
        assert_eq!(manager.new_sub_manager().unwrap().device(), device);
        let other = Device::sim(SimConfig::default());
        let elsewhere = manager.new_sub_manager_on(&other).unwrap();
        assert_eq!(elsewhere.device(), &other);
        assert_eq!(block(&elsewhere).device(), &other, "it makes arrays there");
        assert_eq!(manager.manager_count(), 1, "the first one was dropped; the second is a child all the same");
    });
}

#[test]
fn a03_the_parent_of_a_sub_manager_is_its_creator_and_the_system_manager_has_none() {
    both(|device| {
        let manager = base(device);
        let sub = manager.new_sub_manager().unwrap();
        let named = sub.child("named").unwrap();
        assert_eq!(sub.parent().unwrap().unwrap().uuid(), manager.uuid());
        assert_eq!(named.parent().unwrap().unwrap().uuid(), sub.uuid());
        assert!(NdManager::system(device).parent().unwrap().is_none());
    });
}

#[test]
fn a04_closing_a_parent_closes_all_descendants() {
    // Broken by: a close that visits the direct children only.
    both(|device| {
        let root = base(device);
        let (left, right) = (root.new_sub_manager().unwrap(), root.new_sub_manager().unwrap());
        let deep = left.new_sub_manager().unwrap();
        let managers = [&root, &left, &right, &deep];
        let arrays = managers.map(|manager| [block(manager), block(manager)]);
        root.close().unwrap();
        assert!(managers.iter().all(|manager| !manager.is_open() && manager.array_count() == 0));
        assert!(arrays.iter().flatten().all(|array| array.is_released() && array.to_vec::<f32>().is_err()));
    });
}

#[test]
fn a05_closing_twice_is_harmless_and_a_closed_manager_says_so() {
    both(|device| {
        let manager = base(device);
        let other_handle = manager.clone();
        manager.close().unwrap();
        assert!(!manager.is_open() && !other_handle.is_open());
        manager.close().unwrap();
        other_handle.close().unwrap();
        let newer = base(device);
        manager.close().unwrap();
        assert!(newer.is_open(), "a late close does not meet the manager that took the place");
    });
}

#[test]
fn a06_a_closed_child_leaves_the_count_of_its_parent() {
    both(|device| {
        let manager = base(device);
        let children = [manager.new_sub_manager().unwrap(), manager.new_sub_manager().unwrap()];
        assert_eq!(manager.manager_count(), 2);
        children[0].close().unwrap();
        assert_eq!(manager.manager_count(), 1);
        drop(children);
        assert_eq!(manager.manager_count(), 0, "the last handle of a manager closes it");
    });
}

#[test]
fn a07_many_base_managers_made_and_closed_leave_the_system_manager_as_it_was() {
    // DJL 0.18 kept each (#1886).
    both(|device| {
        let system = NdManager::system(device);
        let before = (system.manager_count(), gc::stats().live);
        for i in 0..1000 {
            let manager = base(device);
            let _array = block(&manager);
            if i % 2 == 0 {
                manager.close().unwrap();
            }
        }
        gc::collect();
        assert_eq!((system.manager_count(), gc::stats().live), before);
    });
}

#[test]
fn a08_one_resource_that_fails_to_close_does_not_stop_the_rest() {
    // A resource cannot refuse to close here; what can fail is the device below it, and what can be late is a reader.
    alone(|| {
        for on in [false, true] {
            let _switch = gc::scoped(on);
            for failing in 1..=8 {
                let device = Device::sim(SimConfig { streams: 2, ..SimConfig::default() });
                let Device::Sim(sim) = &device else { continue };
                let manager = base(&device);
                let arrays = [vector(&manager), matrix(&manager), block(&manager.child("below").unwrap())];
                let all = [vector(&manager), sim.on_stream(1, || vector(&manager))];
                let sum = all[0].add(&all[1]).unwrap();
                sim.fail_call(Some(failing));
                manager.close().unwrap();
                sim.fail_call(None);
                assert!(arrays.iter().chain(&all).chain([&sum]).all(|array| array.is_released()), "call {failing}");
                assert_eq!(live_bytes(&device), 0, "call {failing}");
            }
        }
        let manager = base(&Device::Cpu);
        let (read, other) = (vector(&manager), block(&manager));
        read.with_slice(|slice: &[f32]| {
            manager.close().unwrap();
            assert!(read.is_released() && other.is_released(), "the reader holds up nobody else's end, nor its own");
            assert_eq!(slice, [1., 2., 3.], "and keeps its bytes");
        })
        .unwrap();
    });
}

#[test]
fn a09_a_closed_manager_makes_nothing_and_allocates_nothing() {
    both(|device| {
        let manager = base(device);
        manager.close().unwrap();
        let before = (live_bytes(device), gc::stats().live);
        for refused in [
            manager.zeros(1000, DType::F32),
            manager.ones(1000, DType::F32),
            manager.full(7i64, 1000),
            manager.create([1f32, 2.]),
            manager.arange(0u32, 1000),
            manager.rand(0f32, 1., 1000),
        ] {
            assert!(matches!(refused, Err(Error::ManagerClosed { .. })), "{refused:?}");
        }
        assert_eq!((live_bytes(device), gc::stats().live), before);
    });
}

#[test]
fn a10_a_closed_manager_makes_no_sub_manager() {
    both(|device| {
        let manager = base(device);
        manager.close().unwrap();
        for refused in [manager.new_sub_manager(), manager.new_sub_manager_on(device), manager.child("x")] {
            assert!(matches!(refused, Err(Error::ManagerClosed { .. })), "{refused:?}");
        }
        assert!(matches!(manager.parent(), Err(Error::ManagerClosed { op: "parent", .. })));
    });
}

#[test]
fn a11_the_system_manager_can_neither_be_closed_nor_capped_nor_lent_to() {
    both(|device| {
        let (system, manager) = (NdManager::system(device), base(device));
        let array = block(&manager);
        assert!(matches!(system.close(), Err(Error::SystemManager { op: "close", .. })));
        assert!(matches!(system.cap(), Err(Error::SystemManager { op: "cap", .. })));
        assert!(matches!(array.temp_attach(&system), Err(Error::SystemManager { op: "temp_attach", .. })));
        assert!(owned_by(&array, &manager), "the array stays where it was");
        assert!(system.is_open() && !system.is_capped());
    });
}

#[test]
fn a12_a_manager_without_a_name_goes_by_its_uuid() {
    both(|device| {
        let manager = base(device);
        assert_eq!(manager.name(), manager.uuid().to_string());
        manager.set_name("model");
        assert_eq!(manager.name(), "model");
        assert_ne!(manager.uuid(), base(device).uuid());
    });
}

#[test]
fn arrays_of_one_tick_are_reported_in_the_order_in_which_they_were_made() {
    alone(|| {
        let manager = base(&Device::Cpu);
        let make = |count: usize| manager.zeros(count, DType::F32).unwrap();
        let mut arrays: Vec<Tensor> = (1..=40).map(make).collect();
        arrays.drain(10..20).for_each(|array| array.close());
        // Their slots are used again, in another order.
        gc::collect();
        arrays.extend((41..=60).map(make));
        let listed: Vec<usize> = manager.report().arrays.iter().map(|array| array.shape[0]).collect();
        assert_eq!(listed, arrays.iter().map(Tensor::elem_count).collect::<Vec<_>>());
    });
}

#[test]
fn a13_display_and_debug_dump_have_their_forms_and_their_counts_match() {
    both(|device| {
        let manager = base(device);
        manager.set_name("model");
        let sub = manager.child("batch").unwrap();
        let (weights, input) = (matrix(&manager), vector(&sub));
        weights.set_name("w").unwrap();
        // Ages are told apart by a clock that ticks a few times in 10 ms.
        thread::sleep(Duration::from_millis(20));
        let view = input.narrow(0, 0, 2).unwrap();
        sub.cap().unwrap();

        let name = mask(&device.to_string());
        assert_eq!(
            mask(&manager.to_string()),
            format!("Name: model Parent Name: system {name} isOpen: true Resource size: 2")
        );
        let lines: Vec<String> = mask(&manager.debug_dump()).lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                format!("\\--- NDManager(model) resource count: 2, 1 array, 16 B, {name}, made at HERE"),
                "    |-- KEY `w` f32 [2, 2], 16 B, 1 handle, AGE s old, made at HERE".to_owned(),
                format!("    \\--- NDManager(batch) resource count: 2, 2 arrays, 12 B, {name}, made at HERE, capped"),
                "        |-- KEY f32 [3], 12 B, 1 handle, AGE s old, made at HERE".to_owned(),
                "        |-- KEY f32 [2], a view, 1 handle, AGE s old, made at HERE".to_owned(),
            ]
        );
        manager.close().unwrap();
        assert_eq!(
            mask(&manager.to_string()),
            "Name: model Parent Name: none isOpen: false Resource size: 0",
            "DJL's dump threw for half a year (#3719)"
        );
        assert!(view.is_released() && manager.debug_dump().contains("resource count: 0"));
    });
}

#[test]
fn a14_managed_arrays_are_listed_down_the_tree_with_borrowed_ones() {
    both(|device| {
        let (lender, manager) = (base(device), base(device));
        let sub = manager.new_sub_manager().unwrap();
        let arrays = [block(&manager), block(&sub), block(&lender)];
        arrays[2].temp_attach(&sub).unwrap();
        let mut listed: Vec<_> = manager.managed_arrays().iter().map(|array| array.key()).collect();
        let mut expected: Vec<_> = arrays.iter().map(|array| array.key()).collect();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
        assert!(lender.managed_arrays().is_empty(), "the lender has it no longer");
        let of_device = NdManager::system(device).managed_arrays().len();
        assert!(of_device >= 3, "the system manager lists every manager of its device: {of_device}");
    });
}

#[test]
fn managers_below_one_end_in_any_order_and_those_that_stay_keep_theirs() {
    both(|device| {
        let parent = base(device);
        let mut children: Vec<_> = (0..50).map(|i| parent.child(&format!("{i:02}")).unwrap()).collect();
        let mut dice = crate::common::Dice(7);
        while !children.is_empty() {
            children.remove(dice.below(children.len())).close().unwrap();
            let report = parent.report();
            let names: Vec<_> = report.managers.iter().map(|manager| manager.name.clone()).collect();
            assert_eq!(names, children.iter().map(NdManager::name).collect::<Vec<_>>());
            assert_eq!(parent.manager_count(), children.len());
        }
        // Below one that ends, thousands: each is looked at once.
        let below: Vec<_> = (0..40_000).map(|_| parent.new_sub_manager().unwrap()).collect();
        let begin = busy();
        parent.close().unwrap();
        assert!((busy() - begin).as_secs() < 2 && below.iter().all(|manager| !manager.is_open()));
    });
}
