mod asking;

use super::*;

const SETTINGS: CallSettings = CallSettings {
    input_values: 2,
    output_values: 3,
    request_rows_max: 4,
    forward_time: Duration::from_secs(4),
    backward_time: Duration::from_secs(4),
};
const LIMITS: HostBookLimits = HostBookLimits { in_flight_max: 100, host_in_flight_max: 100 };

const fn ms(millis: u64) -> Moment {
    Duration::from_millis(millis)
}

fn host(number: u8) -> PeerKey {
    PeerKey(vec![number])
}

fn choice(expert: u32, hosts: &[u8], rows: std::ops::Range<u32>) -> ExpertChoice {
    ExpertChoice { expert, hosts: hosts.iter().map(|number| host(*number)).collect(), rows: rows.collect() }
}

struct AskingTrainer {
    book: HostBook,
    calls: ExpertCalls,
}

impl AskingTrainer {
    fn new(choices: Vec<ExpertChoice>) -> Self {
        Self::with(LIMITS, choices)
    }

    fn with(limits: HostBookLimits, choices: Vec<ExpertChoice>) -> Self {
        Self {
            book: HostBook::new(limits, 1000, 1),
            calls: ExpertCalls::new(ms(0), SETTINGS, choices, &[1.0; 64]),
        }
    }

    fn actions(&mut self, now: u64) -> Vec<CallAction> {
        std::iter::from_fn(|| self.calls.poll_action(ms(now), &mut self.book)).collect()
    }

    fn sent(&mut self, now: u64) -> Vec<SentCall> {
        let actions = self.actions(now).into_iter();
        actions
            .filter_map(|action| if let CallAction::Send(sent) = action { Some(sent) } else { None })
            .collect()
    }

    fn answer(&mut self, now: u64, sent: &SentCall, value: f32) -> Result<usize, ExpertAnswerError> {
        let n_values = if sent.pass == ExpertPass::Forward { 3 } else { 2 };
        let values = vec![value; self.calls.rows(sent.call).len() * n_values];
        self.calls.on_answer(ms(now), &mut self.book, sent.request_id, (&values, 100 + now))
    }

    fn refuse(&mut self, now: u64, sent: &SentCall, refusal: ServingRefusal) {
        self.calls.on_refused(ms(now), &mut self.book, sent.request_id, refusal);
    }

    fn answered(&self) -> Vec<u32> {
        self.calls.answered().map(|(_, expert)| expert).collect()
    }
}

const fn busy(millis: u64) -> ServingRefusal {
    ServingRefusal::Busy { retry_after: Duration::from_millis(millis) }
}

#[test]
fn each_expert_is_asked_for_all_its_rows_and_steps_where_it_answered() {
    let mut trainer = AskingTrainer::new(vec![choice(7, &[1, 2], 0..6), choice(9, &[2], 3..5)]);
    let sent = trainer.sent(0);
    let named: Vec<(u32, PeerKey, u64)> =
        sent.iter().map(|sent| (sent.expert, sent.host.clone(), sent.request_id)).collect();
    assert_eq!(named, [(7, host(1), 1000), (7, host(1), 1001), (9, host(2), 1002)]);
    let rows: Vec<&[u32]> = sent.iter().map(|sent| trainer.calls.rows(sent.call)).collect();
    assert_eq!(rows, [&[0, 1, 2, 3][..], &[4, 5], &[3, 4]]);
    sent.iter().for_each(|sent| _ = trainer.answer(50, sent, 1.0).unwrap());
    assert_eq!(trainer.actions(50), [CallAction::ForwardOver]);
    assert_eq!(trainer.answered(), [7, 7, 9]);
    assert_eq!(trainer.answer(51, &sent[0], 1.0), Err(ExpertAnswerError::NotWaitedFor));

    trainer.calls.on_gradients(ms(100), &mut trainer.book, &[1.0; 3]);
    let back = trainer.sent(100);
    let named: Vec<(PeerKey, u64)> = back.iter().map(|sent| (sent.host.clone(), sent.request_id)).collect();
    assert_eq!(named, [(host(1), 1003), (host(1), 1004), (host(2), 1005)]);
    back.iter().for_each(|sent| _ = trainer.answer(150, sent, 1.0).unwrap());
    assert_eq!(trainer.actions(150), [CallAction::BackwardOver]);
    assert_eq!(trainer.calls.with_gradient().collect::<Vec<usize>>(), [0, 1, 2]);
    assert_eq!((trainer.book.n_in_flight(), trainer.calls.next_deadline(ms(150), &trainer.book)), (0, None));
}

