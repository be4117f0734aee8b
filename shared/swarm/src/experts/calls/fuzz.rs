//! Any sequence of answers, refusals, broken connections and hours: a pass ends once and in time, no more is in flight than is
//! allowed, gradients go where the answer came from, by one id, and one request of it at a time.

use std::collections::BTreeSet;

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};

use super::*;
use crate::random::SplitMix64;

const SETTINGS: CallSettings = CallSettings {
    input_values: 1,
    output_values: 2,
    request_rows_max: 3,
    forward_time: Duration::from_secs(2),
    backward_time: Duration::from_secs(3),
};
const LIMITS: HostBookLimits = HostBookLimits { in_flight_max: 6, host_in_flight_max: 3 };
const N_BATCHES: usize = 3;

#[derive(Debug, Arbitrary)]
enum CallOperation {
    /// In the place of one that is over, or given up.
    Begin {
        batch: u8,
        choices: Vec<(u8, u8, u8)>,
    },
    Answer {
        which: u8,
        kind: u8,
    },
    Refuse {
        which: u8,
        kind: u8,
        millis: u16,
    },
    Break {
        which: u8,
    },
    /// An answer that nobody asked for.
    Forge {
        batch: u8,
        request_id: u16,
    },
    Gradients {
        batch: u8,
    },
    Pass {
        millis: u16,
    },
}

/// A batch, as its driver knows it.
struct KnownBatch {
    calls: ExpertCalls,
    began_at: Moment,
    gradients_at: Moment,
    n_forward_over: usize,
    n_backward_over: usize,
    has_gradients: bool,
    /// Host that answered each call, and the id of its backward request.
    answered: BTreeMap<usize, PeerKey>,
    backward: BTreeMap<usize, u64>,
}

struct CallWorld {
    now: Moment,
    book: HostBook,
    batches: Vec<KnownBatch>,
    in_flight: Vec<(usize, SentCall)>,
    ids: BTreeSet<u64>,
    n_over: usize,
}

impl KnownBatch {
    fn new(now: Moment, choices: &[(u8, u8, u8)]) -> Self {
        let choices = choices.iter().take(5).map(|(expert, host, n_rows)| ExpertChoice {
            expert: u32::from(*expert % 8),
            hosts: (0..host % 4).map(|at| PeerKey(vec![(host / 4 + at) % 5])).collect(),
            rows: (0..u32::from(n_rows % 8)).collect(),
        });
        Self {
            calls: ExpertCalls::new(now, SETTINGS, choices.collect(), &[1.0; 8]),
            began_at: now,
            gradients_at: now,
            n_forward_over: 0,
            n_backward_over: 0,
            has_gradients: false,
            answered: BTreeMap::new(),
            backward: BTreeMap::new(),
        }
    }
}

impl CallWorld {
    fn new() -> Self {
        Self {
            now: Moment::ZERO,
            book: HostBook::new(LIMITS, 1, 1),
            batches: (0..N_BATCHES).map(|_| KnownBatch::new(Moment::ZERO, &[])).collect(),
            in_flight: Vec::new(),
            ids: BTreeSet::new(),
            n_over: 0,
        }
    }

    fn on(&mut self, operation: &CallOperation) {
        let now = self.now;
        match operation {
            CallOperation::Begin { batch, choices } => {
                let at = usize::from(*batch) % N_BATCHES;
                self.batches[at].calls.abandon(&mut self.book);
                self.drain();
                self.batches[at] = KnownBatch::new(now, choices);
            }
            CallOperation::Answer { which, kind } => self.answer(*which, *kind),
            CallOperation::Refuse { which, kind, millis } => {
                let Some((batch, sent)) = self.take(*which) else { return };
                let retry_after = Duration::from_millis((*millis).into());
                let refusal = match kind % 6 {
                    0 | 1 => ServingRefusal::Busy { retry_after },
                    2 => ServingRefusal::InProgress { retry_after },
                    3 => ServingRefusal::Duplicate,
                    4 => ServingRefusal::Unknown,
                    _ => ServingRefusal::Failed,
                };
                self.batches[batch].calls.on_refused(now, &mut self.book, sent.request_id, refusal);
            }
            CallOperation::Break { which } => {
                let Some((batch, sent)) = self.take(*which) else { return };
                self.batches[batch].calls.on_broken(now, &mut self.book, sent.request_id);
            }
            CallOperation::Forge { batch, request_id } => {
                let (at, id) = (usize::from(*batch) % N_BATCHES, u64::from(*request_id));
                if self.in_flight.iter().all(|(_, sent)| sent.request_id != id) {
                    let forged = self.batches[at].calls.on_answer(now, &mut self.book, id, (&[1.0; 4], 0));
                    assert_eq!(forged, Err(ExpertAnswerError::NotWaitedFor));
                }
            }
            CallOperation::Gradients { batch } => {
                let known = &mut self.batches[usize::from(*batch) % N_BATCHES];
                if known.n_forward_over == 1 && !known.has_gradients {
                    known.has_gradients = true;
                    known.gradients_at = now;
                    known.calls.on_gradients(now, &mut self.book, &vec![1.0; known.calls.n_calls()]);
                }
            }
            CallOperation::Pass { millis } => {
                self.now += Duration::from_millis((*millis).into());
                for known in &mut self.batches {
                    known.calls.on_timeout(self.now, &mut self.book);
                }
            }
        }
        self.drain();
        self.check();
    }

