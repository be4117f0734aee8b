//! Verification of the parts that untrusted reducers averaged.
//!
//! The members average a statement of ten values a part in a round of their own ([`check`]). The hash of the means names
//! this round, so members that received different means do not meet in it.

use std::sync::Arc;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::average::{Finished, MemberSet};
use barnraise_protocol::codec::CodecError;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::check::{
    MeanVerdict, STATEMENT_VALUES, statement, through_codec, verify_mean,
};
use barnraise_swarm::averaging::{Group, GroupError, GroupMember};
use futures::io::{AsyncRead, AsyncWrite};

use crate::config::AveragingConfig;
use crate::error::PartError;
use crate::outcome::{Averaged, PartOutcome};
use crate::platform::Platform;
use crate::registry::RoundRegistry;
use crate::round::AverageError;

/// Above this fraction of samples, all members may have used the standby reducer: sums of fractions are rounded.
const REPLACED_MAX: f32 = 0.999;

/// Why an average does not count.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckError {
    /// The part lacks values of some member, so its mean cannot be verified.
    #[error("part {part} does not have the values of all members")]
    Incomplete {
        /// Index of the part.
        part: usize,
    },
    /// The round of statements failed, or the members received different means.
    #[error("the members could not compare their means: {0}")]
    Average(#[from] AverageError),
    /// The round of statements lacks some members, or failed in a part.
    #[error("not all members compared their means: {}", in_words(.0))]
    NotAll(Option<PartError>),
    /// The members form no valid group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The codec cannot encode the values.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// These reducers sent a wrong mean.
    #[error("{} peers sent a wrong mean", .0.len())]
    Wrong(Vec<PeerKey>),
}

fn in_words(error: &Option<PartError>) -> String {
    error.as_ref().map_or_else(|| "some sent nothing".to_owned(), ToString::to_string)
}

/// The verification of a finished round, by a member that has its result.
#[derive(Debug, Clone, Copy)]
pub struct CheckedRound<'r> {
    /// The members and the untrusted reducers.
    pub group: &'r Group,
    /// This member.
    pub me: &'r PeerKey,
    /// Seed of the random signs, known to the members and not to the untrusted reducers.
    pub seed: u64,
}

impl CheckedRound<'_> {
    /// Verifies the parts of the untrusted reducers. Returns those for which some member used the standby reducer.
    /// `values`, `[n_values]`, are this member's own.
    ///
    /// # Errors
    /// See [`CheckError`]: the average does not count.
    pub async fn check<P, S>(
        &self,
        (registry, platform, config): (&RoundRegistry<S>, &P, &AveragingConfig),
        values: &[f32],
        averaged: &Averaged,
    ) -> Result<Vec<usize>, CheckError>
    where
        P: Platform<Stream = S>,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let parts: Vec<usize> = self.group.parts_of_helpers().collect();
        if parts.is_empty() {
            return Ok(parts);
        }
        let mut hash = Vec::new();
        let mut statements = Vec::new();
        for &part in &parts {
            let attempt = self.is_whole(part, averaged)?;
            let range = self.group.part(part);
            hash.extend(averaged.values[range.clone()].iter().flat_map(|value| value.to_le_bytes()));
            let travelled = through_codec(self.group.codec(), &values[range])?;
            statements.extend(statement(self.seed, part, self.group.codec(), &travelled, attempt > 0));
        }
        let group = Arc::new(self.of_members(&Sha256Hash::of(&hash), statements.len())?);
        // A member with another mean than the others would wait for them in vain.
        let deadline = config.deadline.min(2 * config.reducer_timeout);
        let config = AveragingConfig { deadline, ..config.clone() };
        let compared = registry.average(platform, &config, &group, self.me, statements).await?;
        let all = senders(&group);
        for outcome in &compared.parts {
            match outcome {
                PartOutcome::Averaged { finished: Finished { members, .. }, .. } if *members == all => {}
                PartOutcome::None => {}
                PartOutcome::Averaged { .. } => return Err(CheckError::NotAll(None)),
                PartOutcome::NotAveraged { error } => return Err(CheckError::NotAll(Some(error.clone()))),
            }
        }
        let (mut replaced, mut wrong) = (Vec::new(), Vec::new());
        for (&part, statement) in parts.iter().zip(compared.values.chunks(STATEMENT_VALUES)) {
            match verify_mean(self.seed, part, &averaged.values[self.group.part(part)], statement) {
                MeanVerdict::Correct { was_replaced: false } => {}
                MeanVerdict::Correct { was_replaced: true } => replaced.push(part),
                MeanVerdict::Wrong => wrong.push((part, statement[STATEMENT_VALUES - 1])),
            }
        }
        match wrong.is_empty() {
            true => Ok(replaced),
            false => Err(CheckError::Wrong(
                wrong.into_iter().filter_map(|of| self.dishonest_reducer(of)).collect(),
            )),
        }
    }

    /// The reducer that sent a wrong part. All members have the same mean, so one member that has it from the part's own
    /// reducer proves it. `None` where all of them used the standby reducer.
    fn dishonest_reducer(&self, (part, replaced): (usize, f32)) -> Option<PeerKey> {
        let member = self.group.members().get(part).filter(|_| replaced < REPLACED_MAX);
        member.map(|member| member.peer.clone())
    }

    /// The attempt in which a part was averaged with all values of all members. Without some of them an honest mean would
    /// look wrong.
    fn is_whole(&self, part: usize, averaged: &Averaged) -> Result<u8, CheckError> {
        let n_samples = self.group.members().iter().fold(0, |sum: u64, of| sum.saturating_add(of.n_samples));
        let all = senders(self.group);
        let is_whole = |of: &Finished| (of.members, of.behind, of.n_samples) == (all, all, n_samples);
        match averaged.parts.get(part) {
            Some(PartOutcome::Averaged { finished, attempt }) if is_whole(finished) => Ok(*attempt),
            _ => Err(CheckError::Incomplete { part }),
        }
    }

    /// The group of statements: the members that receive the average. Two of them reduce; others can dial these, since
    /// they are reducers in the round already.
    fn of_members(&self, of_means: &Sha256Hash, n_values: usize) -> Result<Group, GroupError> {
        let mut members: Vec<GroupMember> = self.group.members().to_vec();
        members.retain(|member| member.receives);
        let mut reducers: Vec<usize> = (0..members.len()).filter(|at| members[*at].n_reduced > 0).collect();
        if reducers.is_empty() {
            reducers.push(0);
        }
        reducers.truncate(2);
        members.iter_mut().for_each(|member| member.n_reduced = 0);
        let (n_each, n_more) = (n_values / reducers.len(), n_values % reducers.len());
        for (at, position) in reducers.into_iter().enumerate() {
            if let Some(member) = members.get_mut(position) {
                member.n_reduced = (n_each + if at == 0 { n_more } else { 0 }) as u64;
            }
        }
        let name = [b"check of ", self.group.id().0.as_slice(), &of_means.0].concat();
        // Statements must not be rounded.
        Group::new(&name, members, n_values, barnraise_protocol::TensorCodec::F32)
    }
}

/// Members with samples.
fn senders(group: &Group) -> MemberSet {
    let members = group.members().iter().enumerate();
    members.filter(|(_, member)| member.n_samples > 0).map(|(position, _)| position).collect()
}
