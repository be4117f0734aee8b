//! Delayed updates: when a device may go on while it waits, one condition at a time.

use super::*;

/// All that a contributor needs to compute meanwhile: 192 of 256 samples of epoch 3, whose gradient is not due.
fn at_work() -> Peer {
    let mut peer = connected();
    peer.set_delayed(true);
    (1..=3).for_each(|n| compute(&mut peer, 64 * n));
    assert!(peer.computes_meanwhile());
    peer
}

#[test]
fn nothing_is_computed_meanwhile_that_could_not_be_offered() {
    let mut full = at_work();
    full.on_batch(64, 10.0);
    assert!(!full.computes_meanwhile(), "there is no room for another batch");

    let mut due = at_work();
    due.on_due(3);
    assert!(!due.computes_meanwhile(), "what is due goes first");

    let mut stopping = at_work();
    stopping.session.stop(S);
    assert!(!stopping.computes_meanwhile());

    let mut down = at_work();
    down.session.on_disconnected(S, Interruption::other("cut"));
    assert!(!down.computes_meanwhile());

    let mut moved = at_work();
    moved.on_moved(S);
    assert!(!moved.computes_meanwhile(), "another backbone's parameters may differ");

    let mut patient = at_work();
    patient.set_delayed(false);
    assert!(!patient.computes_meanwhile());

    let mut behind = at_work();
    behind.on_epoch(4);
    assert!(behind.computes_meanwhile(), "by the parameters of one epoch before");
    behind.on_epoch(5);
    assert!(!behind.computes_meanwhile(), "by those of two");
    let mut back = at_work();
    back.on_epoch(2);
    assert!(!back.computes_meanwhile(), "by those of a later one");

    let mut lost = at_work();
    lost.on_trainer_lost();
    assert!(!lost.computes_meanwhile(), "without parameters");
}

#[test]
fn parameters_wait_for_the_gradient_of_those_before() {
    // Nothing is computed for epoch 3 yet, and it may still become due.
    let mut peer = connected();
    peer.set_delayed(true);
    assert!(peer.leaves_aside(4));
    assert!(!peer.leaves_aside(3) && !peer.leaves_aside(5) && !peer.leaves_aside(2), "only the next ones");
    // It was delivered, and some is computed for the next.
    let mut peer = super::delayed();
    assert!(!peer.leaves_aside(4), "there is no gradient to wait for");
    peer.on_batch(64, 10.0);
    assert!(peer.leaves_aside(4));
    peer.set_delayed(false);
    assert!(!peer.leaves_aside(4));
    peer.set_delayed(true);
    peer.on_moved(S);
    assert!(!peer.leaves_aside(4));
}

#[test]
fn fetched_parameters_may_be_the_first_news_of_their_epoch_and_are_no_news_of_a_known_one() {
    let mut peer = super::delayed();
    peer.on_batch(64, 10.0);
    peer.on_answer(S, &accepted(100));
    peer.on_fetched(4);
    assert_eq!(peer.run_epoch(), Some(4));
    let report = Report { epoch: 4, contribution_id: 101, n_samples: 64, samples_per_second: 10.0 };
    assert_eq!(peer.next_action(S), ContributorAction::SendReport(report));

    let mut peer = super::delayed();
    peer.on_batch(64, 10.0);
    peer.on_answer(S, &accepted(100));
    peer.on_epoch(4);
    peer.on_due(4);
    peer.on_fetched(4);
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { epoch: 4, .. }), "still due");
}

#[test]
fn fetched_parameters_are_not_loaded_by_a_run_that_went_back() {
    let mut peer = connected();
    peer.set_delayed(true);
    compute(&mut peer, 64);
    peer.on_fetched(4);
    peer.on_epoch(3);
    peer.on_due(3);
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { epoch: 3, .. }));
    assert_eq!(peer.next_action(S), ContributorAction::Offer, "they are of a step that was not kept");
}

#[test]
fn what_is_computed_after_the_delivery_is_not_taken_for_the_epoch_that_is_over() {
    let mut peer = super::delayed();
    (0..4).for_each(|_| peer.on_batch(64, 10.0));
    peer.on_answer(S, &accepted(100));
    assert!(matches!(peer.next_action(S), ContributorAction::Wait(Some(_))), "full, and for the next");
    peer.on_epoch(4);
    let taken = ContributorAction::TakeGradient { contribution_id: 101, epoch: 4, n_samples: 256 };
    assert_eq!(peer.next_action(S), taken);
}

#[test]
fn one_that_stops_delivers_what_it_has_and_fetches_nothing_more() {
    let mut peer = super::delayed();
    peer.on_batch(64, 10.0);
    peer.on_answer(S, &accepted(100));
    peer.on_epoch(4);
    assert!(matches!(peer.next_action(S), ContributorAction::SendReport(_)));
    peer.session.stop(S);
    assert!(matches!(peer.next_action(S), ContributorAction::TakeGradient { epoch: 4, n_samples: 64, .. }));
}
