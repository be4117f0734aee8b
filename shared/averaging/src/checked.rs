//! Parts that peers averaged who are not trusted: whether they are the mean.
//!
//! The members say so to each other in a round of their own, of ten values a part ([`check`]). It is named by the hash of
//! what they were sent, so that members that were sent different means find nobody in it.

use std::sync::Arc;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::average::{Finished, MemberSet};
use barnraise_protocol::codec::CodecError;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::check::{STATEMENT_VALUES, Verdict, as_travelled, judge, statement};
use barnraise_swarm::averaging::{Group, GroupError, Member};
use futures::io::{AsyncRead, AsyncWrite};

use crate::hub::Hub;
use crate::platform::Platform;
use crate::round::{AverageError, Averaged, Config, PartOutcome};

/// Where members with a larger share of the samples had to turn elsewhere, it is not said that any had a part of its
/// own reducer: sums of shares are rounded.
const REPLACED_MAX: f32 = 0.999;

/// Why an average does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// Values of some member are not in it, or not all of them: nothing can be compared.
    #[error("part {part} does not have the values of all members")]
    Incomplete {
        /// Which.
        part: usize,
    },
    /// The members could not tell each other, or were sent different means.
    #[error("the members could not compare what they were sent: {0}")]
    Average(#[from] AverageError),
    /// Likewise, not all of them.
    #[error("not all members compared what they were sent: {0}")]
    NotAll(String),
    /// Members that are no group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Values that do not travel.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// What these peers sent is not the mean.
    #[error("what {} peers sent is not the mean", .0.len())]
    Wrong(Vec<PeerKey>),
}

/// A round that is over, for a member that has its result.
#[derive(Debug, Clone, Copy)]
pub struct CheckedRound<'r> {
    /// The members, and those that averaged for them.
    pub group: &'r Group,
    /// This member.
    pub me: &'r PeerKey,
    /// What the members know, and those that averaged for them do not.
    pub seed: u64,
}

impl CheckedRound<'_> {
    /// Compares the parts of those who averaged for the others only; the parts for which some member had to turn to the
    /// one that stands by. `values` are this member's, whatever became of them.
    ///
    /// # Errors
    /// See [`CheckError`]: the average does not count.
    pub async fn check<P, S>(
        &self,
        (hub, platform, config): (&Hub<S>, &P, &Config),
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
        let mut said = Vec::new();
        for &part in &parts {
            let attempt = self.is_whole(part, averaged)?;
            let range = self.group.part(part);
            hash.extend(averaged.values[range.clone()].iter().flat_map(|value| value.to_le_bytes()));
            let travelled = as_travelled(self.group.codec(), &values[range])?;
            said.extend(statement(self.seed, part, self.group.codec(), &travelled, attempt > 0));
        }
        let group = Arc::new(self.of_members(&Sha256Hash::of(&hash), said.len())?);
        // Whoever has a mean that nobody else has waits for the others in vain.
        let deadline = config.deadline.min(2 * config.reducer_timeout);
        let config = Config { deadline, ..config.clone() };
        let compared = hub.average(platform, &config, &group, self.me, said).await?;
        let all = senders(&group);
        for outcome in &compared.parts {
            match outcome {
                PartOutcome::Averaged { finished: Finished { members, .. }, .. } if *members == all => {}
                PartOutcome::None => {}
                other => return Err(CheckError::NotAll(format!("{other:?}"))),
            }
        }
        let (mut replaced, mut wrong) = (Vec::new(), Vec::new());
        for (&part, statement) in parts.iter().zip(compared.values.chunks(STATEMENT_VALUES)) {
            match judge(self.seed, part, &averaged.values[self.group.part(part)], statement) {
                Verdict::Right { was_replaced: false } => {}
                Verdict::Right { was_replaced: true } => replaced.push(part),
                Verdict::Wrong => wrong.push((part, statement[STATEMENT_VALUES - 1])),
            }
        }
        match wrong.is_empty() {
            true => Ok(replaced),
            false => Err(CheckError::Wrong(wrong.into_iter().filter_map(|of| self.liar(of)).collect())),
        }
    }

    /// Whom a wrong part is of. All members have the same mean, so one that has it of the part's own reducer tells;
    /// where all of them turned elsewhere, nobody is to blame for certain.
    fn liar(&self, (part, replaced): (usize, f32)) -> Option<PeerKey> {
        let member = self.group.members().get(part).filter(|_| replaced < REPLACED_MAX);
        member.map(|member| member.peer.clone())
    }

    /// Whether all values of all members are in a part: in which attempt. Without some of them an honest mean would be
    /// taken for a lie.
    fn is_whole(&self, part: usize, averaged: &Averaged) -> Result<u8, CheckError> {
        let n_samples = self.group.members().iter().fold(0, |sum: u64, of| sum.saturating_add(of.n_samples));
        let all = senders(self.group);
        let is_whole = |of: &Finished| (of.members, of.behind, of.n_samples) == (all, all, n_samples);
        match averaged.parts.get(part) {
            Some(PartOutcome::Averaged { finished, attempt }) if is_whole(finished) => Ok(*attempt),
            _ => Err(CheckError::Incomplete { part }),
        }
    }

    /// Those who want the average. Two of them that averaged something average what all say, as others can dial them.
    fn of_members(&self, of_means: &Sha256Hash, n_values: usize) -> Result<Group, GroupError> {
        let mut members: Vec<Member> = self.group.members().to_vec();
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
        // What is compared is not to be rounded.
        Group::new(&name, members, n_values, barnraise_protocol::TensorCodec::F32)
    }
}

/// Members that have values.
fn senders(group: &Group) -> MemberSet {
    let members = group.members().iter().enumerate();
    members.filter(|(_, member)| member.n_samples > 0).map(|(position, _)| position).collect()
}
