//! Budgets of managers: bytes and arrays, through the tree, before memory is taken; moves, reservations, and what
//! happens beyond them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use ndgc::{
    Budget, BudgetUse, DType, Device, Error, NdManager, OutOfMemoryClass, Tensor, Var, Workspace, WorkspaceConfig, gc,
    memory,
};

use crate::common::in_own_process;
use crate::it::support::{alone, base, both, live_bytes, owned_by, switched};

/// Zeros of so many bytes.
fn bytes(manager: &NdManager, count: usize) -> ndgc::Result<Tensor> {
    manager.zeros(count, DType::U8)
}

/// Bytes and arrays that are charged to the budget of a manager.
fn used(manager: &NdManager) -> (u64, u64) {
    let found = manager.budget_use().unwrap();
    (found.bytes, found.arrays)
}

/// Whose budget refused: bytes or arrays, of how many.
fn refusal<T>(result: ndgc::Result<T>) -> (String, u64, u64, bool) {
    match result.map(drop) {
        Err(Error::OutOfMemory(oom)) => match oom.class {
            OutOfMemoryClass::OverBudget { manager, used, max, is_arrays } => (manager, used, max, is_arrays),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_budget_refuses_before_memory_is_taken_and_leaves_everything_as_it_was() {
    both(|device| {
        let (tenant, other) = (base(device), base(device));
        tenant.set_name("tenant");
        assert_eq!(tenant.set_budget(Budget::new().max_bytes(1000)).unwrap(), Budget::new());
        assert_eq!(tenant.budget(), Budget::new().max_bytes(1000));
        let first = bytes(&tenant, 600).unwrap();
        let before = (live_bytes(device), gc::stats().live, tenant.array_count());
        assert_eq!(refusal(bytes(&tenant, 401)), ("tenant".to_owned(), 600, 1000, false));
        assert_eq!(refusal(first.affine(1., 1.)), ("tenant".to_owned(), 600, 1000, false));
        assert_eq!(refusal(first.clamp(0., 1.)), ("tenant".to_owned(), 600, 1000, false), "a composed one");
        assert_eq!((live_bytes(device), gc::stats().live, tenant.array_count()), before);
        assert_eq!(used(&tenant), (600, 1));
        let second = bytes(&tenant, 400).unwrap();
        assert_eq!((used(&tenant), tenant.budget_use().unwrap().refused), ((1000, 2), 3));
        bytes(&other, 1 << 20).unwrap();
        assert_eq!(other.budget_use(), None, "another tree knows nothing of it");
        // In the third of the calls a request that alone is too big.
        let Err(Error::OutOfMemory(oom)) = bytes(&tenant, 1001) else { panic!("refused") };
        assert_eq!((&oom.class, &oom.budget), (&OutOfMemoryClass::TooBig, &Some(("tenant".to_owned(), 1000))));
        second.close();
        assert_eq!(used(&tenant), (600, 1));
        tenant.set_budget(Budget::new()).unwrap();
        bytes(&tenant, 1 << 20).unwrap();
        assert!(tenant.can_fit(1));
        tenant.close().unwrap();
        assert!(!tenant.can_fit(0), "it takes none");
        assert!(matches!(tenant.set_budget(Budget::new()), Err(Error::ManagerClosed { .. })));
        let system = NdManager::system(device);
        assert!(matches!(system.set_budget(Budget::new()), Err(Error::SystemManager { .. })));
    });
}

#[test]
fn a_variable_needs_room_for_its_bytes_once() {
    if crate::common::ran_apart() {
        return;
    }
    both(|device| {
        let manager = base(device);
        manager.set_budget(Budget::new().max_bytes(4000)).unwrap();
        let made = [
            Var::zeros(1000, DType::F32, &manager),
            Var::from_vec(vec![1f32; 1000], 1000, &manager),
            Var::randn(0f32, 1., 1000, &manager),
        ];
        for (first, variable) in made.into_iter().enumerate() {
            // The first has all of the budget; where it is refused nothing of it is left.
            assert_eq!(variable.is_ok(), first == 0, "{variable:?}");
            drop(variable);
        }
        gc::collect_orphans();
        let before = live_bytes(device);
        device.reset_peak();
        let variable = Var::ones(1000, DType::F32, &manager).unwrap();
        assert_eq!(device.memory().peak, before + 4000, "its bytes are those of the array that it was made of");
        assert_eq!((used(&manager), manager.array_count(), owned_by(&variable, &manager)), ((4000, 1), 1, true));
        manager.set_budget(Budget::new()).unwrap();
        assert!(matches!(Var::ones(3, DType::U8, &manager), Err(Error::UnsupportedDType { .. })));
        assert_eq!(manager.array_count(), 1, "not even with the switch off");
        let config = WorkspaceConfig::builder().initial_size(4096).build().unwrap();
        let outside = Workspace::cycle_on(device, "MAKES", &config, || Var::ones(3, DType::F32, device)).unwrap();
        assert_eq!(outside.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap(), 3., "it outlives the cycle");
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn the_budgets_of_a_tree_hold_together_and_each_manager_adds_up() {
    both(|device| {
        let root = base(device);
        root.set_name("root");
        root.set_budget(Budget::new().max_bytes(1000)).unwrap();
        let [a, b] = ["a", "b"].map(|name| root.child(name).unwrap());
        a.set_budget(Budget::new().max_bytes(701)).unwrap();
        let deep = a.new_sub_manager().unwrap();
        let _kept = [bytes(&deep, 500).unwrap(), bytes(&b, 300).unwrap()];
        assert_eq!((used(&a), used(&deep), used(&b), used(&root)), ((500, 1), (500, 1), (800, 2), (800, 2)));
        assert_eq!(refusal(bytes(&deep, 201)).0, "root", "the one that has no room");
        assert_eq!(refusal(bytes(&b, 201)).0, "root");
        root.set_budget(Budget::new().max_bytes(2000)).unwrap();
        assert_eq!(refusal(bytes(&deep, 202)).0, "a");
        let more = bytes(&b, 1200).unwrap();
        assert_eq!((used(&a), used(&root)), ((500, 1), (2000, 3)));
        a.close().unwrap();
        assert_eq!(used(&root), (1500, 2));
        drop(more);
        b.close().unwrap();
        assert_eq!(used(&root), (0, 0));
        assert_eq!(root.budget_use().unwrap().peak_bytes, 2000);
    });
}

#[test]
fn a_budget_that_comes_later_counts_what_is_there_with_managers_below_it() {
    both(|device| {
        let root = base(device);
        let (a, b) = (root.child("a").unwrap(), root.child("b").unwrap());
        let deep = a.child("deep").unwrap();
        let arrays = [&root, &a, &b, &deep].map(|manager| bytes(manager, 100).unwrap());
        let view = arrays[0].narrow(0, 0, 10).unwrap();
        deep.set_budget(Budget::new().max_bytes(150)).unwrap();
        assert_eq!(used(&deep), (100, 1));
        root.set_budget(Budget::new().max_bytes(450)).unwrap();
        assert_eq!((used(&root), used(&b), used(&deep)), ((400, 5), (400, 5), (100, 1)));
        a.set_budget(Budget::new()).unwrap();
        assert_eq!((used(&root), used(&a), used(&deep)), ((400, 5), (200, 2), (100, 1)));
        assert_eq!(deep.budget(), Budget::new().max_bytes(150), "as it was set");
        assert_eq!(refusal(bytes(&deep, 51)).0, "deep");
        assert_eq!(refusal(bytes(&a, 51)).1, 400);
        arrays[3].close();
        assert_eq!((used(&root), used(&a), used(&deep)), ((300, 4), (100, 1), (0, 0)));
        drop((arrays, view));
        root.close().unwrap();
    });
}

#[test]
fn a_first_budget_above_leaves_the_figures_of_those_below_as_they_were() {
    both(|device| {
        let root = base(device);
        let tenant = root.child("tenant").unwrap();
        tenant.set_budget(Budget::new().max_bytes(1000).soft_bytes(500)).unwrap();
        bytes(&tenant, 900).unwrap().close();
        let _x = bytes(&tenant, 100).unwrap();
        assert!(bytes(&tenant, 901).is_err());
        let before = tenant.budget_use().unwrap();
        assert_eq!((before.peak_bytes, before.total_bytes, before.refused, before.soft_passed), (900, 1000, 1, 1));
        root.set_budget(Budget::new()).unwrap();
        assert_eq!(tenant.budget_use(), Some(before));
        let _y = bytes(&tenant, 200).unwrap();
        let now = tenant.budget_use().unwrap();
        assert_eq!((now.bytes, now.peak_bytes, now.total_bytes, now.total_arrays), (300, 900, 1200, 3));
        assert_eq!(root.budget_use().unwrap().total_bytes, 300, "its own begin with it");
    });
}

#[test]
fn a_view_of_its_handles_that_is_refused_a_place_leaves_the_bytes_charged() {
    both(|device| {
        let (owner, full) = (base(device), base(device));
        owner.set_budget(Budget::new().max_bytes(1000)).unwrap();
        full.set_budget(Budget::new().max_arrays(0)).unwrap();
        let x = owner.zeros(100, DType::U8).unwrap();
        let config = WorkspaceConfig::builder().initial_size(4096).build().unwrap();
        let view = Workspace::cycle_on(device, "VIEWS", &config, || x.narrow(0, 0, 10)).unwrap();
        assert_eq!(owner.array_count(), 1, "the view is its handles'");
        assert!(matches!(view.attach(&full), Err(Error::OutOfMemory(_))));
        assert_eq!((owner.budget_use().unwrap().bytes, full.budget_use().unwrap().bytes), (100, 0));
        drop(x);
        assert_eq!(view.to_vec::<u8>().unwrap(), [0; 10]);
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn an_array_that_moves_takes_its_bytes_along_or_stays() {
    both(|device| {
        let root = base(device);
        root.set_budget(Budget::new().max_bytes(1000)).unwrap();
        let [from, to] = ["from", "to"].map(|name| root.child(name).unwrap());
        from.set_budget(Budget::new().max_bytes(1000)).unwrap();
        to.set_budget(Budget::new().max_bytes(650).max_arrays(2)).unwrap();
        let (x, y) = (bytes(&from, 600).unwrap(), bytes(&from, 100).unwrap());
        // 700 of 1000 at the root: a move within must not need room for both places.
        x.attach(&to).unwrap();
        assert_eq!((used(&from), used(&to), used(&root)), ((100, 1), (600, 1), (700, 2)));
        assert_eq!(refusal(y.attach(&to)), ("to".to_owned(), 600, 650, false));
        assert!(owned_by(&y, &from));
        assert_eq!((used(&from), used(&to), used(&root)), ((100, 1), (600, 1), (700, 2)));
        x.temp_attach(&from).unwrap();
        assert_eq!((used(&from), used(&to)), ((700, 2), (0, 0)));
        // While it is lent its lender gives its room away; it comes back all the same.
        let z = bytes(&to, 300).unwrap();
        from.close().unwrap();
        assert_eq!((used(&to), used(&root)), ((900, 2), (900, 2)));
        assert_eq!(refusal(bytes(&to, 1)).0, "to");
        x.attach(&root).unwrap();
        assert_eq!((used(&to), used(&root)), ((300, 1), (900, 2)));
        let free = x.detach();
        assert_eq!(used(&root).0, 300, "the bytes are the handles' from here on");
        x.close();
        let other = base(device);
        let outside = bytes(&other, 200).unwrap();
        outside.attach(&to).unwrap();
        assert_eq!((used(&to), used(&root)), ((500, 2), (500, 2)));
        assert_eq!(refusal(to.zeros(1, DType::U8)), ("to".to_owned(), 2, 2, true));
        assert_eq!(refusal(z.narrow(0, 0, 1)), ("to".to_owned(), 2, 2, true), "a view is an array");
        drop((free, z, outside));
        root.close().unwrap();
    });
}

#[test]
fn bytes_are_charged_once_and_until_they_are_free() {
    both(|device| {
        let root = base(device);
        root.set_budget(Budget::new()).unwrap();
        let x = root.ones((10, 10), DType::F32).unwrap();
        let views = [x.t().unwrap(), x.get(0).unwrap(), x.narrow(0, 2, 3).unwrap()];
        assert_eq!(used(&root), (400, 4));
        assert!(x.content_equals(&x).unwrap() && x.all_close(&x, 0., 0.).unwrap());
        x.slice_set(&x.ones_like().unwrap().narrow(0, 0, 1).unwrap(), 0, 1).unwrap();
        gc::collect_orphans();
        assert_eq!(
            used(&root),
            (400, 4),
            "what operations do with an array for themselves leaves its bytes where they are"
        );
        x.close();
        assert_eq!(used(&root), (400, 3), "the views have them");
        let (request, w) = (root.new_sub_manager().unwrap(), Var::ones(100, DType::F32, device).unwrap());
        let product = w.mul(&request.ones(100, DType::F32).unwrap()).unwrap();
        request.close().unwrap();
        gc::collect();
        assert_eq!(used(&root).0, 400 + 400, "the gradient of `w` needs what it was multiplied with");
        drop((product, views));
        gc::collect_orphans();
        assert_eq!(used(&root).0, 0);
        // Of a vector, and as a result that takes the bytes of its operand over.
        let taken = root.from_vec(vec![1f32; 10_000], 10_000).unwrap();
        assert_eq!(used(&root), (40_000, 1));
        let sum = taken + 1.;
        let kept = if gc::is_on() { 0 } else { 40_000 };
        assert_eq!(used(&root).0, 40_000 + kept, "with the switch off the operand is the manager's still");
        drop(sum);
        root.close().unwrap();
    });
}

#[test]
fn what_is_dead_is_no_reason_to_refuse() {
    switched(true, |device| {
        let manager = base(device);
        manager.set_budget(Budget::new().max_bytes(1 << 20)).unwrap();
        for _ in 0..50 {
            // Each round leaves more than half dead; some of it on the queue of a thread that ended.
            let x = bytes(&manager, 300_000).unwrap();
            std::thread::scope(|scope| scope.spawn(|| drop(bytes(&manager, 600_000).unwrap())).join().unwrap());
            drop(x);
        }
        assert_eq!(used(&manager), (0, 0));
        assert_eq!(manager.budget_use().unwrap().refused, 0);
    });
    switched(false, |device| {
        let manager = base(device);
        manager.set_budget(Budget::new().max_bytes(1000)).unwrap();
        drop(bytes(&manager, 600).unwrap());
        let Err(Error::OutOfMemory(oom)) = bytes(&manager, 600) else { panic!("the manager keeps the first") };
        assert_eq!((oom.kept, oom.kept_bytes), (1, 600));
        assert!(oom.to_string().ends_with("with gc::on() none are kept"), "{oom:?}");
        let _on = gc::scoped(true);
        bytes(&manager, 600).unwrap();
    });
}

#[test]
fn what_is_reserved_is_kept_for_those_within_the_budget() {
    both(|device| {
        let root = base(device);
        root.set_budget(Budget::new().max_bytes(1000)).unwrap();
        let (tenant, other) = (root.child("tenant").unwrap(), root.child("other").unwrap());
        tenant.set_budget(Budget::new().max_bytes(800)).unwrap();
        let room = tenant.reserve(700).unwrap();
        assert_eq!((room.bytes(), used(&tenant).0, used(&root).0), (700, 700, 700));
        assert!(tenant.can_fit(800) && !tenant.can_fit(801), "700 of it reserved, and 100 more");
        assert!(other.can_fit(300) && !other.can_fit(301));
        assert_eq!(refusal(other.reserve(301)).0, root.name());
        assert_eq!(refusal(tenant.reserve(101)).0, "tenant");
        let request = tenant.new_sub_manager().unwrap();
        let filler = bytes(&other, 290).unwrap();
        assert_eq!(refusal(bytes(&request, 750)).0, root.name(), "700 of what is reserved, and 50 that are not there");
        filler.close();
        assert_eq!(tenant.budget_use().unwrap().reserved_bytes, 700, "a refusal takes nothing of it");
        let x = bytes(&request, 600).unwrap();
        let found = tenant.budget_use().unwrap();
        assert_eq!((found.bytes, found.reserved_bytes), (700, 100));
        let y = bytes(&request, 150).unwrap();
        assert_eq!((used(&tenant).0, used(&root).0), (750, 750), "100 of what was reserved, 50 more");
        drop(room);
        assert_eq!(used(&tenant).0, 750, "nothing of it is left");
        x.close();
        let again = tenant.reserve(600).unwrap();
        assert_eq!(used(&root).0, 750);
        drop(again);
        assert_eq!((used(&tenant).0, used(&root).0), (150, 150));
        y.close();
        let (room, z) = (tenant.reserve(100).unwrap(), bytes(&other, 50).unwrap());
        z.attach(&tenant).unwrap();
        assert_eq!((used(&tenant).0, used(&root).0), (150, 150), "what moves is not new");
        root.close().unwrap();
        assert!(matches!(tenant.reserve(1), Err(Error::ManagerClosed { .. })));
        drop((room, z));
        let free = base(device);
        assert!(free.can_fit(u64::MAX) && free.reserve(u64::MAX).is_ok(), "without a budget");
    });
}

#[test]
fn workspaces_and_lent_memory_are_not_charged() {
    alone(|| {
        let manager = base(&Device::Cpu);
        manager.set_budget(Budget::new().max_bytes(100)).unwrap();
        let config = ndgc::WorkspaceConfig::builder().initial_size(1 << 16).build().unwrap();
        let workspace = ndgc::Workspace::enter("BUDGET", &config).unwrap();
        let x = bytes(&manager, 1000).unwrap();
        assert!(x.is_attached() && used(&manager) == (0, 0));
        drop((x, workspace));
        let lent = Tensor::from_shared(Arc::new(vec![0u8; 1000]), 0..1000, DType::U8, 1000, &manager).unwrap();
        assert_eq!(used(&manager), (0, 1));
        drop(lent);
    });
}

/// A number of a cheap sequence.
fn draw(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

/// Managers of a random program: a root with two tenants, of which one has two managers below it.
fn tree(device: &Device) -> Vec<NdManager> {
    let root = base(device);
    root.set_budget(Budget::new().max_bytes(10_000).max_arrays(60)).unwrap();
    let (a, b) = (root.child("a").unwrap(), root.child("b").unwrap());
    a.set_budget(Budget::new().max_bytes(6_000)).unwrap();
    b.set_budget(Budget::new().max_bytes(7_000).max_arrays(25)).unwrap();
    let (c, d) = (a.child("c").unwrap(), a.child("d").unwrap());
    d.set_budget(Budget::new().max_bytes(3_000)).unwrap();
    vec![root, a, b, c, d]
}

/// The limits of each.
const MOST: [(u64, u64); 5] = [(10_000, 60), (6_000, u64::MAX), (7_000, 25), (u64::MAX, u64::MAX), (3_000, u64::MAX)];

#[test]
fn bytes_that_two_threads_move_at_once_are_charged_to_one_of_them() {
    const ROUNDS: usize = 3000;
    switched(true, |device| {
        let [from, left, right] = [base(device), base(device), base(device)];
        let _ = [&from, &left, &right].map(|manager| manager.set_budget(Budget::new().max_bytes(1000)).unwrap());
        let charged = || [&from, &left, &right].map(|manager| manager.budget_use().unwrap().bytes);
        let (turn, ready) = (Barrier::new(3), AtomicUsize::new(0));
        let shared = Mutex::new(Vec::new());
        let (mut moved, mut ended) = (BTreeSet::new(), BTreeSet::new());
        std::thread::scope(|scope| {
            for (at, to) in [&left, &right].into_iter().enumerate() {
                let (turn, ready, shared) = (&turn, &ready, &shared);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        turn.wait();
                        let view: Option<Tensor> = shared.lock().unwrap().get(at).cloned();
                        ready.fetch_add(1, Ordering::SeqCst);
                        while ready.load(Ordering::SeqCst) < 2 * round {
                            std::hint::spin_loop();
                        }
                        view.map(|view| view.attach(to));
                        turn.wait();
                    }
                });
            }
            // No panic in here, for which the others would wait.
            for _ in 0..ROUNDS {
                let array = bytes(&from, 900);
                let views = array.iter().flat_map(|array| [0, 400].map(|start| array.narrow(0, start, 400)));
                *shared.lock().unwrap() = views.flatten().collect();
                turn.wait();
                turn.wait();
                moved.insert(charged());
                drop(array);
                shared.lock().unwrap().clear();
                gc::collect_orphans();
                ended.insert(charged());
            }
        });
        assert!(moved.iter().all(|charged| [[0, 0, 900], [0, 900, 0]].contains(charged)), "{moved:?}");
        assert_eq!(ended, BTreeSet::from([[0, 0, 0]]));
    });
}

/// Bytes charged in all, bytes of them that are free again, and arrays counted in all.
fn in_all(manager: &NdManager) -> [u64; 3] {
    let stats = manager.stats();
    let [total, charged, arrays] =
        ["bytes.total", "bytes.charged", "arrays.total"].map(|name| stats.get(name).unwrap());
    [total, total - charged, arrays]
}

/// A manager is charged before the one above it, and told before it that bytes are free: of each thread one array may
/// be free below and not yet above. What moves among these counts with both for a moment, and their parent does not
/// notice. Figures that only grow show it, though they are not read at one time.
#[test]
fn children_add_up_to_their_parent_while_others_make_move_and_drop() {
    const ROUNDS: usize = 20_000;
    const MOST_BYTES: u64 = 900;
    switched(true, |device| {
        if !device.is_cpu() {
            return;
        }
        let (parent, moved, moves) = (base(device), AtomicU64::new(0), AtomicU64::new(0));
        let children = ["a", "b"].map(|name| parent.child(name).unwrap());
        for manager in [&parent, &children[0], &children[1]] {
            manager.set_budget(Budget::new()).unwrap();
        }
        let work = |own: usize| {
            let (mut state, mut held) = ((own as u64 + 1) * 0x9E37_79B9, Vec::new());
            for _ in 0..ROUNDS {
                let size = 1 + draw(&mut state, MOST_BYTES);
                held.push((bytes(&children[own], size as usize).unwrap(), own, size));
                let at = draw(&mut state, held.len() as u64) as usize;
                if draw(&mut state, 2) == 0 {
                    let (array, home, size) = &mut held[at];
                    *home = 1 - *home;
                    moved.fetch_add(*size, Ordering::SeqCst); // before it is seen
                    moves.fetch_add(1, Ordering::SeqCst);
                    array.attach(&children[*home]).unwrap();
                }
                if held.len() > 20 {
                    held.swap_remove(at);
                }
            }
        };
        std::thread::scope(|scope| {
            let workers = [0, 1].map(|own| scope.spawn(move || work(own)));
            while !workers.iter().all(|worker| worker.is_finished()) {
                let before = in_all(&parent);
                let [a, b] = children.each_ref().map(in_all);
                let moved = moved.load(Ordering::SeqCst);
                let after = in_all(&parent);
                let free = after[1] + moved + 2 * MOST_BYTES;
                assert!(a[1] + b[1] <= free, "free: {a:?} and {b:?}, {moved} moved, {after:?} above");
                // Where writes are seen in their order, which nobody needs of these.
                if cfg!(target_arch = "x86_64") {
                    assert!(before[0] <= a[0] + b[0], "charged: {before:?} above, {a:?} and {b:?}");
                    assert!(before[2] <= a[2] + b[2], "counted: {before:?} above, {a:?} and {b:?}");
                }
            }
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        gc::collect_orphans();
        let ([a, b], all, moved) = (children.each_ref().map(in_all), in_all(&parent), moved.into_inner());
        let moves = moves.into_inner();
        assert!(moved > 1_000_000, "{moved}");
        assert_eq!((a[0] + b[0], a[1] + b[1], a[2] + b[2]), (all[0] + moved, all[1] + moved, all[2] + moves));
        assert_eq!([&parent, &children[0], &children[1]].map(used), [(0, 0); 3]);
    });
}

#[test]
fn managers_with_budgets_come_and_go_without_a_trace() {
    both(|device| {
        let root = base(device);
        root.set_budget(Budget::new().max_bytes(1 << 20)).unwrap();
        for round in 0..2000 {
            let request = root.new_sub_manager().unwrap();
            request.set_budget(Budget::new().max_bytes(4096).max_arrays(3)).unwrap();
            let x = bytes(&request, 4000).unwrap();
            assert!(bytes(&request, 97).is_err());
            // Of every other one the bytes outlive it.
            let kept = (round % 2 == 0).then(|| x.detach());
            request.close().unwrap();
            assert_eq!(used(&root), (0, 0));
            drop(kept);
        }
    });
}

/// One more array, or one less: a request within a tenant's budget, which others move in and out of.
fn drift_cycle(state: &mut u64, managers: &[NdManager], kept: &mut Vec<Tensor>) {
    let request = managers[draw(state, 5) as usize].new_sub_manager().unwrap();
    if draw(state, 3) == 0 {
        request.set_budget(Budget::new().max_bytes(1000).max_arrays(4)).unwrap();
    }
    let room = request.reserve(draw(state, 2000)).ok();
    let own: Vec<Tensor> =
        (0..draw(state, 3)).filter_map(|_| bytes(&request, draw(state, 2500) as usize).ok()).collect();
    if let Some(view) = own.first().and_then(|array| array.narrow(0, 0, 0).ok()) {
        // Leaves the request, with the bytes, if there is room.
        let _ = view.attach(&managers[draw(state, 5) as usize]);
        kept.push(view);
    }
    if let Some(array) = kept.last() {
        let _ = array.attach(&request);
        let _ = array.temp_attach(&managers[draw(state, 5) as usize]);
    }
    kept.truncate(draw(state, 6) as usize);
    drop((own, room));
    match draw(state, 2) {
        0 => request.close().unwrap(),
        _ => drop(request),
    }
}

#[test]
fn no_budget_drifts_in_a_hundred_thousand_cycles() {
    switched(true, |device| {
        let cycles = if device.is_cpu() { 100_000 } else { 2_000 };
        let (managers, live, mut state, mut kept) = (tree(device), gc::stats().live, 0x9E37_79B9, Vec::new());
        for cycle in 1..=cycles {
            drift_cycle(&mut state, &managers, &mut kept);
            if cycle % (cycles / 10) == 0 {
                kept.clear();
                gc::collect_orphans();
                let found: Vec<_> = managers.iter().map(|manager| manager.budget_use().unwrap()).collect();
                let charged = |found: &BudgetUse| (found.bytes, found.arrays, found.reserved_bytes);
                assert!(found.iter().all(|found| charged(found) == (0, 0, 0)), "cycle {cycle}: {found:?}");
                assert!(found.iter().zip(MOST).all(|(found, most)| found.peak_bytes <= most.0), "{found:?}");
                assert_eq!((gc::stats().live, managers[0].manager_count()), (live, 2), "no request is left");
            }
        }
        let refused = [0, 1, 2, 4].map(|of| managers[of].budget_use().unwrap().refused);
        assert!(refused.iter().sum::<u64>() > 10, "there was too little to refuse: {refused:?}");
    });
}

#[test]
fn a_closed_manager_is_within_no_budget_whoever_has_its_number_now() {
    both(|device| {
        let (old, new) = (base(device), base(device));
        old.set_budget(Budget::new().max_bytes(1 << 20)).unwrap();
        let room = old.reserve(1 << 10).unwrap();
        old.close().unwrap();
        // It takes the place of the one that is free again, once the reservation is.
        drop(room);
        new.set_budget(Budget::new().max_bytes(8 << 20)).unwrap();
        let _array = bytes(&new, 1 << 20).unwrap();
        assert_eq!((old.budget_use(), old.budget()), (None, Budget::new()));
        assert_eq!(old.stats().get("bytes.charged"), None);
        assert!(!old.can_fit(1));
        assert!(matches!(old.reserve(1), Err(Error::ManagerClosed { .. })));
        assert_eq!(used(&new), (1 << 20, 1));
    });
}

/// Invariant I10 (design.md): what a manager or the device refuses was charged to a budget for a moment, and drew on
/// what is reserved there.
#[test]
fn a_request_that_others_refuse_leaves_a_budget_as_it_was() {
    both(|device| {
        let tenant = base(device);
        tenant.set_budget(Budget::new().max_bytes(1 << 20).soft_bytes(750_000).soft_arrays(1)).unwrap();
        let [capped, closed] = ["capped", "closed"].map(|name| tenant.child(name).unwrap());
        let x = bytes(&capped, 100).unwrap();
        capped.cap().unwrap();
        closed.close().unwrap();
        let room = tenant.reserve(700_000).unwrap();
        let before = tenant.budget_use();
        assert!(matches!(bytes(&capped, 600_000), Err(Error::ManagerCapped { .. })));
        assert!(matches!(bytes(&closed, 600_000), Err(Error::ManagerClosed { .. })));
        assert!(matches!(x.affine(1., 1.), Err(Error::ManagerCapped { .. })), "nor does a result");
        assert_eq!(tenant.budget_use(), before);
        let limit = device.set_limit(Some(device.memory().active + 100_000));
        let refused = [bytes(&tenant, 600_000), bytes(&tenant, 800_000)].map(|made| made.is_err());
        device.set_limit(limit);
        assert_eq!((refused, tenant.budget_use()), ([true; 2], before));
        let _drawn = bytes(&tenant, 800_000).unwrap();
        assert_eq!(tenant.budget_use().unwrap().soft_passed, 2, "of bytes and of arrays, when it was granted");
        drop(room);
        assert_eq!(used(&tenant).0, 800_100);
    });
}

#[test]
fn what_was_refused_was_never_the_most_that_there_was() {
    both(|device| {
        let (root, other) = (base(device), base(device));
        root.set_budget(Budget::new().max_bytes(1000).max_arrays(2)).unwrap();
        let child = root.child("child").unwrap();
        child.set_budget(Budget::new()).unwrap();
        let figures = |manager: &NdManager| {
            let found = manager.budget_use().unwrap();
            let arrays = [found.arrays, found.peak_arrays, found.total_arrays];
            ([found.bytes, found.peak_bytes, found.total_bytes], arrays)
        };
        let (_first, large, small) =
            (bytes(&root, 900).unwrap(), bytes(&other, 200).unwrap(), bytes(&other, 10).unwrap());
        assert!(bytes(&child, 500).is_err() && child.reserve(200).is_err());
        assert_eq!(refusal(large.attach(&child)).1, 900, "counted, and then its bytes");
        let _second = bytes(&root, 10).unwrap();
        assert_eq!(refusal(small.attach(&child)).1, 2);
        assert_eq!((figures(&child), figures(&root)), (([0; 3], [0; 3]), ([910; 3], [2; 3])));
    });
}

/// A manager that was closed keeps no number: what has it now would be charged, and would refuse.
#[test]
fn a_closed_manager_charges_nobody_whoever_has_its_place_now() {
    both(|device| {
        let old = base(device);
        old.close().unwrap();
        // Places are used again after at most 64 fresh ones.
        let tenants: Vec<_> = (0..100).map(|_| base(device)).collect();
        let limited = |tenant: &NdManager| tenant.set_budget(Budget::new().max_bytes(100)).unwrap();
        tenants.iter().for_each(|tenant| assert_eq!(limited(tenant), Budget::new()));
        let rooms: Vec<_> = tenants.iter().map(|tenant| tenant.reserve(50).unwrap()).collect();
        let before: Vec<_> = tenants.iter().map(NdManager::budget_use).collect();
        for size in [40, 90, 1000] {
            assert!(matches!(bytes(&old, size), Err(Error::ManagerClosed { .. })));
        }
        assert_eq!(tenants.iter().map(NdManager::budget_use).collect::<Vec<_>>(), before);
        drop(rooms);
    });
}

/// An array that moves is counted all the time: a budget above both managers, which is full, does not notice, so that
/// nobody gets its place, and it always has one.
#[test]
fn nobody_gets_the_place_of_an_array_that_moves() {
    switched(true, |device| {
        if !device.is_cpu() {
            return;
        }
        let root = base(device);
        root.set_budget(Budget::new().max_arrays(4)).unwrap();
        let [a, b, waits] = ["a", "b", "waits"].map(|name| root.child(name).unwrap());
        a.set_budget(Budget::new()).unwrap();
        let arrays = [(); 4].map(|()| bytes(&a, 16).unwrap());
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                for round in 0..30_000 {
                    let array = &arrays[round % 4];
                    array.attach([&b, &a][round / 4 % 2]).unwrap();
                    if round % 16 == 0 {
                        let borrower = root.new_sub_manager().unwrap();
                        array.temp_attach(&borrower).unwrap();
                        borrower.close().unwrap();
                    }
                }
            });
            while !mover.is_finished() {
                assert!(!waits.can_fit(1), "it is full");
                assert_eq!(used(&root).1, 4);
            }
            mover.join().unwrap();
        });
        assert!(bytes(&waits, 1).is_err());
    });
}

/// The first budget of a manager comes while an array of it is in the hands of somebody who may not put it elsewhere.
#[test]
fn a_first_budget_finds_an_array_that_somebody_tries_to_move() {
    switched(true, |device| {
        if !device.is_cpu() {
            return;
        }
        let (full, root) = (base(device), base(device));
        full.set_budget(Budget::new().max_arrays(0)).unwrap();
        root.set_budget(Budget::new()).unwrap();
        for round in 0..1_000 {
            let manager = if round % 2 == 0 { base(device) } else { root.new_sub_manager().unwrap() };
            let (array, tries, is_over) = (bytes(&manager, 100).unwrap(), AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        assert!(array.attach(&full).is_err());
                        tries.fetch_add(1, Ordering::SeqCst);
                    }
                });
                while tries.load(Ordering::SeqCst) < 2 {
                    std::hint::spin_loop();
                }
                // At another point of a try each time.
                (0..round * 37 % 1_500).for_each(|_| std::hint::spin_loop());
                manager.set_budget(Budget::new()).unwrap();
                is_over.store(true, Ordering::SeqCst);
            });
            assert_eq!(used(&manager), (100, 1), "round {round}");
            assert_eq!(used(&root), if round % 2 == 0 { (0, 0) } else { (100, 1) }, "round {round}");
            manager.close().unwrap();
        }
    });
}

#[test]
fn no_reservation_is_larger_than_what_can_be_counted() {
    both(|device| {
        let tenant = base(device);
        // Counted, without a limit.
        tenant.set_budget(Budget::new().max_arrays(10)).unwrap();
        let _array = bytes(&tenant, 64).unwrap();
        for much in [u64::MAX, 1 << 63, (1 << 63) - 1] {
            assert!(!tenant.can_fit(much));
            assert!(matches!(tenant.reserve(much), Err(Error::OutOfMemory(_))), "{much}");
            assert_eq!(used(&tenant), (64, 1));
        }
        let room = tenant.reserve(1 << 40).unwrap();
        assert_eq!(tenant.budget_use().unwrap().reserved_bytes, 1 << 40);
        drop(room);
        assert_eq!(tenant.budget_use().unwrap().reserved_bytes, 0);
    });
}

/// A chain of managers with a budget each, and what goes through all of it: bytes, refusals, reservations, moves.
fn nest_budgets() {
    const LEVELS: usize = 100_000;
    let mut chain = vec![base(&Device::Cpu)];
    for at in 0..LEVELS {
        let manager = chain[at].new_sub_manager().unwrap();
        manager.set_budget(Budget::new().max_bytes(1 << 20)).unwrap();
        chain.push(manager);
    }
    let [root, middle, leaf] = [0, LEVELS / 2, LEVELS].map(|at| &chain[at]);
    // The first budget of the highest gives all below new ones.
    root.set_budget(Budget::new().max_bytes(1000)).unwrap();
    let held = bytes(leaf, 600).unwrap();
    let all = || [root, middle, leaf].map(used);
    assert_eq!(all(), [(600, 1); 3]);
    assert_eq!(refusal(bytes(leaf, 401)).1, 600, "the highest refuses");
    assert_eq!(all(), [(600, 1); 3]);
    // From below, so that none draws on another one.
    let rooms: Vec<_> = (0..10).rev().map(|at| chain[at * (LEVELS / 10)].reserve(10).unwrap()).collect();
    let reserved = || (0..10).map(|at| chain[at * (LEVELS / 10)].budget_use().unwrap().reserved_bytes).sum::<u64>();
    assert_eq!((used(root), reserved()), ((700, 1), 100));
    assert_eq!(refusal(bytes(leaf, 401)).1, 700);
    assert_eq!((all(), reserved()), ([(700, 1), (650, 1), (600, 1)], 100), "what was drawn is back");
    let other = bytes(leaf, 300).unwrap();
    assert_eq!((all(), reserved()), ([(900, 2), (900, 2), (900, 2)], 0));
    drop(rooms);
    held.attach(middle).unwrap();
    assert_eq!(all(), [(900, 2), (900, 2), (300, 1)]);
    held.close();
    assert_eq!(all(), [(300, 1); 3]);
    root.close().unwrap();
    assert!(!other.is_open() && !leaf.is_open());
    drop(other);
}

/// In a process of its own, which the end of a stack ends.
#[test]
fn budgets_may_be_nested_in_any_depth() {
    in_own_process("it::budgets::budgets_may_be_nested_in_any_depth", || {
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(nest_budgets);
        thread.unwrap().join().unwrap();
        // The next one takes the place of one of them.
        let again = base(&Device::Cpu);
        again.set_budget(Budget::new().max_bytes(100)).unwrap();
        let _held = bytes(&again, 100).unwrap();
        assert_eq!(used(&again), (100, 1));
    });
}

#[test]
fn a_whole_number_of_a_limit_is_read_to_its_last_digit() {
    let read = |text: &str| memory::parse_limit(text).ok().flatten();
    for bytes in [(1 << 53) + 1, (1 << 60) - 1, u64::MAX - 1, u64::MAX] {
        assert_eq!(read(&bytes.to_string()), Some(bytes));
    }
    assert_eq!(read(" 9007199254740993 KiB "), Some(9_007_199_254_740_993 << 10));
    assert_eq!((read("16777215t"), read("1.5t"), read("0.5k")), (Some(16_777_215 << 40), Some(3 << 39), Some(512)));
    let beyond = ["18446744073709551616", "16777216t", "340282366920938463463374607431768211456", "16777216.0t"];
    for text in beyond.map(str::to_owned).into_iter().chain([format!("{}k", u128::MAX), "9".repeat(400) + ".5"]) {
        assert!(memory::parse_limit(&text).is_err(), "{text}");
    }
}
