//! Workspaces that plan: arrays that do not live together share bytes, whatever the program does with its handles.
//! Invariant I15 (design.md).

use std::collections::VecDeque;

use ndgc::{
    DType, DebugMode, Device, Error, LearningPolicy, PlanDeviation, PlanStats, SimConfig, SpillPolicy, Tensor, Var,
    Workspace, WorkspaceConfig, WorkspaceConfigBuilder,
};

use crate::workspace::support::{alone, doubles, el, filled, leak, refusal, sum, values};

fn planned() -> WorkspaceConfigBuilder {
    WorkspaceConfig::builder().policy_learning(LearningPolicy::Planned)
}

fn made(id: &str, builder: WorkspaceConfigBuilder) -> Workspace {
    Workspace::for_current_thread(id, &builder.build().unwrap()).unwrap()
}

fn plan(workspace: &Workspace) -> PlanStats {
    workspace.stats().plan.expect("one that plans")
}

/// A chain of so many arrays of `n` doubles each, of which two live at a time.
fn chain(links: usize, n: usize) -> f64 {
    let mut x = doubles(n);
    for _ in 0..links {
        x = x.affine(1., 1.).unwrap();
    }
    sum(&x)
}

fn in_cycle<R>(workspace: &Workspace, body: impl FnOnce() -> R) -> R {
    let _cycle = workspace.activate().unwrap();
    body()
}

fn repeat(cycles: usize, workspace: &Workspace, body: impl Fn() -> f64) {
    for _ in 0..cycles {
        in_cycle(workspace, &body);
    }
}

#[test]
fn a_chain_lies_in_the_bytes_of_what_lives_at_once() {
    alone(|| {
        let workspace = made("PLANNED", planned());
        assert_eq!(in_cycle(&workspace, || chain(100, 1000)), 101_000.);
        let first = workspace.stats();
        assert_eq!((first.last_cycle, first.size), (101 * el(1000), 2 * el(1000)));
        for _ in 0..50 {
            assert_eq!(in_cycle(&workspace, || chain(100, 1000)), 101_000.);
        }
        let stats = workspace.stats();
        assert_eq!((stats.size, stats.last_cycle), (2 * el(1000), 2 * el(1000)));
        assert_eq!(stats.same_addresses, 49, "the first of them has the block that the plan wants");
        assert_eq!(stats.system_allocations, first.system_allocations, "nobody is asked for memory");
        let plan = plan(&workspace);
        assert_eq!((plan.bytes, plan.alive), (2 * el(1000), 2 * el(1000)), "no plan needs less");
        assert_eq!((plan.plans, plan.requests, plan.planned_cycles, plan.deviations), (1, 101, 50, 0));
    });
}

/// Without a plan, the same takes all side by side.
#[test]
fn others_do_not_plan() {
    alone(|| {
        let workspace = made("UNPLANNED", WorkspaceConfig::builder().overallocation_limit(0.));
        repeat(3, &workspace, || chain(100, 1000));
        assert_eq!((workspace.stats().size, workspace.stats().plan), (101 * el(1000), None));
    });
}

#[test]
fn a_handle_that_is_kept_longer_keeps_its_array() {
    alone(|| {
        let workspace = made("KEPT", planned());
        repeat(3, &workspace, || chain(10, 100));
        for turn in 0..4 {
            in_cycle(&workspace, || {
                let first = filled(7., 100);
                let second = first.affine(1., 1.).unwrap();
                // Here the plan has the bytes of the first array for the third.
                let mut x = second.clone();
                for _ in 0..9 {
                    x = x.affine(1., 1.).unwrap();
                }
                assert_eq!((sum(&first), sum(&second), sum(&x)), (700., 800., 1700.), "{turn}");
            });
        }
        let plan = plan(&workspace);
        assert_eq!((plan.deviations, plan.planned_cycles), (1, 5), "and from then on it is planned so");
        assert_eq!(plan.last_deviation, Some(PlanDeviation::InUse { request: 2, of: 0 }));
        let text = plan.last_deviation.map(|why| why.to_string());
        assert_eq!(text.as_deref(), Some("the bytes planned for request 2 were still those of the array of request 0"));
    });
}

