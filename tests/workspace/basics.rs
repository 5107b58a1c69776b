//! One workspace: cycles, offsets, sizes, ways out, mapped files. W1 to W30.

use ndgc::{
    AllocationPolicy, DType, Device, DeviceLocation, Error, LearningPolicy, LocationPolicy, ResetPolicy, Result,
    SimConfig, SpillPolicy, Tensor, Workspace, WorkspaceConfig,
};

use crate::workspace::support::{
    alone, basic, doubles, el, filled, in_cycle, leak, loop_first, loop_over_time, sum, values,
};

#[test]
fn w01_without_a_workspace_arrays_are_detached() {
    alone(|| {
        assert!(Workspace::current().is_none());
        let array = (doubles(10) + 1.).unwrap();
        assert_eq!(sum(&array), 20.);
        assert!(!array.is_attached() && array.is_in_scope());
    });
}

#[test]
fn w02_min_size_is_what_the_first_cycle_learns_at_least() {
    alone(|| {
        let config = loop_first().min_size(10 << 20).build().unwrap();
        for (cycle, size) in [(1, 0), (2, 10 << 20), (3, 10 << 20)] {
            let entered = Workspace::enter("W2", &config).unwrap();
            let _array = doubles(100);
            assert_eq!(entered.stats().size, size, "in cycle {cycle}");
        }
    });
}

#[test]
fn w03_returning_from_inside_leaves_the_workspace() {
    fn inside() -> Result<Tensor> {
        let _cycle = Workspace::enter("W3", &basic().build()?)?;
        let array = doubles(10);
        if array.is_attached() {
            return Ok(array);
        }
        Err(Error::msg("not reached"))
    }
    alone(|| {
        let array = inside().unwrap();
        assert!(array.is_attached() && !array.is_in_scope());
        assert!(Workspace::current().is_none());
    });
}

#[test]
fn w04_an_exception_inside_leaves_the_workspace() {
    alone(|| {
        let config = basic().build().unwrap();
        let failed: Result<()> = Workspace::cycle("W4", &config, || Err(doubles(10).add(&doubles(11)).unwrap_err()));
        assert!(matches!(failed, Err(Error::ShapeMismatch { .. })), "{failed:?}");
        assert!(Workspace::current().is_none());
        let panicked = std::panic::catch_unwind(|| {
            let _cycle = Workspace::enter("W4", &basic().build().unwrap()).unwrap();
            let _array = doubles(10);
            std::panic::panic_any("on purpose");
        });
        assert!(panicked.is_err());
        assert!(Workspace::current().is_none());
        assert_eq!(Workspace::find("W4").unwrap().stats().cycles, 2);
    });
}

#[test]
fn w05_leverage_copies_to_the_enclosing_workspace_and_leaves_the_inner_offset() {
    alone(|| {
        let config = basic().build().unwrap();
        let outer = Workspace::enter("W5_OUTER", &config).unwrap();
        let copy = {
            let inner = Workspace::enter("W5_INNER", &config).unwrap();
            let array = filled(3., 5);
            let before = inner.stats().offset;
            assert_eq!((before, outer.stats().offset), (el(5), 0));
            let copy = array.leverage().unwrap();
            assert_eq!((inner.stats().offset, outer.stats().offset), (before, el(5)));
            assert!(copy.is_attached() && !copy.is_same(&array));
            copy
        };
        assert!(copy.is_in_scope());
        assert_eq!(sum(&copy), 15.);
    });
}

#[test]
fn w06_leverage_to_moves_the_offset_of_the_named_workspace() {
    alone(|| {
        let config = basic().build().unwrap();
        let outer = Workspace::enter("EXT", &config).unwrap();
        let _first = filled(3., 5);
        let before = outer.stats().offset;
        let copy = {
            let inner = Workspace::enter("W6", &config).unwrap();
            let array = filled(3., 5);
            let copy = array.leverage_to("EXT").unwrap();
            assert_eq!((outer.stats().offset, inner.stats().offset), (2 * before, el(5)));
            copy
        };
        assert_eq!(sum(&copy), 15.);
    });
}

