//! Close against use: no body is taken while somebody reads it, and each is taken once.

use super::world::{MAKER, Model, STRANGER, World};
use crate::memory::slot::OPEN;

fn close(world: &World) {
    world.close(1);
}

fn read<const ME: usize>(world: &World) {
    world.operation(ME);
}

/// The first thread of a slow closer's models: it finishes the close, lets the array go, and may get the slot again.
fn read_drop_drain(world: &World) -> bool {
    world.operation(0);
    world.drop_proxy(0);
    world.drain();
    world.recycled() == 1
}

#[test]
fn a_close_leaves_a_body_to_its_reader() {
    Model::handles(1).beside(close).run(read::<0>, |world| {
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
fn of_two_readers_that_let_go_together_one_finishes() {
    Model::handles(2).beside(read::<1>).beside(close).run(read::<0>, |world| {
        world.drop_proxy(0);
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
fn of_two_closers_one_ends_the_array() {
    Model::handles(1).beside(close).run(close, |world| {
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
fn the_second_of_close_and_drain_recycles() {
    let drop_drain = |world: &World| {
        world.drop_proxy(0);
        world.drain();
    };
    Model::handles(1).beside(close).run(drop_drain, |world| world.settle(1));
}

#[test]
fn a_drain_on_another_thread_meets_a_close() {
    Model::handles(1).beside(close).beside(World::drain).run(|world| world.drop_proxy(0), |world| world.settle(1));
}

/// The closer holds no handle: the slot may be in its next life between the closer's scan and its `finish`.
#[test]
fn a_slow_closer_does_not_touch_the_next_array_of_the_slot() {
    let again = |world: &World| {
        if read_drop_drain(world) {
            world.create();
        }
    };
    Model::handles(1).beside(close).run(again, |world| {
        if world.recycled() == 1 && world.slot.proxies() == 1 {
            assert_eq!(world.slot.state(), 2 << 32 | OPEN, "the next array is open and nothing else");
            world.drop_proxy(0);
        }
        world.settle_all();
    });
}

/// As above; and the next array is being closed as well, under a reader.
#[test]
fn a_slow_closer_does_not_take_the_next_body() {
    let again = |world: &World| {
        if read_drop_drain(world) {
            world.create();
            assert!(world.pin(1, 2));
            world.close(2);
            world.read();
            world.release(1, 2);
            world.drop_proxy(0);
        }
    };
    Model::handles(1).beside(close).run(again, World::settle_all);
}

/// The thread that made the array closes it, without a barrier: another one that uses it has said so.
#[test]
fn a_close_by_the_maker_leaves_a_body_to_a_strange_reader() {
    Model::handles(1).beside(|world| world.close_by(MAKER, 1)).run(read::<STRANGER>, |world| {
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
fn a_reader_that_used_the_array_before_is_found_too() {
    let twice = |world: &World| {
        world.operation(STRANGER);
        world.operation(STRANGER);
    };
    Model::handles(1).beside(|world| world.close_by(MAKER, 1)).run(twice, |world| {
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
fn a_maker_that_closes_what_it_reads_itself_finishes_when_it_lets_go() {
    let close_in_use = |world: &World| {
        if world.pin(MAKER, 1) {
            world.close_by(MAKER, 1);
            world.read();
            world.release(MAKER, 1);
        }
    };
    Model::handles(1).beside(read::<STRANGER>).run(close_in_use, |world| {
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
fn an_exchange_excludes_closers() {
    Model::handles(1).beside(close).run(World::exchange, |world| {
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
fn an_exchange_excludes_readers() {
    Model::handles(2).beside(read::<1>).run(World::exchange, |world| {
        world.drop_proxy(0);
        world.drop_proxy(0);
        world.settle(1);
    });
}

/// The thread that made the array closes it by a handle, at once if nobody else uses it, and lets the handle go.
pub(super) fn close_at_once(world: &World) {
    world.close_by_hand(MAKER);
    world.drop_proxy(MAKER);
}

pub(super) fn read_and_drop(world: &World) {
    world.operation(STRANGER);
    world.drop_proxy(STRANGER);
}

pub(super) fn attach_and_drop(world: &World) {
    world.attach(STRANGER);
    world.drop_proxy(STRANGER);
}

#[test]
fn a_close_at_once_leaves_a_body_to_a_strange_reader() {
    let model = Model::handles(2).before(World::give_to_handles);
    model.beside(read_and_drop).run(close_at_once, |world| world.settle(1));
}

#[test]
fn of_two_closers_by_hand_one_ends_the_array_also_at_once() {
    let model = Model::handles(2).before(World::give_to_handles);
    let other = |world: &World| {
        world.close_by_hand(STRANGER);
        world.drop_proxy(STRANGER);
    };
    model.beside(other).run(close_at_once, |world| world.settle(1));
}

#[test]
fn a_close_at_once_meets_who_moves_the_array() {
    let model = Model::handles(2).before(World::give_to_handles);
    model.beside(attach_and_drop).run(close_at_once, |world| world.settle(1));
}

#[test]
fn a_close_at_once_meets_who_moves_the_array_to_its_handles_and_back() {
    let moves = |world: &World| {
        world.release_to_handles(STRANGER);
        attach_and_drop(world);
    };
    Model::handles(2).beside(moves).run(close_at_once, |world| world.settle(1));
}

#[test]
fn a_maker_does_not_close_at_once_what_it_reads_itself() {
    let model = Model::handles(2).before(World::give_to_handles);
    let close_in_use = |world: &World| {
        if world.pin(MAKER, 1) {
            world.close_by_hand(MAKER);
            world.read();
            world.release(MAKER, 1);
        }
        world.drop_proxy(MAKER);
    };
    model.beside(read_and_drop).run(close_in_use, |world| world.settle(1));
}

/// The slot of a closed array is recycled by the drop; who has its key may count up just before, and lets go again.
#[test]
fn a_key_that_finds_a_closed_array_does_not_keep_its_slot() {
    let model = Model::handles(1).before(World::give_to_handles).reusing();
    let find = |world: &World| {
        if world.find(STRANGER, 1) {
            world.drop_proxy(STRANGER);
        }
    };
    model.beside(find).beside(World::drain).run(close_at_once, |world| {
        world.drop_proxy(MAKER);
        world.settle(2);
    });
}

/// Two handles own the array; `other` ends it by one of them, and both are let go.
fn close_by_hand_against_the_last_drop(other: fn(&World)) {
    let drop_drain = |world: &World| {
        world.drop_proxy(0);
        world.drain();
    };
    let model = Model::handles(2).before(World::give_to_handles);
    model.beside(other).run(drop_drain, |world| world.settle(1));
}

#[test]
fn who_gave_up_the_last_count_reads_what_a_closer_left_of_the_owner() {
    close_by_hand_against_the_last_drop(|world| {
        world.close_by_hand(STRANGER);
        world.drop_proxy(1);
        world.drain();
    });
}

#[test]
#[should_panic]
fn an_owner_that_is_read_may_be_taken_by_one_who_has_no_count_any_more() {
    close_by_hand_against_the_last_drop(|world| {
        world.drop_proxy(1);
        world.close_by_hand(STRANGER);
        world.drain();
    });
}