#[test]
fn a_busy_host_is_left_for_a_replica_and_asked_again_where_there_is_none() {
    let mut trainer = AskingTrainer::new(vec![choice(1, &[1, 2], 0..1), choice(2, &[3], 0..1)]);
    let sent = trainer.sent(0);
    trainer.refuse(10, &sent[0], busy(500));
    trainer.refuse(10, &sent[1], busy(500));
    let again = trainer.sent(10);
    assert_eq!((again.len(), &again[0].host), (1, &host(2)));
    trainer.answer(20, &again[0], 1.0).unwrap();
    assert_eq!(trainer.calls.next_deadline(ms(20), &trainer.book), Some(ms(510)));
    trainer.calls.on_timeout(ms(510), &mut trainer.book);
    let again = trainer.sent(510);
    assert_eq!(again[0].host, host(3));
    assert!(!trainer.book.is_left_alone(ms(510), &host(3)), "to be busy is no failure");
    // It stays busy beyond the deadline, which is not waited for.
    trainer.refuse(520, &again[0], busy(5000));
    assert_eq!(trainer.actions(520), [CallAction::ForwardOver]);
    assert_eq!(trainer.answered(), [1]);
}

#[test]
fn a_late_host_is_cancelled_for_a_replica_and_left_out_where_there_is_none() {
    let mut trainer = AskingTrainer::new(vec![choice(1, &[1, 2], 0..1), choice(2, &[3], 0..1)]);
    let sent = trainer.sent(0);
    assert_eq!((sent[0].until, sent[1].until), (ms(2000), ms(4000)), "a replica needs time too");
    trainer.calls.on_timeout(ms(2000), &mut trainer.book);
    let actions = trainer.actions(2000);
    assert_eq!(actions[0], CallAction::Cancel { request_id: sent[0].request_id });
    let CallAction::Send(again) = &actions[1] else { panic!("{actions:?}") };
    assert_eq!((&again.host, again.until), (&host(2), ms(4000)));
    assert_eq!(trainer.answer(2100, &sent[0], 1.0), Err(ExpertAnswerError::NotWaitedFor));
    trainer.answer(2200, again, 1.0).unwrap();
    trainer.calls.on_timeout(ms(4000), &mut trainer.book);
    let ended = trainer.actions(4000);
    assert_eq!(ended, [CallAction::Cancel { request_id: sent[1].request_id }, CallAction::ForwardOver]);
    assert_eq!((trainer.answered(), trainer.book.n_in_flight()), (vec![1], 0));
    // Only who answered gets gradients.
    trainer.calls.on_gradients(ms(4100), &mut trainer.book, &[1.0; 2]);
    let back = trainer.sent(4100);
    assert_eq!((back.len(), &back[0].host), (1, &host(2)));
}

#[test]
fn an_answer_that_no_expert_gives_is_refused_and_its_host_left_alone() {
    for value in [f32::NAN, f32::INFINITY, 300.0] {
        let mut trainer = AskingTrainer::new(vec![choice(1, &[1, 2], 0..2)]);
        let sent = trainer.sent(0).remove(0);
        assert!(trainer.answer(10, &sent, value).is_err());
        assert!(trainer.book.is_left_alone(ms(5000), &host(1)));
        let again = trainer.sent(10).remove(0);
        assert_eq!(again.host, host(2));
        assert!(
            trainer.calls.on_answer(ms(20), &mut trainer.book, again.request_id, (&[1.0; 5], 0)).is_err()
        );
        assert_eq!(trainer.actions(20), [CallAction::ForwardOver]);
        assert_eq!(trainer.answered(), [0; 0]);
        trainer.calls.on_gradients(ms(30), &mut trainer.book, &[0.0]);
        assert_eq!(trainer.actions(30), [CallAction::BackwardOver]);
    }
}

#[test]
fn an_answer_far_beyond_those_of_other_experts_is_left_out() {
    let choices = (0..5).map(|expert| choice(expert, &[expert as u8], 0..2)).collect();
    let mut trainer = AskingTrainer::new(choices);
    for sent in trainer.sent(0) {
        trainer.answer(10, &sent, if sent.expert == 3 { 90.0 } else { 1.0 }).unwrap();
    }
    assert_eq!(trainer.answered(), [0, 1, 2, 4]);
    assert!(trainer.book.is_left_alone(ms(11), &host(3)));
}

#[test]
fn gradients_are_sent_until_the_host_says_that_they_are_counted() {
    let mut trainer = AskingTrainer::new(vec![choice(1, &[1, 2], 0..1)]);
    let sent = trainer.sent(0).remove(0);
    trainer.answer(10, &sent, 1.0).unwrap();
    trainer.actions(10);
    trainer.calls.on_gradients(ms(20), &mut trainer.book, &[1.0]);
    let first = trainer.sent(20).remove(0);
    trainer.calls.on_broken(ms(30), &mut trainer.book, first.request_id);
    assert!(trainer.sent(30).is_empty());
    assert_eq!(trainer.calls.next_deadline(ms(30), &trainer.book), Some(ms(130)));
    let second = trainer.sent(130).remove(0);
    assert_eq!((second.request_id, &second.host), (first.request_id, &host(1)));
    assert_eq!([sent.n_steps, first.n_steps, second.n_steps], [0, 110, 110], "those behind the output");
    trainer.refuse(140, &second, ServingRefusal::InProgress { retry_after: ms(50) });
    assert!(trainer.sent(150).is_empty());
    let third = trainer.sent(190).remove(0);
    assert_eq!(third.request_id, first.request_id);
    trainer.refuse(200, &third, ServingRefusal::Duplicate);
    assert_eq!(trainer.actions(200), [CallAction::BackwardOver]);
    assert_eq!(trainer.calls.with_gradient().count(), 0, "it stepped, and its gradient is lost");
}