#[test]
fn w07_what_was_leveraged_does_not_depend_on_its_source() {
    alone(|| {
        let config = loop_first().build().unwrap();
        let outer = Workspace::enter("EXT", &config).unwrap();
        let copy = {
            let _inner = Workspace::enter("W7", &basic().build().unwrap()).unwrap();
            let array = filled(3., 5);
            let copy = array.leverage_to("EXT").unwrap();
            array.zero_().unwrap();
            copy
        };
        for _ in 0..3 {
            let _inner = Workspace::enter("W7", &basic().build().unwrap()).unwrap();
            let other = filled(7., 5);
            assert_eq!(sum(&other), 35.);
            assert_eq!(sum(&copy), 15.);
        }
        assert_eq!(outer.stats().size, 0, "it learns");
        assert_eq!(outer.stats().spilled, el(5));
    });
}

#[test]
fn w08_a_strided_view_keeps_its_values_when_it_is_leveraged() {
    alone(|| {
        let config = basic().build().unwrap();
        let _outer = Workspace::enter("EXT", &config).unwrap();
        let copy = {
            let _inner = Workspace::enter("W8", &config).unwrap();
            let matrix = Tensor::full(4f64, (10, 10), &Device::Cpu).unwrap();
            let column = matrix.narrow(1, 3, 1).unwrap().squeeze(1).unwrap();
            assert!(!column.is_contiguous() && column.is_attached(), "a view of an array of a workspace is one too");
            column.leverage().unwrap()
        };
        let _again = Workspace::enter("W8", &config).unwrap();
        let _noise = filled(9., 100);
        assert_eq!(sum(&copy), 40.);
    });
}

#[test]
fn w09_in_a_scope_out_arrays_are_detached_and_afterwards_the_workspace_is_current_again() {
    alone(|| {
        let cycle = Workspace::enter("W9", &basic().build().unwrap()).unwrap();
        let inner = filled(2., 5);
        let before = cycle.stats().offset;
        let (outer, mixed) = {
            let _out = Workspace::scope_out();
            assert!(Workspace::current().is_none());
            let outer = filled(3., 5);
            assert!(!outer.is_attached());
            let mixed = inner.add(&outer).unwrap();
            assert!(!mixed.is_attached());
            (outer, mixed)
        };
        assert!(Workspace::current().unwrap().is_same(&cycle));
        assert_eq!(cycle.stats().offset, before);
        let both = outer.add(&inner).unwrap();
        assert!(both.is_attached() && cycle.stats().offset == before + el(5));
        cycle.leave();
        assert_eq!((sum(&mixed), sum(&outer)), (25., 15.));
        assert!(!both.is_in_scope());
    });
}

#[test]
fn w10_a_permuted_array_is_reshaped() {
    alone(|| {
        let cycle = Workspace::enter("W10", &basic().build().unwrap()).unwrap();
        let array = Tensor::arange(0f64, 24., &Device::Cpu).unwrap().reshape((2, 3, 4)).unwrap();
        let offset = cycle.stats().offset;
        let permuted = array.permute((2, 0, 1)).unwrap();
        let joined = permuted.reshape((4, 6)).unwrap();
        assert_eq!(values(&joined.narrow(0, 1, 1).unwrap()), [1., 5., 9., 13., 17., 21.]);
        assert_eq!(cycle.stats().offset, offset, "each step of the two axes is the same, so nothing was copied");
        let flat = permuted.reshape(24).unwrap();
        assert_eq!(values(&flat)[..7], [0., 4., 8., 12., 16., 20., 1.]);
        assert!(flat.is_attached() && joined.is_attached());
        cycle.leave();
        leak(joined.to_vec::<f64>());
        leak(flat.to_vec::<f64>());
    });
}

#[test]
fn w11_an_array_made_outside_does_not_move_the_offset_and_no_axes_make_one_element() {
    alone(|| {
        let cycle = Workspace::enter("W11", &basic().build().unwrap()).unwrap();
        let (five, one) = {
            let _out = Workspace::scope_out();
            let five = Tensor::empty(5, DType::F64, &Device::Cpu).unwrap();
            (five, Tensor::empty((), DType::F64, &Device::Cpu).unwrap())
        };
        assert_eq!(cycle.stats().offset, 0);
        assert!(!five.is_attached() && !one.is_attached());
        assert_eq!((five.elem_count(), one.elem_count(), one.rank()), (5, 1, 0));
        // Here as anywhere nothing uninitialised is read.
        assert_eq!((sum(&five), sum(&one)), (0., 0.));
    });
}

