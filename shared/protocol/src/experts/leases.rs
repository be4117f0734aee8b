//! The `expert-leases` conversation: a host asks the run's backbones for the places of the grid that it may serve (leases: Gray
//! and Cheriton 1989), and learns which hosts keep checkpoints of an expert.
//!
//! ```text
//! host -> its backbone          Lease: claims, renewals, releases, and how many vacant places it would take
//! backbone -> named backbone    Vote: the same for one host, a term for each place
//! named backbone -> backbone    Voted: its own grants
//! backbone -> host              Leased: for each place a lease that a majority granted, or why there is none
//!
//! trainer -> its backbone       Holders: who has these places? In a run that is not open, no other host is asked
//! backbone -> trainer           Holders: for each place its host, and those of its copies
//! ```
//!
//! Where no place is vacant, the lease may be one of a copy of an expert for which many rows wait. A host has one copy of a place
//! at most, and each copy of an expert has a term of its own.
//!
//! Any number of questions on a stream, one after the other. A grant is a signature of one backbone. A lease has the grants of a
//! majority of the run's named backbones, so that everybody who knows their keys can check it; no two holders have leases of a
//! place with the same term, of no two copies. Whether a lease still holds is known to its holder alone, which counts from when it asked: the
//! expiration in a grant is by the clock of the backbone that gave it, and only this one reads it.

use std::time::Duration;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use super::DIMENSIONS_MAX;
use super::place::{ExpertCopy, ExpertPlace, LayerId};
use crate::access::{KeyPair, PublicKey, Signature, UnixTime};
use crate::framing::{self, FrameError};
use crate::receipt::RUN_ID_BYTES_MAX;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/expert-leases/6";
/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 192 * 1024;
/// A grant expires so long after it was given.
pub const LEASE_TIME: Duration = Duration::from_secs(30);
/// Backbones of a run that grant leases: those with the first keys, where there are more.
pub const GRANTORS_MAX: usize = 16;
/// Most places in one message.
pub const PLACES_MAX: usize = 64;
/// Most addresses of a host.
pub const HOST_ADDRESSES_MAX: usize = 4;
/// Longest address of a host, in the binary form of multiaddresses.
pub const HOST_ADDRESS_BYTES_MAX: usize = 160;
/// Most layers of a run whose experts make no step.
pub const FROZEN_MAX: usize = 256;
/// Copies of an expert, with the expert itself.
pub const COPIES_MAX: u8 = 4;
/// Hosts that are named as keepers of one expert's checkpoints, at most.
pub const KEEPERS_MAX: usize = 4;

/// Domain separator: nothing else that a backbone signs begins with it.
const DOMAIN: &[u8] = b"barnraise expert lease 2\0";

/// Bytes of a place: a layer, and its indices with their number.
const PLACE_BYTES: usize = 3 + 1 + DIMENSIONS_MAX * 3;
/// Bytes of a lease with the most grants.
const LEASE_BYTES: usize = PLACE_BYTES + 1 + 32 + 10 + 1 + GRANTORS_MAX * (32 + 10 + 64);
/// Bytes of a host with the most and longest addresses.
const HOST_BYTES: usize = 32 + 1 + HOST_ADDRESSES_MAX * (HOST_ADDRESS_BYTES_MAX + 2);

// Leases and as many numbers beside them; in an answer those of vacant places too, and never more than the host asked for in all.
const _: () =
    assert!(RUN_ID_BYTES_MAX + PLACES_MAX * (LEASE_BYTES + 32) + HOST_BYTES + 128 <= MESSAGE_BYTES_MAX);
const _: () = assert!(
    PLACES_MAX * (LEASE_BYTES + PLACE_BYTES + 32) + GRANTORS_MAX * 32 + FROZEN_MAX * 3 + 128
        <= MESSAGE_BYTES_MAX
);
const _: () = assert!(PLACES_MAX * KEEPERS_MAX * HOST_BYTES + PLACES_MAX * 8 <= MESSAGE_BYTES_MAX);
const _: () = assert!(PLACES_MAX * (COPIES_MAX as usize * 33 + 1) + 8 <= MESSAGE_BYTES_MAX);

/// The backbones that grant leases of a run, each once and in the order of their keys; at least one, at most
/// [`GRANTORS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<PublicKey>", into = "Vec<PublicKey>")]
pub struct Grantors(Vec<PublicKey>);

/// What one backbone signs: that it grants a place to nobody else until then, by its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// The backbone.
    pub grantor: PublicKey,
    /// By its clock.
    pub expires_at: UnixTime,
    /// Of the run, the place, the holder, the term and the expiration.
    pub signature: Signature,
}

