//! That a peer joined or left, signed by itself (MoDEST §3.4), and in a run that is not open approved by the run's authority: the
//! paper assumes that somebody lets participants in.

use serde::{Deserialize, Serialize};

use super::ROUND_MAX;
use super::activity::ActivityToken;
use crate::access::{AccessToken, Authority, KeyPair, PublicKey, Signature, TokenRefusal, UnixTime};
use crate::hash::Sha256Hash;

/// Most addresses of a member.
pub const MEMBER_ADDRESSES_MAX: usize = 4;
/// Longest address of a member, in bytes.
pub const MEMBER_ADDRESS_BYTES_MAX: usize = 128;

const DOMAIN: &[u8] = b"barnraise sampled membership 2\0";

/// The newest event that a peer told of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The peer.
    pub peer: PublicKey,
    /// Grows with each of its events. It keeps it over restarts.
    pub counter: u64,
    /// What happened.
    pub event: MembershipEvent,
    /// The peer's access, in a run that is not open.
    pub approval: Option<Box<AccessToken>>,
    /// Of all of this and the run, by the peer.
    pub signature: Signature,
}

/// What a peer tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembershipEvent {
    /// It takes part.
    Joined(JoinedEvent),
    /// It no longer does.
    Left,
}

/// How a peer takes part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedEvent {
    /// Its estimate of the run's round.
    pub round: u64,
    /// Token of that round: later ones prove that it is active.
    pub anchor: ActivityToken,
    /// What it does.
    pub roles: SampledRoles,
    /// Where it can be dialled: at most [`MEMBER_ADDRESSES_MAX`] binary multiaddresses of at most [`MEMBER_ADDRESS_BYTES_MAX`]
    /// bytes, without its peer id.
    pub addresses: Vec<Vec<u8>>,
}

/// What a peer does for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledRoles {
    /// It trains: it has data and a device.
    pub trains: bool,
    /// Whether it aggregates, and for whom.
    pub aggregates: Aggregates,
}

impl SampledRoles {
    /// Whether it aggregates at all.
    pub fn is_aggregator(self) -> bool {
        self.aggregates != Aggregates::Never
    }
}

/// Whether a peer aggregates, by how others reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Aggregates {
    /// Others do not reach it, or its user does not want it to.
    Never,
    /// Others can dial it.
    Dialled,
    /// Others reach it through a relay alone, as a browser tab: it aggregates where no peer that can be dialled answers.
    Relayed,
}

/// Why a membership is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// Another peer, or another run.
    #[error("the membership is not signed by {0}, or is of another run")]
    Signature(PublicKey),
    /// More or longer addresses than a member may have.
    #[error("at most {MEMBER_ADDRESSES_MAX} addresses of {MEMBER_ADDRESS_BYTES_MAX} bytes are wanted")]
    Addresses,
    /// A round that no run gets to.
    #[error("a round up to {ROUND_MAX} is wanted, and {0} came")]
    Round(u64),
    /// The run is not open, and the event is without an access token.
    #[error("the membership of {0} has no access token, and this run is not open")]
    NotApproved(PublicKey),
    /// The token is no good.
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    /// The run is open, and has no tokens.
    #[error("the membership of {0} has an access token, and this run is open")]
    Approved(PublicKey),
}

