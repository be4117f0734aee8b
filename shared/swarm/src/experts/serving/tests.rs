mod bounds;

use proptest::prelude::*;

use super::*;

const LIMITS: ServingLimits = ServingLimits {
    rows_max: 8,
    request_rows_max: 20,
    batch_delay: Duration::from_millis(50),
    bytes_max: 1 << 20,
    requests_per_minute: 6000,
};

const fn ms(millis: u64) -> Moment {
    Duration::from_millis(millis)
}

fn client(number: u8) -> PeerKey {
    PeerKey(vec![number])
}

fn request(number: u8, expert: u32, pass: ExpertPass, n_rows: u32, request_id: u64) -> ServedRequest {
    ServedRequest {
        client: client(number),
        group: AddressGroup(number.into()),
        expert,
        pass,
        n_rows,
        n_bytes: 5000,
        request_id,
        deadline: ms(30_000),
    }
}

fn forward(number: u8, expert: u32, n_rows: u32) -> ServedRequest {
    request(number, expert, ExpertPass::Forward, n_rows, 0)
}

fn backward(number: u8, id: u64) -> ServedRequest {
    request(number, 0, ExpertPass::Backward, 1, id)
}

fn host() -> ExpertRuntime {
    let mut runtime = ExpertRuntime::new(LIMITS);
    for expert in 0..4 {
        runtime.on_expert_added(ms(0), expert, &CountedState::default()).unwrap();
    }
    runtime
}

/// Admits a request whose tensors are here at once.
fn put(runtime: &mut ExpertRuntime, now: u64, request: ServedRequest) -> RequestKey {
    let key = runtime.on_request(ms(now), request).unwrap();
    runtime.on_received(ms(now), key);
    key
}

fn batches(runtime: &mut ExpertRuntime) -> Vec<ServingBatch> {
    std::iter::from_fn(|| runtime.poll_action())
        .map(|action| match action {
            ServingAction::Compute(batch) => batch,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn keys(batch: &ServingBatch) -> Vec<u64> {
    batch.parts.iter().map(|(key, _)| key.0).collect()
}

#[test]
fn an_idle_device_takes_what_there_is_and_a_busy_one_waits_for_a_batch() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(0, 0, 2));
    let [first] = &batches(&mut runtime)[..] else { panic!("one batch") };
    assert_eq!((first.expert, first.n_rows()), (0, 2));

    (1..4).for_each(|number| _ = put(&mut runtime, 10, forward(number, 1, 2)));
    assert!(batches(&mut runtime).is_empty(), "the device is busy, and the batch may grow");
    assert_eq!(runtime.next_deadline(), Some(ms(60)));
    put(&mut runtime, 20, forward(4, 1, 2));
    let [staged] = &batches(&mut runtime)[..] else { panic!("it is full") };
    assert_eq!((keys(staged), staged.parts[3].1.clone()), (vec![1, 2, 3, 4], 6..8));

    put(&mut runtime, 30, forward(5, 2, 2));
    runtime.on_timeout(ms(200));
    assert!(batches(&mut runtime).is_empty(), "one is computed and one is staged");
    runtime.on_computed(ms(210), first.id);
    assert_eq!(keys(&batches(&mut runtime)[0]), [5], "it has waited for long enough");
}

#[test]
fn a_batch_that_does_not_fill_is_staged_after_the_delay() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(0, 0, 2));
    put(&mut runtime, 10, forward(1, 1, 2));
    assert_eq!(batches(&mut runtime).len(), 1);
    runtime.on_timeout(ms(59));
    assert!(batches(&mut runtime).is_empty());
    runtime.on_timeout(ms(60));
    assert_eq!(keys(&batches(&mut runtime)[0]), [1]);
}

#[test]
fn passes_and_experts_are_never_mixed_and_the_oldest_is_first() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(0, 3, 8));
    put(&mut runtime, 0, forward(1, 3, 8));
    put(&mut runtime, 1, forward(2, 1, 3));
    put(&mut runtime, 2, request(3, 1, ExpertPass::Backward, 3, 1));
    put(&mut runtime, 3, forward(4, 1, 3));
    put(&mut runtime, 4, forward(5, 0, 8));
    let mut order = Vec::new();
    let mut given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    let mut now = 100;
    while let Some(batch) = given.pop_front() {
        order.push(keys(&batch));
        runtime.on_computed(ms(now), batch.id);
        given.extend(batches(&mut runtime));
        now += 100;
    }
    assert_eq!(order, [vec![0], vec![1], vec![2, 4], vec![3], vec![5]]);
}