/// Whatever holds the bytes: a view, a gradient that saved them, an array of another thread.
#[test]
fn views_gradients_and_other_threads_keep_bytes() {
    alone(|| {
        let scratch = |x: Tensor| (0..6).try_fold(x, |x, _| x.affine(2., 0.)).map(drop).unwrap();
        for (name, body) in [
            (
                "a view",
                &(|| {
                    let view = filled(3., 64).narrow(0, 8, 8).unwrap();
                    scratch(doubles(64));
                    assert_eq!(values(&view), [3.; 8]);
                }) as &dyn Fn(),
            ),
            ("a gradient", &|| {
                let x = Var::from_tensor(&filled(3., 64)).unwrap();
                let loss = x.as_tensor().sqr().unwrap().sqr().unwrap().sum_all().unwrap();
                scratch(doubles(64));
                let grads = loss.backward().unwrap();
                assert_eq!(values(grads.get(x.as_tensor()).unwrap()), [108.; 64]);
            }),
            ("another thread", &|| {
                let given = filled(3., 64);
                let (done, waits) = std::sync::mpsc::channel::<()>();
                std::thread::scope(|scope| {
                    let reader = scope.spawn(move || {
                        waits.recv().unwrap();
                        values(&given)
                    });
                    scratch(doubles(64));
                    done.send(()).unwrap();
                    assert_eq!(reader.join().unwrap(), [3.; 64]);
                });
            }),
        ] {
            let workspace = made(name, planned());
            // Learned while nothing keeps anything.
            for _ in 0..3 {
                in_cycle(&workspace, || {
                    drop(filled(3., 64));
                    scratch(doubles(64));
                });
            }
            (0..4).for_each(|_| in_cycle(&workspace, body));
        }
    });
}

#[test]
fn what_is_left_over_from_a_cycle_says_nothing_about_the_next() {
    alone(|| {
        let workspace = made("LEFT OVER", planned());
        let mut left = VecDeque::new();
        for cycle in 0..20 {
            in_cycle(&workspace, || {
                let kept = filled(f64::from(cycle), 100);
                let drops: Option<Tensor> = (left.len() > 2).then(|| left.pop_front()).flatten();
                // The request of the same number in an earlier cycle ends now. This one's array goes on.
                drop(drops);
                chain(5, 100);
                assert_eq!(values(&kept), [f64::from(cycle); 100]);
                left.push_back(kept);
            });
        }
        assert!(leak(left[0].to_vec::<f64>()).contains("LEFT OVER"));
        assert!(plan(&workspace).planned_cycles > 15);
    });
}

/// The handle's request has the number of one of this cycle, whose bytes the plan wants next.
#[test]
fn a_handle_of_an_earlier_cycle_ends_nothing_of_this_one() {
    alone(|| {
        let workspace = made("EARLIER", planned());
        for _ in 0..3 {
            in_cycle(&workspace, || {
                drop(filled(1., 100));
                chain(3, 100)
            });
        }
        let left = in_cycle(&workspace, || filled(2., 100));
        in_cycle(&workspace, || {
            let kept = filled(3., 100);
            drop(left);
            chain(3, 100);
            assert_eq!(values(&kept), [3.; 100]);
        });
        assert_eq!(plan(&workspace).last_deviation, Some(PlanDeviation::InUse { request: 1, of: 0 }));
    });
}

