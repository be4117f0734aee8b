//! Any sequence of requests, batches, failures and losses: a request that was admitted ends once, memory and device hold no
//! more than was granted, a batch is in turn, and no expert counts a request twice.

use std::collections::{BTreeMap, BTreeSet};

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};

use super::*;
use crate::random::SplitMix64;

const LIMITS: ServingLimits = ServingLimits {
    rows_max: 8,
    request_rows_max: 20,
    batch_delay: Duration::from_millis(50),
    bytes_max: 1 << 20,
    requests_per_minute: 600,
};

#[derive(Debug, Arbitrary)]
enum ServingOperation {
    Request {
        client: u8,
        expert: u8,
        is_backward: bool,
        n_rows: u8,
        kib: u8,
        id: u8,
        wait: u16,
    },
    Received {
        which: u8,
    },
    Lost {
        which: u8,
    },
    Gone {
        client: u8,
    },
    Computed,
    Failed,
    Answered {
        which: u8,
    },
    Add {
        expert: u8,
    },
    Remove {
        expert: u8,
    },
    /// The host stops, and begins again with what was written of its experts.
    Restart,
    Drain,
    Pass {
        millis: u16,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownStage {
    Receiving,
    Waiting { alone_after: Option<BatchId> },
    Computing,
    Answering,
}

/// A correct driver, with what it knows of each request.
struct ServingWorld {
    runtime: ExpertRuntime,
    now: Moment,
    known: BTreeMap<RequestKey, (ServedRequest, KnownStage)>,
    given: VecDeque<ServingBatch>,
    /// What each expert has stepped by.
    counted: BTreeSet<(u32, PeerKey, u64)>,
    n_admitted: usize,
    n_ended: usize,
    n_answered: usize,
}

fn client(number: u8) -> PeerKey {
    PeerKey(vec![number % 6])
}

impl ServingWorld {
    fn new() -> Self {
        let mut runtime = ExpertRuntime::new(LIMITS);
        for expert in 0..2 {
            runtime.on_expert_added(Moment::ZERO, expert, &CountedState::default()).unwrap();
        }
        let (now, known, given, counted) = (Moment::ZERO, BTreeMap::new(), VecDeque::new(), BTreeSet::new());
        Self { runtime, now, known, given, counted, n_admitted: 0, n_ended: 0, n_answered: 0 }
    }

    fn on(&mut self, operation: &ServingOperation) {
        let now = self.now;
        match *operation {
            ServingOperation::Request { .. } => self.request(operation),
            ServingOperation::Received { which } => {
                if let Some(key) = self.pick(which, |stage| stage == KnownStage::Receiving) {
                    self.stage(key, KnownStage::Waiting { alone_after: None });
                    self.runtime.on_received(now, key);
                }
            }
            ServingOperation::Lost { which } => {
                let has = |stage| matches!(stage, KnownStage::Receiving | KnownStage::Waiting { .. });
                if let Some(key) = self.pick(which, has) {
                    self.end(key);
                    self.runtime.on_lost(now, key);
                }
            }
            ServingOperation::Gone { client: number } => {
                self.runtime.on_client_gone(now, &client(number));
                self.drain();
                let waits = |(request, stage): &(ServedRequest, KnownStage)| {
                    request.client == client(number)
                        && !matches!(stage, KnownStage::Computing | KnownStage::Answering)
                };
                assert!(!self.known.values().any(waits), "what nobody waits for is dropped");
            }
            ServingOperation::Computed => self.computed(),
            ServingOperation::Failed => {
                if let Some(batch) = self.given.pop_front() {
                    if batch.parts.len() > 1 {
                        for (key, _) in &batch.parts {
                            self.stage(*key, KnownStage::Waiting { alone_after: Some(batch.id) });
                        }
                    }
                    self.runtime.on_failed(now, batch.id);
                }
            }
            ServingOperation::Answered { which } => {
                if let Some(key) = self.pick(which, |stage| stage == KnownStage::Answering) {
                    self.end(key);
                    self.n_answered += 1;
                    self.runtime.on_answered(now, key);
                }
            }
            ServingOperation::Add { expert } => {
                let expert = u32::from(expert % 3);
                // An expert comes back with nothing in flight, or is another one.
                if self.known.values().all(|(request, _)| request.expert != expert)
                    && self.runtime.counted(expert).is_none()
                {
                    self.counted.retain(|(of, ..)| *of != expert);
                    self.runtime.on_expert_added(now, expert, &CountedState::default()).unwrap();
                }
            }
            ServingOperation::Remove { expert } => {
                self.runtime.on_expert_removed(now, u32::from(expert % 3));
            }
            ServingOperation::Restart => self.restart(),
            ServingOperation::Drain => self.runtime.on_drain(),
            ServingOperation::Pass { millis } => {
                self.now += Duration::from_millis(millis.into());
                self.runtime.on_timeout(self.now);
            }
        }
        self.drain();
        self.check();
    }

    fn request(&mut self, operation: &ServingOperation) {
        let ServingOperation::Request { client: number, expert, is_backward, n_rows, kib, id, wait } =
            *operation
        else {
            return;
        };
        let request = ServedRequest {
            client: client(number),
            group: AddressGroup(u64::from(number % 3)),
            expert: u32::from(expert % 3),
            pass: if is_backward { ExpertPass::Backward } else { ExpertPass::Forward },
            n_rows: u32::from(n_rows % 24),
            n_bytes: u64::from(kib) << 11,
            request_id: u64::from(id),
            deadline: self.now + Duration::from_millis(wait.into()),
        };
        let name = (request.expert, request.client.clone(), request.request_id);
        let is_counted = is_backward && self.counted.contains(&name);
        match self.runtime.on_request(self.now, request.clone()) {
            Ok(key) => {
                assert!(!is_counted, "a request that was counted is admitted again");
                self.n_admitted += 1;
                assert!(self.known.insert(key, (request, KnownStage::Receiving)).is_none());
            }
            Err(refusal) => {
                let is_asked = refusal == ServingRefusal::Duplicate;
                assert!(!is_asked || is_counted, "what was not counted is no duplicate");
            }
        }
    }

    fn computed(&mut self) {
        let Some(batch) = self.given.pop_front() else { return };
        for (key, _) in &batch.parts {
            self.stage(*key, KnownStage::Answering);
            let (request, _) = &self.known[key];
            if batch.pass == ExpertPass::Backward && self.runtime.counted(batch.expert).is_some() {
                let name = (request.expert, request.client.clone(), request.request_id);
                assert!(self.counted.insert(name), "an expert steps twice by a request");
            }
        }
        self.runtime.on_computed(self.now, batch.id);
    }

    fn restart(&mut self) {
        let states = (0..3).map(|expert| (expert, self.runtime.counted(expert)));
        let states: Vec<(u32, Option<CountedState>)> = states.collect();
        self.runtime = ExpertRuntime::new(LIMITS);
        for (expert, state) in states {
            if let Some(state) = state {
                self.runtime.on_expert_added(self.now, expert, &state).unwrap();
            }
        }
        self.known.clear();
        self.given.clear();
        (self.n_admitted, self.n_ended) = (0, 0);
    }

    fn pick(&self, which: u8, has: impl Fn(KnownStage) -> bool) -> Option<RequestKey> {
        let mut keys = self.known.iter().filter(|(_, (_, stage))| has(*stage)).map(|(key, _)| *key);
        let n_keys = keys.clone().count();
        if n_keys == 0 { None } else { keys.nth(usize::from(which) % n_keys) }
    }

    fn stage(&mut self, key: RequestKey, stage: KnownStage) {
        self.known.get_mut(&key).unwrap().1 = stage;
    }

    fn end(&mut self, key: RequestKey) {
        assert!(self.known.remove(&key).is_some(), "{key:?} ends twice");
        self.n_ended += 1;
    }

    fn drain(&mut self) {
        while let Some(action) = self.runtime.poll_action() {
            match action {
                ServingAction::Refuse { key, .. } | ServingAction::Drop(key) => self.end(key),
                ServingAction::Compute(batch) => {
                    let mut n_rows = 0;
                    for (key, rows) in &batch.parts {
                        let (request, stage) = self.known[key].clone();
                        assert_eq!((request.expert, request.pass), (batch.expert, batch.pass));
                        let KnownStage::Waiting { alone_after } = stage else {
                            panic!("{stage:?} is computed")
                        };
                        assert!(alone_after.is_none() || batch.parts.len() == 1, "it has failed with others");
                        assert_eq!(rows.clone(), n_rows..n_rows + request.n_rows);
                        n_rows = rows.end;
                        assert!(request.deadline > self.now, "nobody waits for it");
                        self.stage(*key, KnownStage::Computing);
                    }
                    assert!(batch.parts.len() == 1 || n_rows <= LIMITS.rows_max);
                    assert!(n_rows > 0 && n_rows <= LIMITS.request_rows_max);
                    self.given.push_back(batch);
                    assert!(self.given.len() <= 2, "the device has more than it can hold");
                }
            }
        }
    }

    fn check(&self) {
        assert!(self.runtime.n_bytes() <= LIMITS.bytes_max);
        assert_eq!(self.n_admitted, self.n_ended + self.known.len(), "none is lost");
        let n_bytes: u64 =
            self.known.values().map(|(request, _)| request.n_bytes.max(REQUEST_BYTES_MIN)).sum();
        assert_eq!(self.runtime.n_bytes(), n_bytes);
        let waits = |stage| matches!(stage, KnownStage::Waiting { .. } | KnownStage::Computing);
        let waiting = self.known.values().filter(|(_, stage)| waits(*stage));
        let n_rows: u64 = waiting.clone().map(|(request, _)| u64::from(request.n_rows)).sum();
        assert_eq!(self.runtime.load().rows_waiting, n_rows);
        assert_eq!(self.runtime.is_idle(), self.known.is_empty());
        assert!(!self.given.is_empty() || waiting.count() == 0, "the device rests, and requests wait");
        if let Some(deadline) = self.runtime.next_deadline() {
            assert!(deadline > self.now, "what is due is done");
        }
    }
}

#[test]
fn serving_sequence() {
    fuzz!("serving_sequence", |input| {
        let Some(operations) = value::<Vec<ServingOperation>>(input) else { return };
        let mut world = ServingWorld::new();
        operations.iter().take(300).for_each(|operation| world.on(operation));
    });
}

mod tests {
    use super::*;

    /// Operations by chance, of which most are those of a busy host, from many seeds.
    #[test]
    fn busy_hosts_by_chance() {
        for seed in 0..40 {
            let mut random = SplitMix64::new(seed);
            let mut world = ServingWorld::new();
            for _ in 0..1500 {
                let mut byte = || random.below(256) as u8;
                let operation = match byte() % 40 {
                    0..12 => ServingOperation::Request {
                        client: byte(),
                        expert: byte(),
                        is_backward: byte() % 2 == 0,
                        n_rows: byte() % 6 + 1,
                        kib: byte() % 20,
                        id: byte(),
                        wait: 200 + u16::from(byte()) * 16,
                    },
                    12..22 => ServingOperation::Received { which: byte() },
                    22..28 => ServingOperation::Computed,
                    28..34 => ServingOperation::Answered { which: byte() },
                    34 => ServingOperation::Failed,
                    35 => ServingOperation::Lost { which: byte() },
                    36 if byte() < 30 => ServingOperation::Gone { client: byte() },
                    37 if byte() < 8 => ServingOperation::Restart,
                    38 if byte() < 8 => ServingOperation::Remove { expert: byte() },
                    39 => ServingOperation::Add { expert: byte() },
                    _ => ServingOperation::Pass { millis: u16::from(byte()) },
                };
                world.on(&operation);
            }
            assert!(world.n_answered > 60 && world.counted.len() > 10, "seed {seed}: {}", world.n_answered);
        }
    }
}
