//! Threads, and workspaces inside each other: which of them takes an array, what it counts, what is current afterwards.

use std::sync::Barrier;
use std::thread;

use ndgc::{
    D, DEFAULT_WORKSPACE, DType, Device, MirroringPolicy, SimConfig, Tensor, Workspace, WorkspaceConfig, ndar, npy,
    npz, pickle, safetensors,
};

use crate::common::in_own_process;
use crate::workspace::rings::{MIB, assert_filled, cycle, in_use, made, over_time, strict};
use crate::workspace::support::{alone, basic, doubles, el, filled};

/// The name of the current workspace.
fn current() -> Option<String> {
    Workspace::current().map(|workspace| workspace.id().to_owned())
}

fn offset(workspace: &Workspace) -> u64 {
    workspace.stats().offset
}

#[test]
fn w33_each_thread_has_a_default_workspace_of_its_own() {
    alone(|| {
        let together = Barrier::new(20);
        thread::scope(|scope| {
            for number in 0..20u32 {
                let together = &together;
                scope.spawn(move || {
                    let workspace = Workspace::default_for_current_thread().unwrap();
                    assert_eq!((workspace.id(), Workspace::all_for_current_thread().len()), (DEFAULT_WORKSPACE, 1));
                    let cycle = workspace.activate().unwrap();
                    let array = filled(f64::from(number), 1000);
                    together.wait();
                    assert_filled(&array, f64::from(number));
                    assert_eq!((cycle.stats().generation, cycle.stats().arrays), (1, 1), "nobody else's");
                });
            }
        });
    });
}

#[test]
fn w34_a_duplication_goes_where_the_borrowed_workspace_is() {
    alone(|| {
        let (one, two) = (made("WS1", basic()), made("WS2", basic()));
        let _one = one.activate().unwrap();
        let first = filled(1., 10);
        let two_cycle = two.activate().unwrap();
        let second = filled(2., 100);
        assert_eq!((offset(&one), offset(&two)), (el(10), el(100)));
        let copy = {
            let borrowed = one.borrow().unwrap();
            assert!(borrowed.is_same(&one) && current().as_deref() == Some("WS1"));
            second.unsafe_duplication().unwrap()
        };
        assert!(Workspace::current().unwrap().is_same(&two));
        assert_eq!((offset(&one), offset(&two)), (el(10) + el(100), el(100)));
        two_cycle.leave();
        assert_filled(&copy, 2.);
        assert_filled(&first, 1.);
        assert!(!second.is_in_scope());
    });
}

