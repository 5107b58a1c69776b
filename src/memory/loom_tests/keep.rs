//! The switch is off: the last count stays with the manager (`KEPT`), and one thread takes it over from there.

use std::sync::atomic::Ordering::SeqCst;

use super::world::{Model, World};
use crate::memory::slot::{KEPT, OPEN, generation_of};

fn close(world: &World) {
    world.close(1);
}

fn drop_kept(world: &World) {
    world.drop_proxy_kept(0);
}

/// One slot of `gc::collect_orphans`.
fn collect(world: &World) {
    let state = world.slot.state();
    if state & (OPEN | KEPT) == OPEN | KEPT && world.slot.unkeep(generation_of(state)) {
        world.taken_over.fetch_add(1, SeqCst);
        world.end_orphan();
    }
}

/// A handle by the slot (`registry::upgrade_index`), a use of it, and its drop with the switch off.
fn revive_use_drop<const ME: usize>(world: &World) {
    let Some(state) = world.slot.upgrade() else { return };
    if world.slot.state() & KEPT != 0 && world.slot.unkeep(generation_of(state)) {
        world.taken_over.fetch_add(1, SeqCst);
        world.drop_proxy(ME);
    }
    world.operation(ME);
    world.drop_proxy_kept(ME);
}

/// As `registry::upgrade` without `unkeep`: the kept count stays beside the new handle's.
fn upgrade_use_drop<const ME: usize>(world: &World) {
    if world.slot.upgrade().is_some() {
        world.operation(ME);
        world.drop_proxy_kept(ME);
    }
}

#[test]
fn a_kept_count_is_taken_over_once_by_a_close_that_comes_meanwhile() {
    Model::handles(1).beside(close).run(drop_kept, |world| {
        assert!(world.taken_over.load(SeqCst) <= 1);
        world.settle(1);
    });
}

#[test]
fn a_kept_count_goes_to_the_closer_or_to_the_collector() {
    Model::handles(1).beside(close).beside(collect).run(drop_kept, |world| {
        assert!(world.taken_over.load(SeqCst) <= 1);
        world.settle(1);
    });
}

#[test]
fn a_kept_array_may_come_alive_while_it_is_closed() {
    Model::handles(1).before(drop_kept).beside(close).run(revive_use_drop::<0>, |world| world.settle(1));
}

#[test]
fn a_second_handle_of_a_kept_array_may_outlive_its_close() {
    Model::handles(1).before(drop_kept).beside(close).run(upgrade_use_drop::<0>, |world| world.settle(1));
}

#[test]
fn two_threads_revive_a_kept_array() {
    Model::handles(1).before(drop_kept).beside(revive_use_drop::<1>).run(revive_use_drop::<0>, |world| world.settle(1));
}
