//! Any group, and any sequence of chunks, losses and times: the result is the mean of the values that came, it names the
//! members in it, and it ends.

use std::time::Duration;

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::{CHUNK_VALUES, MemberSet};

use super::*;
use crate::{Moment, PeerKey};

const PATIENCE: Duration = Duration::from_secs(5);
const CHUNKS_MAX: usize = 3;

#[derive(Debug, Arbitrary)]
struct ReductionCase {
    weights: [u8; 5],
    n_members: u8,
    n_values: u16,
    window: u8,
    operations: Vec<ReductionOperation>,
}

#[derive(Debug, Arbitrary)]
enum ReductionOperation {
    /// The next chunk of a member, or another one.
    Chunk {
        member: u8,
        value: f32,
        off: i8,
        is_short: bool,
        is_given: bool,
    },
    /// It joins with an input.
    Join {
        member: u8,
        n_samples: u8,
        is_whole: bool,
    },
    Lose {
        member: u8,
    },
    Pass {
        millis: u16,
    },
    Timeout,
}

struct ReductionModel {
    group: Group,
    reduction: Reduction,
    n_values: usize,
    now: Moment,
    /// The input of each member.
    input: Vec<MemberInput>,
    /// The values that came, by member and in order.
    came: Vec<Vec<f32>>,
    lost: MemberSet,
    n_means: u32,
}

impl ReductionModel {
    fn new(case: &ReductionCase) -> Option<Self> {
        let n_members = 1 + usize::from(case.n_members) % case.weights.len();
        let n_values = usize::from(case.n_values) % (CHUNKS_MAX * CHUNK_VALUES);
        let member = |(name, weight): (usize, &u8)| GroupMember {
            peer: PeerKey(vec![name as u8]),
            n_samples: u64::from(*weight),
            receives: true,
            n_reduced: if name == 0 { n_values as u64 } else { 0 },
        };
        let members: Vec<GroupMember> = case.weights[..n_members].iter().enumerate().map(member).collect();
        let group = Group::new(b"fuzz", members, n_values, TensorCodec::F32).ok()?;
        let window_chunks = 1 + u32::from(case.window % 4);
        let config = ReductionConfig { n_values, window_chunks, patience: PATIENCE };
        let reduction = Reduction::new(Moment::ZERO, config, &group.n_samples());
        let input = (0..n_members).map(|member| group.own(member)).collect();
        let (now, came, lost) = (Moment::ZERO, vec![Vec::new(); n_members], MemberSet::default());
        Some(Self { group, reduction, n_values, now, input, came, lost, n_means: 0 })
    }

    fn on(&mut self, operation: &ReductionOperation) {
        let n_members = self.came.len();
        match *operation {
            ReductionOperation::Chunk { member, value, off, is_short, is_given } => {
                let value = if value.is_finite() { value } else { 1.0 };
                self.chunk(usize::from(member) % n_members, value, off / 64, is_short, is_given);
            }
            ReductionOperation::Join { member, n_samples, is_whole } => {
                self.join(usize::from(member) % n_members, n_samples, is_whole);
            }
            ReductionOperation::Lose { member } => {
                let member = usize::from(member) % n_members;
                self.reduction.on_lost(self.now, member);
                self.lost.insert(member);
            }
            ReductionOperation::Pass { millis } => self.now += Duration::from_millis(millis.into()),
            ReductionOperation::Timeout => self.reduction.on_timeout(self.now),
        }
        self.take();
    }

    fn join(&mut self, member: usize, n_samples: u8, is_whole: bool) {
        let own = self.group.own(member);
        let input = match n_samples {
            0 => MemberInput::nothing(),
            _ => MemberInput { n_samples: own.n_samples.min(n_samples.into()), is_whole, ..own },
        };
        // In a first round a member's input is its own values.
        if self.group.check(member, &input).is_err() || !self.came[member].is_empty() {
            return;
        }
        self.reduction.on_joined(self.now, member, input);
        self.input[member] = input;
    }