#[test]
fn w12_detach_leaves_the_offset_and_the_result_outlives_the_cycle() {
    alone(|| {
        let config = basic().build().unwrap();
        let (kept, leaked) = {
            let cycle = Workspace::enter("W12", &config).unwrap();
            let a = doubles(10);
            assert_eq!(cycle.stats().offset, el(10));
            let kept = a.detach();
            assert_eq!(cycle.stats().offset, el(10));
            assert!(a.is_attached() && a.is_in_scope() && !kept.is_attached() && !kept.is_same(&a));
            (kept, a)
        };
        assert!(Workspace::current().is_none());
        assert_eq!(sum(&kept), 10.);
        assert!(leaked.is_attached() && !leaked.is_in_scope());
        let text = leak(kept.add(&leaked));
        assert!(text.starts_with("Op [add] Y argument uses leaked workspace pointer from workspace [W12]"), "{text}");
    });
}

#[test]
fn w13_arrays_are_in_scope_until_their_cycle_ends_in_the_first_cycle_too() {
    alone(|| {
        let config = loop_first().build().unwrap();
        for (cycle, size, offset) in [(1, 0, 0), (2, el(100), el(100))] {
            let array = {
                let entered = Workspace::enter("W13", &config).unwrap();
                let array = doubles(100);
                assert!(array.is_in_scope());
                assert_eq!((entered.stats().size, entered.stats().offset), (size, offset), "in cycle {cycle}");
                array
            };
            assert!(!array.is_in_scope());
        }
    });
}

#[test]
fn w14_only_arrays_of_a_workspace_are_attached_and_leveraging_others_does_nothing() {
    alone(|| {
        let outside = doubles(10);
        let config = loop_first().build().unwrap();
        let cycle = Workspace::enter("W14", &config).unwrap();
        let inside = doubles(10);
        assert!(inside.is_attached() && !outside.is_attached());
        for same in
            [outside.leverage_to("W14").unwrap(), outside.leverage_to("NONE").unwrap(), outside.leverage().unwrap()]
        {
            assert!(same.is_same(&outside) && !same.is_attached());
        }
        // An enforced existence is the only form here: ND4J gives the array back for a name that it does not know.
        assert!(matches!(inside.leverage_to("NONE"), Err(Error::Workspace { .. })));
        assert!(!inside.leverage_or_detach("NONE").unwrap().is_attached());
        assert!(inside.leverage_to("W14").unwrap().is_same(&inside), "it is there already");
        cycle.leave();
        assert!(!doubles(1).is_attached());
    });
}

#[test]
fn w15_a_first_block_has_its_slack() {
    alone(|| {
        let config = WorkspaceConfig::builder()
            .initial_size(1024)
            .overallocation_limit(1.0)
            .policy_allocation(AllocationPolicy::Overallocate)
            .policy_learning(LearningPolicy::None)
            .build()
            .unwrap();
        assert_eq!(Workspace::for_current_thread("W15", &config).unwrap().stats().size, 2048);
    });
}

#[test]
fn w16_a_learned_block_has_its_slack() {
    alone(|| {
        let config = WorkspaceConfig::builder().overallocation_limit(1.0).build().unwrap();
        in_cycle("W16", &config, || drop(doubles(100)));
        assert_eq!(Workspace::find("W16").unwrap().stats().size, 2 * el(100));
    });
}

#[test]
fn w17_over_time_learns_the_largest_cycle_when_it_is_told_to() {
    alone(|| {
        let config = loop_over_time()
            .policy_allocation(AllocationPolicy::Overallocate)
            .overallocation_limit(1.0)
            .build()
            .unwrap();
        for n in 1..=10 {
            in_cycle("W17", &config, || drop(doubles(10 * n)));
            assert_eq!(Workspace::find("W17").unwrap().stats().size, 0);
        }
        let workspace = Workspace::find("W17").unwrap();
        workspace.initialize().unwrap();
        assert_eq!(workspace.stats().size, 2 * el(100));
    });
}