#[test]
fn smaller_batches_go_by_the_plan_and_larger_ones_make_their_own() {
    alone(|| {
        let workspace = made("BATCHES", planned());
        for rows in [100, 100, 30, 100, 1, 400, 400, 30, 400] {
            assert_eq!(in_cycle(&workspace, || chain(10, rows)), 11. * rows as f64);
        }
        let plan = plan(&workspace);
        assert_eq!((plan.plans, plan.deviations, plan.bytes), (1, 1, 2 * el(400)));
        let larger = PlanDeviation::Larger { request: 0, planned: el(100), asked: el(400) };
        assert_eq!(plan.last_deviation, Some(larger));
        assert_eq!(workspace.stats().size, 2 * el(400));
    });
}

#[test]
fn lengths_that_always_change_need_no_more_than_a_workspace_without_a_plan() {
    alone(|| {
        let workspace = made("LENGTHS", planned());
        for cycle in 0..300 {
            let (links, n) = (5 + cycle * 7 % 31, 10 + cycle * 13 % 97);
            assert_eq!(in_cycle(&workspace, || chain(links, n)), ((links + 1) * n) as f64);
        }
        let stats = workspace.stats();
        assert!(stats.size <= 2 * stats.max_cycle, "{stats:?}");
        let before = stats.system_allocations;
        for cycle in 0..300 {
            in_cycle(&workspace, || chain(5 + cycle * 7 % 31, 10 + cycle * 13 % 97));
        }
        assert!(workspace.stats().system_allocations - before < 40, "{:?}", workspace.stats());
    });
}

#[test]
fn entries_inside_it_end_where_they_end() {
    alone(|| {
        let config = planned().build().unwrap();
        let inner = WorkspaceConfig::default();
        for _ in 0..6 {
            let outer = Workspace::enter("OUTER", &config).unwrap();
            let kept = filled(1., 50);
            for turn in 0..5 {
                let _between = Workspace::enter("BETWEEN", &inner).unwrap();
                let nested = Workspace::enter("OUTER", &config).unwrap();
                let array = filled(f64::from(turn), 500);
                assert_eq!(sum(&array), 500. * f64::from(turn));
                drop(nested);
                // Its handle is there, and its bytes are not.
                assert!(leak(array.to_vec::<f64>()).contains("OUTER"));
            }
            assert_eq!(sum(&kept), 50.);
            let scoped = Workspace::scope_out();
            assert!(!doubles(3).is_attached());
            drop(scoped);
            outer.leave();
        }
        let workspace = Workspace::find("OUTER").unwrap();
        assert_eq!(plan(&workspace).alive, el(50) + el(500));
        assert_eq!(workspace.stats().size, el(50) + el(500));
    });
}

#[test]
fn what_is_switched_off_is_not_planned() {
    alone(|| {
        let workspace = made("OFF", planned());
        for _ in 0..4 {
            in_cycle(&workspace, || {
                chain(10, 100);
                workspace.toggle_use(false);
                chain(3, 5000);
                workspace.toggle_use(true);
                chain(10, 100);
            });
        }
        assert_eq!((workspace.stats().size, plan(&workspace).requests), (2 * el(100), 22));
        Workspace::set_debug_mode(DebugMode::SpillEverything);
        assert_eq!(in_cycle(&workspace, || chain(10, 100)), 1100.);
        Workspace::set_debug_mode(DebugMode::Disabled);
        in_cycle(&workspace, || chain(10, 100));
        assert_eq!(plan(&workspace).deviations, 0);
    });
}

#[test]
fn sizes_that_are_given_hold() {
    alone(|| {
        let workspace = made("GIVEN", planned().initial_size(1 << 20));
        repeat(30, &workspace, || chain(10, 100));
        assert_eq!(workspace.stats().size, 1 << 20);
        let workspace = made("AT MOST", planned().max_size(el(100)));
        for _ in 0..30 {
            assert_eq!(in_cycle(&workspace, || chain(10, 100)), 1100.);
            let stats = workspace.stats();
            assert!(stats.size <= el(100), "{stats:?}");
        }
        // Refused where it does not fit, and as before afterwards.
        let workspace = made("FAILS", planned().policy_spill(SpillPolicy::Fail));
        repeat(3, &workspace, || chain(10, 100));
        for _ in 0..3 {
            let refused = in_cycle(&workspace, || Tensor::ones(1000, DType::F64, &Device::Cpu));
            assert!(matches!(refused, Err(Error::WorkspaceFull(_))), "{refused:?}");
            assert_eq!(in_cycle(&workspace, || chain(10, 100)), 1100.);
        }
    });
}

