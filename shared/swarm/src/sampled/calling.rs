//! A peer that nobody can dial calls on those who aggregate: they then reach it on the connections that it made.
//!
//! The paper has peers that reach each other. A tab, or a computer behind a strict firewall, only dials. A tab that others reach
//! through a relay calls as well: the connections that it made itself may be better.

use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{Aggregates, SampledRoles};

use super::SampledPeer;
use crate::Moment;

/// Interval between calls. A connection that nobody uses is closed after a minute.
const CALL_EVERY: Duration = Duration::from_secs(20);
/// Most peers that are called on.
const CALLED_MAX: usize = 16;
/// Of them, those that answer with all that they know.
const ASKED: usize = 1;

/// When the next call is due; none of a peer that takes no part, or that others dial.
#[derive(Debug, Default)]
pub(super) struct Calling(Option<Moment>);

impl Calling {
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.0
    }
}

impl SampledPeer {
    /// Calls from now on, if nobody can dial this peer.
    pub(super) fn begin_calling(&mut self, now: Moment) {
        let is_dialled = self.identity.roles.aggregates == Aggregates::Dialled;
        self.calling.0 = (self.joining.is_member() && !is_dialled).then_some(now);
        self.call_if_due(now);
    }

    pub(super) fn end_calling(&mut self) {
        self.calling.0 = None;
    }

    pub(super) fn call_if_due(&mut self, now: Moment) {
        if self.calling.0.is_some_and(|at| at <= now) {
            self.calling.0 = Some(now + CALL_EVERY);
            let called = self.called();
            self.tell(&called, ASKED);
        }
    }

    /// Those that it was told of, and the active aggregators next to it: the same ones, as long as they take part. First those that can
    /// be dialled. One that is itself reached through a relay is reached by the others of its kind.
    fn called(&self) -> Vec<PublicKey> {
        let distance =
            |peer: &PublicKey| -> [u8; 32] { std::array::from_fn(|at| peer.0[at] ^ self.peer.0[at]) };
        let mut called = self.joining.introduced().to_vec();
        let mut others = self.candidates(self.round(), SampledRoles::is_aggregator);
        let is_relayed = |peer: &PublicKey| self.aggregates(peer) == Aggregates::Relayed;
        let is_reached = self.identity.roles.is_aggregator();
        others.retain(|peer| !(called.contains(peer) || (is_reached && is_relayed(peer))));
        others.sort_unstable_by_key(|peer| (is_relayed(peer), distance(peer)));
        called.extend(others);
        called.retain(|peer| *peer != self.peer);
        called.truncate(CALLED_MAX);
        called
    }
}
