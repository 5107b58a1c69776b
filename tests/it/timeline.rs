//! The trace and what is made of it: spans with their lines and owners, rings that forget, other tools' formats.

use ndgc::memory::{EventKind, Timeline, TraceMode};
use ndgc::{Budget, DType, Device, Tensor, Var, Workspace, WorkspaceConfig, gc, memory};

use crate::counting::peak;
use crate::it::support::{alone, base, in_child, is_child, switched};

/// What happens in `f`, noted.
fn traced(mode: TraceMode, f: impl FnOnce()) -> Timeline {
    gc::collect();
    memory::clear_trace();
    assert_eq!(memory::set_trace(mode), TraceMode::Off);
    f();
    gc::collect();
    let timeline = memory::timeline();
    assert_eq!(memory::set_trace(TraceMode::Off), mode);
    timeline
}

/// A cycle of a workspace with a block of 4 KiB.
fn one_cycle(name: &str) {
    let config = WorkspaceConfig::builder().initial_size(1 << 12).overallocation_limit(0.).build().unwrap();
    let cycle = Workspace::enter(name, &config).unwrap();
    drop(Tensor::zeros(100, DType::F32, &Device::Cpu).unwrap());
    drop(cycle);
}

#[test]
fn spans_have_the_line_the_owner_and_the_time_of_their_bytes() {
    switched(true, |device| {
        let manager = base(device);
        manager.set_name("noted");
        let (mut kept, mut lines) = (Vec::new(), (0, 0));
        let timeline = traced(TraceMode::Full, || {
            let (x, first) = (manager.zeros(1000, DType::U8).unwrap(), line!());
            let (y, second) = (Tensor::zeros(500, DType::U8, device).unwrap(), line!());
            lines = (first, second);
            let _view = x.narrow(0, 0, 10).unwrap();
            kept.push(y);
        });
        let [x, y] = &timeline.spans[..] else { panic!("{:?}", timeline.spans) };
        assert_eq!((x.bytes, &*x.owner, x.site.unwrap().line()), (1000, "noted", lines.0));
        assert_eq!((y.bytes, &*y.owner, y.site.unwrap().line()), (500, "handles", lines.1));
        assert!(x.end.is_some_and(|end| end >= x.start) && y.end.is_none() && y.start >= x.start);
        assert_eq!((timeline.peak(), timeline.lost, timeline.sample), (1500, 0, 1));
        assert!(timeline.to_folded().ends_with(&format!("handles;{} 500\n", y.site.unwrap())));
        // What was noted says so itself: it ends after the mode was off.
        kept.clear();
        gc::collect();
        assert!(memory::timeline().spans.iter().all(|span| span.end.is_some()));
        let nothing = traced(TraceMode::Full, || {});
        assert!(nothing.spans.is_empty());
        drop(manager.zeros(10, DType::U8).unwrap());
        assert!(memory::timeline().spans.is_empty(), "it is off");
    });
}

#[test]
fn what_gradients_keep_is_noted_once_and_views_are_not() {
    switched(true, |device| {
        let x = Var::ones(64, DType::F32, device).unwrap();
        let timeline = traced(TraceMode::Full, || {
            let y = x.exp().unwrap(); // its result is what the derivative needs
            let _views = [y.reshape((8, 8)).unwrap(), y.narrow(0, 0, 8).unwrap()];
            assert_eq!(memory::timeline().spans.iter().map(|span| span.bytes).sum::<u64>(), 256);
        });
        assert!(timeline.spans.len() == 1 && timeline.spans[0].end.is_some(), "{:?}", timeline.spans);
    });
}

#[test]
fn a_block_keeps_the_name_of_its_workspace_when_another_gets_its_number() {
    alone(|| {
        let timeline = traced(TraceMode::Full, || {
            for name in ["FIRST", "SECOND"] {
                let config = WorkspaceConfig::builder().initial_size(1 << 12).build().unwrap();
                drop(Workspace::enter(name, &config).unwrap());
                ndgc::destroy_all_workspaces_for_current_thread().unwrap();
            }
        });
        let owners: Vec<_> = timeline.spans.iter().map(|span| &*span.owner).collect();
        assert_eq!(owners, ["workspace [FIRST]", "workspace [SECOND]"]);
    });
}

