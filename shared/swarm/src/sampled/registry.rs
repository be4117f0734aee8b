//! Who takes part, and when each peer was last active (MoDEST algorithms 2 and 3).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{Authority, PublicKey, TokenId, UnixTime};
use barnraise_protocol::sampled::{
    ACTIVITY_ROUNDS_MAX, ActivityProof, ActivityToken, Membership, PeerPrefix, REGISTERED_MAX, ROUND_MAX,
    SampledRoles, VIEW_BYTES_MAX, View, ViewDigest,
};

/// Hashes that a view costs at most: proofs that would cost more are left aside, and come with a later view.
const STEPS_PER_VIEW_MAX: u64 = 64 * 1024;
/// Bytes of a view for its two lengths.
const VIEW_HEADER_BYTES: usize = 8;
/// Most bytes of a proof of activity: a prefix, a round and a token.
const PROOF_BYTES_MAX: usize = 4 + 10 + 16;
/// Most bytes of a membership beside its addresses and its approval: key, counter, round, token, lengths and signature.
const MEMBERSHIP_BYTES_MAX: usize = 32 + 10 + 10 + 16 + 8 + 64;
/// Most bytes of an approval beside the names of run and user: their lengths, key, expiration, id, whether it may host, and signature.
const APPROVAL_BYTES_MAX: usize = 4 + 32 + 10 + 16 + 1 + 64;

/// A peer, as far as it told of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RegisteredPeer {
    membership: Membership,
    /// Latest round in which it was active: `N[j]`. That of its join at first.
    round: u64,
    /// Of that round.
    token: ActivityToken,
    /// The run's round when it answered this peer last, or delivered a model.
    heard_in: Option<u64>,
}

impl RegisteredPeer {
    /// `N[j] > k - Δk`, of a round that can be.
    fn is_candidate(&self, round: u64, window: u64, round_max: u64) -> bool {
        self.membership.joined().is_some()
            && self.round.saturating_add(window) > round
            && self.round <= round_max
    }

    /// Those with the least are forgotten first. A round that cannot be is none, nor is one that the peer was not in: to join costs
    /// nothing.
    fn recency(&self, round_max: u64) -> (bool, u64, u64) {
        let round = if self.round <= round_max { self.round } else { 0 };
        let was_active = self.membership.joined().is_some_and(|joined| self.round > joined.round);
        let is_heard = self.heard_in.is_some();
        (is_heard, if was_active || is_heard { round } else { 0 }, round)
    }
}

/// By whom peers are let in, in a run that is not open.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Approvals {
    authority: Authority,
    now: UnixTime,
    /// They are not forgotten: a clock may be wrong about the end of a token.
    revoked: BTreeSet<TokenId>,
}

impl Approvals {
    fn has_revoked(&self, membership: &Membership) -> bool {
        membership.approval.as_ref().is_none_or(|token| self.revoked.contains(&token.claims.token_id))
    }

    fn has_ended(&self, membership: &Membership) -> bool {
        membership.approval.as_ref().is_none_or(|token| token.claims.expires_at <= self.now)
            || self.has_revoked(membership)
    }
}

/// The registry and the records of activity: `C`, `E` and `N` of algorithms 2 and 3.
///
/// Nothing is in it that its peer did not sign, or prove by a token of a chain that it signed; in a run that is not open, nothing of
/// a peer whose access has ended or was none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    run: Sha256Hash,
    /// `None` in an open run.
    approvals: Option<Approvals>,
    peers: BTreeMap<PublicKey, RegisteredPeer>,
    /// It is forgotten in no case: its counter goes on where its access has ended.
    own: Option<PublicKey>,
    /// Latest round that is believed: who claims to be further is told of last, and forgotten first.
    round_max: u64,
}

impl Registry {
    /// Of a run, by the hash of its description. Nobody is in it.
    pub fn new(run: Sha256Hash) -> Self {
        Self { run, approvals: None, peers: BTreeMap::new(), own: None, round_max: ROUND_MAX }
    }

