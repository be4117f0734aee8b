//! An averaging in a grid of groups (DeDLOC §3.2, appendix C): a round for each axis, one after the other.
//!
//! What a peer has after a round it brings to the next one, with the weight of all who are in it. Its result is whole
//! where nothing is missing in it that others may have: what did not come in a peer's first round nobody has, so the mean
//! of all is the same without it; from the second round on everybody in the peer's group must have been there with all
//! that it should have. Only a whole result is one: peers with other means of the same gradients would have other models.
//! Whoever does not get there hears of it in the round in which it happens, goes on to average its parts for the others,
//! and brings them nothing. (A first round whose reducer dies or is cut off between one member and the next may leave two
//! that are whole and differ, as one group may; of their models the one with more samples behind it is followed.)
//!
//! The values go through the codec before the first round, so that in no group a reducer's own are other ones than those
//! that travelled.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::MemberSet;
use barnraise_protocol::codec::{CodecError, first_not_finite};
use barnraise_swarm::averaging::check::as_travelled;
use barnraise_swarm::averaging::{Brought, Group, Line, Member, n_samples};
use futures::io::{AsyncRead, AsyncWrite};

use crate::hub::Hub;
use crate::platform::Platform;
use crate::round::{AverageError, Averaged, Config, Fault, PartOutcome};

/// An averaging in a grid, for one member.
#[derive(Debug, Clone, Copy)]
pub struct GridRounds<'r> {
    /// All in the grid, with the samples behind their own values.
    pub members: &'r [Member],
    /// This member's position among them.
    pub me: usize,
    /// Its groups, one for each round.
    pub lines: &'r [Line],
    /// How values travel.
    pub codec: TensorCodec,
}

/// A mean that is not that of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotWhole {
    /// In which round something went missing first.
    pub round: usize,
    /// What.
    pub why: String,
    /// Those who should have come to this peer's first round.
    pub expected: MemberSet,
    /// Those of them whose values came; nobody's where the round failed altogether.
    pub came: MemberSet,
    /// Of members, in all rounds so far.
    pub faults: Vec<Fault>,
}

/// Why a grid gave no mean.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// Others may have the mean of all.
    #[error("the mean is not that of all: in round {} of the groups {}", .0.round + 1, .0.why)]
    NotWhole(Box<NotWhole>),
    /// Not a member of the grid.
    #[error("this peer is not a member of the grid")]
    NotAMember,
    /// From one of the rounds.
    #[error(transparent)]
    Round(#[from] AverageError),
    /// Values that do not travel.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// How far a member has come.
struct Progress {
    /// Its values, and once they are averaged what became of the last round.
    averaged: Averaged,
    brought: Brought,
    trouble: Option<(usize, String)>,
    expected: MemberSet,
    came: MemberSet,
}

impl GridRounds<'_> {
    /// Takes this member through all rounds; `values`, `[n_values]` and finite, are its own. The parts of the result are
    /// those of the last round, and its bytes and faults those of all. The deadline is over all rounds.
    ///
    /// # Errors
    /// [`GridError::NotWhole`] where the result is not that of all whose values any peer can have, and others; see
    /// [`GridError`].
    pub async fn average<P, S>(
        &self,
        (hub, platform, config): (&Hub<S>, &P, &Config),
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
        let mut progress = self.before(own, as_travelled(self.codec, &values)?);
        for (round, line) in self.lines.iter().enumerate() {
            if let Some(group) = &line.group {
                let left = ends.saturating_sub(platform.now());
                if left.is_zero() {
                    progress.stop(round, "the deadline had passed".to_owned());
                    break;
                }
                let mut times = of_round(config, round, left);
                if progress.trouble.is_some() {
                    // It waits for nothing: the others are to hear of it, as late as they may be.
                    times = of_round(config, round, times.patience);
                }
                let brings = (progress.take_values(group.n_values()), Some(progress.brought));
                let averaged = hub.average_brought(platform, &times, group, &own.peer, brings).await;
                self.after(round, group, averaged, &mut progress)?;
            }
            if !line.is_complete {
                progress.stop(round, "a cell was empty".to_owned());
            }
        }
        match progress.trouble {
            None => Ok(progress.averaged),
            Some((round, why)) => {
                let (expected, came, faults) = (progress.expected, progress.came, progress.averaged.faults);
                Err(GridError::NotWhole(Box::new(NotWhole { round, why, expected, came, faults })))
            }
        }
    }

    fn before(&self, own: &Member, values: Vec<f32>) -> Progress {
        let n_samples = own.n_samples;
        let behind = if n_samples > 0 { MemberSet::from_iter([self.me]) } else { MemberSet::default() };
        Progress {
            averaged: Averaged {
                values,
                parts: Vec::new(),
                faults: Vec::new(),
                n_bytes_sent: 0,
                n_bytes_received: 0,
            },
            brought: Brought { n_samples, behind, is_whole: true },
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
        progress: &mut Progress,
    ) -> Result<(), GridError> {
        let averaged = match averaged {
            Ok(averaged) => averaged,
            Err(AverageError::NothingAveraged(why)) => {
                progress.stop(round, why);
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
            let why: Vec<&str> = averaged.not_averaged().collect();
            progress.stop(round, format!("not all parts were averaged: {}", why.join("; ")));
        } else if round > 0 && !averaged.is_whole() {
            progress.stop(round, missing(group, &averaged));
        } else if progress.trouble.is_none() {
            let behind = averaged.members().intersection(group.expected());
            progress.brought = Brought { n_samples: n_samples(self.members, behind), behind, is_whole: true };
            progress.averaged.values.clone_from(&averaged.values);
            progress.averaged.parts.clone_from(&averaged.parts);
        }
        Ok(())
    }
}

impl Progress {
    /// What is brought to a round; of a member that brings nothing it does not matter.
    fn take_values(&mut self, n_values: usize) -> Vec<f32> {
        let mut values = std::mem::take(&mut self.averaged.values);
        if self.trouble.is_some() {
            values.resize(n_values, 0.0);
        }
        values
    }

    /// From here on its values are of no use to others.
    fn stop(&mut self, round: usize, why: String) {
        self.brought = Brought::nothing();
        self.trouble.get_or_insert((round, why));
    }
}

/// Who did not bring all that it should have, as far as that is known.
fn missing(group: &Group, averaged: &Averaged) -> String {
    let finished = averaged.parts.iter().filter_map(|part| match part {
        PartOutcome::Averaged { finished, .. } => Some(finished),
        PartOutcome::NotAveraged { .. } | PartOutcome::None => None,
    });
    let least = finished.map(|finished| finished.members.n_members()).min().unwrap_or_default();
    let n_senders = group.members().iter().filter(|member| member.n_samples > 0).count();
    format!("{least} of {n_senders} members brought values, or not all of them were whole")
}

/// The first round's times are the configured ones. In each later one a group may be as much later than another as a
/// silent reducer and whoever stands by for it take in all rounds before.
fn of_round(config: &Config, round: usize, left: Duration) -> Config {
    let n_before = u32::try_from(round).unwrap_or(u32::MAX);
    let slack = (config.patience + config.reducer_timeout).saturating_mul(n_before);
    let reducer_timeout = config.reducer_timeout.saturating_add(slack).min(left / 4 * 3);
    let patience = config.patience.saturating_add(slack).min(reducer_timeout / 4 * 3);
    Config { patience, reducer_timeout, deadline: left, ..config.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_every_round_are_possible_and_within_the_deadline() {
        let config = Config::default();
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
