//! Access control: peers with access to a run, and replay protection for signed requests (DeDLOC appendix I.5).
//!
//! Pure: a backbone's gate asks [`Admissions`] for every stream and feeds it tokens, revocations and the
//! time. It never makes a token. It never forgets a revocation, since a clock may be wrong about the token's expiry.

#[cfg(test)]
mod fuzz;
mod requests;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use barnraise_protocol::access::{
    AccessMode, AccessRefusal, AccessToken, Authority, Claims, PublicKey, RevokedToken, TokenId,
    TokenRefusal, UnixTime,
};

pub use self::requests::{RequestGuard, RequestLimits};
use crate::PeerKey;

/// Access policy of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Who may take part.
    pub mode: AccessMode,
    /// Issuer of valid tokens.
    pub authority: Authority,
    /// How far the clocks of two peers may differ: `N` of DeDLOC appendix I.5.
    pub clock_tolerance: Duration,
}

/// A peer with access.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Admitted {
    token_id: TokenId,
    expires_at: UnixTime,
    may_host: bool,
}

/// A peer whose access ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedAccess {
    /// The peer.
    pub peer: PeerKey,
    /// Reason with which its streams are closed.
    pub reason: TokenRefusal,
}

/// Peers with access, and revoked tokens.
#[derive(Debug)]
pub struct Admissions {
    policy: Policy,
    /// Most peers in `admitted`.
    peers_max: usize,
    admitted: HashMap<PeerKey, Admitted>,
    revoked: HashSet<TokenId>,
    /// The run's own, which need no token.
    backbones: HashSet<PeerKey>,
}

impl Admissions {
    /// No peer has access yet; at most `peers_max` will.
    pub fn new(policy: Policy, peers_max: usize) -> Self {
        let (admitted, revoked, backbones) = (HashMap::new(), HashSet::new(), HashSet::new());
        Self { policy, peers_max, admitted, revoked, backbones }
    }

    /// The access policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Sets the backbones of the run, which have access without a token: they grant what tokens are shown for.
    pub fn set_backbones(&mut self, backbones: impl IntoIterator<Item = PublicKey>) {
        self.backbones = backbones.into_iter().map(|key| PeerKey(key.to_peer_id())).collect();
    }

    /// Whether `peer` is one of the run's backbones.
    pub fn is_backbone(&self, peer: &PeerKey) -> bool {
        self.backbones.contains(peer)
    }

    /// Whether `peer`, which has access, may also host experts.
    pub fn may_host(&self, peer: &PeerKey) -> bool {
        self.policy.mode == AccessMode::Open
            || self.is_backbone(peer)
            || self.admitted.get(peer).is_some_and(|admitted| admitted.may_host)
    }