#[test]
fn a_large_request_is_computed_alone_and_a_larger_one_not_at_all() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(0, 0, 8));
    put(&mut runtime, 1, forward(1, 1, 20));
    put(&mut runtime, 2, forward(2, 1, 1));
    let given = batches(&mut runtime);
    assert_eq!((keys(&given[1]), given[1].n_rows()), (vec![1], 20));
    let refusal = |runtime: &mut ExpertRuntime, request| runtime.on_request(ms(3), request).unwrap_err();
    assert_eq!(refusal(&mut runtime, forward(1, 1, 21)), ServingRefusal::Rows { max: 20, got: 21 });
    assert_eq!(refusal(&mut runtime, forward(1, 1, 0)), ServingRefusal::Rows { max: 20, got: 0 });
    assert_eq!(refusal(&mut runtime, forward(1, 9, 1)), ServingRefusal::Unknown);
    let large = ServedRequest { n_bytes: 1 << 19, ..forward(1, 1, 1) };
    assert_eq!(refusal(&mut runtime, large), ServingRefusal::TooLarge { max: 1 << 18, got: 1 << 19 });
}

#[test]
fn memory_is_shared_by_client_and_by_address() {
    let mut runtime = host();
    let fill = |runtime: &mut ExpertRuntime, numbers: std::ops::Range<u8>, group| {
        let before = runtime.n_bytes();
        for number in numbers {
            let one =
                ServedRequest { n_bytes: 16 << 10, group: AddressGroup(group), ..forward(number, 0, 1) };
            while runtime.on_request(ms(0), one.clone()).is_ok() {}
            let refusal = runtime.on_request(ms(0), one).unwrap_err();
            assert!(matches!(refusal, ServingRefusal::Busy { .. }), "{refusal:?}");
        }
        (runtime.n_bytes() - before) >> 10
    };
    assert_eq!(fill(&mut runtime, 0..1, 0), 336, "a third of 1024 KiB");
    assert_eq!(fill(&mut runtime, 1..200, 0), 176, "any number of keys: half of all with the first");
    let of_another = fill(&mut runtime, 200..201, 1);
    assert!(of_another >= 160, "{of_another}");
    // All of them leave.
    (0..=200).for_each(|number| runtime.on_client_gone(ms(1), &client(number)));
    assert!(runtime.n_bytes() == 0 && runtime.is_idle());
}

#[test]
fn memory_is_held_until_the_answer_has_left() {
    let mut runtime = host();
    let key = put(&mut runtime, 0, forward(0, 0, 1));
    let batch = batches(&mut runtime).remove(0);
    runtime.on_client_gone(ms(1), &client(0));
    runtime.on_lost(ms(1), key);
    assert_eq!(runtime.n_bytes(), 5000, "the device has it");
    runtime.on_computed(ms(2), batch.id);
    assert_eq!((runtime.n_bytes(), runtime.load().rows_waiting), (5000, 0));
    runtime.on_answered(ms(3), key);
    runtime.on_answered(ms(3), key);
    assert!(runtime.is_idle() && runtime.poll_action().is_none());
}

#[test]
fn the_rate_of_a_client_and_of_an_address_is_limited() {
    let limits = ServingLimits { requests_per_minute: 10, bytes_max: 1 << 30, ..LIMITS };
    let mut runtime = ExpertRuntime::new(limits);
    runtime.on_expert_added(ms(0), 0, &CountedState::default()).unwrap();
    let mut n_admitted = |numbers: std::ops::Range<u8>, now| {
        let mut n = 0;
        for number in numbers {
            for _ in 0..30 {
                let one = ServedRequest { group: AddressGroup(1), ..forward(number, 0, 1) };
                match runtime.on_request(ms(now), ServedRequest { deadline: ms(now + 9000), ..one }) {
                    Ok(_) => n += 1,
                    Err(refusal) => {
                        assert_eq!(refusal, ServingRefusal::Busy { retry_after: Duration::from_secs(6) });
                    }
                }
            }
        }
        n
    };
    assert_eq!(n_admitted(0..1, 0), 10);
    assert_eq!(
        n_admitted(1..9, 0),
        30,
        "an address has as many as four clients, also where one asks too often"
    );
    assert_eq!(n_admitted(0..1, 6000), 1);
}