#[test]
fn a_block_that_was_noted_ends_whatever_the_mode_is_by_then() {
    alone(|| {
        let timeline = traced(TraceMode::Full, || one_cycle("NOTED"));
        assert!(timeline.spans.len() == 1 && timeline.spans[0].end.is_none(), "{:?}", timeline.spans);
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
        let spans = memory::timeline().spans;
        assert!(spans.len() == 1 && spans[0].end.is_some(), "the mode is off: {spans:?}");
    });
}

#[test]
fn blocks_of_workspaces_closes_refusals_and_drains_are_noted_and_closed_managers_keep_their_names() {
    alone(|| {
        let _on = gc::scoped(true);
        let timeline = traced(TraceMode::Full, || {
            let manager = base(&Device::Cpu);
            manager.set_name("gone");
            manager.set_budget(Budget::new().max_bytes(2000)).unwrap();
            let x = manager.zeros(1000, DType::U8).unwrap();
            assert!(manager.zeros(1001, DType::U8).is_err());
            let config = WorkspaceConfig::builder().initial_size(1 << 16).overallocation_limit(0.).build().unwrap();
            let cycle = Workspace::enter("NOTED", &config).unwrap();
            drop(Tensor::zeros(100, DType::F32, &Device::Cpu).unwrap());
            drop(cycle);
            manager.close().unwrap();
            drop(x);
            ndgc::destroy_all_workspaces_for_current_thread().unwrap();
            drop(Tensor::zeros(100_000, DType::U8, &Device::Cpu).unwrap());
            gc::collect();
            assert!(Device::Cpu.clear_cache() > 0);
        });
        let owners: Vec<_> = timeline.spans.iter().map(|span| (&*span.owner, span.bytes, span.end.is_some())).collect();
        assert_eq!(owners, [("gone", 1000, true), ("workspace [NOTED]", 1 << 16, true), ("handles", 100_000, true)]);
        let told = |kind: EventKind| timeline.events.iter().find(|event| event.kind == kind);
        assert_eq!(told(EventKind::Close).unwrap().name.as_deref(), Some("gone"));
        assert_eq!(told(EventKind::Refusal).unwrap().amount, 1001);
        let cycle = told(EventKind::Cycle).unwrap();
        assert_eq!((cycle.name.as_deref(), cycle.amount, cycle.arrays), (Some("workspace [NOTED]"), 448, 1));
        assert!(told(EventKind::Drain).unwrap().amount >= 1 && told(EventKind::Trim).unwrap().amount > 0);
    });
}

#[test]
fn a_full_ring_forgets_what_is_oldest_and_a_sampled_trace_says_what_a_span_stands_for() {
    alone(|| {
        let bytes = memory::set_trace_bytes(4800);
        let timeline = traced(TraceMode::Full, || {
            (0..1000).for_each(|_| drop(Tensor::zeros(10, DType::U8, &Device::Cpu).unwrap()));
        });
        assert!(timeline.lost > 1500, "{} of 2,000", timeline.lost);
        assert!(timeline.spans.len() <= 100 && timeline.peak() <= 20, "{}", timeline.peak());
        memory::set_trace_bytes(bytes);
        let mut kept = Vec::new();
        let timeline = traced(TraceMode::Sampled, || {
            kept.extend((0..640).map(|_| Tensor::zeros(10, DType::U8, &Device::Cpu).unwrap()));
        });
        assert_eq!((timeline.sample, timeline.spans.len(), timeline.peak()), (64, 10, 6400));
        let off = memory::timeline();
        assert_eq!((off.sample, off.peak()), (64, 6400), "they were sampled, whatever the mode is now");
        let mut text = Vec::new();
        off.write_chrome_json(&mut text).unwrap();
        let counters: Vec<_> = std::str::from_utf8(&text).unwrap().lines().filter(|l| l.contains("\"C\"")).collect();
        assert!(counters.len() == 10 && counters[9].contains("{\"bytes\":6400}"), "{counters:?}");
        drop(kept);
    });
}