impl Membership {
    /// Signs an event of the owner of `key` in the run with the hash `run`.
    ///
    /// - `approval`: of that peer; `None` in an open run
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        run: Sha256Hash,
        counter: u64,
        event: MembershipEvent,
        approval: Option<Box<AccessToken>>,
    ) -> Result<Self, postcard::Error> {
        let peer = key.public();
        let signature = key.sign(&signed_bytes(run, peer, counter, &event, approval.as_deref())?);
        Ok(Self { peer, counter, event, approval, signature })
    }

    /// Checks that the peer signed it for this run.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub fn verify(&self, run: Sha256Hash) -> Result<(), MembershipError> {
        if let MembershipEvent::Joined(joined) = &self.event {
            let is_long = |address: &Vec<u8>| address.len() > MEMBER_ADDRESS_BYTES_MAX;
            if joined.addresses.len() > MEMBER_ADDRESSES_MAX || joined.addresses.iter().any(is_long) {
                return Err(MembershipError::Addresses);
            }
            if joined.round > ROUND_MAX {
                return Err(MembershipError::Round(joined.round));
            }
        }
        let bytes = signed_bytes(run, self.peer, self.counter, &self.event, self.approval.as_deref());
        match bytes.is_ok_and(|bytes| self.peer.has_signed(&bytes, &self.signature)) {
            true => Ok(()),
            false => Err(MembershipError::Signature(self.peer)),
        }
    }

    /// Checks that the authority lets the peer in; in an open run, which has none, that nobody claims to.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub fn verify_approval(
        &self,
        authority: Option<&Authority>,
        now: UnixTime,
    ) -> Result<(), MembershipError> {
        match (authority, &self.approval) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(MembershipError::Approved(self.peer)),
            (Some(_), None) => Err(MembershipError::NotApproved(self.peer)),
            (Some(authority), Some(token)) => Ok(token.verify_from(authority, self.peer, now)?),
        }
    }

    /// Whether it is to replace `other`, of the same peer. Of two events with one counter, which no honest peer signs, all peers keep
    /// the same.
    pub fn supersedes(&self, other: &Self) -> bool {
        let order = |membership: &Self| (membership.counter, membership.signature.to_bytes());
        order(self) > order(other)
    }

    /// How it takes part; `None` where it left.
    pub fn joined(&self) -> Option<&JoinedEvent> {
        match &self.event {
            MembershipEvent::Joined(joined) => Some(joined),
            MembershipEvent::Left => None,
        }
    }
}