#[test]
fn a_backward_request_is_counted_once() {
    let mut runtime = host();
    let key = put(&mut runtime, 0, backward(0, 7));
    let again = |runtime: &mut ExpertRuntime, number| runtime.on_request(ms(1), backward(number, 7));
    assert!(matches!(again(&mut runtime, 0), Err(ServingRefusal::InProgress { .. })));
    put(&mut runtime, 1, backward(1, 7));
    let batch = batches(&mut runtime).remove(0);
    assert!(matches!(again(&mut runtime, 0), Err(ServingRefusal::InProgress { .. })), "it is computed");
    runtime.on_computed(ms(10), batch.id);
    assert_eq!(again(&mut runtime, 0), Err(ServingRefusal::Duplicate));
    runtime.on_answered(ms(11), key);
    assert_eq!(again(&mut runtime, 0), Err(ServingRefusal::Duplicate));
    let at_another = request(0, 1, ExpertPass::Backward, 1, 7);
    assert!(runtime.on_request(ms(12), at_another).is_ok(), "another expert has not stepped by it");

    // The host stops after it wrote its expert, and before that.
    let state = runtime.counted(0).unwrap();
    for (state, is_counted) in [(state, true), (CountedState::default(), false)] {
        let mut after = ExpertRuntime::new(LIMITS);
        after.on_expert_added(ms(0), 0, &state).unwrap();
        let answer = again(&mut after, 0);
        assert_eq!(answer == Err(ServingRefusal::Duplicate), is_counted, "{answer:?}");
    }
}

#[test]
fn what_was_not_computed_may_come_again() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(5, 0, 1));
    let key = put(&mut runtime, 0, backward(0, 7));
    runtime.on_lost(ms(1), key);
    put(&mut runtime, 2, backward(0, 7));
    runtime.on_client_gone(ms(3), &client(0));
    put(&mut runtime, 4, backward(0, 7));
}

#[test]
fn a_request_that_fails_hurts_no_other() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(9, 1, 1));
    let first = batches(&mut runtime).remove(0);
    (0..3).for_each(|number| _ = put(&mut runtime, 1, backward(number, 1)));
    runtime.on_timeout(ms(51));
    let together = batches(&mut runtime).remove(0);
    assert_eq!(keys(&together), [1, 2, 3]);
    runtime.on_computed(ms(60), first.id);
    runtime.on_failed(ms(61), together.id);
    let mut given: VecDeque<ServingBatch> = batches(&mut runtime).into();
    let mut outcomes = Vec::new();
    while let Some(batch) = given.pop_front() {
        assert_eq!(batch.parts.len(), 1, "by itself");
        if keys(&batch) == [2] {
            runtime.on_failed(ms(70), batch.id);
        } else {
            runtime.on_computed(ms(70), batch.id);
        }
        while let Some(action) = runtime.poll_action() {
            match action {
                ServingAction::Compute(batch) => given.push_back(batch),
                other => outcomes.push(other),
            }
        }
    }
    let refused = ServingAction::Refuse { key: RequestKey(2), refusal: ServingRefusal::Failed };
    assert_eq!(outcomes, [refused]);
    let mut id_of = |number| runtime.on_request(ms(80), backward(number, 1)).err();
    assert_eq!(id_of(0), Some(ServingRefusal::Duplicate));
    assert_eq!(id_of(1), None, "it was not counted");
}

#[test]
fn what_nobody_waits_for_is_dropped() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(0, 0, 1));
    batches(&mut runtime);
    let soon = ServedRequest { deadline: ms(30), ..forward(1, 1, 1) };
    let waiting = put(&mut runtime, 0, soon.clone());
    let receiving = runtime.on_request(ms(0), soon).unwrap();
    assert_eq!(runtime.next_deadline(), Some(ms(30)));
    runtime.on_timeout(ms(30));
    for key in [waiting, receiving] {
        assert_eq!(runtime.poll_action(), Some(ServingAction::Drop(key)));
    }
    runtime.on_received(ms(31), receiving);
    assert!(runtime.poll_action().is_none(), "its end was told");
    let ever = ServedRequest { deadline: Moment::MAX, ..forward(1, 1, 1) };
    runtime.on_request(ms(100), ever).unwrap();
    assert_eq!(runtime.next_deadline(), Some(ms(100) + WAIT_MAX));
}