/// Broken by: bytes of blocks, which are all noted, times what a span of an array stands for.
#[test]
fn a_block_of_a_workspace_stands_for_itself_in_a_sampled_trace_too() {
    alone(|| {
        let mut kept = Vec::new();
        let timeline = traced(TraceMode::Sampled, || {
            one_cycle("BLOCK");
            kept.extend((0..64).map(|_| Tensor::zeros(10, DType::U8, &Device::Cpu).unwrap()));
        });
        let all = (1 << 12) + 640;
        assert_eq!((timeline.sample, timeline.spans.len(), timeline.peak()), (64, 2, all));
        let stacks = timeline.to_folded();
        assert!(stacks.contains(" 640\n") && stacks.ends_with("workspace [BLOCK] 4096\n"), "{stacks}");
        let mut text = Vec::new();
        timeline.write_chrome_json(&mut text).unwrap();
        assert!(std::str::from_utf8(&text).unwrap().contains("\"args\":{\"bytes\":4096}}"));
        let page = timeline.to_html("sampled");
        assert!(page.contains("[\"workspace [BLOCK]\",\"workspace [BLOCK]\",1,4096,1,4096,false]"));
        drop(kept);
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}

/// What one thread's ring forgot, another's seems to know.
#[test]
fn arrays_whose_end_was_forgotten_are_not_alive() {
    alone(|| {
        let bytes = memory::set_trace_bytes(4000);
        let timeline = traced(TraceMode::Full, || {
            let arrays: Vec<_> = (0..20).map(|_| Tensor::zeros(10, DType::U8, &Device::Cpu).unwrap()).collect();
            let ends = || {
                arrays.iter().for_each(Tensor::close);
                (0..200).for_each(|_| drop(Tensor::zeros(10, DType::U8, &Device::Cpu).unwrap()));
                gc::collect();
            };
            std::thread::scope(|scope| drop(scope.spawn(ends)));
        });
        assert!(timeline.spans.iter().all(|span| span.end.is_some()), "{:?}", timeline.spans);
        assert!(timeline.lost >= 300, "{}", timeline.lost);
        memory::set_trace_bytes(bytes);
    });
}

#[test]
fn a_page_counts_all_events() {
    alone(|| {
        let manager = base(&Device::Cpu);
        manager.set_budget(Budget::new().max_bytes(10)).unwrap();
        let timeline = traced(TraceMode::Full, || {
            (0..2100).for_each(|_| assert!(manager.zeros(11, DType::U8).is_err()));
        });
        let page = timeline.to_html("refusals");
        assert!(page.contains("[\"refusal\",2100,23100]"));
    });
}

#[test]
fn what_was_made_at_one_go_or_is_kept_at_a_level_does_not_grow() {
    alone(|| {
        let manager = base(&Device::Cpu);
        let mut kept = Vec::new();
        let mut latest = std::collections::VecDeque::new();
        let mut timeline = traced(TraceMode::Full, || {
            kept.extend((0..12).map(|_| manager.zeros(1, DType::U8).unwrap()));
            for _ in 0..400 {
                latest.push_back(manager.zeros(2, DType::U8).unwrap());
                kept.push(manager.zeros(3, DType::U8).unwrap());
                if latest.len() > 20 {
                    latest.pop_front().unwrap().close();
                }
            }
        });
        // As if each took as long.
        for (at, span) in (0..).zip(&mut timeline.spans) {
            (span.start, span.end) = (at, span.end.map(|_| at + 40));
        }
        let page = timeline.to_html("three lines");
        for row in [",12,12,12,12,false]", ",400,800,20,40,false]", ",400,1200,400,1200,true]"] {
            assert!(page.contains(row), "{row}");
        }
    });
}

#[test]
fn the_page_and_the_other_formats_hold_what_the_timeline_has() {
    alone(|| {
        let manager = base(&Device::Cpu);
        manager.set_name("</script><b>\"&");
        let mut kept = Vec::new();
        let timeline = traced(TraceMode::Full, || {
            for _ in 0..50 {
                kept.push(manager.zeros(64, DType::U8).unwrap());
            }
        });
        let page = timeline.to_html("a <title> & more");
        for kind in ["trim", "refusal", "spill", "close", "drain", "cycle"] {
            assert!(page.contains(&format!(" {kind}: ([n")), "the page has words for {kind}");
        }
        assert!(page.contains("\"title\":\"a \\u003ctitle> & more\"") && page.matches("</script>").count() == 1);
        assert!(page.contains(",50,3200,50,3200,true]"), "the line grows");
        assert!(!page.contains("http"), "it needs no network");
        let mut text = Vec::new();
        timeline.write_chrome_json(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!((text.matches("\"ph\":\"b\"").count(), text.matches("\"ph\":\"e\"").count()), (50, 0));
        assert!(text.contains("\"bytes\":3200"));
        let mut snapshot = Vec::new();
        timeline.write_pytorch_snapshot(&mut snapshot).unwrap();
        // `.ci/timeline` reads one with CPython.
        assert!(snapshot.starts_with(&[0x80, 2]) && snapshot.ends_with(b"."));
        let empty = Timeline::default();
        assert!(empty.to_html("nothing").contains("nothing") && empty.to_folded().is_empty() && empty.peak() == 0);
        drop(kept);
    });
}

#[test]
fn the_last_moment_of_a_page_has_the_last_record_and_a_page_of_no_span_a_scale() {
    alone(|| {
        let mut kept = None;
        let mut timeline =
            traced(TraceMode::Full, || kept = Some(Tensor::zeros(777, DType::U8, &Device::Cpu).unwrap()));
        // After a day and some hours. Broken by: floats, by which the last part ended before it.
        timeline.end = 100_000_000_000_004;
        timeline.spans[0].start = timeline.end;
        let page = timeline.to_html("long");
        assert!(page.contains(", 0, 777]}"), "the array that came last");
        // Broken by: one moment for the whole run, and times divided by the number of the others.
        let none = Timeline::default().to_html("nothing");
        assert!(none.contains("\"lines\":[]") && none.contains("data[mode][0] || { bytes: [0, 0] }"));
        drop(kept);
    });
}

#[test]
fn rings_of_several_threads_are_one_timeline_also_while_they_are_written() {
    use std::sync::atomic::{AtomicBool, Ordering};
    alone(|| {
        let bytes = memory::set_trace_bytes(100_000);
        let make = |count: usize| {
            (0..count).for_each(|_| drop(Tensor::zeros(10, DType::U8, &Device::Cpu).unwrap()));
            gc::collect();
        };
        let in_order = |timeline: &Timeline| timeline.spans.is_sorted_by_key(|span| span.start);
        let timeline = traced(TraceMode::Full, || {
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| make(500)))));
        });
        assert!(in_order(&timeline) && timeline.spans.iter().all(|span| span.end.is_some()));
        assert_eq!((timeline.spans.len(), timeline.lost), (2000, 0));
        traced(TraceMode::Full, || {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                (0..2).for_each(|_| {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            make(100);
                        }
                    });
                });
                let wrong = (0..50).map(|_| memory::timeline()).find(|timeline| !in_order(timeline));
                done.store(true, Ordering::Relaxed);
                assert!(wrong.is_none(), "{wrong:?}");
            });
        });
        memory::set_trace_bytes(bytes);
    });
}

