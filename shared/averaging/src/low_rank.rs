//! An averaging by factors of low rank: two rounds, one after the other, of the same members.
//!
//! The first one gives a basis, the second one the mean within it ([`barnraise_swarm::low_rank`]). Only the second
//! counts: a basis without some member's share is a basis as well, if not the best one, and whoever is in the mean is
//! who gave its factors. The second round is named by the basis, so that only those average factors who have the same:
//! where a part of the basis was averaged twice, because its reducer seemed to have vanished, that need not be all.

use std::sync::Arc;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::codec::first_not_finite;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Group, GroupError};
use barnraise_swarm::low_rank::LowRank;
use barnraise_swarm::low_rank::owed::left_over;
use futures::io::{AsyncRead, AsyncWrite};

use crate::hub::Hub;
use crate::platform::Platform;
use crate::round::{AverageError, Averaged, Config};

/// Why there is no mean.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LowRankError {
    /// The group averages another vector.
    #[error("a group of {got} values, the factors have {want}")]
    Group {
        /// Of the factors.
        want: usize,
        /// Of the group.
        got: usize,
    },
    /// Another vector than the model's.
    #[error("{got} values, the model has {want}")]
    Length {
        /// Of the model.
        want: usize,
        /// Given.
        got: usize,
    },
    /// From the group of one of the rounds.
    #[error(transparent)]
    Round(#[from] GroupError),
    /// The first round failed.
    #[error("the basis: {0}")]
    Basis(AverageError),
    /// Some of the basis is this peer's own.
    #[error("not all of the basis was averaged: {0}")]
    IncompleteBasis(String),
    /// The second round failed.
    #[error("the factors: {0}")]
    Factors(AverageError),
    /// Factors whose product is none.
    #[error("the mean has values that are not finite")]
    NotFinite,
}

/// All that the rounds of a step have in common, for one member.
#[derive(Debug, Clone)]
pub struct LowRankRound<'r> {
    /// The members, and who averages how much of the factors. Its name is another one for each step.
    pub group: &'r Group,
    /// This member.
    pub me: &'r PeerKey,
    /// What travels.
    pub plan: &'r LowRank,
    /// `[plan.n_start_values()]`, the same at all members.
    pub start: &'r [f32],
}

/// Between the rounds: what this member gives to the second one, and what it keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// `[plan.n_basis_values()]`, orthonormal, the same at all members.
    basis: Vec<f32>,
    /// `[plan.n_factor_values()]`
    factors: Vec<f32>,
    /// What the factors lack of this member's values, as a sum over its samples: owed once they have counted.
    pub owed: Vec<f32>,
    n_bytes: (u64, u64),
}

impl LowRankRound<'_> {
    /// The first round. `values`, `[plan.n_values()]` and finite, are over `n_samples`.
    ///
    /// # Errors
    /// See [`LowRankError`]; nothing has travelled that counts.
    pub async fn share<P, S>(
        &self,
        (hub, platform, config): (&Hub<S>, &P, &Config),
        values: &[f32],
        n_samples: u64,
    ) -> Result<Share, LowRankError>
    where
        P: Platform<Stream = S>,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (want, got) = (self.plan.n_factor_values(), self.group.n_values());
        if want != got {
            return Err(LowRankError::Group { want, got });
        }
        let (want, got) = (self.plan.n_values(), values.len());
        if want != got {
            return Err(LowRankError::Length { want, got });
        }
        let name = [b"basis of ", self.group.id().0.as_slice()].concat();
        let group = Arc::new(self.group.resized(&name, self.plan.n_basis_values())?);
        let basis = self.plan.basis(values, self.start);
        let averaged = hub.average(platform, config, &group, self.me, basis).await;
        let averaged = averaged.map_err(LowRankError::Basis)?;
        if !averaged.is_complete() {
            let why: Vec<&str> = averaged.not_averaged().collect();
            return Err(LowRankError::IncompleteBasis(why.join("; ")));
        }
        let mut basis = averaged.values.clone();
        self.plan.orthonormalise_basis(&mut basis);
        let factors = self.plan.factors(values, &basis);
        let owed = left_over(self.plan, values, n_samples, &basis, &factors);
        Ok(Share { basis, factors, owed, n_bytes: (averaged.n_bytes_sent, averaged.n_bytes_received) })
    }

    /// The second round: the mean, `[plan.n_values()]`, and who is in it. Bytes are those of both rounds.
    ///
    /// # Errors
    /// See [`LowRankError`].
    pub async fn average<P, S>(
        &self,
        (hub, platform, config): (&Hub<S>, &P, &Config),
        share: Share,
    ) -> Result<Averaged, LowRankError>
    where
        P: Platform<Stream = S>,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Share { basis, factors, n_bytes, .. } = share;
        let bits: Vec<u8> = basis.iter().flat_map(|value| value.to_le_bytes()).collect();
        let of_basis = Sha256Hash::of(&bits);
        let name = [b"factors of ", self.group.id().0.as_slice(), &of_basis.0].concat();
        let group = Arc::new(self.group.resized(&name, factors.len())?);
        let averaged = hub.average(platform, config, &group, self.me, factors).await;
        let averaged = averaged.map_err(LowRankError::Factors)?;
        let values = self.plan.expand(&basis, &averaged.values);
        if first_not_finite(&values).is_some() {
            return Err(LowRankError::NotFinite);
        }
        Ok(Averaged {
            values,
            parts: averaged.parts.clone(),
            faults: averaged.faults.clone(),
            n_bytes_sent: averaged.n_bytes_sent + n_bytes.0,
            n_bytes_received: averaged.n_bytes_received + n_bytes.1,
        })
    }
}
