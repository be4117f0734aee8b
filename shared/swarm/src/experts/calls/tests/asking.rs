//! Whom a trainer asks and when, at the bounds of its limits and its time.

use super::super::hosts::RETRY_AFTER_MIN;
use super::*;

/// Forward passes of one expert at some hosts, sent at 0.
fn asked(hosts: &[u8]) -> (AskingTrainer, SentCall) {
    let mut trainer = AskingTrainer::new(vec![choice(1, hosts, 0..1)]);
    let sent = trainer.sent(0).remove(0);
    (trainer, sent)
}

/// A trainer that has sent gradients to its only expert at 20 ms.
fn stepping() -> (AskingTrainer, SentCall) {
    let (mut trainer, sent) = asked(&[1, 2]);
    trainer.answer(10, &sent, 1.0).unwrap();
    trainer.actions(10);
    trainer.calls.on_gradients(ms(20), &mut trainer.book, &[1.0]);
    let sent = trainer.sent(20).remove(0);
    (trainer, sent)
}

#[test]
fn who_answered_which_call_is_known() {
    let mut trainer = AskingTrainer::new(vec![choice(7, &[1, 2], 0..1), choice(9, &[3], 0..1)]);
    let sent = trainer.sent(0);
    assert_eq!((trainer.calls.n_calls(), trainer.calls.expert(0), trainer.calls.expert(1)), (2, 7, 9));
    assert_eq!(
        (trainer.calls.expert(2), trainer.calls.rows(2), trainer.calls.answered_by(2)),
        (0, &[][..], None)
    );
    trainer.refuse(10, &sent[0], busy(500));
    let again = trainer.sent(10).remove(0);
    trainer.answer(30, &again, 1.0).unwrap();
    assert_eq!((trainer.calls.answered_by(0), trainer.calls.answered_by(1)), (Some(&host(2)), None));
    assert_eq!(trainer.book.latency(&host(2)), Some(ms(20)));
    assert_eq!((trainer.book.latency(&host(1)), trainer.book.latency(&host(4))), (None, None));
}

#[test]
fn what_an_expert_may_answer_follows_the_size_of_what_it_was_sent() {
    for (value, is_taken) in [(200.0, true), (-200.0, true), (201.0, false)] {
        let (mut trainer, sent) = asked(&[1]);
        assert_eq!(trainer.answer(10, &sent, value).is_ok(), is_taken, "{value}");
    }
    for (value, is_taken) in [(1000.0, true), (1001.0, false)] {
        let (mut trainer, sent) = stepping();
        assert_eq!(trainer.answer(30, &sent, value).is_ok(), is_taken, "{value}");
    }
}

#[test]
fn each_attempt_is_at_the_next_replica() {
    let (mut trainer, mut sent) = asked(&[1, 2, 3]);
    let mut hosts = Vec::new();
    for at in (0..5).map(|at| at * 100) {
        hosts.push(sent.host.0[0]);
        trainer.calls.on_broken(ms(at), &mut trainer.book, sent.request_id);
        assert!(trainer.sent(at + 99).is_empty(), "not at once");
        sent = trainer.sent(at + 100).remove(0);
    }
    assert_eq!(hosts[..3], [1, 2, 3]);
}

#[test]
fn a_host_that_talks_of_steps_when_it_is_asked_for_an_output_is_left_for_another() {
    let (mut trainer, sent) = asked(&[1, 2]);
    trainer.refuse(10, &sent, ServingRefusal::Duplicate);
    let again = trainer.sent(10).remove(0);
    assert_eq!(again.host, host(2));
    trainer.refuse(20, &again, ServingRefusal::InProgress { retry_after: ms(5) });
    assert_eq!(trainer.actions(20), [CallAction::ForwardOver], "nobody else is there");
    assert_eq!(trainer.answered(), [0; 0]);
}