#[test]
fn gradients_of_a_silent_host_are_repeated_and_never_counted_elsewhere() {
    let mut trainer = AskingTrainer::new(vec![choice(1, &[1, 2], 0..1)]);
    let sent = trainer.sent(0).remove(0);
    trainer.answer(10, &sent, 1.0).unwrap();
    trainer.actions(10);
    trainer.calls.on_gradients(ms(20), &mut trainer.book, &[1.0]);
    let mut sent = trainer.sent(20).remove(0);
    assert_eq!(sent.until, ms(520));
    let mut times = Vec::new();
    loop {
        let now = sent.until;
        times.push(now.as_millis());
        trainer.calls.on_timeout(now, &mut trainer.book);
        let actions = trainer.actions(now.as_millis() as u64);
        assert_eq!(actions[0], CallAction::Cancel { request_id: sent.request_id });
        match &actions[1] {
            CallAction::Send(again) => {
                assert_eq!((again.request_id, &again.host), (sent.request_id, &host(1)));
                sent = again.clone();
            }
            action => break assert_eq!(*action, CallAction::BackwardOver),
        }
    }
    assert_eq!(times, [520, 1520, 3520, 4020], "each time it has longer, up to the deadline");
}

#[test]
fn a_gradient_that_is_absurd_is_zero_and_not_asked_for_again() {
    let mut trainer = AskingTrainer::new(vec![choice(1, &[1, 2], 0..1)]);
    let sent = trainer.sent(0).remove(0);
    trainer.answer(10, &sent, 1.0).unwrap();
    trainer.actions(10);
    trainer.calls.on_gradients(ms(20), &mut trainer.book, &[0.01]);
    let sent = trainer.sent(20).remove(0);
    assert!(matches!(trainer.answer(30, &sent, 11.0), Err(ExpertAnswerError::Absurd { .. })));
    assert_eq!(trainer.actions(30), [CallAction::BackwardOver]);
    assert_eq!(trainer.calls.with_gradient().count(), 0);
}

#[test]
fn what_one_batch_has_in_flight_holds_up_another_and_ends() {
    let limits = HostBookLimits { in_flight_max: 3, host_in_flight_max: 2 };
    let mut trainer = AskingTrainer::with(limits, (0..4).map(|expert| choice(expert, &[1], 0..1)).collect());
    let sent = trainer.sent(0);
    assert!(sent.len() == 2 && trainer.calls.is_waiting());
    let choices = (0..3).map(|expert| choice(expert, &[2], 0..1)).collect();
    let mut other = ExpertCalls::new(ms(0), SETTINGS, choices, &[1.0]);
    assert!(matches!(other.poll_action(ms(0), &mut trainer.book), Some(CallAction::Send(_))));
    assert_eq!(other.poll_action(ms(0), &mut trainer.book), None);
    assert_eq!(other.next_deadline(ms(0), &trainer.book), Some(ms(4000)), "it waits for room");
    trainer.answer(10, &sent[0], 1.0).unwrap();
    assert!(matches!(other.poll_action(ms(10), &mut trainer.book), Some(CallAction::Send(_))));
    other.abandon(&mut trainer.book);
    let cancelled = std::iter::from_fn(|| other.poll_action(ms(10), &mut trainer.book));
    assert!(cancelled.map(|action| assert!(matches!(action, CallAction::Cancel { .. }))).count() == 2);
    assert_eq!(trainer.book.n_in_flight(), 1);
    assert_eq!(trainer.sent(10).len(), 1);
}

#[test]
fn nothing_that_was_chosen_is_over_at_once() {
    for choices in [vec![], vec![choice(1, &[], 0..3)], vec![choice(1, &[1], 0..0)]] {
        let mut trainer = AskingTrainer::new(choices);
        assert_eq!(trainer.actions(0), [CallAction::ForwardOver]);
        trainer.calls.on_gradients(ms(1), &mut trainer.book, &[]);
        assert_eq!(trainer.actions(1), [CallAction::BackwardOver]);
    }
}

#[test]
fn a_host_that_never_answers_is_not_asked_for_ever() {
    let mut trainer = AskingTrainer::new(vec![choice(1, &[1], 0..1)]);
    let mut n_sent = 0;
    for now in (0..4000).step_by(10) {
        trainer.calls.on_timeout(ms(now), &mut trainer.book);
        for sent in trainer.sent(now) {
            n_sent += 1;
            trainer.calls.on_broken(ms(now), &mut trainer.book, sent.request_id);
        }
    }
    assert_eq!(n_sent, ATTEMPTS_MAX);
    assert!(trainer.book.is_left_alone(ms(2000), &host(1)));
}
