//! Metadata, which outlives the close of its array: who has a handle is told what his own array is like, whole, while
//! others close it, exchange what it holds, give it up, and make the slot's next array, which is like something else.
//!
//! Whoever recycles the slot makes that next array at once (`Model::reusing`): the thread has it in its stock then.

use super::world::{Fault, MAKER, Model, STRANGER, World};
use crate::memory::slot::generation_of;

/// What the array of the models is like, and what two exchanges make of it.
const FIRST: u32 = 1;
const EXCHANGED: [u32; 2] = [3, 4];
/// What the next array of the slot is like, of generation 2.
const NEXT: u32 = 2;

fn close(world: &World) {
    world.close(1);
}

fn look_drop_drain(world: &World) {
    assert_eq!(world.look(), FIRST);
    world.drop_proxy(0);
    world.drain();
}

/// The array has ended, and the next one of the slot is like what it was made with; it ends too.
fn end(world: &World) {
    world.drain();
    assert_eq!((world.recycled(), world.look()), (1, NEXT));
    world.drop_proxy(0);
    world.settle_all();
}

/// Neither the pin nor its end makes a difference: it is the handle that keeps the metadata.
#[test]
fn who_pins_an_array_is_told_of_it_through_its_close() {
    let pin_look_drop_drain = |world: &World| {
        let metadata = world.metadata();
        let is_open = world.pin(MAKER, 1);
        assert_eq!(world.look(), FIRST, "pinned, or found closed");
        if is_open {
            world.release(MAKER, 1);
        }
        assert_eq!(world.number_of(metadata), FIRST, "by a reference from before the close");
        world.drop_proxy(0);
        world.drain();
    };
    Model::handles(1).reusing().beside(close).run(pin_look_drop_drain, end);
}

#[test]
fn a_handle_tells_of_its_array_while_one_thread_closes_and_another_drains() {
    let look_drop = |world: &World| {
        let metadata = world.metadata();
        assert_eq!(world.number_of(metadata), FIRST);
        world.drop_proxy(0);
    };
    Model::handles(1).reusing().beside(close).beside(World::drain).run(look_drop, end);
}

#[test]
fn a_handle_tells_of_its_array_that_is_closed_and_given_up_by_another_one() {
    let close_drop_drain = |world: &World| {
        world.close_by_hand(STRANGER);
        assert_eq!(world.look(), FIRST);
        world.drop_proxy(1);
        world.drain();
    };
    Model::handles(2).reusing().beside(close_drop_drain).run(look_drop_drain, end);
}

/// `Proxy::from_registry`, a look, and the drop of the handle; nothing if the key is stale.
fn find_look_drop_drain(world: &World) {
    if world.find(1, 1) {
        assert_eq!(world.look(), FIRST, "a key finds its own array");
        world.drop_proxy(1);
        world.drain();
    }
}

#[test]
fn who_has_a_key_is_told_of_its_array_or_finds_it_stale() {
    Model::handles(1).reusing().beside(find_look_drop_drain).run(look_drop_drain, end);
}

/// As reports and censuses look at slots.
fn look_at_whatever_is_there(world: &World) {
    if let Some(state) = world.slot.upgrade() {
        assert_eq!(world.look(), generation_of(state), "of the array whose handle it is");
        world.drop_proxy(1);
        world.drain();
    }
}

#[test]
fn who_walks_over_the_slots_is_told_of_the_array_that_he_finds() {
    Model::handles(1).reusing().beside(look_at_whatever_is_there).run(look_drop_drain, end);
}

/// Two exchanges beside a handle, by which is read what was shown before one of them and after.
fn exchange_twice(fault: Fault) {
    let twice = |world: &World| {
        EXCHANGED.iter().for_each(|&number| world.turn(number));
        world.drop_proxy(1);
        world.drain();
    };
    let look_on = |world: &World| {
        let metadata = world.metadata();
        let later = world.look();
        let number = world.number_of(metadata);
        assert!([FIRST, EXCHANGED[0], EXCHANGED[1]].contains(&number) && number <= later, "{number}, then {later}");
        world.drop_proxy(0);
        world.drain();
    };
    Model::handles(2).reusing().fault(fault).beside(twice).run(look_on, end);
}

#[test]
fn an_exchange_shows_something_else_and_leaves_what_was_shown() {
    exchange_twice(Fault::None);
}

#[test]
#[should_panic = "Causality violation"]
fn an_exchange_in_place_changes_what_somebody_reads() {
    exchange_twice(Fault::ExchangeInPlace);
}

#[test]
#[should_panic]
fn an_exchange_that_gives_up_what_was_shown_takes_it_from_who_reads_it() {
    exchange_twice(Fault::ForgetAtTheNextExchange);
}

#[test]
#[should_panic]
fn a_slot_that_is_recycled_under_a_handle_tells_it_of_the_next_array() {
    let look = |world: &World| assert_eq!(world.look(), FIRST);
    Model::handles(1).reusing().fault(Fault::RecycleUnderAHandle).beside(close).run(look, |_| ());
}

#[test]
#[should_panic = "a key finds its own array"]
fn a_key_that_is_not_compared_tells_of_the_next_array() {
    let model = Model::handles(1).reusing().fault(Fault::NoLookAtTheGeneration);
    model.beside(find_look_drop_drain).run(look_drop_drain, end);
}

#[test]
#[should_panic]
fn metadata_that_is_written_after_the_opening_is_read_before_it_is_there() {
    let model = Model::handles(1).reusing().fault(Fault::ShowAfterOpening);
    model.beside(look_at_whatever_is_there).run(look_drop_drain, end);
}