#[test]
fn a_host_that_is_busy_or_at_work_may_say_so_any_number_of_times() {
    let (mut trainer, mut sent) = asked(&[1]);
    for at in (0..3000).step_by(100) {
        trainer.refuse(at, &sent, busy(100));
        sent = trainer.sent(at + 100).remove(0);
    }
    let (mut trainer, mut sent) = stepping();
    for at in (100..3000).step_by(100) {
        // The shortest time is the trainer's.
        trainer.refuse(at, &sent, ServingRefusal::InProgress { retry_after: ms(0) });
        let soon = at + RETRY_AFTER_MIN.as_millis() as u64;
        assert_eq!(trainer.calls.next_deadline(ms(at), &trainer.book), Some(ms(soon)));
        assert!(trainer.sent(soon - 1).is_empty());
        sent = trainer.sent(soon).remove(0);
    }
}

#[test]
fn what_could_only_be_sent_at_the_deadline_is_over_before_it() {
    let (mut trainer, sent) = asked(&[1]);
    trainer.refuse(3000, &sent, busy(999));
    assert_eq!(trainer.actions(3000), [], "there is a millisecond left");
    assert_eq!(trainer.calls.next_deadline(ms(3000), &trainer.book), Some(ms(3999)));
    let sent = trainer.sent(3999).remove(0);
    assert_eq!(sent.until, ms(4000));
    let (mut trainer, sent) = asked(&[1]);
    trainer.refuse(3000, &sent, busy(1000));
    assert_eq!(trainer.actions(3000), [CallAction::ForwardOver]);
    // Likewise where the delay after a broken connection ends with the pass.
    let (mut trainer, sent) = asked(&[1]);
    trainer.calls.on_broken(ms(3900), &mut trainer.book, sent.request_id);
    assert_eq!(trainer.actions(3900), [CallAction::ForwardOver]);
}

#[test]
fn a_call_that_waits_for_room_until_the_deadline_is_not_sent_then() {
    let limits = HostBookLimits { in_flight_max: 1, host_in_flight_max: 1 };
    let mut trainer = AskingTrainer::with(limits, vec![choice(1, &[1], 0..1), choice(2, &[2], 0..1)]);
    let sent = trainer.sent(0);
    assert_eq!((sent.len(), trainer.calls.is_waiting()), (1, true));
    trainer.calls.on_broken(ms(4000), &mut trainer.book, sent[0].request_id);
    assert_eq!(trainer.actions(4000), []);
    trainer.calls.on_timeout(ms(4000), &mut trainer.book);
    assert_eq!(trainer.actions(4000), [CallAction::ForwardOver]);
    assert_eq!((trainer.calls.is_waiting(), trainer.book.n_in_flight()), (false, 0));
}

#[test]
fn a_batch_that_was_given_up_does_nothing_more() {
    let (mut trainer, sent) = asked(&[1, 2]);
    trainer.calls.abandon(&mut trainer.book);
    assert_eq!(trainer.actions(10), [CallAction::Cancel { request_id: sent.request_id }]);
    assert_eq!((trainer.book.n_in_flight(), trainer.calls.is_waiting()), (0, false));
    assert_eq!(trainer.calls.next_deadline(ms(10), &trainer.book), None);
    trainer.calls.on_gradients(ms(20), &mut trainer.book, &[1.0]);
    trainer.calls.on_timeout(ms(5000), &mut trainer.book);
    assert_eq!(trainer.actions(5000), []);
    assert_eq!(trainer.answer(5000, &sent, 1.0), Err(ExpertAnswerError::NotWaitedFor));
}

#[test]
fn only_so_many_replicas_are_asked() {
    let hosts: Vec<u8> = (1..=20).collect();
    let (mut trainer, mut sent) = asked(&hosts);
    let mut n_asked = 1;
    loop {
        trainer.refuse(n_asked, &sent, ServingRefusal::Unknown);
        let Some(next) = trainer.sent(n_asked).pop() else { break };
        (sent, n_asked) = (next, n_asked + 1);
    }
    assert_eq!(n_asked, u64::from(ATTEMPTS_MAX).min(REPLICAS_MAX as u64));
    assert!(trainer.calls.next_deadline(ms(99), &trainer.book).is_none());
}

