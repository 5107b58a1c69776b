//! How cycles begin and end: any way out, any nesting, other threads, destruction. R4 to R6, R14; A4.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ndgc::{
    Device, Error, LearningPolicy, Result, SimConfig, SpillPolicy, Tensor, Workspace, WorkspaceConfig,
    destroy_all_workspaces_for_current_thread,
};

use crate::workspace::rings::in_use;
use crate::workspace::support::{alone, basic, doubles, el, filled, leak, loop_first, refusal, sum};

fn config() -> WorkspaceConfig {
    basic().build().unwrap()
}

fn current() -> Option<String> {
    Workspace::current().map(|workspace| workspace.id().to_owned())
}

#[test]
fn a4_1_an_array_used_after_its_cycle_is_an_error() {
    alone(|| {
        let array = Workspace::cycle("A4", &config(), || Ok::<_, ndgc::Error>(doubles(10))).unwrap();
        assert!(leak(array.sum_all()).starts_with("Op [sum_all] X argument uses leaked workspace pointer"));
    });
}

#[test]
fn a4_2_the_first_cycle_is_generation_1_and_the_second_is_2() {
    alone(|| {
        let first = Workspace::enter("A4", &config()).unwrap();
        assert_eq!(first.stats().generation, 1);
        let array = doubles(10);
        first.leave();
        let second = Workspace::enter("A4", &config()).unwrap();
        assert_eq!(second.stats().generation, 2);
        let text = leak(array.add(&doubles(10)));
        assert!(text.contains("in cycle 1, ended with its cycle; the workspace is in cycle 2"), "{text}");
    });
}

#[test]
fn a4_3_an_array_of_an_outer_workspace_is_used_in_an_inner_one() {
    alone(|| {
        let _outer = Workspace::enter("A4_OUTER", &config()).unwrap();
        let array = doubles(10);
        let sum_of_both = {
            let _inner = Workspace::enter("A4_INNER", &config()).unwrap();
            array.add(&filled(2., 10)).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap()
        };
        assert_eq!(sum_of_both, 30.);
    });
}

#[test]
fn r4_return_question_mark_and_panic_restore_what_was_current_at_every_depth() {
    fn deep(way: u32) -> Result<()> {
        let _a = Workspace::enter("R4_A", &config())?;
        let _b = Workspace::enter("R4_B", &config())?;
        let _again = Workspace::enter("R4_B", &config())?;
        let _borrowed = Workspace::find("R4_A").unwrap().borrow()?;
        let _out = Workspace::scope_out();
        let _c = Workspace::enter("R4_C", &config())?;
        let array = doubles(3);
        match way {
            0 => return Ok(()),
            1 => array.add(&doubles(4)).map(drop)?,
            _ => std::panic::panic_any("on purpose"),
        }
        Ok(())
    }
    alone(|| {
        let outer = Workspace::enter("R4", &config()).unwrap();
        let kept = doubles(10);
        let offset = outer.stats().offset;
        for way in 0..3 {
            let left = catch_unwind(AssertUnwindSafe(|| deep(way)));
            assert!(matches!((way, left), (0, Ok(Ok(()))) | (1, Ok(Err(_))) | (2, Err(_))), "way {way}");
            assert!(Workspace::current().unwrap().is_same(&outer));
            for name in ["R4_A", "R4_B", "R4_C"] {
                let stats = Workspace::find(name).unwrap().stats();
                assert_eq!((stats.open, stats.cycles, stats.offset), (false, u64::from(way) + 1, 0), "{name}");
            }
            assert_eq!(outer.stats().offset, offset);
        }
        assert_eq!(sum(&kept), 10.);
        outer.leave();
        assert_eq!(current(), None);
    });
}

