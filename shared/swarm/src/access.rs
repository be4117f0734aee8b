//! Who has access to a run now, and which signed requests came before.
//!
//! Pure: a backbone's gate asks [`Admissions`] for every stream and feeds it tokens, revocations and the
//! time. It never makes a token and never forgets a revocation: by which clock its token expired may be wrong.

#[cfg(test)]
mod fuzz;
mod requests;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use barnraise_protocol::access::{
    AccessMode, AccessToken, Authority, PublicKey, Refusal, RevokedToken, TokenId, TokenRefusal, UnixTime,
};

pub use self::requests::{RequestGuard, RequestLimits};
use crate::PeerKey;

/// Who decides, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Who may take part.
    pub mode: AccessMode,
    /// Whose tokens are good.
    pub authority: Authority,
    /// How far the clocks of two peers may differ: `N` of DeDLOC appendix I.5.
    pub clock_tolerance: Duration,
}

/// A peer with access.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Admitted {
    token_id: TokenId,
    expires_at: UnixTime,
}

/// A peer whose access ended, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Who.
    pub peer: PeerKey,
    /// Its conversations end with this.
    pub reason: TokenRefusal,
}

/// Peers with access, and the tokens that give none any more.
#[derive(Debug)]
pub struct Admissions {
    policy: Policy,
    /// Most peers in `admitted`.
    peers_max: usize,
    admitted: HashMap<PeerKey, Admitted>,
    revoked: HashSet<TokenId>,
}

impl Admissions {
    /// Nobody yet, and `peers_max` at most.
    pub fn new(policy: Policy, peers_max: usize) -> Self {
        Self { policy, peers_max, admitted: HashMap::new(), revoked: HashSet::new() }
    }

    /// What decides here.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether `peer` may hold a conversation at `now`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, now: UnixTime, peer: &PeerKey) -> Result<(), Refusal> {
        let mode = self.policy.mode;
        match self.admitted.get(peer) {
            _ if mode == AccessMode::Open => Ok(()),
            None => Err(Refusal::Needed { mode }),
            Some(admitted) if admitted.expires_at > now => Ok(()),
            Some(admitted) => Err(TokenRefusal::Expired { expired_at: admitted.expires_at, now }.into()),
        }
    }

    /// `peer` presents a token over its own connection; returns until when it has access.
    ///
    /// # Errors
    /// Why the token gives none. What the peer had before, it keeps.
    pub fn on_token(
        &mut self,
        now: UnixTime,
        peer: &PeerKey,
        token: &AccessToken,
    ) -> Result<UnixTime, Refusal> {
        let sender = PublicKey::of_peer_id(&peer.0).ok_or(Refusal::KeyKind)?;
        token.verify_from(&self.policy.authority, sender, now)?;
        self.check_revoked(token)?;
        let (token_id, expires_at) = (token.claims.token_id, token.claims.expires_at);
        if let Some(known) = self.admitted.get(peer)
            && known.expires_at > expires_at
        {
            // An older token of the same peer, after a renewal.
            return Ok(known.expires_at);
        }
        if !self.admitted.contains_key(peer) && self.admitted.len() >= self.peers_max {
            let reason = format!("{} peers have access already", self.peers_max);
            return Err(Refusal::Unavailable { reason });
        }
        self.admitted.insert(peer.clone(), Admitted { token_id, expires_at });
        Ok(expires_at)
    }

    /// Whether the token was taken back.
    ///
    /// # Errors
    /// [`TokenRefusal::Revoked`].
    pub fn check_revoked(&self, token: &AccessToken) -> Result<(), TokenRefusal> {
        match self.revoked.contains(&token.claims.token_id) {
            true => Err(TokenRefusal::Revoked),
            false => Ok(()),
        }
    }

    /// The authority took tokens back; returns those whose access ends by it.
    pub fn on_revoked(&mut self, tokens: &[RevokedToken]) -> Vec<Ended> {
        self.revoked.extend(tokens.iter().map(|token| token.token_id));
        let Self { admitted, revoked, .. } = self;
        let is_revoked = |admitted: &Admitted| revoked.contains(&admitted.token_id);
        remove(admitted, |admitted| is_revoked(admitted).then_some(TokenRefusal::Revoked))
    }

    /// Time has passed; returns those whose access ended by it. To be called every second or so: a new
    /// conversation is refused at once, a running one when this is called.
    pub fn on_timeout(&mut self, now: UnixTime) -> Vec<Ended> {
        remove(&mut self.admitted, |admitted| {
            let expired_at = admitted.expires_at;
            (expired_at <= now).then_some(TokenRefusal::Expired { expired_at, now })
        })
    }

    /// Peers with access, for whoever counts them.
    pub fn n_admitted(&self) -> usize {
        self.admitted.len()
    }
}

