//! An averaging in a grid of groups (DeDLOC §3.2, appendix C): a round for each axis, one after the other.
//!
//! The mean of a round is a peer's input to the next one, with the samples of all members in it as its weight. A result is
//! whole where it lacks no values that other peers may have. Values that are missing in the first round are missing
//! everywhere, so all members agree on a mean without them. From the second round on, every member of the peer's group
//! must take part with a whole input. Only whole results are used: peers with different means of the same gradients would
//! have different models.
//!
//! A peer whose result is partial learns it in the round in which it happens. It goes on to reduce its parts for the
//! others, and sends them no values. (Where a reducer dies in the first round between two members, these may both get
//! whole results that differ, as in a single group. Then peers follow the model with more samples.)
//!
//! The values pass the codec before the first round, so that a reducer's own values equal the ones that it would have
//! received.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::MemberSet;
use barnraise_protocol::codec::{CodecError, first_not_finite};
use barnraise_swarm::averaging::check::through_codec;
use barnraise_swarm::averaging::{GridPosition, Group, GroupMember, MemberInput, n_samples};
use futures::io::{AsyncRead, AsyncWrite};

use crate::config::AveragingConfig;
use crate::error::{PartError, joined};
use crate::outcome::{Averaged, Fault, PartOutcome};
use crate::platform::Platform;
use crate::registry::RoundRegistry;
use crate::round::AverageError;

/// An averaging in a grid of groups, for one member.
#[derive(Debug, Clone, Copy)]
pub struct GridRounds<'r> {
    /// All members of the grid, with the samples behind their own values.
    pub members: &'r [GroupMember],
    /// This member's position among them.
    pub me: usize,
    /// Its groups, one for each round.
    pub positions: &'r [GridPosition],
    /// Codec of the values on the wire.
    pub codec: TensorCodec,
}

/// Which values a partial mean lacks.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PartialMeanReason {
    /// The rounds before took all the time.
    #[error("the deadline had passed")]
    Deadline,
    /// A group without a member at one of its places.
    #[error("a cell was empty")]
    EmptyCell,
    /// The group averaged nothing.
    #[error(transparent)]
    Nothing(AverageError),
    /// The group did not average all parts.
    #[error("not all parts were averaged: {}", joined(.0))]
    Parts(Vec<PartError>),
    /// Members of the group were missing, or brought partial means.
    #[error("{n_members} of {n_senders} members sent values, or not all of them were whole")]
    Members {
        /// Members in the part with the fewest.
        n_members: u32,
        /// Members that were to send values.
        n_senders: usize,
    },
}

/// Why a member has no mean of all members.
#[derive(Debug, Clone)]
pub struct PartialMean {
    /// The first round that lacked values, from 0.
    pub round: usize,
    /// The values that it lacked.
    pub reason: PartialMeanReason,
    /// Members whose values were expected in this peer's first round.
    pub expected: MemberSet,
    /// Those of them whose values came; empty where the round failed.
    pub came: MemberSet,
    /// Faults of members in all rounds so far.
    pub faults: Vec<Fault>,
}