fn signed_bytes(
    run: Sha256Hash,
    peer: PublicKey,
    counter: u64,
    event: &MembershipEvent,
    approval: Option<&AccessToken>,
) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(&(run, peer, counter, event, approval), DOMAIN.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Claims, TokenId};

    const RUN: Sha256Hash = Sha256Hash([1; 32]);
    const NOW: UnixTime = UnixTime(1000);

    fn joined(n_addresses: usize) -> MembershipEvent {
        let anchor = ActivityToken([5; 16]);
        let roles = SampledRoles { trains: true, aggregates: Aggregates::Never };
        let addresses = vec![vec![4; 8]; n_addresses];
        MembershipEvent::Joined(JoinedEvent { round: 3, anchor, roles, addresses })
    }

    #[test]
    fn only_the_peer_itself_tells_of_itself_and_only_in_this_run() {
        let key = KeyPair::from_seed(&[1; 32]);
        let membership = Membership::sign(&key, RUN, 4, joined(1), None).unwrap();
        assert_eq!(membership.verify(RUN), Ok(()));
        let refused = Err(MembershipError::Signature(key.public()));
        assert_eq!(membership.verify(Sha256Hash([2; 32])), refused);
        for altered in [
            Membership { counter: 5, ..membership.clone() },
            Membership { event: MembershipEvent::Left, ..membership.clone() },
        ] {
            assert_eq!(altered.verify(RUN), refused);
        }
        let other = KeyPair::from_seed(&[2; 32]).public();
        let stolen = Membership { peer: other, ..membership };
        assert_eq!(stolen.verify(RUN), Err(MembershipError::Signature(other)));
    }

    fn token(authority: &KeyPair, peer: PublicKey, expires_at: UnixTime) -> Box<AccessToken> {
        let claims = Claims {
            run_id: "barn".into(),
            user: "alice".into(),
            peer,
            expires_at,
            token_id: TokenId([7; 16]),
            may_host: false,
        };
        Box::new(AccessToken::sign(authority, claims).unwrap())
    }

    #[test]
    fn in_a_run_that_is_not_open_the_authority_lets_a_peer_in_and_nobody_else_does() {
        let [key, signing, other] = [1, 2, 3].map(|seed| KeyPair::from_seed(&[seed; 32]));
        let peer = key.public();
        let authority = Authority { key: signing.public(), run_id: "barn".into() };
        let with = |approval| Membership::sign(&key, RUN, 1, joined(0), approval).unwrap();
        let approved = with(Some(token(&signing, peer, NOW.after(1))));
        assert_eq!(approved.verify(RUN), Ok(()));
        assert_eq!(approved.verify_approval(Some(&authority), NOW), Ok(()));
        let expired = TokenRefusal::Expired { expired_at: NOW.after(1), now: NOW.after(1) };
        let refused = approved.verify_approval(Some(&authority), NOW.after(1));
        assert_eq!(refused, Err(MembershipError::Token(expired)));
        assert_eq!(approved.verify_approval(None, NOW), Err(MembershipError::Approved(peer)));
        let bare = with(None);
        assert_eq!(bare.verify_approval(None, NOW), Ok(()));
        let refused = bare.verify_approval(Some(&authority), NOW);
        assert_eq!(refused, Err(MembershipError::NotApproved(peer)));
        let forged = with(Some(token(&other, peer, NOW.after(1))));
        let refused = forged.verify_approval(Some(&authority), NOW);
        assert_eq!(refused, Err(MembershipError::Token(TokenRefusal::Signature)));
        let of_other = with(Some(token(&signing, other.public(), NOW.after(1))));
        let refused = of_other.verify_approval(Some(&authority), NOW);
        let named = TokenRefusal::Peer { named: other.public(), sender: peer };
        assert_eq!(refused, Err(MembershipError::Token(named)));
        // Nobody else puts another token, or none, into what the peer signed.
        for approval in [None, Some(token(&signing, peer, NOW.after(2)))] {
            let altered = Membership { approval, ..approved.clone() };
            assert_eq!(altered.verify(RUN), Err(MembershipError::Signature(peer)));
        }
    }

    #[test]
    fn addresses_are_bounded() {
        let key = KeyPair::from_seed(&[1; 32]);
        let of = |n_addresses, n_bytes| match joined(0) {
            MembershipEvent::Joined(event) => MembershipEvent::Joined(JoinedEvent {
                addresses: vec![vec![4; n_bytes]; n_addresses],
                ..event
            }),
            left => left,
        };
        let verified = |n_addresses, n_bytes| {
            Membership::sign(&key, RUN, 1, of(n_addresses, n_bytes), None).unwrap().verify(RUN)
        };
        assert_eq!(verified(MEMBER_ADDRESSES_MAX, MEMBER_ADDRESS_BYTES_MAX), Ok(()));
        for (n_addresses, n_bytes) in [
            (MEMBER_ADDRESSES_MAX + 1, 8),
            (MEMBER_ADDRESSES_MAX + 9, 8),
            (1, MEMBER_ADDRESS_BYTES_MAX + 1),
            (1, MEMBER_ADDRESS_BYTES_MAX + 9),
        ] {
            let refused = verified(n_addresses, n_bytes);
            assert_eq!(refused, Err(MembershipError::Addresses), "{n_addresses} of {n_bytes} bytes");
        }
    }

    #[test]
    fn who_left_takes_no_part() {
        let key = KeyPair::from_seed(&[1; 32]);
        let of = |event| Membership::sign(&key, RUN, 1, event, None).unwrap();
        assert_eq!(of(joined(1)).joined().map(|event| event.round), Some(3));
        assert_eq!(of(MembershipEvent::Left).joined(), None);
    }

    #[test]
    fn rounds_are_bounded() {
        let key = KeyPair::from_seed(&[1; 32]);
        let of = |round| match joined(0) {
            MembershipEvent::Joined(event) => MembershipEvent::Joined(JoinedEvent { round, ..event }),
            left => left,
        };
        let verified = |round| Membership::sign(&key, RUN, 1, of(round), None).unwrap().verify(RUN);
        assert_eq!(verified(ROUND_MAX), Ok(()));
        assert_eq!(verified(ROUND_MAX + 1), Err(MembershipError::Round(ROUND_MAX + 1)));
    }

    #[test]
    fn of_two_events_all_keep_the_same() {
        let key = KeyPair::from_seed(&[1; 32]);
        let [first, second] =
            [1, 2].map(|counter| Membership::sign(&key, RUN, counter, joined(0), None).unwrap());
        let twin = Membership::sign(&key, RUN, 2, MembershipEvent::Left, None).unwrap();
        assert!(second.supersedes(&first) && !first.supersedes(&second) && !second.supersedes(&second));
        assert_ne!(second.supersedes(&twin), twin.supersedes(&second));
    }
}