/// A place of the grid that a host may serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLease {
    /// The place.
    pub place: ExpertPlace,
    /// Which copy of its expert: 0 is the expert itself.
    pub copy: u8,
    /// The host.
    pub holder: PublicKey,
    /// Grows with each new holder of any copy: of two checkpoints of one copy that of the later term counts.
    pub term: u64,
    /// At most [`GRANTORS_MAX`].
    pub grants: Vec<LeaseGrant>,
}

/// What a host says of the work for one of its experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLoad {
    /// Rows that wait for it.
    pub n_waiting: u32,
    /// Rows that the host computes for it in a minute.
    pub n_served: u32,
    /// Rows that the host could compute in a minute beside all that it does.
    pub n_spare: u32,
}

/// What is wanted of a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseAsk {
    /// A lease of a place that the asking host does not hold.
    Claim(ExpertPlace),
    /// The same lease for longer.
    Renew {
        /// As it was granted last.
        lease: ExpertLease,
        /// What there is to do for the expert.
        load: ExpertLoad,
    },
    /// Another host may have the place now.
    Release {
        /// The place.
        place: ExpertPlace,
        /// Of the lease.
        copy: u8,
        /// Of the lease.
        term: u64,
        /// For a while it is this host's alone; not where it is a copy.
        to: Option<PublicKey>,
    },
    /// A lease of a copy that its backbone has chosen for the host, which never asks for one: for votes alone.
    Copy(ExpertCopy),
}

/// A host that takes places.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasingHost {
    /// Experts that it hosts at most.
    pub n_room: u32,
    /// Where it listens, as binary multiaddresses: at most [`HOST_ADDRESSES_MAX`] of at most [`HOST_ADDRESS_BYTES_MAX`] bytes.
    pub addresses: Vec<Vec<u8>>,
}

/// Host to backbone, and between backbones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseQuestion {
    /// From a host, for itself.
    Lease {
        /// The run.
        run_id: String,
        /// The host.
        host: LeasingHost,
        /// At most [`PLACES_MAX`].
        asks: Vec<LeaseAsk>,
        /// Vacant places that the backbone may choose for it, at most so many as are left of [`PLACES_MAX`].
        n_vacant: u8,
    },
    /// From a named backbone that a host has asked.
    Vote {
        /// The run.
        run_id: String,
        /// Key of the host.
        holder: PublicKey,
        /// The host.
        host: LeasingHost,
        /// At most [`PLACES_MAX`], each with the term of a claim; that of others is in the ask.
        asks: Vec<(LeaseAsk, u64)>,
    },
    /// Which hosts keep the checkpoints of these experts?
    Keepers {
        /// The run.
        run_id: String,
        /// At most [`PLACES_MAX`].
        places: Vec<ExpertPlace>,
    },
    /// Which hosts have these places now?
    Holders {
        /// The run.
        run_id: String,
        /// At most [`PLACES_MAX`].
        places: Vec<ExpertPlace>,
    },
}

/// The answer to a [`LeaseQuestion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseAnswer {
    /// To [`LeaseQuestion::Lease`].
    Leased {
        /// Whose grants make a lease.
        grantors: Grantors,
        /// For each ask, in order.
        asked: Vec<LeaseVerdict<ExpertLease>>,
        /// Of places that were vacant.
        vacant: Vec<ExpertLease>,
        /// Those places of the asks whose experts have further copies, as far as this backbone has granted them.
        copied: Vec<ExpertPlace>,
        /// At most [`FROZEN_MAX`] layers, whose experts make no step at any host of the run.
        frozen: Vec<LayerId>,
    },
    /// To [`LeaseQuestion::Vote`]: for each ask, in order.
    Voted(Vec<LeaseVerdict<LeaseGrant>>),
    /// To [`LeaseQuestion::Keepers`]: for each place at most [`KEEPERS_MAX`] hosts, the first one first.
    Keepers(Vec<Vec<KnownHost>>),
    /// To [`LeaseQuestion::Holders`]: for each place those of its copies, at most [`COPIES_MAX`] and in their order, as far as this
    /// backbone has granted them.
    Holders(Vec<Vec<CopyHolder>>),
    /// To any question.
    Refused(LeaseRefusal),
}

/// What became of an ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseVerdict<T> {
    /// Granted, or renewed.
    Granted(T),
    /// The place is free.
    Released,
    /// Not granted.
    Refused(LeaseRefusal),
}

/// Which host has a copy of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyHolder {
    /// 0 is the expert itself.
    pub copy: u8,
    /// The host.
    pub holder: PublicKey,
}