#[test]
fn trim_and_initialize_keep_to_the_plan() {
    alone(|| {
        let workspace = made("TRIMMED", planned());
        in_cycle(&workspace, || chain(10, 100));
        assert_eq!(workspace.trim().unwrap(), 0);
        workspace.initialize().unwrap();
        assert_eq!(workspace.stats().size, 2 * el(100));
        let cycle = workspace.activate().unwrap();
        assert!(refusal(workspace.trim()).contains("it is open"));
        drop(cycle);
    });
}

/// The simulated device reports bytes that are read before they were written, and writes to those of others.
#[test]
fn on_a_device_too() {
    alone(|| {
        let sim = Device::sim(SimConfig::default());
        let config = planned().build().unwrap();
        for cycle in 0..8 {
            Workspace::cycle_on(&sim, "ON A DEVICE", &config, || {
                let kept = Tensor::full(f64::from(cycle), 100, &sim)?;
                let mut x = kept.affine(1., 1.)?;
                for _ in 0..10 {
                    x = (&x + &kept)?;
                }
                assert_eq!(x.to_vec::<f64>()?, [1. + 11. * f64::from(cycle); 100]);
                Ok::<(), Error>(())
            })
            .unwrap();
        }
        let workspace = Workspace::find("ON A DEVICE").unwrap();
        assert!(workspace.stats().size <= 4 * 1024, "{:?}", workspace.stats());
        assert_eq!((plan(&workspace).deviations, plan(&workspace).planned_cycles), (0, 7));
    });
}

/// Programs that are much alike from cycle to cycle, in which every array that lives is read after each step.
#[test]
fn random_programs_find_their_arrays_as_they_were() {
    let mut state = 1u64;
    let mut of = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % n
    };
    alone(move || {
        let mut followed = 0;
        for program in 0..40 {
            let workspace = made(&format!("PROGRAM {program}"), planned());
            let mut steps: Vec<(usize, usize, usize)> = (0..1 + of(30)).map(|_| (of(6), of(8), 1 + of(200))).collect();
            for cycle in 0..25 {
                if cycle > 2 && of(5) == 0 {
                    let at = of(steps.len());
                    steps[at] = (of(6), of(8), 1 + of(200));
                }
                let _cycle = workspace.activate().unwrap();
                let mut live: Vec<(Tensor, f64)> = Vec::new();
                for &(what, which, n) in &steps {
                    let at = if live.is_empty() { 0 } else { which % live.len() };
                    match (what, live.is_empty()) {
                        (0 | 1, _) | (_, true) => {
                            live.push((filled((n * 3 + cycle) as f64, n), (n * 3 + cycle) as f64))
                        }
                        (2, _) => {
                            let (array, value) = &live[at];
                            let next = (array.affine(1., 2.).unwrap(), value + 2.);
                            live.push(next);
                        }
                        (3, _) => {
                            let (array, value) = &live[at];
                            let view = (array.narrow(0, 0, 1).unwrap(), *value);
                            live.push(view);
                        }
                        _ => drop(live.swap_remove(at)),
                    }
                    for (array, value) in &live {
                        assert!(values(array).iter().all(|x| x == value), "program {program}, cycle {cycle}");
                    }
                }
            }
            followed += plan(&workspace).planned_cycles;
            workspace.destroy().unwrap();
        }
        assert!(followed > 500, "{followed}");
    });
}