/// `cargo bench --bench memory` has the times.
#[test]
fn a_million_records_are_exported_within_64_mib() {
    if crate::common::ran_apart() {
        return;
    }
    const MIB: usize = 1 << 20;
    alone(|| {
        let _on = gc::scoped(true);
        memory::clear_trace();
        let bytes = memory::set_trace_bytes(64 * MIB);
        memory::set_trace(TraceMode::Full);
        let mut kept: Vec<Tensor> = Vec::new();
        for count in 0..500_000 {
            kept.push(Tensor::zeros(4, DType::U8, &Device::Cpu).unwrap());
            if kept.len() == 100 {
                kept.swap_remove(count % 100);
            }
        }
        memory::set_trace(TraceMode::Off);
        let mut timeline = Timeline::default();
        let spans = peak(|| timeline = memory::timeline());
        assert!(timeline.spans.len() == 500_000 && timeline.lost == 0 && spans < 64 * MIB, "{spans} bytes for spans");
        let own = timeline.spans.len() * size_of::<memory::Span>();
        let mut sink = std::io::sink();
        for (name, peak) in [
            ("page", peak(|| drop(timeline.to_html("many")))),
            ("folded stacks", peak(|| drop(timeline.to_folded()))),
            ("trace events", peak(|| timeline.write_chrome_json(&mut sink).unwrap())),
            ("snapshot", peak(|| timeline.write_pytorch_snapshot(&mut sink).unwrap())),
        ] {
            assert!(own + peak < 64 * MIB, "{name}: {peak} bytes beside {own} of spans");
            assert!(peak < 16 * MIB, "{name}: {peak} bytes: it is written as it goes");
        }
        drop((kept, timeline));
        memory::clear_trace();
        memory::set_trace_bytes(bytes);
    });
}