#[test]
fn a_host_that_leaves_finishes_and_an_expert_that_leaves_refuses() {
    let mut runtime = host();
    put(&mut runtime, 0, forward(0, 0, 8));
    let staged = put(&mut runtime, 0, forward(1, 1, 8));
    let waiting = put(&mut runtime, 0, forward(2, 1, 1));
    let given = batches(&mut runtime);
    runtime.on_drain();
    assert_eq!(runtime.on_request(ms(1), forward(3, 1, 1)), Err(ServingRefusal::Draining));
    runtime.on_expert_removed(ms(2), 1);
    let refusal = ServingRefusal::Unknown;
    assert_eq!(runtime.poll_action(), Some(ServingAction::Refuse { key: waiting, refusal }));
    assert_eq!(runtime.on_request(ms(1), forward(3, 1, 1)), Err(ServingRefusal::Unknown));
    runtime.on_computed(ms(3), given[0].id);
    runtime.on_computed(ms(4), given[1].id);
    runtime.on_answered(ms(5), RequestKey(0));
    assert!(!runtime.is_idle());
    runtime.on_answered(ms(5), staged);
    assert!(runtime.is_idle());
}

/// Computes all batches, each in `batch_ms`, until `end`; calls `ask` before each.
fn serve(
    runtime: &mut ExpertRuntime,
    (batch_ms, end): (u64, u64),
    mut ask: impl FnMut(&mut ExpertRuntime, u64),
) -> Vec<(RequestKey, u64)> {
    let (mut now, mut given, mut computed) = (0, VecDeque::new(), Vec::new());
    while now < end {
        ask(runtime, now);
        now += batch_ms;
        runtime.on_timeout(ms(now));
        while let Some(action) = runtime.poll_action() {
            if let ServingAction::Compute(batch) = action {
                given.push_back(batch);
            }
        }
        let Some(batch) = given.pop_front() else { continue };
        runtime.on_computed(ms(now), batch.id);
        for (key, _) in batch.parts {
            computed.push((key, now));
            runtime.on_answered(ms(now), key);
        }
    }
    computed
}

#[test]
fn a_flood_of_one_client_delays_no_other() {
    let limits = ServingLimits { requests_per_minute: 1_000_000, bytes_max: 64 << 20, ..LIMITS };
    let mut runtime = ExpertRuntime::new(limits);
    for expert in 0..4 {
        runtime.on_expert_added(ms(0), expert, &CountedState::default()).unwrap();
    }
    let mut modest = BTreeMap::new();
    let computed = serve(&mut runtime, (100, 60_000), |runtime, now| {
        // The flood is at each expert, and as much as the host admits.
        for at in 0..200 {
            let deadline = ms(now + 55_000);
            if let Ok(key) = runtime.on_request(ms(now), ServedRequest { deadline, ..forward(0, at % 4, 4) })
            {
                runtime.on_received(ms(now), key);
            }
        }
        if now % 1000 == 0 && now > 1000 {
            let key = put(runtime, now, ServedRequest { deadline: ms(now + 55_000), ..forward(1, 2, 4) });
            modest.insert(key, now);
        }
    });
    let waits: Vec<u64> = computed.iter().filter_map(|(key, at)| Some(at - modest.get(key)?)).collect();
    assert!(waits.len() >= 56, "{}", waits.len());
    // The batch that is computed, the one behind, and its own.
    assert!(waits.iter().all(|wait| *wait <= 400), "{waits:?}");
    assert!(computed.len() > 1000, "the flood has all the rest: {}", computed.len());
}

#[test]
fn two_floods_have_a_half_each() {
    let limits = ServingLimits { requests_per_minute: 1_000_000, bytes_max: 64 << 20, ..LIMITS };
    let mut runtime = ExpertRuntime::new(limits);
    runtime.on_expert_added(ms(0), 0, &CountedState::default()).unwrap();
    let mut owners = BTreeMap::new();
    let computed = serve(&mut runtime, (100, 60_000), |runtime, now| {
        for number in [0, 1, 1, 1, 1] {
            for _ in 0..3 {
                let one = ServedRequest { deadline: ms(now + 20_000), ..forward(number, 0, 4) };
                if let Ok(key) = runtime.on_request(ms(now), one) {
                    runtime.on_received(ms(now), key);
                    owners.insert(key, number);
                }
            }
        }
    });
    let of_first = computed.iter().filter(|(key, _)| owners[key] == 0).count();
    let part = of_first as f64 / computed.len() as f64;
    assert!((0.4..0.6).contains(&part), "{part}");
}