/// Why a grid gave no mean.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GridError {
    /// The mean is partial; other members may have the mean of all.
    #[error("the mean is partial: in round {} of the groups {}", .0.round + 1, .0.reason)]
    PartialMean(Box<PartialMean>),
    /// This peer is not a member of the grid.
    #[error("this peer is not a member of the grid")]
    NotAMember,
    /// One of the rounds failed.
    #[error(transparent)]
    Round(#[from] AverageError),
    /// The codec cannot encode the values.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// A member's state between rounds.
struct GridProgress {
    /// Its values, and the outcome of the last round.
    averaged: Averaged,
    input: MemberInput,
    trouble: Option<(usize, PartialMeanReason)>,
    expected: MemberSet,
    came: MemberSet,
}

impl GridRounds<'_> {
    /// Runs all rounds with `values`, `[n_values]` and finite. The parts of the result are those of the last round; its
    /// bytes and faults are those of all rounds. The configured deadline is that of all rounds together.
    ///
    /// # Errors
    /// [`GridError::PartialMean`] where the result lacks values that another peer can have, and others; see [`GridError`].
    pub async fn average<P, S>(
        &self,
        (registry, platform, config): (&RoundRegistry<S>, &P, &AveragingConfig),
        values: Vec<f32>,
    ) -> Result<Averaged, GridError>
    where
        P: Platform<Stream = S>,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        config.check().map_err(AverageError::from)?;
        let own = self.members.get(self.me).ok_or(GridError::NotAMember)?;
        if let Some(index) = first_not_finite(&values) {
            return Err(AverageError::NotFinite(index).into());
        }
        let ends = platform.now() + config.deadline;
        let mut progress = self.before(own, through_codec(self.codec, &values)?);
        for (round, position) in self.positions.iter().enumerate() {
            if let Some(group) = &position.group {
                let left = ends.saturating_sub(platform.now());
                if left.is_zero() {
                    progress.stop(round, PartialMeanReason::Deadline);
                    break;
                }
                let mut times = of_round(config, round, left);
                if progress.trouble.is_some() {
                    // It expects no values, and only has to tell the others, which may be late.
                    times = of_round(config, round, times.patience);
                }
                let brings = (progress.take_values(group.n_values()), Some(progress.input));
                let averaged = registry.average_input(platform, &times, group, &own.peer, brings).await;
                self.after(round, group, averaged, &mut progress)?;
            }
            if !position.is_complete {
                progress.stop(round, PartialMeanReason::EmptyCell);
            }
        }
        match progress.trouble {
            None => Ok(progress.averaged),
            Some((round, reason)) => {
                let (expected, came, faults) = (progress.expected, progress.came, progress.averaged.faults);
                Err(GridError::PartialMean(Box::new(PartialMean { round, reason, expected, came, faults })))
            }
        }
    }

    fn before(&self, own: &GroupMember, values: Vec<f32>) -> GridProgress {
        let n_samples = own.n_samples;
        let behind = if n_samples > 0 { MemberSet::from_iter([self.me]) } else { MemberSet::default() };
        GridProgress {
            averaged: Averaged {
                values,
                parts: Vec::new(),
                faults: Vec::new(),
                n_bytes_sent: 0,
                n_bytes_received: 0,
            },
            input: MemberInput { n_samples, behind, is_whole: true },
            trouble: None,
            expected: MemberSet::default(),
            came: MemberSet::default(),
        }
    }

    fn after(
        &self,
        round: usize,
        group: &Group,
        averaged: Result<Arc<Averaged>, AverageError>,
        progress: &mut GridProgress,
    ) -> Result<(), GridError> {
        let averaged = match averaged {
            Ok(averaged) => averaged,
            Err(error @ (AverageError::NothingAveraged(_) | AverageError::NoPart { .. })) => {
                progress.stop(round, PartialMeanReason::Nothing(error));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        progress.averaged.faults.extend_from_slice(&averaged.faults);
        progress.averaged.n_bytes_sent += averaged.n_bytes_sent;
        progress.averaged.n_bytes_received += averaged.n_bytes_received;
        if round == 0 {
            (progress.expected, progress.came) = (group.expected(), averaged.members_of_all());
        }
        if !averaged.is_complete() {
            let errors = averaged.not_averaged().cloned().collect();
            progress.stop(round, PartialMeanReason::Parts(errors));
        } else if round > 0 && !averaged.is_whole() {
            progress.stop(round, missing(group, &averaged));
        } else if progress.trouble.is_none() {
            let behind = averaged.members().intersection(group.expected());
            progress.input =
                MemberInput { n_samples: n_samples(self.members, behind), behind, is_whole: true };
            progress.averaged.values.clone_from(&averaged.values);
            progress.averaged.parts.clone_from(&averaged.parts);
        }
        Ok(())
    }
}

impl GridProgress {
    /// The values for a round; they do not matter where the member sends none.
    fn take_values(&mut self, n_values: usize) -> Vec<f32> {
        let mut values = std::mem::take(&mut self.averaged.values);
        if self.trouble.is_some() {
            values.resize(n_values, 0.0);
        }
        values
    }

    /// The result is partial: from here on this member sends no values.
    fn stop(&mut self, round: usize, reason: PartialMeanReason) {
        self.input = MemberInput::nothing();
        self.trouble.get_or_insert((round, reason));
    }
}

/// Describes which members' values are missing.
fn missing(group: &Group, averaged: &Averaged) -> PartialMeanReason {
    let finished = averaged.parts.iter().filter_map(|part| match part {
        PartOutcome::Averaged { finished, .. } => Some(finished),
        PartOutcome::NotAveraged { .. } | PartOutcome::None => None,
    });
    let n_members = finished.map(|finished| finished.members.n_members()).min().unwrap_or_default();
    let n_senders = group.members().iter().filter(|member| member.n_samples > 0).count();
    PartialMeanReason::Members { n_members, n_senders }
}

/// Timeouts of a round. Those of the first one are the configured ones. In later rounds a group may lag behind another by
/// the time that a silent reducer and its standby take in each round before.
fn of_round(config: &AveragingConfig, round: usize, left: Duration) -> AveragingConfig {
    let n_before = u32::try_from(round).unwrap_or(u32::MAX);
    let slack = (config.patience + config.reducer_timeout).saturating_mul(n_before);
    let reducer_timeout = config.reducer_timeout.saturating_add(slack).min(left / 4 * 3);
    let patience = config.patience.saturating_add(slack).min(reducer_timeout / 4 * 3);
    AveragingConfig { patience, reducer_timeout, deadline: left, ..config.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_every_round_are_possible_and_within_the_deadline() {
        let config = AveragingConfig::default();
        for round in 0..9 {
            for left in [Duration::from_millis(1), Duration::from_secs(9), config.deadline] {
                let of_round = of_round(&config, round, left);
                assert_eq!(of_round.check(), Ok(()), "round {round}, {left:?} left");
                assert_eq!(of_round.deadline, left);
            }
        }
        assert_eq!(of_round(&config, 0, config.deadline), config);
        let second = of_round(&config, 1, config.deadline);
        assert!(second.patience > config.patience + config.reducer_timeout, "{second:?}");
    }
}