#[test]
fn w35_arrays_are_read_into_the_workspace() {
    alone(|| {
        let array = Tensor::arange(0f64, 100., &Device::Cpu).unwrap();
        let named = std::collections::HashMap::from([("a".to_owned(), array.clone())]);
        let path = std::env::temp_dir().join(format!("ndgc-w35-{}.safetensors", std::process::id()));
        safetensors::save(&named, &path).unwrap();
        let tensors = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (npy, npz) = (npy::encode(&array).unwrap(), npz::encode(&[("a", &array)]).unwrap());
        let ndar = ndar::encode(&array).unwrap();
        type Read<'a> = Box<dyn Fn() -> Tensor + 'a>;
        let readers: [(&str, Read<'_>); 3] = [
            ("npy", Box::new(|| npy::decode(&npy, &Device::Cpu).unwrap())),
            ("npz", Box::new(|| npz::decode(&npz, &Device::Cpu).unwrap().remove(0).1)),
            ("NDAR", Box::new(|| ndar::decode(&ndar, &Device::Cpu).unwrap())),
        ];
        let workspace = made("W35", basic());
        for (format, read) in readers {
            let cycle = workspace.activate().unwrap();
            let inside = read();
            assert!(inside.is_attached(), "{format}");
            assert_eq!(offset(&cycle), el(100), "{format}: its data, and nothing else");
            let outside = {
                let _out = Workspace::scope_out();
                read()
            };
            assert!(!outside.is_attached(), "{format}");
            assert_eq!(offset(&cycle), el(100), "{format}");
            assert_eq!(inside.to_vec::<f64>().unwrap(), array.to_vec::<f64>().unwrap());
            cycle.leave();
            assert_eq!(outside.to_vec::<f64>().unwrap(), array.to_vec::<f64>().unwrap());
            assert!(!inside.is_in_scope());
        }
        // A file of weights is read to be kept, also one weight at a time.
        let single = safetensors::BufferedSafetensors::new(tensors.clone()).unwrap();
        let cycle = workspace.activate().unwrap();
        let weights = safetensors::load_buffer(&tensors, &Device::Cpu).unwrap();
        let one = single.load("a", &Device::Cpu).unwrap();
        let pickled = pickle::decode(include_bytes!("../files/model.pth"), None, &Device::Cpu).unwrap();
        assert_eq!(offset(&cycle), 0);
        cycle.leave();
        for weight in [&weights["a"], &one] {
            assert_eq!(weight.to_vec::<f64>().unwrap(), array.to_vec::<f64>().unwrap());
        }
        assert!(pickled.len() > 1 && pickled.iter().all(|(_, weight)| !weight.is_attached() && weight.is_open()));
    });
}

#[test]
fn w42_each_workspace_counts_its_own() {
    alone(|| {
        let (outer, inner, third) = (made("OUTER", basic()), made("INNER", over_time(0)), made("THIRD", basic()));
        let outer_cycle = outer.activate().unwrap();
        let first = filled(1., 100);
        for n in 1..=100 {
            let stats = cycle(&inner, &[n]);
            assert_eq!(stats.last_cycle, el(n as u64));
        }
        inner.initialize().unwrap();
        assert_eq!((inner.stats().size, inner.stats().offset), (el(100), 0));
        let inner_cycle = inner.activate().unwrap();
        let second = filled(2., 40);
        {
            let third_cycle = third.activate().unwrap();
            let _array = filled(3., 10);
            assert_eq!([&outer, &inner, &third_cycle].map(|w| w.stats().this_cycle), [el(100), el(40), el(10)]);
        }
        let _again = filled(2.5, 40);
        assert_eq!([&outer, &inner, &third].map(offset), [el(100), 2 * el(40), 0]);
        assert_filled(&second, 2.);
        inner_cycle.leave();
        let last = filled(4., 100);
        assert_eq!([&outer, &inner, &third].map(offset), [2 * el(100), 0, 0]);
        assert_filled(&first, 1.);
        assert_filled(&last, 4.);
        outer_cycle.leave();
        assert_eq!([&outer, &inner, &third].map(offset), [0, 0, 0]);
        assert!(Workspace::current().is_none());
    });
}

#[test]
fn w43_to_enter_the_current_one_again_goes_on() {
    alone(|| {
        let workspace = made("W43", basic());
        let cycle = workspace.activate().unwrap();
        let first = filled(1., 100);
        let again = workspace.activate().unwrap();
        let second = filled(2., 100);
        again.leave();
        assert_eq!((offset(&cycle), cycle.stats().generation), (2 * el(100), 1));
        let third = filled(3., 100);
        assert_eq!(offset(&cycle), 3 * el(100));
        [(&first, 1.), (&second, 2.), (&third, 3.)].iter().for_each(|(array, value)| assert_filled(array, *value));
        cycle.leave();
        assert_eq!(offset(&workspace), 0);
    });
}

#[test]
fn w44_borrowed_and_scoped_out_inside_others() {
    alone(|| {
        let (external, forward) = (made("External", strict()), made("FeedForward", strict()));
        let _external = external.activate().unwrap();
        let forward_cycle = forward.activate().unwrap();
        let inner = filled(1., 10);
        let (borrowed, outside, again) = {
            let _borrowed = external.borrow().unwrap();
            let borrowed = filled(2., 10);
            let outside = {
                let _out = Workspace::scope_out();
                assert_eq!(current(), None);
                filled(3., 10)
            };
            assert_eq!(current().as_deref(), Some("External"));
            (borrowed, outside, filled(4., 10))
        };
        assert_eq!(current().as_deref(), Some("FeedForward"));
        assert!(borrowed.is_attached() && !outside.is_attached() && again.is_attached());
        assert_eq!((external.stats().this_cycle, forward.stats().this_cycle), (2 * el(10), el(10)));
        assert_eq!((external.stats().size, forward.stats().size), (0, 0), "they learn");
        forward_cycle.leave();
        assert!(!inner.is_in_scope());
        [(&borrowed, 2.), (&outside, 3.), (&again, 4.)].iter().for_each(|(array, value)| assert_filled(array, *value));
    });
}

#[test]
fn w47_entered_again_and_borrowed_in_one_nest() {
    alone(|| {
        let (one, two) = (made("W47", basic()), made("W47_INNER", basic()));
        let first_entry = one.activate().unwrap();
        let first = filled(1., 10);
        let again = one.activate().unwrap();
        let inner = two.activate().unwrap();
        let borrowed = one.borrow().unwrap();
        assert!(one.borrow().is_err(), "a borrowed one cannot be borrowed from");
        let second = filled(2., 10);
        let inner_again = two.activate().unwrap();
        let third = filled(3., 10);
        inner_again.leave();
        assert_eq!(current().as_deref(), Some("W47"));
        assert!(!third.is_in_scope(), "a nested entry that was not current ends its own");
        borrowed.leave();
        assert_eq!(current().as_deref(), Some("W47_INNER"));
        inner.leave();
        assert_eq!(current().as_deref(), Some("W47"));
        again.leave();
        assert_filled(&first, 1.);
        assert_filled(&second, 2.);
        assert_eq!(offset(&one), 2 * el(10));
        first_entry.leave();
        assert_eq!((current(), offset(&one)), (None, 0));
    });
}

#[test]
fn w48_the_default_workspace_is_one() {
    alone(|| {
        let one = Workspace::default_for_current_thread().unwrap();
        assert!(one.is_same(&Workspace::default_for_current_thread().unwrap()));
        assert!(Workspace::find(DEFAULT_WORKSPACE).is_some_and(|found| found.is_same(&one)));
    });
}

#[test]
fn w48_a_default_workspace_keeps_its_configuration_and_later_ones_have_that_of_then() {
    alone(|| {
        let one = Workspace::default_for_current_thread().unwrap();
        let other = basic().build().unwrap();
        assert_ne!(one.configuration(), &other);
        Workspace::set_default_configuration(other.clone());
        let again = Workspace::default_for_current_thread();
        let of_thread = || Workspace::default_for_current_thread().unwrap().configuration().clone();
        let later = thread::spawn(of_thread).join().unwrap();
        Workspace::set_default_configuration(WorkspaceConfig::default());
        assert!(again.unwrap().is_same(&one));
        assert_eq!(later, other);
    });
}

#[test]
fn w49_workspaces_of_threads_that_ended_give_everything_back() {
    let test = "workspace::nested_order::w49_workspaces_of_threads_that_ended_give_everything_back";
    let body = || {
        let before = in_use(&Device::Cpu);
        let kept: Vec<Tensor> = (0..10)
            .map(|number| {
                let body = move || {
                    let workspace = made("W49", basic());
                    let stats = cycle(&workspace, &[100 + number]);
                    assert_eq!(stats.size, 10 * MIB);
                    let _cycle = workspace.activate().unwrap();
                    // The thread ends inside the cycle of a leaked guard.
                    let array = doubles(10);
                    std::mem::forget(workspace.activate().unwrap());
                    array
                };
                thread::spawn(body).join().unwrap()
            })
            .collect();
        assert!(kept.iter().all(|array| matches!(array.to_vec::<f64>(), Err(ndgc::Error::LeakedArray(_)))));
        assert_eq!(in_use(&Device::Cpu), before);
    };
    in_own_process(test, || alone(body));
}

#[test]
fn w50_a_cache_of_the_host_is_copied_to_a_device() {
    alone(|| {
        const LEN: usize = 1_500_000;
        let device = Device::sim(SimConfig::default());
        let host_only = strict().initial_size(16 * MIB).policy_mirroring(MirroringPolicy::HostOnly).build().unwrap();
        let cache = Workspace::for_current_thread_on(&device, "CACHE", &host_only).unwrap();
        let cycle = cache.activate().unwrap();
        let array = Tensor::full(1.5f32, LEN, &device).unwrap();
        assert_eq!((cycle.stats().location, array.device()), ("ram of the host (host-only)", &Device::Cpu));
        let copy = {
            let _step = Workspace::enter_on(&device, "STEP", &strict().build().unwrap()).unwrap();
            let copy = array.unsafe_duplication_async().unwrap().wait().unwrap();
            assert!(copy.is_attached() && *copy.device() == device);
            copy.detach()
        };
        cycle.leave();
        assert!(!array.is_in_scope());
        assert_eq!(copy.to_vec::<f32>().unwrap(), vec![1.5; LEN]);
        crate::common::check(&device);
    });
}

#[test]
fn w53_a_detached_view_is_a_copy_of_its_own() {
    alone(|| {
        let workspace = made("W53", basic());
        let cycle = workspace.activate().unwrap();
        let matrix = Tensor::arange(0f64, 200., &Device::Cpu).unwrap().reshape((20, 10)).unwrap();
        let view = matrix.narrow(1, 3, 1).unwrap();
        assert!(view.is_attached() && !view.is_contiguous());
        let copy = view.detach();
        assert!(!copy.is_attached() && copy.is_contiguous());
        cycle.leave();
        let expected: Vec<f64> = (0..20).map(|row| f64::from(row * 10 + 3)).collect();
        assert_eq!((copy.dims(), copy.to_vec::<f64>().unwrap()), (&[20, 1][..], expected));
        assert!(!view.is_in_scope());
    });
}

#[test]
fn w54_odd_lengths_of_all_kinds_lie_beside_each_other() {
    alone(|| {
        let workspace = made("W54", strict());
        for round in 0..100usize {
            let cycle = workspace.activate().unwrap();
            let mut bools = Vec::new();
            for n in 0..10 {
                let length = 1 + (round * 7 + n * 3) % 41;
                let doubles = filled(n as f64, length);
                let sum = doubles.sum_all().unwrap();
                let flags = doubles.ge(n as f64).unwrap();
                let small = Tensor::full(n as u8, length, &Device::Cpu).unwrap();
                let wide = small.to_dtype(DType::I64).unwrap();
                assert_eq!(sum.to_scalar::<f64>().unwrap(), (n * length) as f64);
                bools.push((n, length, flags, small, wide));
            }
            for (n, length, flags, small, wide) in bools {
                let flags: Vec<u8> = flags.to_dtype(DType::U8).unwrap().to_vec().unwrap();
                assert_eq!(flags, vec![1; length]);
                assert_eq!(small.to_vec::<u8>().unwrap(), vec![n as u8; length]);
                assert_eq!(wide.to_vec::<i64>().unwrap(), vec![n as i64; length]);
            }
            assert_eq!(offset(&cycle) % 64, 0);
        }
    });
}

#[test]
fn w55_what_makes_no_bytes_costs_the_workspace_nothing() {
    alone(|| {
        let workspace = made("W55", basic());
        let cycle = workspace.activate().unwrap();
        let inputs: Vec<Tensor> = (0..10).map(|n| filled(f64::from(n), 12)).collect();
        let before = cycle.stats();
        for _ in 0..10_000 {
            let outputs: Vec<Tensor> = inputs.iter().map(|input| input.reshape((3, 4)).unwrap()).collect();
            assert_eq!(outputs.len(), 10);
        }
        assert_eq!(cycle.stats(), before);
        inputs.iter().enumerate().for_each(|(n, input)| assert_filled(input, n as f64));
    });
}

#[test]
fn w56_the_order_of_current_workspaces() {
    alone(|| {
        let (outer, inner) = (made("outer", basic()), made("inner", basic()));
        let mut order = Vec::new();
        let outer_cycle = outer.activate().unwrap();
        order.push(current());
        {
            let _out = Workspace::scope_out();
            order.push(current());
        }
        order.push(current());
        {
            let _inner = inner.activate().unwrap();
            order.push(current());
            {
                let _borrowed = outer.borrow().unwrap();
                order.push(current());
                {
                    let _out = Workspace::scope_out();
                    order.push(current());
                }
                order.push(current());
            }
            order.push(current());
        }
        order.push(current());
        outer_cycle.leave();
        order.push(current());
        let order: Vec<&str> = order.iter().map(|name| name.as_deref().unwrap_or("none")).collect();
        let expected = ["outer", "none", "outer", "inner", "outer", "none", "outer", "inner", "outer", "none"];
        assert_eq!(order, expected);
    });
}

#[test]
fn w59_migrate_brings_a_detached_array_in() {
    alone(|| {
        let array = Tensor::new([1i64, -2, i64::MAX], &Device::Cpu).unwrap();
        let _cycle = made("W59", basic()).activate().unwrap();
        let inside = array.migrate(false).unwrap();
        assert!(inside.is_attached() && !array.is_attached());
        assert_eq!((inside.dtype(), inside.to_vec::<i64>().unwrap()), (DType::I64, vec![1, -2, i64::MAX]));
    });
}

#[test]
fn w62_a_reused_cache_of_the_host_gives_zeros() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let config = strict().initial_size(MIB).policy_mirroring(MirroringPolicy::HostOnly).build().unwrap();
        let workspace = Workspace::for_current_thread_on(&device, "W62", &config).unwrap();
        for round in 0..10 {
            let cycle = workspace.activate().unwrap();
            let zeros = Tensor::zeros(1000, DType::F64, &device).unwrap();
            assert_filled(&zeros, 0.);
            let ones = Tensor::full(f64::from(round + 1), 1000, &device).unwrap();
            assert_filled(&ones, f64::from(round + 1));
            assert_eq!(offset(&cycle), 2 * el(1000));
        }
        assert_eq!(workspace.stats().system_allocations, 1);
        crate::common::check(&device);
    });
}