    /// Whether `peer` has access at `now`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, now: UnixTime, peer: &PeerKey) -> Result<(), AccessRefusal> {
        let mode = self.policy.mode;
        match self.admitted.get(peer) {
            _ if mode == AccessMode::Open || self.is_backbone(peer) => Ok(()),
            None => Err(AccessRefusal::Needed { mode }),
            Some(admitted) if admitted.expires_at > now => Ok(()),
            Some(admitted) => Err(TokenRefusal::Expired { expired_at: admitted.expires_at, now }.into()),
        }
    }

    /// `peer` presents a token over its own connection; returns until when it has access.
    ///
    /// # Errors
    /// Why the token gives none. The peer keeps the access that it had before.
    pub fn on_token(
        &mut self,
        now: UnixTime,
        peer: &PeerKey,
        token: &AccessToken,
    ) -> Result<UnixTime, AccessRefusal> {
        let sender = PublicKey::of_peer_id(&peer.0).ok_or(AccessRefusal::KeyKind)?;
        token.verify_from(&self.policy.authority, sender, now)?;
        self.check_revoked(token)?;
        let Claims { token_id, expires_at, may_host, .. } = token.claims;
        if let Some(known) = self.admitted.get(peer)
            && known.expires_at > expires_at
        {
            // An older token of the same peer, after a renewal.
            return Ok(known.expires_at);
        }
        if !self.admitted.contains_key(peer) && self.admitted.len() >= self.peers_max {
            let reason = format!("{} peers have access already", self.peers_max);
            return Err(AccessRefusal::Unavailable { reason });
        }
        self.admitted.insert(peer.clone(), Admitted { token_id, expires_at, may_host });
        Ok(expires_at)
    }

    /// Whether the token was revoked.
    ///
    /// # Errors
    /// [`TokenRefusal::Revoked`].
    pub fn check_revoked(&self, token: &AccessToken) -> Result<(), TokenRefusal> {
        match self.revoked.contains(&token.claims.token_id) {
            true => Err(TokenRefusal::Revoked),
            false => Ok(()),
        }
    }

    /// All tokens that were revoked.
    pub fn revoked(&self) -> impl Iterator<Item = TokenId> {
        self.revoked.iter().copied()
    }

    /// The authority revoked tokens; returns the peers whose access ends.
    pub fn on_revoked(&mut self, tokens: &[RevokedToken]) -> Vec<EndedAccess> {
        self.revoked.extend(tokens.iter().map(|token| token.token_id));
        let Self { admitted, revoked, .. } = self;
        let is_revoked = |admitted: &Admitted| revoked.contains(&admitted.token_id);
        remove(admitted, |admitted| is_revoked(admitted).then_some(TokenRefusal::Revoked))
    }

    /// Removes expired access and returns its peers. Call it about once a second: new streams are refused at once,
    /// open ones end when this is called.
    pub fn on_timeout(&mut self, now: UnixTime) -> Vec<EndedAccess> {
        remove(&mut self.admitted, |admitted| {
            let expired_at = admitted.expires_at;
            (expired_at <= now).then_some(TokenRefusal::Expired { expired_at, now })
        })
    }

    /// Number of peers with access.
    pub fn n_admitted(&self) -> usize {
        self.admitted.len()
    }
}