    /// That of a peer.
    #[must_use]
    pub fn of_peer(mut self, own: PublicKey) -> Self {
        self.own = Some(own);
        self
    }

    /// Of a run that is not open: only those are in it whom this authority lets in.
    #[must_use]
    pub fn by_approval(mut self, authority: Authority, now: UnixTime) -> Self {
        self.approvals = Some(Approvals { authority, now, revoked: BTreeSet::new() });
        self
    }

    /// So late it is. Others are forgotten when their access ends.
    pub fn on_clock(&mut self, now: UnixTime) {
        if let Some(approvals) = &mut self.approvals {
            approvals.now = now;
        }
        self.forget_ended();
    }

    /// The authority took these back: they let in nobody from now on.
    pub fn on_revoked(&mut self, tokens: &[TokenId]) {
        if let Some(approvals) = &mut self.approvals {
            approvals.revoked.extend(tokens);
        }
        self.forget_ended();
    }

    fn forget_ended(&mut self) {
        let Self { approvals: Some(approvals), peers, own, .. } = self else { return };
        peers.retain(|key, peer| Some(*key) == *own || !approvals.has_ended(&peer.membership));
    }

    /// Whether the run is open.
    pub fn is_open(&self) -> bool {
        self.approvals.is_none()
    }

    /// Whether a peer may be told of the others: each in an open run, and else who has shown its access.
    pub fn is_approved(&self, peer: &PublicKey) -> bool {
        self.approvals.is_none() || self.peers.contains_key(peer)
    }

    /// No later round is believed from now on.
    pub fn believe(&mut self, round_max: u64) {
        self.round_max = round_max;
    }

