//! What a host admits, at the bounds of what its owner granted; and whose turn it is.

use super::*;

/// A request of an address, of some KiB.
fn kib(number: u8, group: u64, n_kib: u64) -> ServedRequest {
    ServedRequest { group: AddressGroup(group), n_bytes: n_kib << 10, ..forward(number, 0, 1) }
}

/// Computes what the device is given, one batch every 10 ms from 100 ms on. Returns the keys in their order.
fn compute_all(runtime: &mut ExpertRuntime, mut given: VecDeque<ServingBatch>) -> Vec<u64> {
    let (mut order, mut now) = (Vec::new(), 100);
    while let Some(batch) = given.pop_front() {
        order.extend(keys(&batch));
        runtime.on_computed(ms(now), batch.id);
        batch.parts.iter().for_each(|(key, _)| runtime.on_answered(ms(now), *key));
        given.extend(batches(runtime));
        now += 10;
    }
    order
}

#[test]
fn what_is_held_and_what_waits_is_known() {
    let mut runtime = host();
    let first = put(&mut runtime, 0, forward(0, 0, 8));
    put(&mut runtime, 0, forward(0, 1, 8));
    let given = batches(&mut runtime);
    assert_eq!(given.iter().map(|batch| batch.id).collect::<Vec<_>>(), [BatchId(0), BatchId(1)]);
    put(&mut runtime, 0, forward(1, 1, 3));
    put(&mut runtime, 0, request(2, 1, ExpertPass::Backward, 2, 1));
    put(&mut runtime, 0, request(3, 1, ExpertPass::Backward, 2, 1));
    let lost = put(&mut runtime, 0, forward(5, 1, 3));
    assert_eq!(runtime.rows_waiting(1), 10);
    runtime.on_lost(ms(0), lost);
    let unread = runtime.on_request(ms(0), forward(4, 1, 7)).unwrap();
    assert_eq!((runtime.rows_waiting(1), runtime.rows_waiting(0), runtime.rows_waiting(9)), (7, 0, 0));
    assert_eq!(runtime.load(), ServingLoad { rows_waiting: 23, rows_per_second: 0.0 });
    assert!(runtime.holds(first) && runtime.holds(unread) && !runtime.holds(RequestKey(99)));
    // The second batch ends first.
    runtime.on_computed(ms(1000), given[1].id);
    assert_eq!(runtime.load(), ServingLoad { rows_waiting: 15, rows_per_second: 8.0 });
    // Eight rows in the last minute, and 60 times 8 would have been possible.
    let idle = ExpertLoad { n_waiting: 0, n_served: 0, n_spare: 472 };
    let busy = ExpertLoad { n_waiting: 4, n_served: 8, n_spare: 472 };
    assert_eq!([0, 1, 9].map(|expert| runtime.expert_load(ms(1000), expert)), [idle, busy, idle]);
    runtime.on_expert_removed(ms(1000), 9);
    runtime.on_answered(ms(1000), first);
    assert!(runtime.holds(first), "it is not computed yet");
    runtime.on_computed(ms(1000), given[0].id);
    runtime.on_answered(ms(1000), first);
    assert!(!runtime.holds(first));
    runtime.on_lost(ms(1000), unread);
    assert!(!runtime.holds(unread));
}

#[test]
fn a_request_that_would_be_computed_too_late_is_refused_at_once() {
    let mut runtime = host();
    assert!(matches!(
        runtime.on_request(ms(7), ServedRequest { deadline: ms(7), ..forward(1, 0, 1) }),
        Err(ServingRefusal::Busy { .. })
    ));
    // A client that comes and goes leaves nothing behind.
    let gone = put(&mut runtime, 0, forward(9, 0, 1));
    let batch = batches(&mut runtime).remove(0);
    runtime.on_computed(ms(1000), batch.id);
    runtime.on_answered(ms(1000), gone);
    // A row a second; four wait.
    put(&mut runtime, 1000, forward(0, 0, 4));
    let late = |deadline: u64| ServedRequest { deadline: ms(1000 + deadline), ..forward(1, 0, 2) };
    let busy = Err(ServingRefusal::Busy { retry_after: ms(4000) });
    assert_eq!(runtime.on_request(ms(1000), late(2000)), busy, "its two rows come after two others");
    assert!(runtime.on_request(ms(1000), late(2001)).is_ok());
    // Its own rows are before its next ones, and those of as many others.
    assert_eq!(
        runtime.on_request(ms(1000), ServedRequest { deadline: ms(5000), ..forward(0, 0, 1) }),
        busy,
        "all four"
    );
    assert!(runtime.on_request(ms(1000), ServedRequest { deadline: ms(5001), ..forward(0, 0, 1) }).is_ok());
}

#[test]
fn a_request_takes_a_quarter_of_the_memory_at_most_and_some_at_least() {
    let mut runtime = host();
    assert!(runtime.on_request(ms(0), ServedRequest { n_bytes: 1, ..forward(0, 0, 1) }).is_ok());
    assert_eq!(runtime.n_bytes(), REQUEST_BYTES_MIN);
    assert!(runtime.on_request(ms(0), kib(1, 1, 256)).is_ok());
    let larger = ServedRequest { n_bytes: (256 << 10) + 1, ..forward(2, 0, 1) };
    let refusal = Err(ServingRefusal::TooLarge { max: 256 << 10, got: (256 << 10) + 1 });
    assert_eq!(runtime.on_request(ms(0), larger), refusal);
}

