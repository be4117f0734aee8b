//! Who takes part, and when each peer was last active (MoDEST algorithms 2 and 3).

use std::collections::BTreeMap;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{
    ACTIVITY_ROUNDS_MAX, ActivityProof, ActivityToken, Membership, PeerPrefix, REGISTERED_MAX,
    VIEW_BYTES_MAX, View, ViewDigest,
};

/// Bytes of a view for its two lengths.
const VIEW_HEADER_BYTES: usize = 8;
/// Most bytes of a proof of activity: a prefix, a round and a token.
const PROOF_BYTES_MAX: usize = 4 + 10 + 16;
/// Most bytes of a membership beside its addresses: key, counter, round, token, lengths and signature.
const MEMBERSHIP_BYTES_MAX: usize = 32 + 10 + 10 + 16 + 8 + 64;

/// A peer, as far as it told of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RegisteredPeer {
    membership: Membership,
    /// Latest round in which it was active: `N[j]`. That of its join at first.
    round: u64,
    /// Of that round.
    token: ActivityToken,
}

/// The registry and the records of activity: `C`, `E` and `N` of algorithms 2 and 3.
///
/// Nothing is in it that its peer did not sign, or prove by a token of a chain that it signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    run: Sha256Hash,
    peers: BTreeMap<PublicKey, RegisteredPeer>,
}

impl Registry {
    /// Of a run, by the hash of its description. Nobody is in it.
    pub fn new(run: Sha256Hash) -> Self {
        Self { run, peers: BTreeMap::new() }
    }

    /// Takes over what is newer in a view, `MERGEVIEW`. Returns how many entries were news. What is not proven is left aside.
    pub fn merge(&mut self, view: &View) -> usize {
        let n_events = view.memberships.iter().filter(|membership| self.on_membership(membership)).count();
        n_events + view.activity.iter().filter(|proof| self.on_activity(proof)).count()
    }

    /// `UPDATEREGISTRY`: takes over a peer's event if it is newer, and signed.
    fn on_membership(&mut self, membership: &Membership) -> bool {
        let known = self.peers.get(&membership.peer);
        if known.is_some_and(|known| !membership.supersedes(&known.membership))
            || membership.verify(self.run).is_err()
            || (known.is_none() && !self.make_room())
        {
            return false;
        }
        // Of a peer that left, the latest activity does not matter.
        let (round, token) =
            membership.joined().map_or((0, ActivityToken([0; 16])), |joined| (joined.round, joined.anchor));
        let peer = RegisteredPeer { membership: membership.clone(), round, token };
        self.peers.insert(membership.peer, peer);
        true
    }

    /// `UPDATEACTIVITY`: takes over a later round, if its token leads to the known one.
    fn on_activity(&mut self, proof: &ActivityProof) -> bool {
        let first = PublicKey(padded(proof.peer, 0x00));
        let last = PublicKey(padded(proof.peer, 0xff));
        let is_proven = |(key, peer): &(&PublicKey, &mut RegisteredPeer)| {
            let n_rounds =
                proof.round.checked_sub(peer.round).filter(|n| (1..=ACTIVITY_ROUNDS_MAX).contains(n));
            peer.membership.joined().is_some()
                && n_rounds.is_some_and(|n_rounds| proof.token.earlier(key, n_rounds) == peer.token)
        };
        let Some((_, peer)) = self.peers.range_mut(first..=last).find(is_proven) else { return false };
        (peer.round, peer.token) = (proof.round, proof.token);
        true
    }

    /// Forgets the peer that was active least lately, where there are too many. Returns whether there is room.
    fn make_room(&mut self) -> bool {
        if self.peers.len() < REGISTERED_MAX {
            return true;
        }
        let newest = self.peers.values().map(|peer| peer.round).max().unwrap_or_default();
        let last = self.peers.iter().min_by_key(|(_, peer)| peer.round);
        let Some((key, _)) = last.filter(|(_, peer)| peer.round < newest).map(|(key, peer)| (*key, peer))
        else {
            return false;
        };
        self.peers.remove(&key);
        true
    }

