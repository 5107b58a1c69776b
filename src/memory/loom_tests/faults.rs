//! A step left out of the sequences of `registry.rs`: a model has to fail.

use super::close::{attach_and_drop, close_at_once, read_and_drop};
use super::world::{Fault, MAKER, Model, STRANGER, World};

fn close(world: &World) {
    world.close(1);
}

fn read(world: &World) {
    world.operation(0);
}

fn close_against_use(fault: Fault) {
    Model::handles(1).fault(fault).beside(close).run(read, |world| {
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
fn nothing_fails_without_a_fault() {
    close_against_use(Fault::None);
}

#[test]
#[should_panic]
fn a_reader_that_does_not_look_after_announcing_reads_a_taken_body() {
    close_against_use(Fault::NoCheckAfterAnnouncing);
}

#[test]
#[should_panic = "Causality violation"]
fn a_closer_without_the_heavy_barrier_misses_a_reader() {
    close_against_use(Fault::NoHeavyBarrier);
}

#[test]
#[should_panic = "each body is dropped once"]
fn a_reader_that_does_not_look_after_letting_go_leaves_a_body_behind() {
    close_against_use(Fault::NoCheckAfterLettingGo);
}

#[test]
#[should_panic]
fn a_closer_that_does_not_scan_takes_a_body_that_is_read() {
    close_against_use(Fault::NoScan);
}

#[test]
#[should_panic]
fn a_slot_that_is_used_again_before_it_was_drained_is_in_the_queue_twice() {
    let drop_drain = |world: &World| {
        world.drop_proxy(0);
        world.drain();
    };
    Model::handles(1).fault(Fault::RecycleBeforeDrain).run(drop_drain, |world| world.settle(1));
}

#[test]
#[should_panic]
fn an_exchange_beside_the_owner_meets_a_closer() {
    let exchange_drop = |world: &World| {
        world.exchange();
        world.drop_proxy(0);
    };
    Model::handles(1).fault(Fault::ExchangeWithoutOwner).beside(close).run(exchange_drop, |world| world.settle(1));
}

/// The thread that made the array closes it against another one that uses it.
fn close_by_the_maker(fault: Fault) {
    let read = |world: &World| {
        world.operation(STRANGER);
    };
    Model::handles(1).fault(fault).beside(|world| world.close_by(MAKER, 1)).run(read, |world| {
        world.drop_proxy(0);
        world.settle(1);
    });
}

#[test]
#[should_panic]
fn a_reader_that_does_not_say_so_is_missed_by_the_maker() {
    close_by_the_maker(Fault::NoShare);
}

#[test]
#[should_panic]
fn a_reader_that_does_not_look_again_when_it_said_so_reads_a_taken_body() {
    close_by_the_maker(Fault::NoLookAfterSharing);
}

#[test]
#[should_panic = "Causality violation"]
fn a_maker_that_does_not_ask_misses_a_reader() {
    close_by_the_maker(Fault::CloserDoesNotAsk);
}

#[test]
#[should_panic]
fn a_close_at_once_from_a_later_state_misses_a_reader() {
    let model = Model::handles(2).before(World::give_to_handles).fault(Fault::CloseFromALaterState);
    model.beside(read_and_drop).run(close_at_once, |world| world.settle(1));
}

#[test]
#[should_panic]
fn a_maker_closes_at_once_what_another_one_moves_without_a_word() {
    let model = Model::handles(2).before(World::give_to_handles).fault(Fault::TakerDoesNotSay);
    model.beside(attach_and_drop).run(close_at_once, |world| world.settle(1));
}
