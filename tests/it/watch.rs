//! A look at a program that runs.

use std::time::{Duration, Instant};

use ndgc::{DType, Device, NdManager, SimConfig, Tensor, gc, memory};

use crate::common::system::until_they_wait;
use crate::it::support::{alone, base, in_child, is_child};

#[test]
fn a_frame_is_a_table_of_the_managers_with_those_below_them() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let named = |manager: NdManager, name: &str| {
            manager.set_name(name);
            manager
        };
        let model = named(base(&device), "model");
        let (layer, other) =
            (model.child("layer").unwrap(), named(base(&device), "\x1b[2Jother, with a name that is too long"));
        let held = (
            model.zeros(256, DType::F32).unwrap(),
            layer.zeros(1 << 20, DType::U8).unwrap(),
            other.zeros(100, DType::U8).unwrap(),
        );
        drop(layer.zeros(3 << 20, DType::U8).unwrap());
        let view = held.1.narrow(0, 0, 16).unwrap();
        let (stats, memory) = (gc::stats(), device.memory());
        let begun = Instant::now();
        let frame = memory::frame(&device, None);
        let head = format!(
            "{device}: {} live, {} at most, {} kept for reuse\n{} arrays, {} dead, 0 made a second\n",
            ndgc::Bytes(memory.active),
            ndgc::Bytes(memory.peak),
            ndgc::Bytes(memory.cached),
            stats.live,
            stats.dead(),
        );
        let rows = "\
manager                                 bytes    arrays      dead     by second
model                                4.00 MiB         4         1          +0 B
  layer                              4.00 MiB         3         1          +0 B
?[2Jother, with a name that is t        100 B         1         0          +0 B";
        assert_eq!(frame.to_string(), head + rows);
        assert!(frame.to_string().lines().skip(1).all(|line| line.len() <= 79), "{frame}");
        assert_eq!((gc::stats(), device.memory()), (stats, memory), "it changes nothing");
        assert_eq!(frame.rows[0].bytes, (4 << 20) + 1024, "a view's bytes are those of the array it is of");

        // Dead and queued ones are left alone too.
        let _on = gc::scoped(true);
        drop(other.zeros(1000, DType::U8).unwrap());
        let queued = gc::stats().queued;
        std::thread::sleep(Duration::from_millis(20));
        let next = memory::frame(&device, Some(&frame));
        assert_eq!((queued, gc::stats().queued), (1, 1));
        let rate = next.rows[2].bytes_per_second;
        let least = |made: f64| (made / begun.elapsed().as_secs_f64()) as i64;
        assert!((least(1000.)..=50_000).contains(&rate), "1,000 bytes more, at most 20 ms ago at least: {rate}");
        assert!((least(1.)..=50).contains(&(next.made_per_second as i64)), "{}", next.made_per_second);
        drop((held, view));
    });
}

/// Keys of managers that ended are used again, the last one first.
#[test]
fn managers_stand_in_the_order_in_which_they_were_made() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        drop([base(&device), base(&device), base(&device)]);
        let made = [base(&device), base(&device), base(&device)];
        let shown: Vec<_> = memory::frame(&device, None).rows.iter().map(|row| row.uuid).collect();
        assert_eq!(shown, made.each_ref().map(|manager| manager.uuid()));
        let [first, second, third] = made;
        drop(first);
        let last = base(&device);
        let shown: Vec<_> = memory::frame(&device, None).rows.iter().map(|row| row.uuid).collect();
        assert_eq!(shown, [second.uuid(), third.uuid(), last.uuid()]);
    });
}

#[test]
fn a_frame_has_the_managers_with_most_bytes() {
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let parent = base(&device);
        parent.set_name("parent");
        let children: Vec<_> = (0..20)
            .map(|i| {
                let child = parent.child(&format!("child {i}")).unwrap();
                let array = child.zeros(100 + i, DType::U8).unwrap();
                (child, array)
            })
            .collect();
        let text = memory::frame(&device, None).to_string();
        assert!(text.ends_with("\nand 5 managers with less") && text.lines().count() == 20, "{text}");
        assert!(
            text.contains("\nparent ") && text.contains("\n  child 5 ") && !text.contains("\n  child 4 "),
            "{text}"
        );
        drop(children);
    });
}

/// Standard error is the process's, so in one of its own.
#[test]
fn a_watch_shows_a_line_at_the_begin_and_at_the_end_where_there_is_no_terminal() {
    if is_child() {
        let watch = memory::watch(&Device::Cpu);
        // It has shown the first line.
        until_they_wait("ndgc-watch", 1);
        let x = Tensor::zeros(1024, DType::F32, &Device::Cpu).unwrap();
        drop(watch);
        drop(x);
        // One that ends at once still shows its end.
        drop(memory::watch(&Device::Cpu));
        return;
    }
    let test = "it::watch::a_watch_shows_a_line_at_the_begin_and_at_the_end_where_there_is_no_terminal";
    let error = String::from_utf8(in_child(test, &[]).stderr).unwrap();
    let lines: Vec<&str> = error.lines().filter(|line| line.starts_with("cpu: ")).collect();
    assert_eq!(lines[0], "cpu: 0 B live, 0 B at most, 0 B kept for reuse; 0 arrays, 0 dead, 0 made a second");
    assert!(lines[1].starts_with("cpu: 4.00 KiB live, 4.00 KiB at most, "), "{error}");
    assert!(lines[1].contains("; 1 array, 0 dead, ") && lines[1].ends_with(" made a second"), "{error}");
    assert!((3..=4).contains(&lines.len()) && !error.contains('\x1b'), "{error}");
}