/// In ND4J a workspace that is closed before the one inside it leaves none current.
#[test]
fn r4_guards_that_fall_out_of_order_end_a_cycle_when_its_own_and_all_inner_ones_are_gone() {
    alone(|| {
        let a = Workspace::enter("R4_A", &config()).unwrap();
        let in_a = doubles(1);
        let b = Workspace::enter("R4_B", &config()).unwrap();
        let in_b = filled(2., 1);
        let out = Workspace::scope_out();
        drop(a);
        assert_eq!(current(), None, "the scope-out goes on");
        assert!(in_a.is_in_scope() && in_b.is_in_scope());
        drop(out);
        assert_eq!(current().as_deref(), Some("R4_B"));
        assert_eq!((sum(&in_a), sum(&in_b)), (1., 2.));
        drop(b);
        assert_eq!(current(), None);
        assert!(!in_a.is_in_scope() && !in_b.is_in_scope());
        for name in ["R4_A", "R4_B"] {
            assert_eq!(Workspace::find(name).unwrap().stats().cycles, 1);
        }
        let _cycle = Workspace::enter("R4_A", &config()).unwrap();
        leak(in_a.to_vec::<f64>());
    });
}

#[test]
fn r4_a_forgotten_guard_leaves_its_cycle_open_and_everything_works_on() {
    alone(|| {
        let outer = Workspace::enter("R4_A", &config()).unwrap();
        let before = doubles(1);
        std::mem::forget(Workspace::enter("R4_B", &config()).unwrap());
        let inside = filled(2., 1);
        assert_eq!(current().as_deref(), Some("R4_B"));
        // Its cycle goes on, and with it those outside: nothing is overwritten, nothing dangles.
        drop(outer);
        assert_eq!((sum(&before), sum(&inside)), (1., 2.));
        let later = filled(3., 1);
        assert!(later.is_attached());
        for step in 0..3 {
            let _cycle = Workspace::enter("R4_C", &config()).unwrap();
            assert_eq!(sum(&filled(f64::from(step), 4)), 4. * f64::from(step));
        }
        assert!(refusal(destroy_all_workspaces_for_current_thread()).contains("it is open; leave it first"));
        assert!(refusal(Workspace::find("R4_B").unwrap().destroy()).contains("it is open; leave it first"));
        assert_eq!((sum(&before), sum(&inside), sum(&later)), (1., 2., 3.));
    });
}

#[test]
fn r4_a_thread_that_forgot_its_guards_ends_its_workspaces_all_the_same() {
    alone(|| {
        let before = in_use(&Device::Cpu);
        let array = std::thread::spawn(|| {
            std::mem::forget(Workspace::enter("R4_T", &config()).unwrap());
            let array = filled(2., 10);
            // Nobody leaves it, and to enter it again goes on with the same cycle.
            let again = Workspace::enter("R4_T", &config()).unwrap();
            assert_eq!((again.stats().generation, current().as_deref()), (1, Some("R4_T")));
            drop(again);
            assert_eq!((current().as_deref(), sum(&array)), (Some("R4_T"), 20.));
            array
        })
        .join()
        .unwrap();
        let text = leak(array.exp());
        assert!(text.contains("workspace [R4_T]") && text.contains("the workspace was destroyed"), "{text}");
        drop(array);
        assert_eq!(in_use(&Device::Cpu), before, "its memory came back");
    });
}

#[test]
fn r5_entering_an_open_workspace_keeps_its_older_arrays() {
    alone(|| {
        let a = Workspace::enter("R5_A", &config()).unwrap();
        let old = filled(1., 100);
        let (offset, generation) = (a.stats().offset, a.stats().generation);
        let b = Workspace::enter("R5_B", &config()).unwrap();
        let nested = Workspace::enter("R5_A", &config()).unwrap();
        assert!(nested.is_same(&a) && Workspace::current().unwrap().is_same(&a));
        let young = filled(2., 50);
        assert_eq!(a.stats().offset, offset + el(50));
        assert_eq!((sum(&old), sum(&young)), (100., 100.));
        drop(nested);
        assert_eq!(current().as_deref(), Some("R5_B"));
        assert_eq!((a.stats().offset, a.stats().generation, a.stats().cycles), (offset, generation, 0));
        assert!(young.is_attached() && !young.is_in_scope() && old.is_in_scope());
        leak(young.to_vec::<f64>());
        drop(b);
        let over = filled(3., 50);
        assert_eq!((sum(&old), sum(&over)), (100., 150.));
        leak(young.to_vec::<f64>());
        drop(a);
        assert_eq!(current(), None);
        leak(old.to_vec::<f64>());
    });
}