#[test]
fn w18_what_is_made_while_the_workspace_is_off_does_not_count() {
    alone(|| {
        let config = loop_first().build().unwrap();
        {
            let cycle = Workspace::enter("W18", &config).unwrap();
            let first = doubles(100);
            cycle.toggle_use(false);
            let beside = filled(2., 100);
            cycle.toggle_use(true);
            let second = doubles(100);
            assert_eq!((sum(&first), sum(&beside), sum(&second)), (100., 200., 100.));
            assert_eq!(cycle.stats().this_cycle, 2 * el(100));
        }
        let cycle = Workspace::enter("W18", &config).unwrap();
        assert_eq!(cycle.stats().size, 2 * el(100));
        for n in [1, 2] {
            let _array = doubles(100);
            assert_eq!(cycle.stats().offset, n * el(100));
        }
    });
}

#[test]
fn w19_each_cycle_begins_and_ends_at_the_start_and_hands_out_zeros() {
    alone(|| {
        let config = loop_over_time().build().unwrap();
        in_cycle("W19", &config, || drop(doubles(10)));
        let workspace = Workspace::find("W19").unwrap();
        workspace.initialize().unwrap();
        for _ in 0..10 {
            assert_eq!(workspace.stats().offset, 0);
            let cycle = workspace.activate().unwrap();
            let array = Tensor::zeros(10, DType::F64, &Device::Cpu).unwrap();
            assert_eq!(cycle.stats().offset, el(10));
            assert_eq!(sum(&array), 0.);
            array.fill_(5.).unwrap();
        }
        assert_eq!((workspace.stats().offset, workspace.stats().spilled), (0, 0));
    });
}

#[test]
fn w20_without_a_number_of_cycles_nothing_is_learned_over_time() {
    alone(|| {
        let config = loop_over_time().build().unwrap();
        for n in 1..=100 {
            let cycle = Workspace::enter("W20", &config).unwrap();
            let _array = doubles(n);
            assert_eq!((cycle.stats().size, cycle.stats().offset, cycle.stats().spilled), (0, 0, el(n as u64)));
        }
        let workspace = Workspace::find("W20").unwrap();
        workspace.initialize().unwrap();
        let cycle = workspace.activate().unwrap();
        let _array = doubles(10);
        assert_eq!(cycle.stats().offset, el(10));
    });
}

#[test]
fn w21_the_first_loop_learns_the_sum_of_its_arrays() {
    alone(|| {
        Workspace::cycle("W21", &loop_first().build().unwrap(), || {
            let _arrays = [doubles(100), doubles(10)];
            Ok::<_, ndgc::Error>(())
        })
        .unwrap();
        let stats = Workspace::find("W21").unwrap().stats();
        assert_eq!((stats.size, stats.offset), (el(100) + el(10), 0));
    });
}

#[test]
fn w22_a_second_cycle_may_be_smaller() {
    alone(|| {
        let config = loop_first().build().unwrap();
        Workspace::cycle("W22", &config, || {
            let _arrays = [doubles(100), doubles(100)];
            Ok::<_, ndgc::Error>(())
        })
        .unwrap();
        let cycle = Workspace::enter("W22", &config).unwrap();
        let _array = doubles(100);
        assert_eq!((cycle.stats().size, cycle.stats().offset), (2 * el(100), el(100)));
        let workspace = cycle.workspace();
        cycle.leave();
        assert_eq!((workspace.stats().size, workspace.stats().offset), (2 * el(100), 0));
    });
}

#[test]
fn w23_creations_and_operations_take_exactly_their_bytes() {
    alone(|| {
        let cycle = Workspace::enter("W23", &basic().build().unwrap()).unwrap();
        let mut expected = 0;
        let mut took = |array: &Tensor, n: u64| {
            expected += el(n);
            assert_eq!(cycle.stats().offset, expected);
            assert!(array.is_attached());
        };
        let ones = doubles(5);
        took(&ones, 5);
        let given = Tensor::new([1f64, 2., 3., 4., 5.], &Device::Cpu).unwrap();
        took(&given, 5);
        // A vector of 4 KiB could be taken over as it is; in a workspace it is copied.
        let vector = Tensor::from_vec(vec![1f64; 1000], 1000, &Device::Cpu).unwrap();
        took(&vector, 1000);
        let copy = given.copy().unwrap();
        took(&copy, 5);
        let random = Tensor::rand(0f64, 1., 100, &Device::Cpu).unwrap();
        took(&random, 100);
        let added = ones.add(&given).unwrap();
        took(&added, 5);
        let view = added.narrow(0, 1, 2).unwrap();
        took(&view, 0);
        let product = given.reshape((5, 1)).unwrap().matmul(&ones.reshape((1, 5)).unwrap()).unwrap();
        took(&product, 25);
        assert_eq!((values(&added), values(&copy)), (vec![2., 3., 4., 5., 6.], vec![1., 2., 3., 4., 5.]));
        assert_eq!((sum(&vector), sum(&product), values(&view)), (1000., 75., vec![3., 4.]));
        assert!(values(&random).iter().all(|number| (0. ..1.).contains(number)));
        assert_eq!(cycle.stats().arrays, 7);
    });
}