fn remove(
    admitted: &mut HashMap<PeerKey, Admitted>,
    why: impl Fn(&Admitted) -> Option<TokenRefusal>,
) -> Vec<EndedAccess> {
    let mut ended = Vec::new();
    admitted.retain(|peer, admitted| match why(admitted) {
        Some(reason) => {
            ended.push(EndedAccess { peer: peer.clone(), reason });
            false
        }
        None => true,
    });
    ended
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::access::KeyPair;

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
            may_host: false,
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
        assert!(admissions(AccessMode::Open, 1).may_host(&peer(2)));
        for mode in [AccessMode::Invitation, AccessMode::Allowlist] {
            let mut admissions = admissions(mode, 1);
            assert_eq!(admissions.check(NOW, &peer(2)), Err(AccessRefusal::Needed { mode }));
            let until = NOW.after(10);
            assert_eq!(admissions.on_token(NOW, &peer(2), &token(2, 1, until)), Ok(until));
            assert_eq!(admissions.check(NOW, &peer(2)), Ok(()));
            assert_eq!(admissions.check(NOW, &peer(3)), Err(AccessRefusal::Needed { mode }));
            let stolen = admissions.on_token(NOW, &peer(3), &token(2, 1, until)).unwrap_err();
            assert!(matches!(stolen, AccessRefusal::Token(TokenRefusal::Peer { .. })), "{stolen}");
            let full = admissions.on_token(NOW, &peer(3), &token(3, 2, until)).unwrap_err();
            assert!(full.is_passing(), "{full}");
            let hashed = PeerKey([&[0x12, 0x20][..], &[1; 32]].concat());
            assert_eq!(admissions.on_token(NOW, &hashed, &token(2, 1, until)), Err(AccessRefusal::KeyKind));
        }
    }

    #[test]
    fn a_token_says_who_may_host_and_backbones_need_none() {
        let mut admissions = admissions(AccessMode::Invitation, 10);
        let until = NOW.after(10);
        let with_role = |seed, id, until, may_host| {
            let claims = Claims { may_host, ..token(seed, id, until).claims };
            AccessToken::sign(&moderator(), claims).unwrap()
        };
        admissions.on_token(NOW, &peer(2), &with_role(2, 1, until, false)).unwrap();
        admissions.on_token(NOW, &peer(3), &with_role(3, 2, until, true)).unwrap();
        assert!(
            !admissions.may_host(&peer(2)) && admissions.may_host(&peer(3)) && !admissions.may_host(&peer(4))
        );
        // Claims of its own making have no signature.
        let mut forged = with_role(2, 1, until, false);
        forged.claims.may_host = true;
        let refused = admissions.on_token(NOW, &peer(2), &forged);
        assert_eq!(refused, Err(TokenRefusal::Signature.into()));
        // The role goes with the newest token, and ends with access.
        admissions.on_token(NOW, &peer(2), &with_role(2, 3, until.after(1), true)).unwrap();
        assert!(admissions.may_host(&peer(2)));
        admissions.on_revoked(&[RevokedToken { token_id: TokenId([3; 16]), expires_at: until.after(1) }]);
        assert!(!admissions.may_host(&peer(2)));
        let backbone = KeyPair::from_seed(&[9; 32]).public();
        assert!(admissions.check(NOW, &peer(9)).is_err() && !admissions.may_host(&peer(9)));
        admissions.set_backbones([backbone]);
        assert_eq!(admissions.check(NOW, &peer(9)), Ok(()));
        assert!(admissions.may_host(&peer(9)) && admissions.check(NOW, &peer(8)).is_err());
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
        assert_eq!(admissions.on_timeout(NOW.after(10)), [EndedAccess { peer: peer(3), reason }]);
        assert_eq!(admissions.check(NOW.after(19), &peer(2)), Ok(()));
        assert_eq!(admissions.n_admitted(), 1);
    }

    #[test]
    fn where_all_places_are_taken_those_who_have_one_renew_it() {
        let mut admissions = admissions(AccessMode::Allowlist, 2);
        admissions.on_token(NOW, &peer(2), &token(2, 1, NOW.after(10))).unwrap();
        admissions.on_token(NOW, &peer(3), &token(3, 2, NOW.after(10))).unwrap();
        assert!(admissions.on_token(NOW, &peer(4), &token(4, 3, NOW.after(10))).is_err());
        let renewed = admissions.on_token(NOW, &peer(3), &token(3, 4, NOW.after(20)));
        assert_eq!((renewed, admissions.n_admitted()), (Ok(NOW.after(20)), 2));
    }

    #[test]
    fn of_two_tokens_that_end_at_once_the_one_that_was_shown_last_gives_access() {
        let mut admissions = admissions(AccessMode::Invitation, 2);
        let until = NOW.after(10);
        for id in [1, 2] {
            assert_eq!(admissions.on_token(NOW, &peer(2), &token(2, id, until)), Ok(until));
        }
        let revoked = |id| [RevokedToken { token_id: TokenId([id; 16]), expires_at: until }];
        assert_eq!(admissions.on_revoked(&revoked(1)), []);
        assert_eq!(admissions.check(NOW, &peer(2)), Ok(()));
        assert_eq!(admissions.on_revoked(&revoked(2)).len(), 1);
    }

    #[test]
    fn a_revoked_token_ends_access_and_gives_none_again() {
        let mut admissions = admissions(AccessMode::Invitation, 10);
        let until = NOW.after(100);
        admissions.on_token(NOW, &peer(2), &token(2, 1, until)).unwrap();
        admissions.on_token(NOW, &peer(3), &token(3, 2, until)).unwrap();
        let revoked = [RevokedToken { token_id: TokenId([1; 16]), expires_at: until }];
        let ended = admissions.on_revoked(&revoked);
        assert_eq!(ended, [EndedAccess { peer: peer(2), reason: TokenRefusal::Revoked }]);
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
