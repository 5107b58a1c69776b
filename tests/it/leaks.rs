//! What ends with a manager: asked before its close, and said at it.

use std::sync::{Arc, mpsc::channel};
use std::thread;
use std::time::Duration;

use ndgc::{DType, Device, NdManager, Tensor, gc, memory};

use crate::it::support::{alone, base, block, both, in_child, is_child, mask, switched};

fn told(manager: &NdManager) -> String {
    mask(&manager.leak_report().to_string())
}

#[test]
fn what_would_end_with_a_manager_is_told_by_line() {
    switched(false, |device| {
        let session = base(device);
        session.set_name("session");
        assert_eq!(told(&session), "manager session, made at HERE: no array ends with it");
        let model = session.zeros(256, DType::F32).unwrap();
        assert_eq!(
            told(&session),
            "manager session, made at HERE: 1 array, 1.00 KiB, ends with it; all have handles, each use of which is an \
             error then\n    \
             1 array, 1.00 KiB, made at HERE, the oldest AGE s old",
        );
        (0..10).for_each(|_| drop(model.exp().unwrap()));
        let batch = session.child("batch").unwrap();
        drop(batch.zeros(512, DType::F32).unwrap());
        let report = session.leak_report();
        assert_eq!((report.arrays(), report.bytes(), report.managers), (12, 13 << 10, 1));
        assert_eq!((report.dead(), report.dead_bytes(), report.held()), (11, 12 << 10, 1));
        assert_eq!(
            mask(&report.to_string()),
            "manager session, made at HERE, with 1 manager below it: 12 arrays, 13.00 KiB, end with it; 11 (12.00 KiB) \
             without a handle, 1 with handles\n    \
             10 arrays, 10.00 KiB, made at HERE, 10 of them without a handle, the oldest AGE s old\n    \
             1 array, 2.00 KiB, made at HERE, 1 of them without a handle, the oldest AGE s old\n    \
             1 array, 1.00 KiB, made at HERE, the oldest AGE s old",
        );
        drop(model);
        assert!(told(&session).contains("end with it; nobody has a handle of them\n"), "{}", told(&session));
        session.close().unwrap();
        assert!(session.leak_report().is_empty() && batch.leak_report().is_empty(), "closed: they ended");
    });
}

#[test]
fn what_goes_back_to_a_lender_or_was_closed_is_not_in_it() {
    both(|device| {
        let (owner, borrower) = (base(device), base(device));
        let (lent, closed) = (block(&owner), block(&borrower));
        lent.temp_attach(&borrower).unwrap();
        closed.close();
        assert!(borrower.leak_report().is_empty(), "{}", told(&borrower));
        drop(block(&borrower));
        let kept = u64::from(!gc::is_on());
        let report = borrower.leak_report();
        assert_eq!((report.dead(), report.held()), (kept, 0), "with the switch on nothing stays");
        borrower.close().unwrap();
        assert_eq!(owner.leak_report().held(), 1, "it came back");
        let system = NdManager::system(device).leak_report();
        assert_eq!((system.held(), system.managers), (1, 1));
    });
}

#[test]
fn a_long_report_is_cut() {
    alone(|| {
        let manager = base(&Device::Cpu);
        let (of, u8) = (&manager, DType::U8);
        #[rustfmt::skip]
        let held = [
            of.zeros(1, u8), of.zeros(2, u8), of.zeros(3, u8), of.zeros(4, u8), of.zeros(5, u8),
            of.zeros(6, u8), of.zeros(7, u8), of.zeros(8, u8), of.zeros(9, u8), of.zeros(10, u8),
        ];
        let report = manager.leak_report();
        assert_eq!((report.lines.len(), report.bytes()), (10, 55), "each place in a line is one");
        let text = report.to_string();
        assert_eq!(text.lines().count(), 10, "{text}");
        assert!(text.ends_with("\n    and 2 lines more"), "{text}");
        drop(held);
    });
}

/// The setting is read once, so in processes of their own.
#[test]
fn a_close_says_what_ends_with_it_where_that_is_wanted() {
    if is_child() {
        let manager = base(&Device::Cpu);
        manager.set_name("session");
        let batch = manager.child("batch").unwrap();
        let _x = block(&batch);
        manager.close().unwrap();
        manager.close().unwrap();
        drop((manager, batch));
        base(&Device::Cpu).close().unwrap();
        let dropped = base(&Device::Cpu);
        dropped.set_name("dropped");
        let (_y, before) = (block(&dropped), memory::set_leak_reports(false));
        drop(block(&base(&Device::Cpu)));
        memory::set_leak_reports(before);
        drop(dropped);
        return;
    }
    let test = "it::leaks::a_close_says_what_ends_with_it_where_that_is_wanted";
    for (wanted, times) in [("on", usize::from(cfg!(debug_assertions))), ("off", 0), ("", 0)] {
        let output = in_child(test, &[("NDGC_LEAKS", wanted)]);
        let text = mask(&String::from_utf8_lossy(&output.stderr));
        let held = "ends with it; all have handles, each use of which is an error then\n    1 array, 64 B, made at HERE, \
                    the oldest AGE s old\n";
        let session = format!("ndgc: manager session, made at HERE, with 1 manager below it: 1 array, 64 B, {held}");
        let dropped = format!("ndgc: manager dropped, made at HERE: 1 array, 64 B, {held}");
        assert_eq!(text.matches("ndgc: manager").count(), 2 * times, "once each: {text}");
        assert_eq!((text.matches(&session).count(), text.matches(&dropped).count()), (times, times), "{text}");
    }
    let text = String::from_utf8(in_child(test, &[("NDGC_LEAKS", "yes")]).stderr).unwrap();
    assert!(text.contains("ndgc: NDGC_LEAKS=yes is not understood; it may be on or off") || !cfg!(debug_assertions));
}

/// Memory of a test's own, whose end closes a manager.
struct ClosingKeeper(NdManager);

impl AsRef<[u8]> for ClosingKeeper {
    fn as_ref(&self) -> &[u8] {
        &[0; 16]
    }
}

impl Drop for ClosingKeeper {
    fn drop(&mut self) {
        let _ = self.0.close();
    }
}

#[test]
fn what_ends_as_a_close_says_what_ends_with_it_may_close_the_same_managers() {
    // Broken by: saying it before the thread is one that closes: the user's drop in between waits for the close that
    // runs it.
    alone(|| {
        let before = memory::set_leak_reports(true);
        let (ends, ended) = channel();
        let closes = thread::spawn(move || {
            let session = base(&Device::Cpu);
            let managers = [session.clone(), session.child("batch").unwrap()];
            // Of their handles, which go at once: they wait for the next call, which is the close.
            let lent = managers.map(|manager| {
                let keeper = Arc::new(ClosingKeeper(manager));
                Tensor::from_shared(keeper, 0..16, DType::U8, 16, &Device::Cpu).unwrap()
            });
            drop(lent);
            session.close().unwrap();
            ends.send(session.is_open()).unwrap();
        });
        let waited = ended.recv_timeout(Duration::from_secs(20));
        memory::set_leak_reports(before);
        assert_eq!(waited, Ok(false), "the close waits for itself");
        closes.join().unwrap();
    });
}