/// A host, and where it listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHost {
    /// Its key.
    pub peer: PublicKey,
    /// As in [`LeasingHost`].
    pub addresses: Vec<Vec<u8>>,
}

/// Why a lease is not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum LeaseRefusal {
    /// Another run, or a place that its grids do not have.
    #[error("there is no such place here")]
    Unknown,
    /// Another host has it.
    #[error("another host has the place for at least {for_ms} ms")]
    Held {
        /// Unless it renews.
        for_ms: u32,
    },
    /// A lease of a later term was granted.
    #[error("a lease of term {term} was granted, this one is over")]
    Later {
        /// The last one.
        term: u64,
    },
    /// The backbone has just begun, and does not know which leases it gave before.
    #[error("the backbone has begun a moment ago, and grants in {for_ms} ms")]
    Quiet {
        /// Until all leases from before have expired.
        for_ms: u32,
    },
    /// The host has as many places as it has room for.
    #[error("the host has said that it has room for {n_room} experts, and has them")]
    Room {
        /// Of the host.
        n_room: u32,
    },
    /// Hosts of the same address have half of the run's places already.
    #[error("hosts at the same address have {max} places already: others come first for {for_ms} ms")]
    Share {
        /// The limit.
        max: u64,
        /// After that the place is anybody's.
        for_ms: u32,
    },
    /// Fewer than a majority of the backbones granted it.
    #[error("{got} of the run's backbones grant it, {want} are wanted")]
    Majority {
        /// More than half.
        want: u8,
        /// Grants.
        got: u8,
    },
    /// The sender is not a backbone that this one names.
    #[error("votes are for the backbones of the run")]
    NotNamed,
    /// The memory of leases is full, or too many questions came.
    #[error("too many leases or questions: ask again in {for_ms} ms")]
    Busy {
        /// When to ask again.
        for_ms: u32,
    },
    /// More in one message than is answered.
    #[error("{got} places in one message, at most {max} are answered", max = PLACES_MAX)]
    TooMany {
        /// What came.
        got: u32,
    },
    /// The sender has shown this backbone no valid token of the run.
    #[error(
        "this peer has shown no valid access token of the run here, the operator has blocked it, or it was convicted"
    )]
    NoAccess,
    /// Its token is one of a peer that contributes.
    #[error(
        "the access token of this peer does not let it host experts: ask the run's operator for one that does"
    )]
    MayNotHost,
    /// What its experts answer is far from what their checkpoints give.
    #[error(
        "the answers of this host are not those of its experts' checkpoints: it gets no places for {for_ms} ms"
    )]
    Distrusted {
        /// Until it is trusted again.
        for_ms: u32,
    },
    /// It has another copy of the expert.
    #[error("this host has the copy {copy} of the expert for at least {for_ms} ms: one host has one copy")]
    Twice {
        /// That one.
        copy: u8,
        /// Unless it is released.
        for_ms: u32,
    },
    /// A copy ends.
    #[error(
        "the copy of the expert is wanted no longer: there is a place that no host has, or few rows wait for it"
    )]
    GivesWay,
}

/// Keys that grant no leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrantorsError {
    /// None, or too many.
    #[error("{got} backbones grant leases, 1 to {GRANTORS_MAX} are wanted")]
    Count {
        /// What came.
        got: usize,
    },
    /// One twice, or not in their order.
    #[error("the backbones that grant leases are not in the order of their keys")]
    Order,
}

/// Why something is no lease of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Too few backbones of the run have signed it.
    #[error("{got} backbones of the run have signed the lease, {want} are wanted")]
    Grants {
        /// A majority.
        want: usize,
        /// Valid and of the run's backbones, each once.
        got: usize,
    },
}

/// Why a question about leases has no answer.
#[derive(Debug, thiserror::Error)]
pub enum LeaseAskError {
    /// A message failed.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The backbone declined.
    #[error(transparent)]
    Refused(#[from] LeaseRefusal),
    /// An answer to another question, or one with too much in it.
    #[error("the answer does not belong to the question")]
    Unexpected,
    /// A lease that a majority of the backbones has not signed.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl Grantors {
    /// The first [`GRANTORS_MAX`] of these keys in their order.
    ///
    /// # Errors
    /// No key.
    pub fn new(keys: impl IntoIterator<Item = PublicKey>) -> Result<Self, GrantorsError> {
        let mut keys: Vec<PublicKey> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(GRANTORS_MAX);
        keys.try_into()
    }

    /// The keys.
    pub fn keys(&self) -> &[PublicKey] {
        &self.0
    }

    /// Grants that make a lease: more than half.
    pub fn majority(&self) -> usize {
        self.0.len() / 2 + 1
    }
}

impl TryFrom<Vec<PublicKey>> for Grantors {
    type Error = GrantorsError;

