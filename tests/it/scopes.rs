//! Area E, behaviours 43 to 49: DJL's `NDScope`.
//!
//! An `NDScope` is a thread-local list that every new array enters and that closes them all; an array that is to
//! survive is unregistered by hand. Here a sub-manager is the scope: what is made with it, and every result of
//! such an array, is its own; `ret` and `attach` carry an array out, `detach` makes one that nothing ends.

use std::thread;

use ndgc::{Device, Error, SimConfig, Tensor};

use crate::it::support::{base, block, both, owned_by, values, vector};

#[test]
fn e43_arrays_end_with_the_innermost_scope_that_they_belong_to() {
    both(|device| {
        let manager = base(device);
        let outer = manager.new_sub_manager().unwrap();
        let x = vector(&outer);
        let inner = outer.new_sub_manager().unwrap();
        let y = vector(&inner);
        let (in_outer, in_inner) = (x.add(&y).unwrap(), y.add(&x).unwrap());
        assert!(owned_by(&in_outer, &outer) && owned_by(&in_inner, &inner), "a result is its first operand's");
        inner.close().unwrap();
        assert!(y.is_released() && in_inner.is_released());
        assert_eq!(values(&in_outer), [2., 4., 6.]);
        outer.close().unwrap();
        assert!(x.is_released() && in_outer.is_released() && manager.is_open());
    });
}

#[test]
fn e44_an_array_carried_out_survives_the_scope_and_ends_with_the_manager() {
    // NDScope.unregister: found only in the innermost scope; `ret` and `attach` work from anywhere.
    both(|device| {
        let manager = base(device);
        let outer = manager.new_sub_manager().unwrap();
        let inner = outer.new_sub_manager().unwrap();
        let inside = vector(&inner);
        manager.ret_to(&inside).unwrap();
        inner.close().unwrap();
        outer.close().unwrap();
        assert_eq!(values(&inside), [1., 2., 3.]);
        manager.close().unwrap();
        assert!(inside.is_released());
    });
}

#[test]
fn e45_an_array_that_was_detached_survives_scope_and_manager() {
    both(|device| {
        let manager = base(device);
        let scope = manager.new_sub_manager().unwrap();
        let detached = vector(&scope).detach();
        scope.close().unwrap();
        manager.close().unwrap();
        assert_eq!(values(&detached), [1., 2., 3.]);
    });
}

#[test]
fn e46_an_array_that_nobody_carried_out_is_released_and_its_use_an_error() {
    both(|device| {
        let manager = base(device);
        let scope = manager.new_sub_manager().unwrap();
        let released = vector(&scope);
        drop(scope);
        assert!(released.is_released(), "the scope ends where its handle goes out of scope");
        assert!(matches!(released.affine_(1., 1.), Err(Error::StaleArray(_))));
    });
}

#[test]
fn e47_arrays_are_told_apart_by_identity_and_never_by_value() {
    // DJL's first scope compared by value (c0b94ac78), which threw for arrays on two devices.
    both(|device| {
        let manager = base(device);
        let scope = manager.new_sub_manager().unwrap();
        let elsewhere = scope.new_sub_manager_on(&Device::sim(SimConfig::default())).unwrap();
        let twins = [vector(&scope), vector(&scope), vector(&elsewhere)];
        assert!(!twins[0].is_same(&twins[1]) && twins[0].is_same(&twins[0].clone()));
        manager.ret_to(&twins[1]).unwrap();
        scope.close().unwrap();
        assert!(twins[0].is_released() && twins[2].is_released());
        assert_eq!(values(&twins[1]), [1., 2., 3.]);
    });
}

#[test]
fn e48_a_scope_holds_what_is_made_with_it_on_any_thread_and_nothing_else() {
    // An NDScope belongs to its thread and misses what other threads make. A sub-manager is named, so it
    // misses nothing, and two threads with scopes of their own do not meet.
    both(|device| {
        let manager = base(device);
        let shared = manager.new_sub_manager().unwrap();
        let (own, common): (Vec<Tensor>, Vec<Tensor>) = thread::scope(|threads| {
            let run = || {
                let scope = manager.new_sub_manager().unwrap();
                let inside = block(&scope);
                let carried_out = manager.ret_to(&vector(&scope)).unwrap();
                scope.close().unwrap();
                assert!(inside.is_released());
                (carried_out, vector(&shared))
            };
            let threads: Vec<_> = (0..4).map(|_| threads.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).unzip()
        });
        assert_eq!((shared.array_count(), manager.array_count()), (4, 4));
        shared.close().unwrap();
        assert!(common.iter().all(Tensor::is_released));
        assert!(own.iter().all(|array| values(array) == [1., 2., 3.]));
    });
}

#[test]
fn e49_no_scope_owns_helpers_of_a_second_engine_because_there_is_none() {
    // DJL's hybrid engines keep a manager and a helper array of a second engine behind an array (#3490). Here
    // operands on two devices are an error, so nothing is copied in hiding and no manager appears.
    both(|device| {
        let manager = base(device);
        let other = manager.new_sub_manager_on(&Device::sim(SimConfig::default())).unwrap();
        let (here, there) = (vector(&manager), vector(&other));
        for refused in [here.add(&there), there.add(&here), here.add_(&there), Tensor::cat(&[&here, &there], 0)] {
            assert!(matches!(refused, Err(Error::DeviceMismatch { .. })), "{refused:?}");
        }
        assert_eq!((manager.array_count(), other.array_count()), (1, 1));
        assert_eq!((manager.manager_count(), other.manager_count()), (1, 0));
    });
}