#[test]
fn a_host_that_is_left_alone_still_gets_the_gradients_that_it_alone_can_count() {
    let (mut trainer, mut sent) = stepping();
    for at in [500, 1000, 1500, 2000] {
        trainer.calls.on_broken(ms(at), &mut trainer.book, sent.request_id);
        let deadline = trainer.calls.next_deadline(ms(at), &trainer.book);
        assert_eq!(deadline, Some(ms(at + 100)), "after the delay of a broken connection alone");
        sent = trainer.sent(at + 100).remove(0);
    }
    assert!(trainer.book.is_left_alone(ms(2100), &host(1)));
    // An output is asked of it again after its pause.
    let (mut trainer, mut sent) = asked(&[1]);
    for at in [500, 1500, 2500] {
        trainer.calls.on_broken(ms(at), &mut trainer.book, sent.request_id);
        let available = trainer.book.available_at(&host(1), false).max(ms(at + 100));
        assert_eq!(trainer.calls.next_deadline(ms(at), &trainer.book), Some(available));
        sent = trainer.sent(available.as_millis() as u64 + 1).remove(0);
    }
    assert!(trainer.book.available_at(&host(1), false) > ms(2600), "its pauses grow");
}

#[test]
fn what_is_too_large_for_a_host_is_sent_in_parts_and_each_row_steps_once() {
    let mut trainer = AskingTrainer::new(vec![choice(7, &[1], 0..4)]);
    let sent = trainer.sent(0);
    trainer.refuse(5, &sent[0], ServingRefusal::TooLarge { max: 300, got: 400 });
    let parts = trainer.sent(5);
    let rows: Vec<&[u32]> = parts.iter().map(|sent| trainer.calls.rows(sent.call)).collect();
    assert_eq!(rows, [[0, 1], [2, 3]]);
    assert!(parts.iter().all(|sent| sent.host == host(1)), "it is no fault");
    parts.iter().for_each(|sent| _ = trainer.answer(10, sent, 1.0).unwrap());
    assert_eq!(trainer.actions(10), [CallAction::ForwardOver]);
    trainer.calls.on_gradients(ms(20), &mut trainer.book, &[1.0; 2]);
    // A backward pass has more bytes than the forward pass that was taken.
    let back = trainer.sent(20);
    trainer.refuse(25, &back[0], ServingRefusal::Rows { max: 1, got: 2 });
    let again = trainer.sent(25);
    assert_eq!(again.len(), 2);
    assert!(
        back.iter().chain(&again).all(|sent| sent.n_steps == 110),
        "those behind the output of the whole"
    );
    let mut ids: Vec<u64> = back[1..].iter().chain(&again).map(|sent| sent.request_id).collect();
    for sent in back[1..].iter().chain(&again) {
        trainer.answer(30, sent, 1.0).unwrap();
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each part is counted by itself");
    assert_eq!(trainer.actions(30), [CallAction::BackwardOver]);
    let mut stepped: Vec<u32> =
        trainer.calls.with_gradient().flat_map(|call| trainer.calls.rows(call).to_vec()).collect();
    stepped.sort_unstable();
    assert_eq!(stepped, [0, 1, 2, 3]);
}

#[test]
fn a_host_that_takes_hardly_anything_is_not_asked_row_by_row() {
    for (max, got) in [(1, 400), (0, 400), (400, 400), (1, 1), (10, 81)] {
        let mut trainer = AskingTrainer::new(vec![choice(7, &[1], 0..4)]);
        let sent = trainer.sent(0);
        trainer.refuse(5, &sent[0], ServingRefusal::TooLarge { max, got });
        assert_eq!(trainer.actions(5), [CallAction::ForwardOver], "{max} of {got}");
        assert!(trainer.answered().is_empty());
    }
    let mut trainer = AskingTrainer::new(vec![choice(7, &[1], 0..4)]);
    let mut n_sent = 0;
    for at in 0..20 {
        for sent in trainer.sent(at) {
            n_sent += 1;
            trainer.refuse(at, &sent, ServingRefusal::TooLarge { max: 399, got: 400 });
        }
    }
    assert!(n_sent <= 7, "{n_sent}");
}