/// A copy would end with the inner entry, which the array outlives.
#[test]
fn r5_an_array_of_an_older_entry_is_there_already_and_is_not_copied_into_the_inner_one() {
    alone(|| {
        let a = Workspace::enter("R5_A", &config()).unwrap();
        let old = filled(1., 100);
        let b = Workspace::enter("R5_B", &config()).unwrap();
        let of_b = filled(2., 10);
        let nested = Workspace::enter("R5_A", &config()).unwrap();
        let offset = nested.stats().offset;
        for same in [old.leverage_to("R5_A"), old.leverage_or_detach("R5_A"), old.migrate(false)] {
            assert!(same.unwrap().is_same(&old), "it is there already");
        }
        assert_eq!(nested.stats().offset, offset);
        let copy = of_b.leverage_to("R5_A").unwrap();
        assert_eq!((copy.is_same(&of_b), sum(&copy)), (false, 20.));
        drop(nested);
        leak(copy.to_vec::<f64>());
        assert_eq!((sum(&old), sum(&of_b)), (100., 20.));
        drop(b);
        drop(a);
    });
}

#[test]
fn r5_a_scope_out_between_makes_no_difference() {
    alone(|| {
        let a = Workspace::enter("R5_A", &config()).unwrap();
        let old = filled(1., 100);
        let (offset, generation) = (a.stats().offset, a.stats().generation);
        for round in 0..3 {
            let out = Workspace::scope_out();
            let young = {
                let _nested = Workspace::enter("R5_A", &config()).unwrap();
                let first = filled(2., 50);
                // Another level, of the same.
                let _out = Workspace::scope_out();
                let inner = Workspace::enter("R5_A", &config()).unwrap();
                let second = filled(4., 10);
                assert_eq!(sum(&first.add(&filled(1., 50)).unwrap()) + sum(&second), 190.);
                drop(inner);
                leak(second.exp());
                assert_eq!(sum(&first), 100.);
                first
            };
            assert_eq!(current(), None, "round {round}");
            drop(out);
            assert_eq!((a.stats().offset, a.stats().generation), (offset, generation), "round {round}");
            leak(young.exp());
        }
        assert_eq!(sum(&old), 100.);
    });
}

#[test]
fn r5_a_nested_entry_that_spills_ends_its_arrays_too() {
    alone(|| {
        let small = loop_first().initial_size(1024).policy_learning(LearningPolicy::None).build().unwrap();
        let a = Workspace::enter("R5_A", &small).unwrap();
        let old = filled(1., 100);
        let _b = Workspace::enter("R5_B", &config()).unwrap();
        let young = {
            let _nested = Workspace::enter("R5_A", &small).unwrap();
            let young = filled(2., 1000);
            assert_eq!((sum(&young), a.stats().spilled), (2000., el(1000)));
            young
        };
        leak(young.exp());
        assert_eq!(sum(&old), 100.);
        assert_eq!(a.stats().offset, el(100));
    });
}

/// ND4J keeps the old configuration, without a word.
#[test]
fn r6_another_configuration_or_device_for_a_name_is_an_error() {
    alone(|| {
        let cycle = Workspace::enter("R6", &config()).unwrap();
        let array = doubles(10);
        let other = basic().policy_spill(SpillPolicy::Fail).build().unwrap();
        let text = refusal(Workspace::enter("R6", &other));
        assert_eq!(
            text,
            "workspace: workspace [R6]: it exists on this thread with another configuration; use that one, another \
             name, or destroy() it first"
        );
        let text = refusal(Workspace::enter_on(&Device::sim(SimConfig::default()), "R6", &config()));
        assert!(text.contains("it exists on this thread for another device"), "{text}");
        assert!(matches!(Workspace::cycle("R6", &other, || Ok(())), Err(Error::Workspace { .. })));
        assert!(Workspace::current().unwrap().is_same(&cycle));
        assert_eq!(sum(&array), 10.);
        assert_eq!((cycle.stats().generation, cycle.configuration()), (1, &config()));
        let workspace = cycle.workspace();
        cycle.leave();
        workspace.destroy().unwrap();
        // An equal name is free again.
        assert_eq!(Workspace::enter("R6", &other).unwrap().stats().generation, 1);
    });
}

