//! The texts of errors about memory, each to the word, that no other test has whole: exhausted memory by its class,
//! workspaces and their settings, ends of arrays that are seldom met.

use ndgc::{
    AllocationPolicy, Budget, Closer, DType, Device, Error, LearningPolicy, LocationPolicy, OutOfMemory,
    OutOfMemoryClass, RecoveryStep, ResetPolicy, Result, SimConfig, SpillPolicy, StaleArray, Tensor, Var, Workspace,
    WorkspaceConfig, WorkspaceConfigBuilder, destroy_all_workspaces_for_current_thread,
};

use crate::it::support::{alone, base, mask, text};

/// What is said of a class between the request and what was tried, and at the end.
fn of_class(class: OutOfMemoryClass) -> (String, String) {
    let mut oom = OutOfMemory::of("cpu".to_owned(), "zeros", 4096);
    oom.class = class;
    (oom.thread, oom.active, oom.cached, oom.limit) = (7, 1024, 512, Some(2048));
    oom.largest_free = 256;
    let told = Error::OutOfMemory(Box::new(oom)).to_string();
    let bytes =
        ": 1.00 KiB live, 512 B kept for reuse (at most 256 B in one piece), 1.00 KiB reachable, limit 2.00 KiB";
    let (begin, end) = told.split_once(bytes).unwrap();
    let begin = begin.strip_prefix("Can't allocate [HOST] memory: 4096; threadId: 7; zeros wants 4.00 KiB on cpu, ");
    let end = end.strip_prefix(", 0 dead arrays closed first; ");
    (begin.unwrap().to_owned(), end.unwrap().to_owned())
}

/// Small blocks that threads keep are in no piece that others could have.
#[test]
fn a_piece_of_no_bytes_is_not_told_of() {
    let mut oom = OutOfMemory::of("cpu".to_owned(), "zeros", 4096);
    oom.cached = 512;
    assert!(
        Error::OutOfMemory(Box::new(oom)).to_string().contains(": 0 B live, 512 B kept for reuse, 512 B reachable")
    );
}

#[test]
fn every_class_of_exhausted_memory_says_why_and_how_to_go_on() {
    let over = |manager: &str, used, max, is_arrays| OutOfMemoryClass::OverBudget {
        manager: manager.to_owned(),
        used,
        max,
        is_arrays,
    };
    let of_workspace = "raise its budget, make less in a cycle, or use smaller batches";
    let of_manager = "close arrays of `tenant`, raise its budget, or use smaller batches";
    let of_host = "close one, use smaller batches, or give memory::set_spill() a folder";
    let cases = [
        (OutOfMemoryClass::TooBig, "more than there can be", "no close can make room for it: use smaller batches"),
        (over("tenant", 100, 200, false), "over the budget of `tenant`, which has 100 B of 200 B", of_manager),
        (over("tenant", 2, 2, true), "over the budget of `tenant`, which has 2 of 2 arrays", of_manager),
        (over("tenant", 1, 1, true), "over the budget of `tenant`, which has 1 of 1 array", of_manager),
        (
            over("workspace [STEP]", 3000, 4096, false),
            "over the budget of `workspace [STEP]`, which has 2.93 KiB of 4.00 KiB",
            of_workspace,
        ),
        (
            over("workspace [STEP]", 2, 2, true),
            "over the budget of `workspace [STEP]`, which has 2 of 2 arrays",
            of_workspace,
        ),
        (OutOfMemoryClass::OverLimit, "over the limit of the device", of_host),
        (
            OutOfMemoryClass::OverPhysicalLimit { resident: 3 << 20, max: 4 << 20 },
            "over the physical limit: 3.00 MiB of 4.00 MiB are taken",
            of_host,
        ),
        (
            OutOfMemoryClass::Fragmented,
            "and what is kept for reuse is in smaller pieces",
            "clear_cache() gives the pieces back, and a workspace keeps one block for all",
        ),
        (OutOfMemoryClass::Exhausted, "and there is no more memory", of_host),
    ];
    for (class, why, how) in cases {
        assert_eq!(of_class(class), (why.to_owned(), how.to_owned()));
    }
}

