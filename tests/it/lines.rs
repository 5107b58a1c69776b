//! Whose bytes: lines of the source with what they made that lives, and what has grown since a mark, told apart by what
//! keeps it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ndgc::{DType, Device, Tensor, Var, Workspace, WorkspaceConfig, gc, memory};

use crate::it::support::{alone, base, block, mask, switched};

/// The entry of a line of this file.
fn of_line(line: u32) -> Option<memory::Line> {
    memory::lines().into_iter().find(|at| at.site.is_some_and(|site| site.file() == file!() && site.line() == line))
}

#[test]
fn lines_have_the_arrays_that_they_made_and_each_storage_counts_once() {
    switched(false, |device| {
        let manager = base(device);
        let (all, made): (Vec<_>, _) = ((0..5).map(|_| manager.zeros(256, DType::F32).unwrap()).collect(), line!());
        let (view, viewed) = (all[0].narrow(0, 0, 128).unwrap(), line!());
        let line = of_line(made).unwrap();
        assert_eq!((line.arrays, line.kept, line.bytes), (5, 0, 5 * 1024));
        let line = of_line(viewed).unwrap();
        assert_eq!((line.arrays, line.bytes), (1, 0), "a view's bytes are those of the array it is of");
        let first = memory::lines()[0];
        assert_eq!(first.site.map(|site| site.line()), Some(made), "most bytes first");
        drop((all, view));
        let line = of_line(made).unwrap();
        assert_eq!((line.arrays, line.kept), (5, 5), "nobody has a handle; the manager keeps them");
        manager.close().unwrap();
        assert_eq!((of_line(made), of_line(viewed)), (None, None));
    });
}