#[test]
fn r6_workspaces_of_two_threads_with_one_name_do_not_meet() {
    alone(|| {
        let cycle = Workspace::enter("R6", &config()).unwrap();
        let mine = filled(1., 100);
        let other = std::thread::spawn(|| {
            assert!(Workspace::current().is_none() && Workspace::find("R6").is_none());
            // Another configuration is no contradiction there.
            let theirs = Workspace::enter("R6", &loop_first().build().unwrap()).unwrap();
            let array = filled(2., 100);
            assert_eq!((theirs.stats().generation, sum(&array)), (1, 200.));
            drop(theirs);
            assert_eq!(Workspace::all_for_current_thread().len(), 1);
            array
        });
        let theirs = other.join().unwrap();
        assert_eq!((sum(&mine), cycle.stats().offset), (100., el(100)));
        leak(theirs.add(&mine));
    });
}

#[test]
fn r14_arrays_of_a_destroyed_workspace_are_errors_and_nothing_dangles() {
    alone(|| {
        let array = Workspace::cycle("R14", &config(), || Ok::<_, ndgc::Error>(filled(2., 1000))).unwrap();
        let view_error = leak(array.narrow(0, 0, 10));
        assert!(view_error.contains("the workspace is closed after cycle 1"), "{view_error}");
        let workspace = Workspace::find("R14").unwrap();
        workspace.destroy().unwrap();
        assert!(Workspace::find("R14").is_none() && !array.is_in_scope() && array.is_attached());
        let text = leak(array.to_vec::<f64>());
        assert!(
            text.contains("workspace [R14]") && text.contains("the workspace was destroyed after cycle 1"),
            "{text}"
        );
        // The workspace's own handle says so too.
        for refused in [
            refusal(workspace.activate()),
            refusal(workspace.borrow()),
            refusal(workspace.initialize()),
            refusal(workspace.trim()),
            refusal(workspace.lease()),
            refusal(workspace.destroy()),
        ] {
            assert!(refused.ends_with("it was destroyed; enter one of this name again"), "{refused}");
        }
        assert_eq!((workspace.stats().size, workspace.stats().open), (0, false));
        let other = Workspace::enter("R14", &config()).unwrap();
        let same_place = filled(3., 1000);
        leak(array.to_vec::<f64>());
        assert_eq!((sum(&same_place), other.stats().generation), (3000., 1));
    });
}

#[test]
fn r14_destroying_all_ends_their_arrays_and_refuses_while_one_is_open() {
    alone(|| {
        let arrays: Vec<Tensor> = (0..5)
            .map(|i| {
                Workspace::cycle(&format!("R14_{i}"), &config(), || Ok::<_, ndgc::Error>(filled(f64::from(i), 100)))
                    .unwrap()
            })
            .collect();
        let open = Workspace::enter("R14_OPEN", &config()).unwrap();
        let in_open = doubles(3);
        let text = refusal(destroy_all_workspaces_for_current_thread());
        assert_eq!(text, "destroy_all_workspaces_for_current_thread: workspace [R14_OPEN]: it is open; leave it first");
        assert_eq!(Workspace::all_for_current_thread().len(), 6, "all stay");
        assert_eq!(sum(&in_open), 3.);
        open.leave();
        destroy_all_workspaces_for_current_thread().unwrap();
        assert!(Workspace::all_for_current_thread().is_empty());
        for array in &arrays {
            assert!(leak(array.exp()).contains("the workspace was destroyed after cycle 1"));
        }
        destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn r14_handles_elsewhere_outlive_the_thread_of_their_workspace() {
    alone(|| {
        let (send, receive) = std::sync::mpsc::channel::<Tensor>();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _cycle = Workspace::enter("R14_T", &config()).unwrap();
            send.send(filled(2., 1000)).unwrap();
            wait.recv().unwrap();
        });
        let array = receive.recv().unwrap();
        assert_eq!(sum(&array), 2000., "while the cycle goes on, any thread may use it");
        go.send(()).unwrap();
        thread.join().unwrap();
        let text = leak(array.to_vec::<f64>());
        assert!(text.contains("workspace [R14_T]") && text.contains("was destroyed after cycle 1"), "{text}");
        assert_eq!((array.dims(), array.is_in_scope()), (&[1000][..], false));
    });
}