#[test]
fn a_request_that_a_budget_never_has_room_for_names_it_and_what_is_dead_is_no_way_out() {
    let mut oom = OutOfMemory::of("cpu".to_owned(), "zeros", 4096);
    oom.class = OutOfMemoryClass::TooBig;
    (oom.kept, oom.kept_bytes) = (3, 100);
    let end = "no close can make room for it: ";
    let told = Error::OutOfMemory(Box::new(oom)).to_string();
    assert!(told.ends_with(&format!("{end}use smaller batches")), "{told}");
    let mut oom = OutOfMemory::of("cpu".to_owned(), "zeros", 4096);
    (oom.class, oom.budget) = (OutOfMemoryClass::TooBig, Some(("tenant".to_owned(), 2048)));
    let told = Error::OutOfMemory(Box::new(oom)).to_string();
    assert!(told.contains("on cpu, more than the budget of `tenant`, which is 2.00 KiB: "), "{told}");
    assert!(told.ends_with(&format!("{end}raise the budget of `tenant`, or use smaller batches")), "{told}");
}

#[test]
fn exhausted_memory_lists_steps_owners_and_lines_and_says_what_is_an_estimate() {
    let mut oom = OutOfMemory::of("sim:0".to_owned(), "add", 64);
    (oom.thread, oom.active, oom.reclaimed, oom.reclaimed_bytes) = (1, 3 << 20, 1, 100);
    oom.steps = vec![RecoveryStep::new("drain", 100, 5), RecoveryStep::new("cache", 0, 7)];
    oom.largest = vec![("batch".to_owned(), 1, 2 << 20), ("workspace [STEP]".to_owned(), 2, 1 << 20)];
    oom.lines = vec![(None, 1, 9), (Some(std::panic::Location::caller()), 3, 1 << 20)];
    (oom.kept, oom.kept_bytes) = (1, 10);
    assert_eq!(
        mask(&oom.to_string()),
        "Can't allocate [DEVICE] memory: 64; threadId: 1; add wants 64 B on SIM, and there is no more memory: 3.00 MiB \
         live, 0 B kept for reuse, 10 B reachable, 1 dead array of 100 B closed first; tried: drain 100 B, cache 0 B; \
         largest owners: `batch` (1 array, 2.00 MiB), `workspace [STEP]` (2 arrays, 1.00 MiB); largest lines: HERE (3 \
         arrays, 1.00 MiB); 1 dead array of 10 B kept by their managers: gc::collect_orphans() gives them back, and with gc::on() none are kept"
    );
    let mut tried = OutOfMemory::of("cpu".to_owned(), "add", 64);
    tried.steps = vec![RecoveryStep::new("spill", 0, 5)];
    assert!(tried.to_string().ends_with("; tried: spill 0 B; close one, or use smaller batches"), "{tried}");
    tried.steps.clear();
    tried.device = "sim:0".to_owned();
    let told = tried.to_string();
    let on_device = "; close one, use smaller batches, or let memory::set_device_spill() take memory of the host";
    assert!(told.ends_with(on_device), "{told}");
    oom.one_of = 128;
    assert!(oom.to_string().contains(" kept for reuse, about 10 B reachable, 1 dead"), "{oom}");
    assert_eq!(
        mask(&oom.to_string()).split_once("cache 0 B").unwrap().1,
        "; largest owners, estimated from one of 128 arrays: `batch` (1 array, 2.00 MiB), `workspace [STEP]` (2 arrays, \
         1.00 MiB); largest lines, estimated from one of 128 arrays: HERE (3 arrays, 1.00 MiB); about 1 dead array of \
         10 B kept by their managers: gc::collect_orphans() gives them back, and with gc::on() none are kept"
    );
    let heap = Error::OutOfMemory(Box::new(OutOfMemory::on_the_heap("load", 5)));
    assert_eq!(
        heap.to_string(),
        "Can't allocate [HOST] memory: 5; threadId: 0; load wants 5 B on the heap, and there is no more memory: 0 B live, \
         0 B kept for reuse, 0 B reachable, 0 dead arrays closed first; close one, or use smaller batches"
    );
}

/// The refusal of settings.
fn wrong(config: WorkspaceConfigBuilder) -> String {
    text(config.build())
}