    fn chunk(&mut self, member: usize, value: f32, off: i8, is_short: bool, is_given: bool) {
        let wanted = self.reduction.wanted_of(member);
        let next = self.came[member].len() as u32;
        assert!(wanted.is_none_or(|index| index == next), "{wanted:?} is wanted of {member}, {next} is next");
        let index = next.saturating_add_signed(off.into());
        let n_values = chunk(self.n_values, index).len();
        let values = vec![value; n_values - usize::from(is_short && n_values > 0)];
        let taken = match is_given {
            true => self.reduction.on_chunk(self.now, member, index, values.clone()),
            false => self.reduction.on_chunk(self.now, member, index, &values),
        };
        let is_right = index == next && values.len() == n_values;
        assert_eq!(taken.is_ok(), wanted.is_some() && is_right, "{taken:?}");
        if taken.is_ok() {
            assert!(!self.lost.contains(member), "values of a dropped member are counted");
            self.came[member].push(value);
        }
    }

    /// Compares each mean that is due with the values that came.
    fn take(&mut self) {
        while let Some(mean) = self.reduction.poll_mean() {
            assert_eq!(mean.index, self.n_means, "means come in order");
            let index = mean.index as usize;
            assert_eq!(mean.values.len(), chunk(self.n_values, mean.index).len());
            let came = self
                .came
                .iter()
                .zip(&self.input)
                .filter_map(|(of, by)| Some((*of.get(index)?, by.n_samples)));
            let came: Vec<(f64, f64)> = came.map(|(value, n)| (f64::from(value), n as f64)).collect();
            let n_samples: f64 = came.iter().map(|(_, n)| n).sum();
            let want = came.iter().map(|(value, n)| value * n).sum::<f64>() / n_samples;
            let size = came.iter().map(|(value, n)| value.abs() * n).sum::<f64>() / n_samples;
            for value in [mean.values.first(), mean.values.last()].into_iter().flatten() {
                let off = (f64::from(*value) - want).abs();
                assert!(
                    value.is_finite() && off <= 1e-5 * size + 1e-36,
                    "{value} is not the mean of {came:?}"
                );
            }
            self.reduction.on_spare(mean.values);
            self.n_means += 1;
        }
        let state = self.reduction.state();
        let n_chunks = self.reduction.n_chunks();
        assert!(
            self.reduction.sums.len() <= self.reduction.window_chunks() as usize,
            "it holds no more than its window"
        );
        if let ReductionState::Done(finished) = state {
            assert_eq!(self.n_means, n_chunks);
            let sent: MemberSet = self
                .came
                .iter()
                .enumerate()
                .filter(|(_, of)| !of.is_empty())
                .map(|(member, _)| member)
                .collect();
            assert_eq!(finished.members, sent, "the members whose values are in it");
            let all = self
                .came
                .iter()
                .zip(&self.input)
                .all(|(of, by)| by.is_whole && (by.n_samples == 0 || of.len() == n_chunks as usize));
            assert_eq!(finished.is_whole, all);
            let n_of_all: u64 = self.input.iter().map(|by| by.n_samples).sum();
            assert!(
                finished.n_samples <= n_of_all
                    && (!finished.is_whole || finished.n_samples == n_of_all || n_chunks == 0)
            );
        }
    }

    /// No member sends anything any more.
    fn end(&mut self) {
        for _ in 0..=2 * self.came.len() {
            match self.reduction.next_deadline() {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
            self.on(&ReductionOperation::Timeout);
        }
        assert_ne!(self.reduction.state(), ReductionState::Going, "it waits for ever: {:?}", self.reduction);
    }
}

#[test]
fn averaging() {
    fuzz!("averaging", |input| {
        let Some(case) = value::<ReductionCase>(input) else { return };
        let Some(mut world) = ReductionModel::new(&case) else { return };
        case.operations.iter().take(100).for_each(|operation| world.on(operation));
        world.end();
    });
}