fn remove(
    admitted: &mut HashMap<PeerKey, Admitted>,
    why: impl Fn(&Admitted) -> Option<TokenRefusal>,
) -> Vec<Ended> {
    let mut ended = Vec::new();
    admitted.retain(|peer, admitted| match why(admitted) {
        Some(reason) => {
            ended.push(Ended { peer: peer.clone(), reason });
            false
        }
        None => true,
    });
    ended
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::access::{Claims, KeyPair};

    use super::*;

    const NOW: UnixTime = UnixTime(1_000_000);

    fn moderator() -> KeyPair {
        KeyPair::from_seed(&[1; 32])
    }

    fn peer(seed: u8) -> PeerKey {
        PeerKey(KeyPair::from_seed(&[seed; 32]).public().to_peer_id())
    }

    fn token(seed: u8, id: u8, expires_at: UnixTime) -> AccessToken {
        let claims = Claims {
            run_id: "barn".into(),
            user: "alice".into(),
            peer: KeyPair::from_seed(&[seed; 32]).public(),
            expires_at,
            token_id: TokenId([id; 16]),
        };
        AccessToken::sign(&moderator(), claims).unwrap()
    }

    fn admissions(mode: AccessMode, peers_max: usize) -> Admissions {
        let authority = Authority { key: moderator().public(), run_id: "barn".into() };
        Admissions::new(Policy { mode, authority, clock_tolerance: Duration::from_secs(30) }, peers_max)
    }

    #[test]
    fn nobody_gets_in_without_a_token_unless_the_run_is_open() {
        assert_eq!(admissions(AccessMode::Open, 1).check(NOW, &peer(2)), Ok(()));
        for mode in [AccessMode::Invitation, AccessMode::Allowlist] {
            let mut admissions = admissions(mode, 1);
            assert_eq!(admissions.check(NOW, &peer(2)), Err(Refusal::Needed { mode }));
            let until = NOW.after(10);
            assert_eq!(admissions.on_token(NOW, &peer(2), &token(2, 1, until)), Ok(until));
            assert_eq!(admissions.check(NOW, &peer(2)), Ok(()));
            assert_eq!(admissions.check(NOW, &peer(3)), Err(Refusal::Needed { mode }));
            let stolen = admissions.on_token(NOW, &peer(3), &token(2, 1, until)).unwrap_err();
            assert!(matches!(stolen, Refusal::Token(TokenRefusal::Peer { .. })), "{stolen}");
            let full = admissions.on_token(NOW, &peer(3), &token(3, 2, until)).unwrap_err();
            assert!(full.is_passing(), "{full}");
            let hashed = PeerKey([&[0x12, 0x20][..], &[1; 32]].concat());
            assert_eq!(admissions.on_token(NOW, &hashed, &token(2, 1, until)), Err(Refusal::KeyKind));
        }
    }

    #[test]
    fn access_ends_with_the_token_and_goes_on_with_the_next() {
        let mut admissions = admissions(AccessMode::Invitation, 10);
        admissions.on_token(NOW, &peer(2), &token(2, 1, NOW.after(10))).unwrap();
        admissions.on_token(NOW, &peer(3), &token(3, 2, NOW.after(10))).unwrap();
        // One renews in time; showing the old token again takes nothing back.
        admissions.on_token(NOW.after(5), &peer(2), &token(2, 3, NOW.after(20))).unwrap();
        let kept = admissions.on_token(NOW.after(6), &peer(2), &token(2, 1, NOW.after(10)));
        assert_eq!(kept, Ok(NOW.after(20)));
        assert_eq!(admissions.on_timeout(NOW.after(9)), []);
        let reason = TokenRefusal::Expired { expired_at: NOW.after(10), now: NOW.after(10) };
        assert_eq!(admissions.check(NOW.after(10), &peer(3)), Err(reason.clone().into()));
        assert_eq!(admissions.on_timeout(NOW.after(10)), [Ended { peer: peer(3), reason }]);
        assert_eq!(admissions.check(NOW.after(19), &peer(2)), Ok(()));
        assert_eq!(admissions.n_admitted(), 1);
    }

    #[test]
    fn a_revoked_token_ends_access_and_gives_none_again() {
        let mut admissions = admissions(AccessMode::Invitation, 10);
        let until = NOW.after(100);
        admissions.on_token(NOW, &peer(2), &token(2, 1, until)).unwrap();
        admissions.on_token(NOW, &peer(3), &token(3, 2, until)).unwrap();
        let revoked = [RevokedToken { token_id: TokenId([1; 16]), expires_at: until }];
        let ended = admissions.on_revoked(&revoked);
        assert_eq!(ended, [Ended { peer: peer(2), reason: TokenRefusal::Revoked }]);
        assert_eq!(admissions.on_revoked(&revoked), []);
        assert!(admissions.check(NOW, &peer(2)).is_err());
        let again = admissions.on_token(NOW.after(99), &peer(2), &token(2, 1, until));
        assert_eq!(again, Err(TokenRefusal::Revoked.into()));
        assert_eq!(admissions.check(NOW, &peer(3)), Ok(()));
        // A clock that was ahead for a while brings nothing back.
        admissions.on_timeout(until.after(1_000_000));
        let again = admissions.on_token(NOW, &peer(2), &token(2, 1, until));
        assert_eq!(again, Err(TokenRefusal::Revoked.into()));
    }
}