#[test]
fn settings_of_workspaces_that_contradict_each_other_say_which_and_what_they_may_be() {
    let new = WorkspaceConfig::builder;
    let ring = || new().policy_reset(ResetPolicy::EndOfBufferReached);
    let whole = "For cyclic workspace overallocation should be positive integral value. It is the number of blocks \
                 beside the first: give 1, 2, 3 and so on, or AllocationPolicy::Strict";
    let shared = "a circular workspace keeps the arrays of several cycles, and a mapped one those of the last run: \
                  neither has bytes to share; choose LearningPolicy::FirstLoop";
    let mapped = || new().policy_location(LocationPolicy::Mmap);
    let cases = [
        (new().max_size(u64::MAX), format!("max_size is {}: no block of memory has more than {} bytes", u64::MAX, i64::MAX)),
        (
            new().initial_size(2).max_size(1),
            "initial_size is 2: max_size is 1; give less here, or more or 0 (none) there".to_owned(),
        ),
        (
            new().min_size(2).max_size(1),
            "min_size is 2: max_size is 1; give less here, or more or 0 (none) there".to_owned(),
        ),
        (
            new().overallocation_limit(-0.5),
            "overallocation_limit is -0.5: give a fraction of the need, such as 0.3, or 0".to_owned(),
        ),
        (
            new().steps_number(0),
            "steps_number is 0: what does not fit a ring is kept for 1 step at least; give 2 if in doubt".to_owned(),
        ),
        (
            new().shrink_after(0),
            "shrink_after is Some(0): give the number of small cycles, 1 or more, or None for never".to_owned(),
        ),
        (
            ring().policy_allocation(AllocationPolicy::Overallocate).overallocation_limit(1.5),
            format!("overallocation_limit is 1.5: {whole}"),
        ),
        (
            new().cycles_before_initialization(3).policy_learning(LearningPolicy::FirstLoop),
            "cycles_before_initialization is 3: policy_learning is FirstLoop; only LearningPolicy::OverTime counts cycles"
                .to_owned(),
        ),
        (
            ring().overallocation_limit(2.).policy_learning(LearningPolicy::Planned),
            format!("policy_learning is Planned: {shared}"),
        ),
        (
            mapped(),
            "policy_location is Mmap: MMAP target file path should be non-null or workspace initialSize should be >0 for \
             temp file: give temp_file_path or initial_size"
                .to_owned(),
        ),
        (
            new().policy_learning(LearningPolicy::None),
            "policy_learning is None: without initial_size, nothing would ever be in the workspace: give initial_size, or \
             LearningPolicy::FirstLoop"
                .to_owned(),
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(wrong(config), format!("workspace: {expected}"));
    }
}

fn zeros(count: usize) -> Result<Tensor> {
    Tensor::zeros(count, DType::U8, &Device::Cpu)
}

#[test]
fn workspaces_that_cannot_do_what_is_asked_say_why_and_what_to_do() {
    alone(|| {
        let config = WorkspaceConfig::default();
        let other = WorkspaceConfig::builder().initial_size(64).build().unwrap();
        let cycle = Workspace::enter("TEXT", &config).unwrap();
        let (array, workspace) = (zeros(8).unwrap(), cycle.workspace());
        let sim = Device::sim(SimConfig::default());
        let mut texts = vec![
            text(Workspace::enter("TEXT", &other)),
            text(Workspace::enter_on(&sim, "TEXT", &config)),
            text(workspace.destroy()),
            text(workspace.initialize()),
            text(workspace.trim()),
            text(workspace.lease()),
            text(destroy_all_workspaces_for_current_thread()),
            text(array.attach(&base(&Device::Cpu))),
            text(array.leverage_to("NONE")),
        ];
        let borrowed = workspace.borrow().unwrap();
        texts.push(text(workspace.borrow()));
        drop(borrowed);
        cycle.leave();
        texts.push(text(workspace.borrow()));
        workspace.destroy().unwrap();
        texts.push(text(workspace.activate()));
        let mapped = WorkspaceConfig::builder().policy_location(LocationPolicy::Mmap).initial_size(4096);
        texts.push(text(Workspace::enter_on(&sim, "MAPPED", &mapped.build().unwrap())));
        let expected = [
            "workspace: workspace [TEXT]: it exists on this thread with another configuration; use that one, another name, or \
             destroy() it first",
            "workspace: workspace [TEXT]: it exists on this thread for another device; use another name, or destroy() it first",
            "destroy: workspace [TEXT]: it is open; leave it first",
            "initialize: workspace [TEXT]: it is open, and has arrays; leave it first",
            "trim: workspace [TEXT]: it is open, and has arrays; leave it first",
            "lease: workspace [TEXT]: only a cycle of a circular workspace that is open can be kept; detach() keeps single \
             arrays",
            "destroy_all_workspaces_for_current_thread: workspace [TEXT]: it is open; leave it first",
            "attach: workspace [TEXT]: the array's bytes are the workspace's; detach() gives an array that can be attached",
            "leverage_to: workspace [NONE]: no workspace of this name is open on this thread; open are [\"TEXT\"]",
            "borrow: workspace [TEXT]: Workspace [TEXT]: Can't borrow from borrowed workspace",
            "borrow: workspace [TEXT]: it is not open, so its arrays would have no cycle; enter it",
            "enter: workspace [TEXT]: it was destroyed; enter one of this name again",
            "workspace: workspace [MAPPED]: a device cannot use mapped memory; choose LocationPolicy::Ram or \
             MirroringPolicy::HostOnly",
        ];
        assert_eq!(texts, expected);
    });
}

#[test]
fn a_full_workspace_says_what_it_has_and_what_to_choose() {
    alone(|| {
        let config = WorkspaceConfig::builder().initial_size(128).policy_learning(LearningPolicy::None);
        let config = config.overallocation_limit(0.).policy_spill(SpillPolicy::Fail).build().unwrap();
        let _cycle = Workspace::enter("FULL", &config).unwrap();
        let _first = zeros(64).unwrap();
        assert_eq!(
            text(zeros(100)),
            "zeros: Can't allocate memory: Workspace is full: [FULL] has 64 B of 128 B in use, and 100 B (100 B) were asked for; \
             choose a larger initial_size, or SpillPolicy::External or SpillPolicy::Reallocate"
        );
    });
}

#[test]
fn ends_of_arrays_and_graphs_that_are_seldom_met_have_their_texts_too() {
    let stale = |closed_by| {
        let array = "7v3".to_owned();
        Error::StaleArray(Box::new(StaleArray { op: "exp", array, created: None, closed_by, closed: None, site: None }))
            .to_string()
    };
    let remedy = "; call attach or detach before its owner ends";
    let closers = [
        (Closer::User, "by its user"),
        (Closer::Manager, "with its manager"),
        (Closer::ManagerDrop, "when the last handle of its manager was dropped"),
        (Closer::Ancestor, "with a manager further up"),
        (Closer::Reaper, "by the reaper, as an orphan"),
        (Closer::Unknown, "long ago"),
    ];
    for (closer, how) in closers {
        assert_eq!(stale(closer), format!("exp: array 7v3 has been closed already, {how}{remedy}"));
    }
    assert_eq!(stale(Closer::Failure), "exp: array 7v3 was never made");
    assert_eq!(Closer::Failure.to_string(), "as the call that should have made it failed");
    alone(|| {
        let lent = Tensor::from_shared(std::sync::Arc::new([0u8; 64]), 0..64, DType::U8, 64, &Device::Cpu).unwrap();
        assert_eq!(
            text(lent.zero_()),
            "zero_: the memory of array KEY was lent for reading; copy() gives an array that may be changed"
        );
        let w = Var::ones(3, DType::F32, &Device::Cpu).unwrap();
        let cycle = Workspace::enter("STEP", &WorkspaceConfig::default()).unwrap();
        let x = Tensor::ones(3, DType::F32, &Device::Cpu).unwrap();
        let loss = {
            let _out = Workspace::scope_out();
            w.mul(&x).unwrap().sum_all().unwrap()
        };
        cycle.leave();
        assert_eq!(
            text(loss.backward()),
            "backward: a value that the gradient of mul (called at HERE) needs ended with its cycle of workspace [STEP]; call \
             backward before the cycle ends, and keep a loss by its number or by detach()"
        );
    });
}

#[test]
fn a_refusal_knows_the_largest_block_that_is_kept_for_reuse() {
    alone(|| {
        for device in [Device::Cpu, Device::sim(SimConfig::default())] {
            device.clear_cache();
            let pieces: Vec<_> =
                [300 << 10, 700 << 10, 200 << 10].map(|n: usize| Tensor::zeros(n, DType::U8, &device).unwrap()).into();
            let between = Tensor::zeros(1, DType::U8, &device).unwrap();
            pieces[1].close();
            let manager = base(&device);
            manager.set_budget(Budget::new().max_bytes(1000)).unwrap();
            let Err(Error::OutOfMemory(oom)) = manager.zeros(1001, DType::U8) else { panic!("it is over the budget") };
            assert!((700 << 10..=oom.cached).contains(&oom.largest_free), "{device}: {oom:?}");
            drop((pieces, between));
        }
    });
}