    /// `CANDIDATES`: registered peers that were active in the `window` rounds before `round`, in the order in which they are
    /// asked for that round, by `HASH(j + k)`. All peers with the same view have the same order.
    ///
    /// Claims of rounds after `round_max` count for nothing.
    pub fn candidates(&self, round: u64, window: u64, round_max: u64) -> Vec<PublicKey> {
        let is_candidate = |peer: &RegisteredPeer| {
            // N[j] > k - Δk
            peer.membership.joined().is_some()
                && peer.round.saturating_add(window) > round
                && peer.round <= round_max
        };
        let of_round = |key: &PublicKey| Sha256Hash::of(&[&key.0[..], &round.to_le_bytes()].concat()).0;
        let mut order: Vec<([u8; 32], PublicKey)> = self
            .peers
            .iter()
            .filter(|(_, peer)| is_candidate(peer))
            .map(|(key, _)| (of_round(key), *key))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, key)| key).collect()
    }

    /// The round that at least `n_peers` registered peers have been active in, or in later ones: no fewer of them can make
    /// others believe that the run is further. `None` where fewer are registered.
    pub fn round_of(&self, n_peers: usize) -> Option<u64> {
        let mut rounds: Vec<u64> = self.registered().map(|(_, peer)| peer.round).collect();
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        rounds.get(n_peers.max(1) - 1).copied()
    }

    /// The latest round up to `round_max` that any registered peer has been active in.
    pub fn latest_round(&self, round_max: u64) -> u64 {
        self.registered()
            .map(|(_, peer)| peer.round)
            .filter(|round| *round <= round_max)
            .max()
            .unwrap_or_default()
    }

    /// The latest round in which a registered peer was active; `None` where it is not registered.
    pub fn activity_of(&self, peer: &PublicKey) -> Option<u64> {
        self.peers.get(peer).filter(|peer| peer.membership.joined().is_some()).map(|peer| peer.round)
    }

    /// What a peer told of itself last.
    pub fn membership(&self, peer: &PublicKey) -> Option<&Membership> {
        self.peers.get(peer).map(|peer| &peer.membership)
    }

    /// `REGISTERED`: peers whose newest event is that they joined, in the order of their keys.
    pub fn members(&self) -> impl Iterator<Item = &Membership> {
        self.registered().map(|(_, peer)| &peer.membership)
    }

    fn registered(&self) -> impl Iterator<Item = (&PublicKey, &RegisteredPeer)> {
        self.peers.iter().filter(|(_, peer)| peer.membership.joined().is_some())
    }

    /// A digest of all that is known.
    pub fn digest(&self, salt: u64) -> ViewDigest {
        let mut digest = ViewDigest::new(salt, self.peers.len());
        for (key, peer) in &self.peers {
            let prefix = PeerPrefix::of(key);
            digest.insert_membership(prefix, peer.membership.counter);
            digest.insert_activity(prefix, peer.membership.counter, peer.round);
        }
        digest
    }

    /// What is not in a digest, the latest active first, and as much as fits into a view. What `own` told of itself is in it in
    /// any case: the receiver believes no peer of which it knows nothing.
    pub fn view_beyond(&self, digest: &ViewDigest, own: &PublicKey) -> View {
        let mut order: Vec<(&PublicKey, &RegisteredPeer)> = self.peers.iter().collect();
        order.sort_by_key(|(key, peer)| (*key != own, std::cmp::Reverse(peer.round)));
        let mut view = View::default();
        let mut n_bytes = VIEW_HEADER_BYTES;
        for (key, peer) in order {
            let (prefix, counter) = (PeerPrefix::of(key), peer.membership.counter);
            let membership =
                (key == own || !digest.has_membership(prefix, counter)).then_some(&peer.membership);
            let is_later = peer.membership.joined().is_some_and(|joined| peer.round > joined.round);
            let is_news = is_later && (key == own || !digest.has_activity(prefix, counter, peer.round));
            n_bytes += membership.map_or(0, membership_bytes_max) + if is_news { PROOF_BYTES_MAX } else { 0 };
            if n_bytes > VIEW_BYTES_MAX {
                break;
            }
            view.memberships.extend(membership.cloned());
            if is_news {
                view.activity.push(ActivityProof { peer: prefix, round: peer.round, token: peer.token });
            }
        }
        view
    }

    /// All that fits into a view.
    pub fn view(&self, own: &PublicKey) -> View {
        self.view_beyond(&ViewDigest::default(), own)
    }
}

fn membership_bytes_max(membership: &Membership) -> usize {
    let addresses =
        membership.joined().map(|joined| joined.addresses.iter().map(|address| address.len() + 2).sum());
    MEMBERSHIP_BYTES_MAX + addresses.unwrap_or(0usize)
}

fn padded(prefix: PeerPrefix, with: u8) -> [u8; 32] {
    let mut key = [with; 32];
    key[..prefix.0.len()].copy_from_slice(&prefix.0);
    key
}

#[cfg(test)]
mod tests;