    /// A peer has answered, or delivered a model: it exists.
    pub fn on_heard(&mut self, peer: &PublicKey) {
        let round = self.latest_round(self.round_max);
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.heard_in = Some(round);
        }
    }

    /// Those that did in the last `window` rounds.
    pub fn heard(&self, window: u64) -> BTreeSet<PublicKey> {
        let latest = self.latest_round(self.round_max);
        let is_of_late = |round: u64| round.saturating_add(window) > latest;
        let heard = self.peers.iter().filter(|(_, peer)| peer.heard_in.is_some_and(is_of_late));
        heard.map(|(key, _)| *key).collect()
    }

    /// Forgets others that were active in no round after this one.
    pub fn forget_before(&mut self, round: u64) {
        let own = self.own;
        self.peers.retain(|key, peer| Some(*key) == own || peer.round > round);
    }

    /// Takes over what is newer in a view, `MERGEVIEW`. Returns how many entries were news. What is not proven is left aside, and
    /// so is what would take too long to check: one proof of a peer is looked at, and so many hashes are computed in all.
    pub fn merge(&mut self, view: &View) -> usize {
        let n_events = view.memberships.iter().filter(|membership| self.on_membership(membership)).count();
        let mut n_proofs: BTreeMap<PeerPrefix, usize> = BTreeMap::new();
        let mut n_steps_left = STEPS_PER_VIEW_MAX;
        let mut n_active = 0;
        for proof in &view.activity {
            let n_of_peer = n_proofs.entry(proof.peer).or_default();
            *n_of_peer += 1;
            // Peers may share a prefix.
            if *n_of_peer <= self.peers.range(with_prefix(proof.peer)).count() {
                n_active += usize::from(self.on_activity(proof, &mut n_steps_left));
            }
        }
        n_events + n_active
    }

    /// Takes over what is newer of what a peer tells of itself alone: that costs little to check, however often it comes.
    pub fn merge_own(&mut self, peer: &PublicKey, view: &View) {
        let prefix = PeerPrefix::of(peer);
        let memberships = view.memberships.iter().filter(|membership| membership.peer == *peer).take(1);
        let activity = view.activity.iter().filter(|proof| proof.peer == prefix).take(1);
        self.merge(&View {
            memberships: memberships.cloned().collect(),
            activity: activity.copied().collect(),
        });
    }

    /// Whether a view that was merged tells of later rounds of members than are known now: what would have cost too much was left aside.
    pub fn lacks_activity(&self, view: &View) -> bool {
        view.activity.iter().any(|proof| {
            let mut peers = self.peers.range(with_prefix(proof.peer));
            peers.any(|(_, peer)| peer.membership.joined().is_some() && peer.round < proof.round)
        })
    }

    /// `UPDATEREGISTRY`: takes over a peer's event if it is newer, and signed.
    fn on_membership(&mut self, membership: &Membership) -> bool {
        let known = self.peers.get(&membership.peer);
        if known.is_some_and(|known| !membership.supersedes(&known.membership))
            || (self.own != Some(membership.peer) && !self.approves(membership))
            || membership.verify(self.run).is_err()
            || (known.is_none() && self.own != Some(membership.peer) && !self.make_room())
        {
            return false;
        }
        // Of a peer that left, the latest activity does not matter.
        let (round, token) =
            membership.joined().map_or((0, ActivityToken([0; 16])), |joined| (joined.round, joined.anchor));
        let heard_in = self.peers.get(&membership.peer).and_then(|known| known.heard_in);
        let peer = RegisteredPeer { membership: membership.clone(), round, token, heard_in };
        self.peers.insert(membership.peer, peer);
        true
    }

    fn approves(&self, membership: &Membership) -> bool {
        let Some(approvals) = &self.approvals else {
            return membership.verify_approval(None, UnixTime(0)).is_ok();
        };
        !approvals.has_revoked(membership)
            && membership.verify_approval(Some(&approvals.authority), approvals.now).is_ok()
    }

    /// `UPDATEACTIVITY`: takes over a later round, if its token leads to the known one.
    fn on_activity(&mut self, proof: &ActivityProof, n_steps_left: &mut u64) -> bool {
        if proof.round > ROUND_MAX {
            return false;
        }
        let is_proven = |(key, peer): &(&PublicKey, &mut RegisteredPeer)| {
            let n_rounds =
                proof.round.checked_sub(peer.round).filter(|n| (1..=ACTIVITY_ROUNDS_MAX).contains(n));
            let n_rounds = n_rounds.filter(|n_rounds| *n_rounds <= *n_steps_left);
            peer.membership.joined().is_some()
                && n_rounds.is_some_and(|n_rounds| {
                    *n_steps_left -= n_rounds;
                    proof.token.earlier(key, n_rounds) == peer.token
                })
        };
        let mut peers = self.peers.range_mut(with_prefix(proof.peer));
        let Some((_, peer)) = peers.find(is_proven) else { return false };
        (peer.round, peer.token) = (proof.round, proof.token);
        true
    }

    /// Forgets the peer that was active least lately, where there are too many; those that were heard last of all, and itself never.
    /// Returns whether there is room.
    fn make_room(&mut self) -> bool {
        if self.peers.len() < REGISTERED_MAX {
            return true;
        }
        let others = self.peers.iter().filter(|(key, _)| Some(**key) != self.own);
        let others = others.map(|(key, peer)| (peer.recency(self.round_max), *key));
        let (Some((least, key)), Some((most, _))) = (others.clone().min(), others.max()) else {
            return false;
        };
        if least < most {
            self.peers.remove(&key);
        }
        least < most
    }

    /// `CANDIDATES`: registered peers that were active in the `window` rounds before `round`, in the order in which they are
    /// asked for that round, by `HASH(j + k)`. All peers with the same view have the same order.
    ///
    /// Claims of rounds after `round_max` count for nothing.
    pub fn candidates(&self, round: u64, window: u64, round_max: u64) -> Vec<PublicKey> {
        let mut order: Vec<([u8; 32], PublicKey)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_candidate(round, window, round_max))
            .map(|(key, _)| (order_of(key, round), *key))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, key)| key).collect()
    }

    /// How many candidates of the round with the role are asked before a peer is, by its place in the order of
    /// [`Self::candidates`]; `None` where it is no such candidate.
    pub fn place(
        &self,
        of: &PublicKey,
        round: u64,
        (window, round_max): (u64, u64),
        has_role: impl Fn(SampledRoles) -> bool,
    ) -> Option<usize> {
        let is_candidate = |peer: &RegisteredPeer| {
            peer.is_candidate(round, window, round_max)
                && peer.membership.joined().is_some_and(|joined| has_role(joined.roles))
        };
        // It may be further already than this peer believes that the run is.
        let own = self.peers.get(of).and_then(|peer| peer.membership.joined().map(|joined| (peer, joined)));
        own.filter(|(peer, joined)| peer.is_candidate(round, window, ROUND_MAX) && has_role(joined.roles))?;
        let place = order_of(of, round);
        let before =
            self.peers.iter().filter(|(key, peer)| is_candidate(peer) && order_of(key, round) < place);
        Some(before.count())
    }

    /// The round that at least `n_peers` registered peers have been active in, or in later ones: no fewer of them can make
    /// others believe that the run is further. `None` where fewer are registered.
    pub fn round_of(&self, n_peers: usize) -> Option<u64> {
        let mut rounds: Vec<u64> = self.registered().map(|(_, peer)| peer.round).collect();
        let nth = n_peers.max(1) - 1;
        (nth < rounds.len()).then(|| *rounds.select_nth_unstable_by(nth, |a, b| b.cmp(a)).1)
    }

    /// The latest round up to `round_max` that any registered peer has been active in.
    pub fn latest_round(&self, round_max: u64) -> u64 {
        self.registered()
            .map(|(_, peer)| peer.round)
            .filter(|round| *round <= round_max)
            .max()
            .unwrap_or_default()
    }

    /// How many other registered peers were active last in one of these rounds.
    pub fn n_active_in(&self, rounds: RangeInclusive<u64>) -> usize {
        let others = self.registered().filter(|(key, _)| self.own != Some(**key));
        others.filter(|(_, peer)| rounds.contains(&peer.round)).count()
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
        self.view_for(None, digest, own)
    }

    /// [`Self::view_beyond`], for a peer that may have forgotten what it told of itself: that is in it in any case.
    pub fn view_for(&self, asker: Option<&PublicKey>, digest: &ViewDigest, own: &PublicKey) -> View {
        let mut order: Vec<(&PublicKey, &RegisteredPeer)> = self.peers.iter().collect();
        order.sort_by_key(|(key, peer)| {
            let round = if peer.round <= self.round_max { peer.round } else { 0 };
            (*key != own, Some(*key) != asker, std::cmp::Reverse(round))
        });
        let mut view = View::default();
        let mut n_bytes = VIEW_HEADER_BYTES;
        for (key, peer) in order {
            let (prefix, counter) = (PeerPrefix::of(key), peer.membership.counter);
            let membership = (key == own || Some(key) == asker || !digest.has_membership(prefix, counter))
                .then_some(&peer.membership);
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

/// `HASH(j + k)`.
fn order_of(peer: &PublicKey, round: u64) -> [u8; 32] {
    let mut bytes = [0; 40];
    bytes[..32].copy_from_slice(&peer.0);
    bytes[32..].copy_from_slice(&round.to_le_bytes());
    Sha256Hash::of(&bytes).0
}

fn membership_bytes_max(membership: &Membership) -> usize {
    let addresses =
        membership.joined().map(|joined| joined.addresses.iter().map(|address| address.len() + 2).sum());
    let approval = membership
        .approval
        .as_ref()
        .map_or(0, |token| APPROVAL_BYTES_MAX + token.claims.run_id.len() + token.claims.user.len());
    MEMBERSHIP_BYTES_MAX + addresses.unwrap_or(0usize) + approval
}

fn with_prefix(prefix: PeerPrefix) -> RangeInclusive<PublicKey> {
    PublicKey(padded(prefix, 0x00))..=PublicKey(padded(prefix, 0xff))
}

fn padded(prefix: PeerPrefix, with: u8) -> [u8; 32] {
    let mut key = [with; 32];
    key[..prefix.0.len()].copy_from_slice(&prefix.0);
    key
}

#[cfg(test)]
mod tests;
