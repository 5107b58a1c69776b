//! Handles, the queue and the drain: an array ends once, after its last use.

use super::world::{Model, World};
use crate::memory::slot::generation_of;

/// Uses the array, drops its handle, and drains.
fn use_drop_drain<const ME: usize>(world: &World) {
    assert!(world.operation(ME), "a handle keeps an open array open");
    world.drop_proxy(ME);
    world.drain();
}

/// Uses the array and drops its handle.
fn use_drop<const ME: usize>(world: &World) {
    assert!(world.operation(ME), "a handle keeps an open array open");
    world.drop_proxy(ME);
}

/// `registry::upgrade`, a use, and the drop of the new handle.
fn upgrade_use_drop(world: &World) {
    let Some(state) = world.slot.upgrade() else { return };
    if generation_of(state) == 1 {
        world.operation(1);
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

#[test]
fn an_upgrade_against_two_last_drops() {
    let drop_one = |world: &World| world.drop_proxy(0);
    Model::handles(2).beside(upgrade_use_drop).beside(drop_one).run(drop_one, |world| world.settle(1));
}

#[test]
fn an_upgrade_may_find_the_next_array_of_the_slot_and_gives_it_back() {
    let twice = |world: &World| {
        world.drop_proxy(0);
        world.drain();
        if world.recycled() == 1 {
            world.create();
            world.drop_proxy(0);
        }
    };
    Model::handles(1).beside(upgrade_use_drop).run(twice, World::settle_all);
}