#[test]
fn w63_endless_loops_for_a_while() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        // One workspace, two arrays a cycle; then with a spill; then one in another.
        let single = made("SINGLE", strict().initial_size(2 * el(4097)));
        let steady = single.stats().system_allocations;
        for number in 0..20_000 {
            let _cycle = single.activate().unwrap();
            let array = filled(f64::from(number), 4097);
            let sums = (&array + 1.).unwrap();
            if number % 1000 == 999 {
                assert_filled(&sums, f64::from(number + 1));
            }
        }
        let stats = single.stats();
        assert_eq!((stats.cycles, stats.system_allocations, stats.renewals), (20_000, steady, 0));
        assert_eq!(stats.last_cycle, 2 * el(4097));
        for _ in 0..200 {
            cycle(&single, &[4097, 4097, 100]);
        }
        assert_eq!((single.stats().spilled, single.stats().externals), (0, 0));
        let nested = made("NESTED", strict().initial_size(MIB));
        for _ in 0..2000 {
            let _outer = single.activate().unwrap();
            let kept = filled(1., 10);
            cycle(&nested, &[100, 3]);
            let inner = nested.activate().unwrap();
            let left = filled(2., 10).leverage().unwrap();
            inner.leave();
            assert_filled(&(&kept + &left).unwrap(), 3.);
        }
        // Many small operations.
        let _cycle = nested.activate().unwrap();
        let mut value = filled(0., 4);
        for _ in 0..2000 {
            value = (value + 1.).unwrap();
        }
        assert_filled(&value, 2000.);
        drop((_cycle, value));
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

#[test]
fn w63_threads_come_and_go() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        for number in 0..200 {
            let body = move || {
                let workspace = made("CHURN", strict());
                cycle(&workspace, &[100, number % 7 + 1]);
                cycle(&workspace, &[100, number % 7 + 1]).same_addresses
            };
            // The first cycle was beside the block; that may have come to lie where its arrays were.
            assert!(thread::spawn(body).join().unwrap() <= 1);
        }
        assert_eq!(in_use(&Device::Cpu), before);
    });
}

#[test]
fn w63_arrays_are_read_over_and_over() {
    alone(|| {
        let bytes = npy::encode(&Tensor::arange(0f64, 50., &Device::Cpu).unwrap()).unwrap();
        let workspace = made("SERDE", strict());
        for _ in 0..500 {
            let _cycle = workspace.activate().unwrap();
            let array = npy::decode(&bytes, &Device::Cpu).unwrap();
            assert_eq!(array.sum(D::Minus1).unwrap().to_scalar::<f64>().unwrap(), 1225.);
        }
        assert!(workspace.stats().same_addresses >= 498, "{:?}", workspace.stats());
    });
}