#[test]
fn w24_a_full_workspace_that_may_not_spill_refuses_and_stays_as_it_was() {
    alone(|| {
        let config = WorkspaceConfig::builder()
            .initial_size(1024)
            .policy_allocation(AllocationPolicy::Strict)
            .policy_learning(LearningPolicy::None)
            .policy_spill(SpillPolicy::Fail)
            .build()
            .unwrap();
        let cycle = Workspace::enter("W24", &config).unwrap();
        let first = doubles(8);
        let before = cycle.stats();
        let refused = Tensor::zeros(1000, DType::F64, &Device::Cpu);
        assert!(matches!(refused, Err(Error::WorkspaceFull(_))), "{refused:?}");
        let text = refused.unwrap_err().to_string();
        assert!(text.starts_with("zeros: Can't allocate memory: Workspace is full: [W24] has"), "{text}");
        assert_eq!(cycle.stats(), before);
        assert!(matches!(first.broadcast_as((100, 8)).unwrap().copy(), Err(Error::WorkspaceFull(_))));
        assert_eq!(cycle.stats(), before);
        let second = doubles(8);
        assert_eq!(cycle.stats().offset, 2 * el(8));
        assert_eq!(sum(&first) + sum(&second), 16.);
    });
}

/// A mapped workspace of a megabyte.
fn mapped() -> ndgc::WorkspaceConfigBuilder {
    WorkspaceConfig::builder().initial_size(1 << 20).policy_location(LocationPolicy::Mmap)
}

#[test]
fn w25_what_a_cycle_wrote_to_a_mapped_workspace_is_what_the_next_one_finds() {
    alone(|| {
        for (name, learning) in [("W25_NONE", LearningPolicy::None), ("W25_FIRST", LearningPolicy::FirstLoop)] {
            let config = mapped().policy_learning(learning).build().unwrap();
            let empty = |n: usize, dtype| Tensor::empty(n, dtype, &Device::Cpu).unwrap();
            Workspace::cycle(name, &config, || {
                let first = empty(100, DType::F64);
                assert_eq!(sum(&first), 0., "a new file is zeros");
                first.fill_(119.).map(drop)
            })
            .unwrap();
            let cycle = Workspace::enter(name, &config).unwrap();
            let second = empty(100, DType::F64);
            assert_eq!(values(&second), [119.; 100]);
            drop(second);
            cycle.leave();
            // Zeros are zeros there too; what does not lie in the file is zeros, and so are booleans.
            let cycle = Workspace::enter(name, &config).unwrap();
            assert_eq!(empty(100, DType::Bool).to_vec::<bool>().unwrap(), [false; 100]);
            let third = Tensor::zeros(50, DType::F64, &Device::Cpu).unwrap();
            assert_eq!(sum(&third), 0.);
            assert_eq!(empty(1 << 20, DType::U8).to_vec::<u8>().unwrap(), vec![0; 1 << 20]);
            assert_eq!(cycle.stats().externals, 1);
        }
        // In memory nothing comes back.
        let config = basic().build().unwrap();
        Workspace::cycle("W25_RAM", &config, || filled(119., 100).sum_all().map(drop)).unwrap();
        let _cycle = Workspace::enter("W25_RAM", &config).unwrap();
        assert_eq!(sum(&Tensor::empty(100, DType::F64, &Device::Cpu).unwrap()), 0.);
    });
}