proptest! {
    /// Clients without anything in waiting are served in the order in which they came, at whichever expert.
    #[test]
    fn the_oldest_is_first(requests in proptest::collection::vec((0..4_u32, 1..20_u32, 0..30_u64), 1..60)) {
        let mut runtime = host();
        let (mut now, mut came) = (0, BTreeMap::new());
        for (at, (expert, n_rows, gap)) in requests.iter().enumerate() {
            now += gap;
            came.insert(put(&mut runtime, now, forward(at as u8, *expert, *n_rows)), now);
        }
        let mut given: VecDeque<ServingBatch> = batches(&mut runtime).into();
        let mut waiting: BTreeSet<RequestKey> = came.keys().copied().collect();
        let mut n_given = 0;
        while let Some(batch) = given.pop_front() {
            // The first two were given while others were still to come.
            if n_given >= 2 {
                prop_assert_eq!(batch.parts.first().map(|(key, _)| *key), waiting.first().copied());
            }
            n_given += 1;
            for (key, _) in &batch.parts {
                let is_first = |other: &&RequestKey| requests[other.0 as usize].0 == batch.expert;
                prop_assert_eq!(waiting.iter().find(is_first), Some(key), "in order within its queue");
                waiting.remove(key);
            }
            now += 500;
            runtime.on_computed(ms(now), batch.id);
            let next = std::iter::from_fn(|| runtime.poll_action());
            given.extend(next.filter_map(|action| match action {
                ServingAction::Compute(batch) => Some(batch),
                _ => None,
            }));
            if now > 29_000 {
                break;
            }
        }
        prop_assert!(now > 29_000 || waiting.is_empty());
    }

    /// A client that asks once among floods has its answer after a bounded time.
    #[test]
    fn nobody_starves(
        floods in proptest::collection::vec((0..8_u8, 0..4_u32, 1..8_u32), 1..40),
        n_rounds in 60..120_u64,
    ) {
        let limits = ServingLimits { requests_per_minute: 1_000_000, bytes_max: 16 << 20, ..LIMITS };
        let mut runtime = ExpertRuntime::new(limits);
        for expert in 0..4 {
            runtime.on_expert_added(ms(0), expert, &CountedState::default()).unwrap();
        }
        let mut modest = BTreeMap::new();
        let computed = serve(&mut runtime, (50, n_rounds * 50), |runtime, now| {
            for (number, expert, n_rows) in &floods {
                let one = ServedRequest { deadline: ms(now + 20_000), ..forward(*number, *expert, *n_rows) };
                if let Ok(key) = runtime.on_request(ms(now), one) {
                    runtime.on_received(ms(now), key);
                }
            }
            if now == 1000 {
                let one = ServedRequest { deadline: ms(now + 20_000), ..forward(99, 0, 1) };
                modest.insert(put(runtime, now, one), now);
            }
        });
        // Each of eight clients may have a batch before it, and two are on the device.
        let wait = computed.iter().find_map(|(key, at)| Some(at - modest.get(key)?));
        prop_assert!(wait.is_some_and(|wait| wait <= 50 * 14), "{:?}", wait);
    }
}

#[test]
fn a_new_session_of_a_client_is_counted_from_any_number_on() {
    let mut runtime = host();
    let mut step = |at: u64, id: u64| {
        let key = runtime.on_request(ms(at), backward(0, id))?;
        runtime.on_received(ms(at), key);
        let [batch] = &batches(&mut runtime)[..] else { panic!("one batch") };
        runtime.on_computed(ms(at), batch.id);
        runtime.on_answered(ms(at), key);
        Ok(())
    };
    let (before, after) = (9 << SESSION_SHIFT, 4 << SESSION_SHIFT);
    for count in 0..COUNTED_IDS_MAX as u64 + 10 {
        assert_eq!(step(count, before + count), Ok(()));
    }
    // As after a restart with a clock that was set back: the number is smaller than all before.
    assert_eq!(step(1000, after), Ok(()));
    assert_eq!(step(1001, after), Err(ServingRefusal::Duplicate));
    assert_eq!(step(1002, before), Err(ServingRefusal::Duplicate), "of the session before, too");
    assert_eq!(step(1003, after + 1), Ok(()));
}