    fn try_from(keys: Vec<PublicKey>) -> Result<Self, GrantorsError> {
        if keys.is_empty() || keys.len() > GRANTORS_MAX {
            return Err(GrantorsError::Count { got: keys.len() });
        }
        if keys.is_sorted_by(|a, b| a < b) { Ok(Self(keys)) } else { Err(GrantorsError::Order) }
    }
}

impl From<Grantors> for Vec<PublicKey> {
    fn from(grantors: Grantors) -> Self {
        grantors.0
    }
}

impl LeaseGrant {
    /// Grants a copy to `holder` for a term.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        run_id: &str,
        (copy, holder, term): (ExpertCopy, PublicKey, u64),
        expires_at: UnixTime,
    ) -> Result<Self, postcard::Error> {
        let bytes = signed_bytes(run_id, (copy, holder, term), expires_at)?;
        Ok(Self { grantor: key.public(), expires_at, signature: key.sign(&bytes) })
    }

    /// Whether its grantor has signed it.
    pub fn is_of(&self, run_id: &str, leased: (ExpertCopy, PublicKey, u64)) -> bool {
        signed_bytes(run_id, leased, self.expires_at)
            .is_ok_and(|bytes| self.grantor.has_signed(&bytes, &self.signature))
    }
}

fn signed_bytes(
    run_id: &str,
    (copy, holder, term): (ExpertCopy, PublicKey, u64),
    expires_at: UnixTime,
) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(&(run_id, copy, holder, term, expires_at), DOMAIN.to_vec())
}

impl ExpertLease {
    /// Checks that a majority of the run's backbones has granted it, now or before. It may have expired.
    ///
    /// # Errors
    /// Too few have.
    pub fn verify(&self, run_id: &str, grantors: &Grantors) -> Result<(), LeaseError> {
        let leased = (self.of(), self.holder, self.term);
        let is_valid = |grant: &&LeaseGrant| {
            // Of two grants of one backbone the first counts.
            let of_grantor = self.grants.iter().find(|other| other.grantor == grant.grantor);
            of_grantor.is_some_and(|first| std::ptr::eq(first, *grant))
                && grantors.0.contains(&grant.grantor)
                && grant.is_of(run_id, leased)
        };
        let want = grantors.majority();
        let got = self.grants.iter().take(GRANTORS_MAX).filter(is_valid).take(want).count();
        if got < want { Err(LeaseError::Grants { want, got }) } else { Ok(()) }
    }

    /// The copy that it is of.
    pub fn of(&self) -> ExpertCopy {
        (self.place, self.copy)
    }

    /// The grant of one backbone.
    pub fn grant_of(&self, grantor: &PublicKey) -> Option<&LeaseGrant> {
        self.grants.iter().take(GRANTORS_MAX).find(|grant| grant.grantor == *grantor)
    }
}

impl LeaseAsk {
    /// The copy that it is about.
    pub fn of(&self) -> ExpertCopy {
        match self {
            Self::Claim(place) => (*place, 0),
            Self::Copy(copy) => *copy,
            Self::Renew { lease, .. } => lease.of(),
            Self::Release { place, copy, .. } => (*place, *copy),
        }
    }

    /// Whether it is about a lease that the host does not have.
    pub fn is_claim(&self) -> bool {
        matches!(self, Self::Claim(_) | Self::Copy(_))
    }
}

impl CopyHolder {
    /// Who has the expert itself, of the holders of its copies.
    pub fn of_expert(copies: &[Self]) -> Option<PublicKey> {
        copies.iter().find(|held| held.copy == 0).map(|held| held.holder)
    }
}

impl LeasingHost {
    /// A host with as many of its addresses as the limits allow.
    pub fn new(n_room: u32, addresses: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self { n_room, addresses: bounded(addresses) }
    }
}

impl KnownHost {
    /// A host with as many of its addresses as the limits allow.
    pub fn new(peer: PublicKey, addresses: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self { peer, addresses: bounded(addresses) }
    }
}

fn bounded(addresses: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let short_enough = addresses.into_iter().filter(|address| address.len() <= HOST_ADDRESS_BYTES_MAX);
    short_enough.take(HOST_ADDRESSES_MAX).collect()
}