#[test]
fn what_a_client_and_an_address_hold_still_counts_when_one_of_their_requests_is_over() {
    let mut runtime = host();
    runtime.on_request(ms(0), kib(0, 7, 256)).unwrap();
    let second = runtime.on_request(ms(0), kib(0, 7, 100)).unwrap();
    runtime.on_lost(ms(0), second);
    let refused = |runtime: &mut ExpertRuntime, request| runtime.on_request(ms(0), request).is_err();
    assert!(refused(&mut runtime, kib(0, 8, 129)), "a client has a half of what is free at most");
    let half = runtime.on_request(ms(0), kib(0, 8, 128)).unwrap();
    runtime.on_lost(ms(0), half);
    // Three clients of one address.
    runtime.on_request(ms(0), kib(1, 7, 150)).unwrap();
    let third = runtime.on_request(ms(0), kib(2, 7, 20)).unwrap();
    runtime.on_lost(ms(0), third);
    assert!(refused(&mut runtime, kib(3, 7, 213)));
    let fourth = runtime.on_request(ms(0), kib(3, 7, 212)).unwrap();
    // What is over is free again.
    runtime.on_lost(ms(0), fourth);
    runtime.on_request(ms(0), kib(4, 7, 212)).unwrap();
}

#[test]
fn what_was_sent_forward_does_not_make_a_step_count_twice() {
    let mut runtime = host();
    put(&mut runtime, 0, backward(0, 7));
    let lost = runtime.on_request(ms(0), request(0, 0, ExpertPass::Forward, 1, 7)).unwrap();
    runtime.on_lost(ms(1), lost);
    let again = runtime.on_request(ms(2), backward(0, 7));
    assert!(matches!(again, Err(ServingRefusal::InProgress { .. })), "{again:?}");
}

#[test]
fn an_expert_that_is_to_leave_steps_by_what_the_device_has_and_by_nothing_else() {
    let mut runtime = host();
    put(&mut runtime, 0, backward(0, 1));
    (1..3).for_each(|number| _ = put(&mut runtime, 0, backward(number, 1)));
    runtime.on_timeout(ms(50));
    let given = batches(&mut runtime);
    let elsewhere = put(&mut runtime, 50, forward(4, 2, 1));
    let waiting = put(&mut runtime, 50, backward(3, 1));
    runtime.on_expert_closed(ms(51), 0);
    runtime.on_expert_closed(ms(51), 77);
    let refuse = |key| ServingAction::Refuse { key, refusal: ServingRefusal::Unknown };
    assert_eq!(runtime.poll_action(), Some(refuse(waiting)));
    assert_eq!(runtime.poll_action(), None);
    assert!(runtime.holds(elsewhere), "another expert stays");
    assert_eq!(runtime.on_request(ms(52), forward(5, 0, 1)), Err(ServingRefusal::Unknown));
    runtime.on_computed(ms(60), given[0].id);
    let state = runtime.counted(0).unwrap();
    assert_ne!(state, CountedState::default(), "it is written with its parameters");
    // What fails is not computed again.
    runtime.on_failed(ms(61), given[1].id);
    let actions: Vec<ServingAction> = std::iter::from_fn(|| runtime.poll_action()).collect();
    assert_eq!(actions[..2], [RequestKey(1), RequestKey(2)].map(refuse));
    runtime.on_expert_removed(ms(62), 0);
    assert_eq!(runtime.counted(0), None);
    runtime.on_expert_added(ms(63), 0, &state).unwrap();
    assert_eq!(runtime.on_request(ms(64), backward(0, 1)), Err(ServingRefusal::Duplicate));
    assert!(runtime.on_request(ms(64), backward(1, 1)).is_ok(), "it is open again");
}

#[test]
fn limits_of_nothing_still_let_single_rows_through() {
    let limits = ServingLimits { rows_max: 0, request_rows_max: 0, requests_per_minute: 60, ..LIMITS };
    let mut runtime = ExpertRuntime::new(limits);
    runtime.on_expert_added(ms(0), 0, &CountedState::default()).unwrap();
    (0..3).for_each(|number| _ = put(&mut runtime, 0, forward(number, 0, 1)));
    assert!(runtime.on_request(ms(0), forward(3, 0, 2)).is_err());
    let given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    assert_eq!(compute_all(&mut runtime, given), [0, 1, 2]);
}

/// A host with batches of one row, whose device has two of client 0.
fn row_by_row() -> ExpertRuntime {
    let mut runtime = ExpertRuntime::new(ServingLimits { rows_max: 1, ..LIMITS });
    runtime.on_expert_added(ms(0), 0, &CountedState::default()).unwrap();
    (0..2).for_each(|_| _ = put(&mut runtime, 0, forward(0, 0, 1)));
    runtime
}