#[test]
fn w26_a_mapped_workspace_opens_a_file_that_is_there() {
    alone(|| {
        let path = std::env::temp_dir().join(format!("ndgc_w26_{}.bin", std::process::id()));
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = WorkspaceConfig::builder().policy_location(LocationPolicy::Mmap);
        // SAFETY: nothing else writes to the file, whose name only this test uses.
        #[allow(unsafe_code)]
        let config = unsafe { mapped.temp_file_path(&path) }.build().unwrap();
        let cycle = Workspace::enter("W26", &config).unwrap();
        assert!(cycle.stats().size >= 100_000, "the file's own length counts, no size was given");
        let all = Tensor::empty(100_000, DType::U8, &Device::Cpu).unwrap();
        assert!(all.is_attached() && cycle.stats().externals == 0);
        assert_eq!(all.to_vec::<u8>().unwrap(), bytes);
        all.narrow(0, 5, 1).unwrap().fill_(255.).unwrap();
        let workspace = cycle.workspace();
        cycle.leave();
        workspace.destroy().unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!((found[4], found[5], found[6]), (4, 255, 6));
        assert!(found.len() >= bytes.len(), "it was not cut");
        std::fs::remove_file(&path).unwrap();
    });
}

/// The ten ways in which W27 and W28 try to save an array.
fn ten_ways(array: &Tensor) -> Vec<(&'static str, Result<()>)> {
    vec![
        ("leverage", array.leverage().map(drop)),
        ("leverage_to", array.leverage_to("EXT").map(drop)),
        ("leverage_to_out", {
            let _out = Workspace::scope_out();
            array.leverage_to("EXT").map(drop)
        }),
        ("leverage_or_detach", array.leverage_or_detach("EXT").map(drop)),
        ("detach", array.try_detach().map(drop)),
        ("migrate", array.migrate(false).map(drop)),
        ("migrate_detach", array.migrate(true).map(drop)),
        ("copy", array.copy().map(drop)),
        ("unsafe_duplication", array.unsafe_duplication().map(drop)),
        ("unsafe_duplication_async", array.unsafe_duplication_async().map(drop)),
    ]
}

#[test]
fn w27_nothing_saves_an_array_of_a_closed_workspace() {
    alone(|| {
        let config = basic().build().unwrap();
        for inside in [false, true] {
            let array = Workspace::cycle("W27", &config, || Ok::<_, ndgc::Error>(doubles(10))).unwrap();
            let _outer = inside.then(|| Workspace::enter("EXT", &config).unwrap());
            for (way, result) in ten_ways(&array) {
                let text = leak(result);
                assert!(
                    text.contains("X argument uses leaked workspace pointer from workspace [W27]"),
                    "{way}: {text}"
                );
                assert!(text.contains("the workspace is closed after cycle"), "{way}: {text}");
            }
            // `detach` has no error to return: it gives the handle back, which stays what it is.
            assert!(!array.detach().is_in_scope());
        }
    });
}

#[test]
fn w28_nothing_saves_an_array_of_an_earlier_cycle_while_the_workspace_is_open_again() {
    alone(|| {
        let config = basic().build().unwrap();
        let array = Workspace::cycle("W28", &config, || Ok::<_, ndgc::Error>(doubles(10))).unwrap();
        let _outer = Workspace::enter("EXT", &config).unwrap();
        let _again = Workspace::enter("W28", &config).unwrap();
        let same_place = filled(2., 10);
        for (way, result) in ten_ways(&array) {
            let text = leak(result);
            assert!(text.contains(" in cycle 1, ended with its cycle; the workspace is in cycle 2"), "{way}: {text}");
            assert!(text.contains("All open workspaces: [\"EXT\", \"W28\"]"), "{way}: {text}");
        }
        assert_eq!(sum(&same_place), 20.);
    });
}

#[test]
fn w29_every_way_out_keeps_the_dtype() {
    alone(|| {
        let config = basic().build().unwrap();
        for dtype in DType::ALL {
            let _outer = Workspace::enter("EXT", &config).unwrap();
            let copies = {
                let _inner = Workspace::enter("W29", &config).unwrap();
                let array = Tensor::ones((3, 2), dtype, &Device::Cpu).unwrap();
                for array in [array.clone(), array.t().unwrap()] {
                    let copies = [
                        array.leverage(),
                        array.leverage_to("EXT"),
                        array.leverage_or_detach("EXT"),
                        array.try_detach(),
                        array.migrate(true),
                        array.unsafe_duplication(),
                    ];
                    for copy in copies {
                        let copy = copy.unwrap();
                        assert_eq!((copy.dtype(), copy.dims()), (dtype, array.dims()));
                    }
                }
                [array.leverage().unwrap(), array.leverage_to("EXT").unwrap(), array.try_detach().unwrap()]
            };
            for copy in copies {
                assert_eq!(copy.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [1.; 6], "{dtype}");
            }
        }
    });
}