#[test]
fn what_grows_is_told_apart_by_what_keeps_it() {
    alone(|| {
        let manager = base(&Device::Cpu);
        let mut history = Vec::new();
        let growth = memory::growth(10, || {
            let x = block(&manager);
            history.push(x.get(0).unwrap());
            x.exp().unwrap();
        });
        assert_eq!(
            mask(&growth.to_string()),
            "10 arrays more (1 a round), 640 B more, made at HERE: kept by their manager, without a handle; gc::on() ends \
             such arrays\n\
             10 arrays more (1 a round), 640 B more, made at HERE: kept by their manager, without a handle; gc::on() ends \
             such arrays\n\
             10 arrays more (1 a round), 0 B more, made at HERE: 10 held by handles",
        );
        drop(history);

        let _on = gc::scoped(true);
        let growth = memory::growth(10, || drop(block(&manager).exp().unwrap()));
        assert!(growth.is_empty(), "with the switch on they end: {growth}");

        let x = Var::ones(4, DType::F32, &Device::Cpu).unwrap();
        let mut sum = x.exp().unwrap();
        let growth = memory::growth(4, || sum = (&sum * &sum).unwrap());
        let text = mask(&growth.to_string());
        assert!(text.contains("gradient graphs keep 8 values more (2 a round), 128 B more"), "{text}");
        assert_eq!((growth.saved_values, growth.lines.len()), (8, 0), "{text}");

        let config = WorkspaceConfig::builder().initial_size(4096).overallocation_limit(0.0).build().unwrap();
        let mut round = 0;
        let growth = memory::growth(3, || {
            round += 1;
            let zeros = || Tensor::zeros(16, DType::U8, &Device::Cpu).map(drop);
            Workspace::cycle(&format!("of round {round}"), &config, zeros).unwrap();
        });
        let wanted = [2, 3, 4].map(|round| (format!("of round {round}"), 4096));
        assert_eq!(growth.workspaces, wanted, "{growth}");
        assert!(growth.to_string().contains("workspace [of round 2] has blocks of 4.00 KiB more"), "{growth}");
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}

/// What a test says that fails.
fn text(test: &dyn Fn()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(test)).err();
    panic.and_then(|panic| panic.downcast::<String>().ok()).map(|text| mask(&text))
}

/// The last line of a check that failed.
const OF_ALL: &str =
    "(what other threads did counts too: if tests ran meanwhile, use `cargo test -- --test-threads=1`)";

#[test]
fn a_test_that_leaks_fails_with_the_line() {
    alone(|| {
        let manager = base(&Device::Cpu);
        let clean = || {
            let _growth = memory::no_growth();
            Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        };
        assert_eq!(text(&clean), None);
        let leaky = || {
            let _growth = memory::no_growth();
            manager.zeros(4, DType::F32).unwrap();
        };
        let kept =
            "1 array more, 16 B more, made at HERE: kept by their manager, without a handle; gc::on() ends such arrays";
        let told = text(&leaky).unwrap();
        assert_eq!(told.lines().collect::<Vec<_>>(), ["since HERE:", kept, OF_ALL], "it says where it began to look");
        let message = text(&|| gc::assert_no_growth(&Device::Cpu, || manager.zeros(4, DType::F32))).unwrap();
        assert!(message.lines().nth(1) == Some(kept) && message.ends_with(OF_ALL), "{message}");
        // Its own panic is the test's, and it does not panic again.
        let panics = || {
            let _growth = memory::no_growth();
            manager.zeros(4, DType::F32).unwrap();
            panic!("{}", "of the test");
        };
        assert_eq!(text(&panics).as_deref(), Some("of the test"));
    });
}

#[test]
fn a_last_run_that_gives_back_does_not_fail_and_one_that_takes_more_does() {
    alone(|| {
        let zeros = |count: usize| Tensor::zeros(count, DType::F32, &Device::Cpu).unwrap();
        let check = |of_run: &dyn Fn(usize) -> Vec<Tensor>| {
            text(&|| {
                let (mut run, mut kept) = (0, Vec::new());
                gc::assert_no_growth(&Device::Cpu, || {
                    run += 1;
                    drop(std::mem::replace(&mut kept, of_run(run)));
                });
            })
        };
        assert_eq!(check(&|run| (run..3).map(|_| zeros(4)).collect()), None, "2, 1 and 0 arrays");
        assert_eq!(check(&|run| vec![zeros(8 - 2 * run)]), None, "one array, of fewer bytes each time");
        let told = check(&|run| vec![zeros(2 * run)]).unwrap();
        assert!(told.contains("larger arrays than before"), "{told}");
        let told = check(&|run| (0..run).map(|_| zeros(12 / run)).collect()).unwrap();
        assert!(told.contains("1 array more"), "of as many bytes: {told}");
    });
}

#[test]
fn what_takes_the_place_of_another_is_no_growth_unless_it_is_larger() {
    alone(|| {
        let zeros = |count: usize| Tensor::zeros(count, DType::F32, &Device::Cpu).unwrap();
        let ones = |count: usize| Tensor::ones(count, DType::F32, &Device::Cpu).unwrap();
        let replaced = |before: &[usize], by: &dyn Fn(usize) -> Tensor, count: usize| {
            text(&|| {
                let mut kept: Vec<_> = before.iter().map(|&count| zeros(count)).collect();
                let _growth = memory::no_growth();
                kept.push(by(count));
                kept.drain(..before.len());
            })
        };
        assert_eq!(replaced(&[4], &ones, 4), None, "another line has one more, and this one has one less");
        assert_eq!(replaced(&[8], &ones, 4), None, "a smaller one");
        let told = replaced(&[4], &ones, 8).unwrap();
        assert_eq!(told.lines().nth(1), Some("1 array more, 32 B more, made at HERE: held by a handle"));
        let told = replaced(&[4], &zeros, 8).unwrap();
        assert_eq!(told.lines().nth(1), Some("0 arrays more, 16 B more, made at HERE: larger arrays than before"));
        let told = replaced(&[4, 4], &ones, 100).unwrap();
        assert!(told.contains("1 array more, 400 B more"), "one array less, and more bytes: {told}");
        assert!(replaced(&[8, 8], &zeros, 8).is_none(), "less of both");
    });
}

#[test]
fn a_line_that_is_held_in_part_and_what_the_pool_keeps_are_told() {
    alone(|| {
        let manager = base(&Device::Cpu);
        let (mut held, mut round) = (Vec::new(), 0);
        let mut growth = memory::growth(4, || {
            let x = block(&manager);
            round += 1;
            held.extend((round % 2 == 0).then_some(x));
        });
        let of_line = "4 arrays more (1 a round), 256 B more, made at HERE: 2 held by handles, 2 kept by their manager without one";
        growth.cached = 4096;
        assert_eq!(mask(&growth.to_string()), format!("{of_line}\n4.00 KiB more kept for reuse"));
        let mut nothing = memory::mark().diff();
        nothing.cached = 4096;
        assert!(nothing.is_empty());
        assert_eq!(nothing.to_string(), "nothing grew; 4.00 KiB more kept for reuse");
        drop(held);
    });
}

#[test]
fn of_the_arrays_more_no_more_are_kept_than_there_are() {
    // Broken by: those that were there before, and lost their handles since.
    alone(|| {
        let manager = base(&Device::Cpu);
        let make = || manager.zeros(4, DType::U8).unwrap();
        let held = [(); 5].map(|()| make());
        let before = memory::mark();
        drop(held);
        let _one = make();
        let growth = before.diff();
        let [line] = growth.lines[..] else { panic!("{growth}") };
        assert_eq!((line.arrays, line.kept, line.line.kept), (1, 1, 5));
    });
}

#[test]
fn values_and_blocks_in_place_of_others_are_no_growth() {
    alone(|| {
        let x = Var::ones(4, DType::F32, &Device::Cpu).unwrap();
        let steps = |more: usize| {
            text(&|| {
                let mut y = x.exp().unwrap();
                let _growth = memory::no_growth();
                let again = x.exp().unwrap();
                drop(std::mem::replace(&mut y, again));
                (0..more).for_each(|_| y = (&y * &y).unwrap());
            })
        };
        assert_eq!(steps(0), None);
        let told = steps(1).unwrap();
        assert!(told.contains("gradient graphs keep 2 values more, 32 B more"), "{told}");

        let config = WorkspaceConfig::builder().initial_size(4096).overallocation_limit(0.0).build().unwrap();
        let made = |name: &str| {
            Workspace::cycle(name, &config, || Tensor::zeros(16, DType::U8, &Device::Cpu).map(drop)).unwrap();
        };
        let moved = |destroys: bool| {
            made("FIRST");
            let told = text(&|| {
                let _growth = memory::no_growth();
                if destroys {
                    Workspace::find("FIRST").unwrap().destroy().unwrap();
                }
                made("SECOND");
            });
            ndgc::destroy_all_workspaces_for_current_thread().unwrap();
            told
        };
        assert_eq!(moved(true), None);
        let told = moved(false).unwrap();
        assert!(told.contains("workspace [SECOND] has blocks of 4.00 KiB more"), "{told}");
    });
}