#[test]
fn a_client_with_more_requests_takes_turns_with_the_others() {
    let mut runtime = row_by_row();
    let given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    (0..3).for_each(|_| _ = put(&mut runtime, 0, forward(0, 0, 1)));
    (0..3).for_each(|_| _ = put(&mut runtime, 1, forward(1, 0, 1)));
    assert_eq!(compute_all(&mut runtime, given), [0, 1, 5, 2, 6, 3, 7, 4]);
    // Of what it had before, nothing counts against it.
    let first = put(&mut runtime, 900, forward(2, 0, 1));
    let given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    put(&mut runtime, 900, forward(2, 0, 1));
    put(&mut runtime, 900, forward(3, 0, 1));
    let own = put(&mut runtime, 901, forward(0, 0, 1));
    let given = given.into_iter().chain(batches(&mut runtime)).collect();
    let order = compute_all(&mut runtime, given);
    assert_eq!((order[0], order[3]), (first.0, own.0), "{order:?}");
}

#[test]
fn an_address_with_many_keys_has_the_turns_of_four_clients() {
    let mut runtime = row_by_row();
    let given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    for number in 10..22 {
        put(&mut runtime, 0, ServedRequest { group: AddressGroup(7), ..forward(number, 0, 1) });
    }
    (0..3).for_each(|_| _ = put(&mut runtime, 1, forward(1, 0, 1)));
    let order = compute_all(&mut runtime, given);
    // Keys from 14 on are those of the other address.
    let at: Vec<usize> = order.iter().enumerate().filter(|(_, key)| **key >= 14).map(|(at, _)| at).collect();
    assert_eq!(at, [3, 8, 13], "{order:?}");
}

#[test]
fn larger_requests_take_more_turns() {
    let mut runtime = ExpertRuntime::new(LIMITS);
    runtime.on_expert_added(ms(0), 0, &CountedState::default()).unwrap();
    (0..2).for_each(|_| _ = put(&mut runtime, 0, forward(9, 0, 8)));
    let given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    (0..3).for_each(|_| _ = put(&mut runtime, 0, forward(0, 0, 8)));
    (0..6).for_each(|_| _ = put(&mut runtime, 0, forward(1, 0, 4)));
    let order = compute_all(&mut runtime, given);
    let n_of_small = order.iter().take(2 + 6).filter(|key| **key >= 5).count();
    assert_eq!(n_of_small, 4, "{order:?}");
}

#[test]
fn a_client_whose_address_has_much_waiting_comes_after_it() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(9, 0, 1));
    let batch = batches(&mut runtime).remove(0);
    runtime.on_computed(ms(1000), batch.id);
    runtime.on_answered(ms(1000), RequestKey(0));
    // A row a second; two clients of one address have four rows each.
    let of_address = |number, n_rows| ServedRequest { group: AddressGroup(7), ..forward(number, 0, n_rows) };
    (1..3).for_each(|number| _ = put(&mut runtime, 1000, of_address(number, 4)));
    // An address counts as four clients: its eight rows are two for the next client, and it has one of its own. So have others.
    let asks = |runtime: &mut ExpertRuntime, in_ms: u64| {
        runtime.on_request(ms(1000), ServedRequest { deadline: ms(1000 + in_ms), ..of_address(3, 1) })
    };
    assert_eq!(asks(&mut runtime, 6000), Err(ServingRefusal::Busy { retry_after: ms(8000) }));
    assert!(asks(&mut runtime, 6001).is_ok());
}

#[test]
fn what_failed_together_with_others_is_computed_with_no_newer_one() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(9, 1, 8));
    let first = batches(&mut runtime).remove(0);
    // The second one of a client has a later turn than the first one of another.
    (1..3).for_each(|id| _ = put(&mut runtime, 0, backward(0, id)));
    runtime.on_timeout(ms(50));
    let together = batches(&mut runtime).remove(0);
    assert_eq!(keys(&together), [1, 2]);
    runtime.on_computed(ms(60), first.id);
    put(&mut runtime, 60, backward(1, 1));
    runtime.on_failed(ms(61), together.id);
    assert_eq!(keys(&batches(&mut runtime)[0]), [1], "by itself");
    runtime.on_timeout(ms(110));
    assert_eq!(keys(&batches(&mut runtime)[0]), [3], "in its turn, and not with what failed");
}

#[test]
fn rows_that_were_computed_cost_no_turn_while_their_answers_leave() {
    let mut runtime = row_by_row();
    (0..4).for_each(|_| _ = put(&mut runtime, 0, forward(0, 0, 1)));
    let mut given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    while let Some(batch) = given.pop_front() {
        runtime.on_computed(ms(10), batch.id);
        given.extend(batches(&mut runtime));
    }
    // The device gets something to do.
    (4..6).for_each(|number| _ = put(&mut runtime, 20, forward(number, 0, 1)));
    let given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    let of_first = put(&mut runtime, 21, forward(0, 0, 1));
    let of_other = put(&mut runtime, 22, forward(3, 0, 1));
    let order = compute_all(&mut runtime, given);
    assert_eq!(order[2..], [of_first.0, of_other.0]);
}
