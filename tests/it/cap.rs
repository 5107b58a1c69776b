//! Area B, behaviours 15 to 19: a capped manager takes no further arrays.

use std::sync::atomic::{AtomicBool, Ordering};

use ndgc::{Budget, DType, Error};

use crate::it::support::{base, block, both, live_bytes, matrix, owned_by, values, vector};

#[test]
fn b15_a_capped_manager_makes_no_array() {
    both(|device| {
        let manager = base(device);
        let kept = vector(&manager);
        assert!(!manager.is_capped());
        manager.cap().unwrap();
        manager.cap().unwrap();
        assert!(manager.is_capped() && manager.is_open());
        let before = live_bytes(device);
        let refused = manager.zeros(1000, DType::F32);
        assert!(matches!(refused, Err(Error::ManagerCapped { op: "zeros", .. })), "{refused:?}");
        assert_eq!((manager.array_count(), live_bytes(device)), (1, before), "nothing is left of it");
        assert_eq!(values(&kept), [1., 2., 3.], "what it has can be used");
    });
}

#[test]
fn b16_results_and_views_of_a_capped_managers_arrays_are_refused() {
    both(|device| {
        let (manager, other) = (base(device), base(device));
        let (array, foreign) = (matrix(&manager), matrix(&other));
        manager.cap().unwrap();
        let before = live_bytes(device);
        for refused in [array.get(0), array.narrow(0, 0, 1), array.t(), array.add(&foreign), array.duplicate()] {
            assert!(matches!(refused, Err(Error::ManagerCapped { .. })), "{refused:?}");
        }
        let refused = foreign.attach(&manager);
        assert!(matches!(refused, Err(Error::ManagerCapped { op: "attach", .. })), "{refused:?}");
        assert!(owned_by(&foreign, &other), "an attach that is refused leaves the array where it was");
        assert_eq!((manager.array_count(), live_bytes(device)), (1, before));
        assert!(owned_by(&foreign.add(&array).unwrap(), &other), "as second operand it is as good as any");
    });
}

#[test]
fn b17_indexing_with_another_manager_named_works_and_the_result_is_that_managers() {
    both(|device| {
        let (manager, other) = (base(device), base(device));
        let array = matrix(&manager);
        manager.cap().unwrap();
        let row = array.get_in(&other, 1).unwrap();
        assert!(owned_by(&row, &other));
        manager.close().unwrap();
        assert_eq!(values(&row), [3., 4.], "the view keeps the bytes");
    });
}

#[test]
fn b18_an_array_of_a_capped_manager_may_be_lent_and_comes_back() {
    both(|device| {
        let (manager, borrower) = (base(device), base(device));
        let array = vector(&manager);
        manager.cap().unwrap();
        array.temp_attach(&borrower).unwrap();
        assert!(owned_by(&array, &borrower) && manager.array_count() == 0);
        borrower.close().unwrap();
        assert!(owned_by(&array, &manager) && manager.array_count() == 1, "returning ignores the cap");
        let capped_borrower = base(device);
        capped_borrower.cap().unwrap();
        array.temp_attach(&capped_borrower).unwrap();
        assert!(owned_by(&array, &capped_borrower), "lending to a capped manager ignores the cap, as in DJL");
    });
}

#[test]
fn b19_a_capped_manager_may_make_sub_managers_which_are_not_capped() {
    both(|device| {
        let manager = base(device);
        manager.cap().unwrap();
        let sub = manager.new_sub_manager().unwrap();
        assert!(!sub.is_capped());
        let array = block(&sub);
        assert!(matches!(sub.ret(&array), Err(Error::ManagerCapped { .. })), "but may not return arrays to it");
        assert!(owned_by(&array, &sub), "an array that is refused stays where it was");
    });
}

/// The first budget comes when it is capped, or while it is.
#[test]
fn who_is_capped_draws_on_nothing_that_is_reserved_whenever_the_budget_comes() {
    both(|device| {
        if !device.is_cpu() {
            return;
        }
        for round in 0..2_000 {
            let parent = base(device);
            let child = parent.new_sub_manager().unwrap();
            if round == 0 {
                child.cap().unwrap();
            }
            let goes = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !goes.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                    child.cap().unwrap();
                });
                goes.store(true, Ordering::Relaxed);
                (0..round % 100).for_each(|_| std::hint::spin_loop());
                parent.set_budget(Budget::new().max_bytes(1_000)).unwrap();
            });
            let _room = parent.reserve(600).unwrap();
            assert!(matches!(child.zeros(500, DType::U8), Err(Error::ManagerCapped { .. })));
            assert_eq!(parent.budget_use().unwrap().reserved_bytes, 600, "round {round}");
        }
    });
}