impl LeaseQuestion {
    /// Checks the run, and the number of places.
    ///
    /// # Errors
    /// [`LeaseRefusal::Unknown`] or [`LeaseRefusal::TooMany`].
    pub fn check(&self, of_run: &str) -> Result<(), LeaseRefusal> {
        let (run_id, got) = match self {
            Self::Lease { run_id, asks, n_vacant, .. } => (run_id, asks.len() + usize::from(*n_vacant)),
            Self::Vote { run_id, asks, .. } => (run_id, asks.len()),
            Self::Keepers { run_id, places } | Self::Holders { run_id, places } => (run_id, places.len()),
        };
        if run_id != of_run {
            return Err(LeaseRefusal::Unknown);
        }
        if got > PLACES_MAX {
            return Err(LeaseRefusal::TooMany { got: u32::try_from(got).unwrap_or(u32::MAX) });
        }
        Ok(())
    }
}

/// Asks, and checks that the answer belongs to the question: each lease is one of the asking host `holder` that a majority has
/// signed.
///
/// # Errors
/// A refusal of all, an answer that is none, or a stream that failed.
pub async fn ask<S>(
    stream: &mut S,
    question: &LeaseQuestion,
    asking: &PublicKey,
) -> Result<LeaseAnswer, LeaseAskError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, question, MESSAGE_BYTES_MAX).await?;
    let mut answer: LeaseAnswer = framing::read(stream, MESSAGE_BYTES_MAX).await?;
    match (question, &mut answer) {
        (_, LeaseAnswer::Refused(refusal)) => return Err((*refusal).into()),
        (
            LeaseQuestion::Lease { run_id, asks, n_vacant, .. },
            LeaseAnswer::Leased { grantors, asked, vacant, copied, frozen },
        ) => {
            let is_long = vacant.len() > usize::from(*n_vacant) || copied.len() > asks.len();
            if asked.len() != asks.len() || is_long || frozen.len() > FROZEN_MAX {
                return Err(LeaseAskError::Unexpected);
            }
            for lease in vacant.iter() {
                check_lease(lease, (run_id, asking), grantors)?;
            }
            for (ask, verdict) in asks.iter().zip(asked.iter()) {
                let LeaseVerdict::Granted(lease) = verdict else { continue };
                check_lease(lease, (run_id, asking), grantors)?;
                if lease.of() != ask.of() {
                    return Err(LeaseAskError::Unexpected);
                }
            }
        }
        (LeaseQuestion::Vote { asks, .. }, LeaseAnswer::Voted(votes)) if votes.len() == asks.len() => {}
        (LeaseQuestion::Keepers { places, .. }, LeaseAnswer::Keepers(keepers))
            if keepers.len() == places.len() =>
        {
            for hosts in keepers {
                hosts.truncate(KEEPERS_MAX);
                for host in hosts {
                    host.addresses = bounded(std::mem::take(&mut host.addresses));
                }
            }
        }
        (LeaseQuestion::Holders { places, .. }, LeaseAnswer::Holders(holders))
            if holders.len() == places.len()
                && holders.iter().all(|copies| copies.len() <= usize::from(COPIES_MAX)) => {}
        _ => return Err(LeaseAskError::Unexpected),
    }
    Ok(answer)
}

/// Asks who has these places, at most [`PLACES_MAX`]: for each those of its copies.
///
/// # Errors
/// A refusal, an answer that is none, or a stream that failed.
pub async fn holders<S>(
    stream: &mut S,
    run_id: &str,
    places: Vec<ExpertPlace>,
) -> Result<Vec<Vec<CopyHolder>>, LeaseAskError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let question = LeaseQuestion::Holders { run_id: run_id.to_owned(), places };
    // No lease is in the answer that could be another peer's.
    let nobody = PublicKey([0; 32]);
    match ask(stream, &question, &nobody).await? {
        LeaseAnswer::Holders(holders) => Ok(holders),
        _ => Err(LeaseAskError::Unexpected),
    }
}

fn check_lease(
    lease: &ExpertLease,
    (run_id, holder): (&str, &PublicKey),
    grantors: &Grantors,
) -> Result<(), LeaseAskError> {
    if lease.holder != *holder {
        return Err(LeaseAskError::Unexpected);
    }
    Ok(lease.verify(run_id, grantors)?)
}

/// Reads a question; `None` where the other side closed the stream.
///
/// # Errors
/// A message that is none of this conversation.
pub async fn receive<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<LeaseQuestion>, FrameError> {
    match framing::read(stream, MESSAGE_BYTES_MAX).await {
        Ok(question) => Ok(Some(question)),
        Err(FrameError::Closed) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Answers a question.
///
/// # Errors
/// The stream failed.
pub async fn reply<S: AsyncWrite + Unpin>(stream: &mut S, answer: &LeaseAnswer) -> Result<(), FrameError> {
    framing::write(stream, answer, MESSAGE_BYTES_MAX).await
}
