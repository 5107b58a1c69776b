//! Handles, the queue and the drain: an array ends once, after its last use.
//!
//! There is no close here, so a use is a bare read: announcing costs a compiler fence only in what ships, while
//! loom's fence in its place would order more.

use super::world::{Model, World};
use crate::memory::slot::{OPEN, generation_of};

/// Uses the array, drops its handle, and drains.
fn use_drop_drain<const ME: usize>(world: &World) {
    use_drop::<ME>(world);
    world.drain();
}

/// Uses the array and drops its handle.
fn use_drop<const ME: usize>(world: &World) {
    world.read();
    world.drop_proxy(ME);
}

/// `registry::upgrade_index`, a use of whatever array was found, and the drop of the new handle.
fn upgrade_use_drop(world: &World) {
    let Some(state) = world.slot.upgrade() else { return };
    if state & OPEN != 0 {
        world.read();
    }
    world.drop_proxy(1);
}

#[test]
fn two_droppers_of_clones_and_their_drains_end_an_array_once_after_both_uses() {
    Model::handles(2).beside(use_drop_drain::<1>).run(use_drop_drain::<0>, |world| world.settle(1));
}

#[test]
fn a_third_thread_may_drain_what_two_drop() {
    Model::handles(2).beside(use_drop::<1>).beside(World::drain).run(use_drop::<0>, |world| world.settle(1));
}

#[test]
fn an_upgrade_comes_before_the_end_or_not_at_all() {
    Model::handles(1).beside(upgrade_use_drop).run(use_drop_drain::<0>, |world| world.settle(1));
}

/// The drain finds the upgraded handle and leaves the end to it: what the drain knows of earlier uses goes along.
#[test]
fn an_upgraded_handle_ends_the_array_after_a_drain_that_came_too_early() {
    let upgrade_drop_drain = |world: &World| {
        upgrade_use_drop(world);
        world.drain();
    };
    Model::handles(1).beside(upgrade_drop_drain).beside(World::drain).run(use_drop::<0>, |world| world.settle(1));
}

/// Uses the array and takes it over by its handle, or else drops that.
fn use_take_over(world: &World) {
    world.read();
    if !world.take_over() {
        world.drop_proxy(0);
        world.drain();
    }
}

#[test]
fn an_array_is_taken_over_after_an_upgraded_handle_or_not_at_all() {
    let upgrade_drop_drain = |world: &World| {
        upgrade_use_drop(world);
        world.drain();
    };
    Model::handles(1).beside(upgrade_drop_drain).run(use_take_over, |world| world.settle(1));
}

#[test]
fn an_array_is_taken_over_after_the_uses_of_a_second_handle() {
    Model::handles(2).beside(use_drop_drain::<1>).run(use_take_over, |world| world.settle(1));
}

/// The handle's thread announces nothing then, so that only the closer may still look at the slot.
#[test]
fn an_array_that_its_manager_closes_is_taken_over_or_closed() {
    let take_over = |world: &World| assert!(world.take_over());
    Model::handles(1).beside(|world| world.close(1)).run(take_over, |world| world.settle(1));
}

#[test]
fn an_upgrade_against_two_last_drops() {
    let drop_one = |world: &World| world.drop_proxy(0);
    Model::handles(2).beside(upgrade_use_drop).beside(drop_one).run(drop_one, |world| world.settle(1));
}

#[test]
fn an_upgrade_may_find_the_next_array_of_the_slot() {
    let twice = |world: &World| {
        world.drop_proxy(0);
        world.drain();
        if world.recycled() == 1 {
            assert_eq!(generation_of(world.slot.state()), 2);
            world.create();
            world.drop_proxy(0);
        }
    };
    Model::handles(1).beside(upgrade_use_drop).run(twice, World::settle_all);
}
