//! Debug modes: what becomes of arrays, sizes and rings while workspaces are switched off to look for an error.

use std::thread;

use ndgc::nn::Prefetch;
use ndgc::{DType, DebugMode, Device, Error, NdManager, Tensor, Workspace};

use crate::workspace::rings::{MIB, assert_filled, cycle, made, padded, ring, strict};
use crate::workspace::support::{alone, basic, el, filled};

/// A debug mode, until this is dropped.
struct Mode;

impl Mode {
    fn set(mode: DebugMode) -> Self {
        Workspace::set_debug_mode(mode);
        Mode
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        Workspace::set_debug_mode(DebugMode::Disabled);
    }
}

#[test]
fn w61_a_mode_is_what_it_was_set_to() {
    alone(|| {
        assert_eq!(Workspace::debug_mode(), DebugMode::Disabled);
        for mode in [DebugMode::SpillEverything, DebugMode::BypassEverything, DebugMode::Disabled] {
            let _mode = Mode::set(mode);
            assert_eq!(Workspace::debug_mode(), mode);
        }
        assert_eq!(Workspace::debug_mode(), DebugMode::Disabled);
    });
}

#[test]
fn w61_spill_everything_goes_beside_a_block_that_is_there() {
    alone(|| {
        let workspace = made("W61_SPILL", basic());
        let mode = Mode::set(DebugMode::SpillEverything);
        let entered = workspace.activate().unwrap();
        let array = filled(1., 100);
        let stats = entered.stats();
        assert!(array.is_attached() && array.is_in_scope());
        assert_eq!((stats.offset, stats.spilled, stats.size), (0, el(100), 10 * MIB));
        assert_filled(&array, 1.);
        entered.leave();
        assert!(matches!(array.to_vec::<f64>(), Err(Error::LeakedArray(_))), "it ends with its cycle all the same");
        drop(mode);
        let _cycle = workspace.activate().unwrap();
        let _array = filled(1., 100);
        assert_eq!(workspace.stats().offset, el(100));
    });
}

#[test]
fn w61_spill_everything_learns_nothing() {
    alone(|| {
        let workspace = made("W61_LEARN", strict());
        let mode = Mode::set(DebugMode::SpillEverything);
        for _ in 0..3 {
            let stats = cycle(&workspace, &[100, 3]);
            assert_eq!((stats.size, stats.spilled, stats.externals), (0, 0, 0));
        }
        drop(mode);
        assert_eq!(cycle(&workspace, &[100]).size, el(100));
    });
}

#[test]
fn w61_bypass_everything_makes_detached_arrays() {
    alone(|| {
        let workspace = made("W61_BYPASS", basic());
        let mode = Mode::set(DebugMode::BypassEverything);
        let entered = workspace.activate().unwrap();
        assert!(!entered.is_open() && Workspace::current().is_none());
        let array = filled(1., 100);
        assert!(!array.is_attached());
        assert_eq!((entered.stats().offset, entered.stats().generation), (0, 0));
        entered.leave();
        assert_filled(&array, 1.);
        drop(mode);
        assert!(workspace.activate().unwrap().is_open());
    });
}

#[test]
fn w61_bypass_everything_lets_a_program_borrow_and_lease() {
    alone(|| {
        let (plain, circle) = (made("W61_BORROW", basic()), made("W61_LEASE", ring(3)));
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        // As it runs with workspaces, and without.
        for mode in [DebugMode::Disabled, DebugMode::BypassEverything] {
            let _mode = Mode::set(mode);
            let attached = mode == DebugMode::Disabled;
            let cycle = plain.activate().unwrap();
            let (array, managed) = {
                let _out = Workspace::scope_out();
                let _borrowed = plain.borrow().unwrap();
                (filled(1., 100), manager.ones(3, DType::F64).unwrap())
            };
            assert_eq!([array.is_attached(), managed.is_attached()], [attached; 2]);
            assert_eq!(manager.array_count(), usize::from(!attached), "else it belongs to whom it would outside");
            let (batch, lease) = {
                let _cycle = circle.activate().unwrap();
                (filled(2., 100), circle.lease().unwrap())
            };
            cycle.leave();
            assert_eq!(array.is_in_scope(), !attached);
            let read = thread::spawn(move || (batch.to_vec::<f64>(), drop(lease)).0);
            assert_eq!(read.join().unwrap().unwrap(), [2.; 100]);
            assert!(matches!(plain.lease(), Err(Error::Workspace { op: "lease", .. })), "it is no ring");
        }
        assert!(Workspace::current().is_none());
        assert!(matches!(circle.lease(), Err(Error::Workspace { op: "lease", .. })), "outside of a cycle");
        assert!(matches!(plain.borrow(), Err(Error::Workspace { op: "borrow", .. })), "outside of a cycle");
    });
}

#[test]
fn w61_a_mode_holds_for_cycles_that_begin_later() {
    alone(|| {
        let workspace = made("W61_LATER", basic());
        let _cycle = workspace.activate().unwrap();
        let _mode = Mode::set(DebugMode::SpillEverything);
        let _array = filled(1., 100);
        assert_eq!((workspace.stats().offset, workspace.stats().spilled), (el(100), 0));
    });
}

#[test]
fn w61_rings_keep_their_last_cycles_in_each_mode() {
    alone(|| {
        for mode in [DebugMode::SpillEverything, DebugMode::Disabled] {
            let workspace = made(&format!("W61_RING {mode:?}"), ring(3));
            cycle(&workspace, &[100]);
            assert_eq!(workspace.stats().size, 4 * padded(el(100)));
            let _mode = Mode::set(mode);
            let mut last: Vec<Tensor> = Vec::new();
            for number in 0..30 {
                let entered = workspace.activate().unwrap();
                last.push(filled(f64::from(number), 100));
                entered.leave();
                let newest = last.iter().rev().take(4).zip((0..=number).rev());
                newest.for_each(|(array, number)| assert_filled(array, f64::from(number)));
            }
            let ended = last.iter().filter(|array| !array.is_in_scope()).count();
            assert!(ended > 0, "and give the others up");
        }
    });
}

#[test]
fn w61_batches_come_ahead_in_each_mode() {
    alone(|| {
        for mode in [DebugMode::SpillEverything, DebugMode::BypassEverything] {
            let _mode = Mode::set(mode);
            let producer = |number: usize| {
                if number < 20 { Tensor::full(number as f64, 50, &Device::Cpu).map(Some) } else { Ok(None) }
            };
            let batches = Prefetch::new(&ring(3).build().unwrap(), 2, producer).unwrap();
            let all: Vec<_> = batches.map(Result::unwrap).collect();
            all.iter().enumerate().for_each(|(number, batch)| assert_filled(batch, number as f64));
            assert_eq!(all[0].is_attached(), mode == DebugMode::SpillEverything);
        }
    });
}