#[test]
fn w30_an_array_of_a_circular_workspace_of_a_device_has_no_bytes_on_the_host() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let config = WorkspaceConfig::builder()
            .initial_size(1 << 16)
            .policy_allocation(AllocationPolicy::Strict)
            .policy_learning(LearningPolicy::None)
            .policy_reset(ResetPolicy::EndOfBufferReached)
            .build()
            .unwrap();
        let on_host = Device::Cpu.memory().active;
        let cycle = Workspace::enter_on(&device, "W30", &config).unwrap();
        let array = Tensor::zeros(100, DType::F64, &device).unwrap();
        assert!(matches!(array.device().location(), DeviceLocation::Sim { .. }), "{:?}", array.device());
        assert_eq!(cycle.stats().offset, 1024, "800 bytes, as devices round them");
        assert_eq!(Device::Cpu.memory().active, on_host, "no mirror");
        let before = sim_of(&device).calls().copies;
        array.affine(1., 1.).unwrap();
        assert_eq!(sim_of(&device).calls().copies, before, "and none while it computes");
        assert_eq!(values(&array), [0.; 100]);
        assert_eq!(sim_of(&device).calls().copies, before + 1, "a read copies it");
        cycle.leave();
        device.synchronize().unwrap();
        assert_eq!(sim_of(&device).violations(), []);
    });
}

fn sim_of(device: &Device) -> &ndgc::Sim {
    match device {
        Device::Sim(sim) => sim,
        other => panic!("{other} is no simulated device"),
    }
}

#[test]
fn a_loop_uses_its_bytes_again() {
    alone(|| {
        let config = WorkspaceConfig::default();
        for step in 0..10 {
            let _cycle = Workspace::enter("AGAIN", &config).unwrap();
            let a = doubles(100);
            let b = (&a * f64::from(step)).unwrap();
            assert_eq!(sum(&b), 100. * f64::from(step));
        }
        let stats = Workspace::find("AGAIN").unwrap().stats();
        assert_eq!((stats.cycles, stats.generation, stats.renewals, stats.externals), (10, 10, 0, 0));
        assert!(stats.same_addresses >= 8, "{stats:?}");
        assert_eq!(stats.system_allocations, 2, "of the first cycle, and for the block");
    });
}

#[test]
fn r16_host_only_arrays_of_a_device_lie_on_the_host_and_are_brought_there() -> ndgc::Result<()> {
    alone(host_only_arrays)
}

fn host_only_arrays() -> ndgc::Result<()> {
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

#[test]
fn what_is_written_into_a_part_of_an_array_of_a_workspace_is_in_the_array() {
    crate::common::each_case(&[false, true], |device| {
        let cycle = Workspace::enter_on(device, "PARTS", &WorkspaceConfig::default()).unwrap();
        let row = Tensor::ones((1, 2), DType::F64, device).unwrap();
        let x = || Tensor::zeros((3, 2), DType::F64, device).unwrap();
        let sums = |x: &Tensor| x.sum(1).unwrap().to_vec1::<f64>().unwrap();
        let set = x();
        set.slice_set(&row, 0, 1).unwrap();
        assert_eq!(sums(&set), [0., 2., 0.]);
        let set = x();
        set.slice_assign_(ndgc::s![2..], &row).unwrap();
        assert_eq!(sums(&set), [0., 0., 2.]);
        let set = x();
        let points = Tensor::new([[0u32, 1], [2, 0]], &Device::Cpu).unwrap().to_device(device).unwrap();
        set.index_put_(&points, &Tensor::new([5f64, 7.], device).unwrap(), true).unwrap();
        assert_eq!(sums(&set), [5., 0., 7.]);
        let set = x();
        let ids = Tensor::new([[2u32, 2]], &Device::Cpu).unwrap().to_device(device).unwrap();
        set.scatter_set(&ids, &row, 0).unwrap();
        assert_eq!(sums(&set), [0., 0., 2.]);
        assert!(set.is_attached());
        drop((cycle, set));
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}