#[test]
fn bytes_of_each_device_are_told_apart() {
    alone(|| {
        let device = Device::sim(ndgc::SimConfig { memory_bytes: 4 << 20, ..Default::default() });
        let mut kept = Vec::new();
        let timeline = traced(TraceMode::Full, || {
            kept.push(Tensor::zeros(300, DType::U8, &device).unwrap());
            kept.push(Tensor::zeros(100, DType::U8, &Device::Cpu).unwrap());
            assert!(Tensor::zeros(5 << 20, DType::U8, &device).is_err());
        });
        let sim = device.to_string();
        let spans: Vec<_> = timeline.spans.iter().map(|span| (&*span.device, span.bytes)).collect();
        assert_eq!(spans, [(&*sim, 300), ("cpu", 100)]);
        let refusal = timeline.events.iter().find(|event| event.kind == EventKind::Refusal).unwrap();
        assert_eq!((refusal.name.as_deref(), refusal.amount), (Some(&*sim), 5 << 20));
        let folded = timeline.to_folded();
        assert!(folded.contains(&format!("{sim};handles;")) && folded.starts_with("handles;"), "{folded}");
        let page = timeline.to_html("two");
        let devices = page.split_once("\"devices\":[").unwrap().1;
        assert!(devices.starts_with(&format!("{{\"name\":\"{sim}\",")) && devices.contains("{\"name\":\"cpu\","));
        let mut text = Vec::new();
        timeline.write_chrome_json(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let counters =
            [format!("\"handles on {sim}\",\"args\":{{\"bytes\":300}}"), "\"handles\",\"args\":{\"bytes\":100}".into()];
        assert!(counters.iter().all(|counter| text.contains(counter)), "{text}");
        let mut snapshot = Vec::new();
        timeline.write_pytorch_snapshot(&mut snapshot).unwrap();
        let segments = snapshot.windows(13).filter(|part| part == b"segment_alloc").count();
        assert_eq!(segments, 2, "each device has its own");
        let refusals = |snapshot: &[u8]| snapshot.windows(3).filter(|part| part == b"oom").count();
        assert_eq!(refusals(&snapshot), 1);
        let timeline = traced(TraceMode::Full, || {
            assert!(Tensor::zeros(5 << 20, DType::U8, &device).is_err());
        });
        let mut snapshot = Vec::new();
        timeline.write_pytorch_snapshot(&mut snapshot).unwrap();
        assert_eq!(refusals(&snapshot), 1, "also of a device that has no array");
        drop(kept);
    });
}

/// Who goes through a snapshot backwards takes the block at its address off for each that was made. Broken by: entries
/// of arrays without bytes, which have no block, at the address of the next one.
#[test]
fn arrays_without_bytes_are_in_no_snapshot_and_no_stack() {
    alone(|| {
        let mut kept = Vec::new();
        let timeline = traced(TraceMode::Full, || {
            for count in [0, 100, 0] {
                kept.push(Tensor::zeros(count, DType::U8, &Device::Cpu).unwrap());
            }
            drop(Tensor::zeros(0, DType::U8, &Device::Cpu).unwrap());
        });
        assert_eq!(timeline.spans.iter().map(|span| span.bytes).collect::<Vec<_>>(), [0, 100, 0, 0]);
        let mut snapshot = Vec::new();
        timeline.write_pytorch_snapshot(&mut snapshot).unwrap();
        // As a text of a pickle: with its length before it.
        let count = |text: &[u8]| {
            let text = [&(text.len() as u32).to_le_bytes()[..], text].concat();
            snapshot.windows(text.len()).filter(|part| **part == *text).count()
        };
        assert_eq!([count(b"alloc"), count(b"free_requested"), count(b"active_allocated")], [1, 0, 1]);
        let stacks = timeline.to_folded();
        assert!(stacks.lines().count() == 1 && stacks.ends_with(" 100\n"), "{stacks}");
        drop(kept);
    });
}

/// The mode is read once, so in processes of their own.
#[test]
fn the_environment_says_what_is_noted_from_the_first_array_on() {
    if is_child() {
        let kept: Vec<_> = (0..640).map(|_| Tensor::zeros(10, DType::U8, &Device::Cpu).unwrap()).collect();
        let timeline = memory::timeline();
        println!("noted: {} for {} each", timeline.spans.len(), timeline.sample);
        drop(kept);
        return;
    }
    let test = "it::timeline::the_environment_says_what_is_noted_from_the_first_array_on";
    let unknown = "ndgc: NDGC_TRACE=loud is not understood; it may be off, sampled or full\n";
    for (mode, noted, times) in [
        ("full", "noted: 640 for 1 each\n", 0),
        ("sampled", "noted: 10 for 64 each\n", 0),
        ("off", "noted: 0 for ", 0),
        ("loud", "noted: 0 for ", 1),
    ] {
        let output = in_child(test, &[("NDGC_TRACE", mode)]);
        let (out, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(out.contains(noted), "{mode}: {out}");
        assert_eq!(error.matches(unknown).count(), times, "{mode}: {error}");
    }
}

/// Read once too: where reports go, and arrays for which a limit has no room.
#[test]
fn the_environment_names_folders_for_reports_and_for_arrays() {
    const BYTES: usize = 4 << 20;
    if is_child() {
        let made = || Tensor::zeros(BYTES, DType::U8, &Device::Cpu);
        let _first = made().unwrap();
        match made() {
            Ok(second) => {
                assert_eq!(second.to_vec::<u8>().unwrap(), vec![0; BYTES]);
                println!("mapped: {}", Device::Cpu.memory().mapped);
            }
            Err(error) => println!("refused: {error}"),
        }
        return;
    }
    let test = "it::timeline::the_environment_names_folders_for_reports_and_for_arrays";
    let folder = std::env::temp_dir().join(format!("ndgc-told-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let said = |name: &str| {
        let variables = [("NDGC_MAX_BYTES", "6m"), (name, folder.to_str().unwrap())];
        String::from_utf8(in_child(test, &variables).stdout).unwrap()
    };
    let files = || std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let spilled = said("NDGC_SPILL");
    assert!(spilled.contains("mapped: 4194304\n"), "{spilled}");
    assert!(files().is_empty(), "no report was asked for, and the array's file is gone");
    let refused = said("NDGC_CRASH_REPORT");
    assert!(refused.contains("refused: Can't allocate [HOST] memory: 4194304; "), "{refused}");
    let found = files();
    let [report] = &found[..] else { panic!("{found:?}") };
    let text = std::fs::read_to_string(report).unwrap();
    assert!(text.starts_with("Can't allocate [HOST] memory: 4194304; ") && text.contains("\nmanagers:\n"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}
