//! Which host serves which place of the grid: leases (Gray and Cheriton 1989) that the run's named backbones grant.
//!
//! A [`LeaseBook`] is what one backbone has granted. A grant is a promise to grant the place to nobody else until it expires. A
//! lease needs the grants of a majority, and any two majorities share a backbone, so that two hosts never hold one place. A
//! [`LeaseHolder`] decides what a host asks for: it renews what it holds, claims what it has on its disk, and lets its backbone
//! choose among vacant places. It counts its lease from when it asked, which is before any backbone granted it, and by less than
//! the backbones do ([`HELD_TIME`]): no clocks are compared.
//!
//! Terms order the checkpoints of an expert. The next one is above the last that is known, and not below the Unix time in
//! milliseconds, so that backbones which have forgotten all of them go on above: their clocks may differ by less than
//! [`LEASE_TIME`] for that. A backbone needs no disk: for [`LEASE_TIME`] after its start it grants nothing but renewals of leases
//! that carry a grant of its own that has not expired by its own clock.
//!
//! The backbone that a host asks chooses the vacant places, and not the host: it knows all leases and how many rows wait for
//! each expert, so that hosts that look at the same time get different places, without a search in the DHT.
//!
//! Where no place is vacant, it chooses a copy of an expert for which many rows wait. All that is said of a place holds for each
//! copy: a lease of its own, with the grants of a majority. No host has two of an expert. A copy ends when its lease is not renewed,
//! which the backbone of its host decides alone, as it chose it.

mod book;
#[cfg(test)]
mod fuzz;
mod handover;
mod holder;
mod standing;
#[cfg(test)]
mod tests;
mod voters;

use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::ExpertCopy;
pub use barnraise_protocol::experts::leases::LEASE_TIME;
use barnraise_protocol::experts::leases::{ExpertLease, Grantors, LeaseGrant, LeaseRefusal, LeaseVerdict};

pub use self::book::{
    COPIED_ROWS, COPY_INTERVAL, IDLE_LONG, LEASES_MAX, LeaseBook, LeaseStanding, LeasedRun, VACANT_LONG,
    VACANT_SHORT,
};
pub use self::handover::{HANDED_MAX, Handover, HandoverAction};
pub use self::holder::{HolderAction, LOOK_INTERVAL, LeaseHolder, RENEWAL_INTERVAL};
pub use self::standing::HOSTS_MAX;
pub use self::voters::{AskedVoters, Voters};

/// A holder counts on a lease for so long after it asked: less than [`LEASE_TIME`], for clocks that run at different speeds and
/// a batch that the device has.
pub const HELD_TIME: Duration = Duration::from_secs(27);

const _: () = assert!(HELD_TIME.as_secs() < LEASE_TIME.as_secs());

/// Counts the votes on one ask of `holder`. `votes` are those of the backbones that answered, each once.
#[must_use]
pub fn count_votes(
    grantors: &Grantors,
    (copy, holder, term): (ExpertCopy, PublicKey, u64),
    votes: &[LeaseVerdict<LeaseGrant>],
) -> LeaseVerdict<ExpertLease> {
    let want = grantors.majority();
    let grants: Vec<LeaseGrant> = votes
        .iter()
        .filter_map(|vote| match vote {
            LeaseVerdict::Granted(grant) => Some(*grant),
            _ => None,
        })
        .collect();
    if grants.len() >= want {
        return LeaseVerdict::Granted(ExpertLease { place: copy.0, copy: copy.1, holder, term, grants });
    }
    let refusals: Vec<LeaseRefusal> = votes
        .iter()
        .filter_map(|vote| match vote {
            LeaseVerdict::Refused(refusal) => Some(*refusal),
            _ => None,
        })
        .collect();
    // One that has the place says more than those that did not answer.
    let weight = |refusal: &LeaseRefusal| match refusal {
        LeaseRefusal::Later { term } => (3, *term),
        LeaseRefusal::Held { .. } => (2, 0),
        _ => (1, 0),
    };
    let strongest = refusals.iter().max_by_key(|refusal| weight(refusal)).copied();
    let as_byte = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let too_few = LeaseRefusal::Majority { want: as_byte(want), got: as_byte(grants.len()) };
    let n_against = refusals.len();
    // A minority that refuses does not speak for the run.
    let is_over = grantors.keys().len().saturating_sub(n_against) < want;
    LeaseVerdict::Refused(strongest.filter(|_| is_over).unwrap_or(too_few))
}