    fn answer(&mut self, which: u8, kind: u8) {
        let Some((batch, sent)) = self.take(which) else { return };
        let known = &mut self.batches[batch];
        let n_values = if sent.pass == ExpertPass::Forward { 2 } else { 1 };
        let n_values = known.calls.rows(sent.call).len() * n_values;
        let values = match kind % 8 {
            0 => vec![f32::NAN; n_values],
            1 => vec![1.0; n_values + 1],
            2 => vec![1e9; n_values],
            _ => vec![1.0; n_values],
        };
        let answer = known.calls.on_answer(self.now, &mut self.book, sent.request_id, (&values, 0));
        assert_eq!(answer.is_ok(), kind % 8 > 2, "{answer:?}");
        if answer.is_ok() && sent.pass == ExpertPass::Forward {
            known.answered.insert(sent.call, sent.host);
        }
    }

    fn take(&mut self, which: u8) -> Option<(usize, SentCall)> {
        let n = self.in_flight.len();
        (n > 0).then(|| self.in_flight.remove(usize::from(which) % n))
    }

    fn drain(&mut self) {
        for at in 0..self.batches.len() {
            while let Some(action) = self.batches[at].calls.poll_action(self.now, &mut self.book) {
                match action {
                    CallAction::Send(sent) => self.sent(at, sent),
                    CallAction::Cancel { request_id } => {
                        let before = self.in_flight.len();
                        self.in_flight.retain(|(_, sent)| sent.request_id != request_id);
                        assert_eq!(self.in_flight.len() + 1, before, "what is cancelled was in flight");
                    }
                    CallAction::ForwardOver => self.batches[at].n_forward_over += 1,
                    CallAction::BackwardOver => {
                        self.batches[at].n_backward_over += 1;
                        self.n_over += 1;
                    }
                }
            }
        }
    }

    fn sent(&mut self, at: usize, sent: SentCall) {
        let known = &mut self.batches[at];
        assert!(self.in_flight.iter().all(|(_, other)| other.request_id != sent.request_id));
        assert!(sent.until > self.now);
        if sent.pass == ExpertPass::Forward {
            assert!(self.ids.insert(sent.request_id), "a forward request has a new id");
            assert!(!self.book.is_left_alone(self.now, &sent.host));
        } else {
            assert_eq!(
                known.answered.get(&sent.call),
                Some(&sent.host),
                "another host has not seen the input"
            );
            let id = *known.backward.entry(sent.call).or_insert(sent.request_id);
            assert_eq!(id, sent.request_id, "a call has one backward request");
            self.ids.insert(id);
        }
        self.in_flight.push((at, sent));
    }

    fn check(&self) {
        assert_eq!(self.book.n_in_flight(), self.in_flight.len());
        assert!(self.in_flight.len() <= LIMITS.in_flight_max);
        for number in 0..5 {
            let host = PeerKey(vec![number]);
            let n = self.in_flight.iter().filter(|(_, sent)| sent.host == host).count();
            assert!(n == self.book.n_in_flight_at(&host) && n <= LIMITS.host_in_flight_max);
        }
        for known in &self.batches {
            assert!(known.n_forward_over <= 1 && known.n_backward_over <= 1);
            let is_late = |from: Moment, time| self.now >= from + time;
            assert!(known.n_forward_over == 1 || !is_late(known.began_at, SETTINGS.forward_time));
            let late = known.has_gradients && is_late(known.gradients_at, SETTINGS.backward_time);
            assert!(known.n_backward_over == 1 || !late, "a pass ends at its deadline");
            let deadline = known.calls.next_deadline(self.now, &self.book);
            assert!(deadline.is_none_or(|deadline| deadline > self.now), "what is due is done");
            let is_over =
                known.n_forward_over == 1 && known.n_backward_over == usize::from(known.has_gradients);
            assert_eq!(deadline.is_none(), is_over, "a driver that sleeps wakes up");
        }
    }
}

#[test]
fn call_sequence() {
    fuzz!("call_sequence", |input| {
        let Some(operations) = value::<Vec<CallOperation>>(input) else { return };
        let mut world = CallWorld::new();
        operations.iter().take(300).for_each(|operation| world.on(operation));
    });
}

mod tests {
    use super::*;

    /// Operations by chance reach the end of many batches.
    #[test]
    fn batches_by_chance() {
        for seed in 0..40 {
            let mut random = SplitMix64::new(seed);
            let mut world = CallWorld::new();
            for _ in 0..1500 {
                let mut byte = || random.below(256) as u8;
                let operation = match byte() % 32 {
                    0 => CallOperation::Begin {
                        batch: byte(),
                        choices: (0..3).map(|_| (byte(), byte(), byte())).collect(),
                    },
                    1..18 => {
                        CallOperation::Answer { which: byte(), kind: if byte() < 20 { byte() } else { 7 } }
                    }
                    18..20 => CallOperation::Refuse { which: byte(), kind: byte(), millis: byte().into() },
                    20 => CallOperation::Break { which: byte() },
                    21 => CallOperation::Forge { batch: byte(), request_id: byte().into() },
                    22..28 => CallOperation::Gradients { batch: byte() },
                    _ => CallOperation::Pass { millis: byte().into() },
                };
                world.on(&operation);
            }
            assert!(world.n_over > 10, "seed {seed}: {}", world.n_over);
        }
    }
}
