//! Issues access tokens: to a peer that redeems an invitation, that signed in and is on the list, or that renews.
//!
//! Issued tokens are in the database, so that they can be revoked. A peer that asks again before half of its token's
//! lifetime is over gets the same token: repeated requests do not fill the database.

use std::time::Duration;

use barnraise_protocol::access::{
    AccessMode, AccessRefusal, AccessToken, Claims, KeyPair, PublicKey, RelayedRequest, RelayedResponse,
    SignedRequest, SignedResponse, TokenId, TokenRefusal, UnixTime,
};
use barnraise_protocol::access::{signed, token};
use barnraise_protocol::{Sha256Hash, framing};
use barnraise_swarm::access::Policy;

use super::store::{IssuedToken, RedeemOutcome, Store, StoreError};
use crate::config::AccessSection;
use crate::host::clock::WallClock;
use crate::host::{hex, peer_id};

/// User name in the token that the authority attaches to its own answers.
const AUTHORITY_NAME: &str = "authority";
/// Shown to a peer while the disk takes no new token.
pub(super) const FULL: &str = "the authority's disk is full, so no peer can be admitted: try again later";
/// Login tickets change after this many seconds. The previous ticket is valid as well.
const TICKET_S: u64 = 3600;

/// Signs with the backbone's identity. Cheap to clone.
#[derive(Clone)]
pub struct AccessAuthority {
    key: KeyPair,
    policy: Policy,
    lifetime: Duration,
    page: Option<String>,
    store: Store,
    clock: WallClock,
}

impl AccessAuthority {
    /// An authority that keeps its tokens in `store`.
    pub fn new(
        key: KeyPair,
        policy: Policy,
        section: &AccessSection,
        store: Store,
        clock: WallClock,
    ) -> Self {
        let (lifetime, page) = (section.token_lifetime, section.page.clone());
        Self { key, policy, lifetime, page, store, clock }
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The time by this authority's clock.
    pub fn now(&self) -> UnixTime {
        (self.clock)()
    }

    /// Address at which a person signs in for `peer`. Send it to that peer only, over a connection whose handshake
    /// attests its key: the ticket in it is the only proof that a login asks for.
    pub fn login_url(&self, peer: PublicKey) -> Option<String> {
        let (page, id) = (self.page.as_ref()?, peer_id(peer)?);
        let ticket = self.ticket(peer, self.now().0 / TICKET_S);
        Some(format!("{page}/login?peer={id}&ticket={ticket}"))
    }

    /// Whether `ticket` was issued to `peer` within the last two hours.
    pub fn is_ticket(&self, peer: PublicKey, ticket: &str) -> bool {
        let hour = self.now().0 / TICKET_S;
        let got = Sha256Hash::of(ticket.as_bytes());
        // Hashes are compared, so that the time of the comparison reveals nothing.
        let is_of = |hour: u64| Sha256Hash::of(self.ticket(peer, hour).as_bytes()) == got;
        is_of(hour) || is_of(hour.saturating_sub(1))
    }

    /// Derived from the authority's secret key, so that no ticket is stored.
    fn ticket(&self, peer: PublicKey, hour: u64) -> String {
        let run_id = self.policy.authority.run_id.as_bytes();
        let about = [&b"login ticket 1\0"[..], &peer.0, &hour.to_le_bytes(), run_id].concat();
        hex(&self.key.derive(&about))
    }

    /// A token for the code of an invitation.
    ///
    /// # Errors
    /// Why no token is issued.
    pub async fn redeem(&self, peer: PublicKey, code: &str) -> Result<AccessToken, AccessRefusal> {
        if self.policy.mode != AccessMode::Invitation {
            return Err(AccessRefusal::OtherWay { mode: self.policy.mode, wanted: "invitation".into() });
        }
        let now = self.now();
        if self.store.was_revoked(peer).await.map_err(unavailable)? {
            return Err(TokenRefusal::Revoked.into());
        }
        let token = self.fresh(peer, shortened(&guest_name(peer)), (String::new(), false))?;
        match self.store.redeem(code, token, now).await.map_err(unavailable)? {
            RedeemOutcome::Excluded => Err(TokenRefusal::Revoked.into()),
            RedeemOutcome::Yes(invitation) => {
                let user = guest_name(peer);
                tracing::info!(user, %peer, "access granted");
                self.grant_invited(peer, invitation).await
            }
            RedeemOutcome::Before(invitation) => self.grant_invited(peer, invitation).await,
            RedeemOutcome::Unknown => Err(AccessRefusal::NoInvitation),
            RedeemOutcome::UsedUp => Err(AccessRefusal::InvitationUsedUp),
            RedeemOutcome::Expired(expired_at) => Err(AccessRefusal::InvitationExpired { expired_at }),
        }
    }

    async fn grant_invited(&self, peer: PublicKey, invitation: String) -> Result<AccessToken, AccessRefusal> {
        let may_host = self.store.invites_hosts(&invitation).await.map_err(unavailable)?;
        self.grant(peer, &guest_name(peer), (invitation, may_host)).await
    }

    /// A token for `peer`, once a person has signed in for it; `None` before.
    ///
    /// # Errors
    /// That person is not on the list, or their access was revoked after they were listed.
    pub async fn claim(&self, peer: PublicKey) -> Result<Option<AccessToken>, AccessRefusal> {
        if self.policy.mode != AccessMode::Allowlist {
            return Err(AccessRefusal::OtherWay { mode: self.policy.mode, wanted: "login".into() });
        }
        if self.store.was_revoked(peer).await.map_err(unavailable)? {
            return Err(TokenRefusal::Revoked.into());
        }
        match self.store.login(peer).await.map_err(unavailable)? {
            None => Ok(None),
            Some((user, false)) => Err(AccessRefusal::NotOnList { user }),
            Some((user, true)) => {
                let may_host = self.store.login_may_host(peer).await.map_err(unavailable)?;
                self.grant(peer, &user, (String::new(), may_host)).await.map(Some)
            }
        }
    }

    /// Answers a request that the gate has accepted.
    ///
    /// # Errors
    /// The answer could not be signed.
    pub async fn answer(&self, request: &SignedRequest) -> Result<SignedResponse, AccessRefusal> {
        let asked = framing::decode_payload(&request.payload);
        let answer = match asked {
            Ok(RelayedRequest::Renew) => match self.renew(&request.token).await {
                Ok(token) => RelayedResponse::Renewed(Box::new(token)),
                Err(refusal) => RelayedResponse::Refused(refusal),
            },
            Err(error) => RelayedResponse::Refused(AccessRefusal::Unavailable { reason: error.to_string() }),
        };
        let unsigned =
            |error: &dyn std::fmt::Display| AccessRefusal::Unavailable { reason: error.to_string() };
        let payload =
            framing::encode(&answer, signed::PAYLOAD_BYTES_MAX).map_err(|error| unsigned(&error))?;
        let payload = payload[framing::HEADER_BYTES..].to_vec();
        let token = self.own_token().map_err(|error| unsigned(&error))?;
        SignedResponse::sign(&self.key, token, request.nonce, payload).map_err(|error| unsigned(&error))
    }

    /// A new token for the same user and key, if they may still take part.
    async fn renew(&self, old: &AccessToken) -> Result<AccessToken, AccessRefusal> {
        let peer = old.claims.peer;
        if self.policy.mode == AccessMode::Allowlist {
            let missing = || AccessRefusal::NotOnList { user: old.claims.user.clone() };
            return self.claim(peer).await?.ok_or_else(missing);
        }
        // The database knows newer revocations than the gate does.
        let known = self.store.token_of(peer, self.now()).await.map_err(unavailable)?;
        let known = known.ok_or(TokenRefusal::Revoked)?;
        self.grant(peer, &known.user, (known.invitation, known.may_host)).await
    }

    async fn grant(
        &self,
        peer: PublicKey,
        user: &str,
        (invitation, may_host): (String, bool),
    ) -> Result<AccessToken, AccessRefusal> {
        let now = self.now();
        let user = shortened(user);
        let young = now.after(self.lifetime.as_secs() / 2);
        let known = self.store.token_of(peer, now).await.map_err(unavailable)?;
        let is_same = |known: &IssuedToken| {
            known.user == user && known.may_host == may_host && known.expires_at > young
        };
        if let Some(known) = known.filter(is_same) {
            // Ed25519 signatures are deterministic: this is the same token.
            return self.sign(known);
        }
        let issued = self.fresh(peer, user, (invitation, may_host))?;
        if !self.store.issue(&issued).await.map_err(unavailable)? {
            return Err(TokenRefusal::Revoked.into());
        }
        tracing::info!(user = issued.user, %peer, "access granted");
        self.sign(issued)
    }

    /// A new token, valid from now on and not stored yet.
    fn fresh(
        &self,
        peer: PublicKey,
        user: String,
        (invitation, may_host): (String, bool),
    ) -> Result<IssuedToken, AccessRefusal> {
        let token_id = TokenId(super::random().map_err(unavailable)?);
        let expires_at = self.now().after(self.lifetime.as_secs());
        Ok(IssuedToken { token_id, user, peer, expires_at, invitation, may_host })
    }

    fn sign(&self, issued: IssuedToken) -> Result<AccessToken, AccessRefusal> {
        let IssuedToken { token_id, user, peer, expires_at, may_host, .. } = issued;
        let run_id = self.policy.authority.run_id.clone();
        let claims = Claims { run_id, user, peer, expires_at, token_id, may_host };
        AccessToken::sign(&self.key, claims).map_err(unavailable)
    }

    /// The authority's own token: an answer to a signed request carries that of its sender, and it shows its own access by it where it
    /// takes part in the run.
    pub(crate) fn own_token(&self) -> Result<AccessToken, framing::FrameError> {
        let claims = Claims {
            run_id: self.policy.authority.run_id.clone(),
            user: AUTHORITY_NAME.into(),
            peer: self.key.public(),
            expires_at: self.now().after(self.lifetime.as_secs()),
            token_id: TokenId([0; 16]),
            may_host: false,
        };
        AccessToken::sign(&self.key, claims)
    }
}

/// User name of a peer with an invitation: it has no identity but its key.
fn guest_name(peer: PublicKey) -> String {
    let mut name = peer_id(peer).map_or_else(|| peer.to_string(), |id| id.to_string());
    name = name.chars().rev().take(8).collect::<Vec<_>>().into_iter().rev().collect();
    format!("guest {name}")
}

fn shortened(user: &str) -> String {
    user.chars()
        .scan(0, |n_bytes, c| {
            *n_bytes += c.len_utf8();
            (*n_bytes <= token::USER_BYTES_MAX).then_some(c)
        })
        .collect()
}

fn unavailable(error: impl Into<Unavailable>) -> AccessRefusal {
    let Unavailable { error, told } = error.into();
    tracing::error!(error, "access could not be decided");
    AccessRefusal::Unavailable { reason: told.into() }
}

/// An internal error: `error` for the log, `told` for the peer.
struct Unavailable {
    error: String,
    told: &'static str,
}

impl Unavailable {
    fn inside(error: &impl std::fmt::Display) -> Self {
        let told = "the authority has a problem; its operator can see it in the log";
        Self { error: error.to_string(), told }
    }
}

impl From<StoreError> for Unavailable {
    fn from(error: StoreError) -> Self {
        let inside = Self::inside(&error);
        if error.is_full() { Self { told: FULL, ..inside } } else { inside }
    }
}

impl From<super::AccessError> for Unavailable {
    fn from(error: super::AccessError) -> Self {
        Self::inside(&error)
    }
}

impl From<framing::FrameError> for Unavailable {
    fn from(error: framing::FrameError) -> Self {
        Self::inside(&error)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use sqlx::Connection as _;
    use sqlx::sqlite::SqliteConnection;

    use super::*;

    #[test]
    fn a_name_is_shortened_to_whole_characters_of_a_tokens_length() {
        let n = token::USER_BYTES_MAX;
        for (name, n_bytes) in [
            ("a".repeat(n - 1), n - 1),
            ("a".repeat(n), n),
            ("a".repeat(n + 1), n),
            // Of two bytes each: the last one would be cut in the middle.
            (format!("a{}", "\u{e4}".repeat(n)), n - 1),
        ] {
            let short = shortened(&name);
            assert!(short.len() == n_bytes && name.starts_with(&short), "{name} -> {short}");
        }
    }

    #[test]
    fn a_guest_is_named_by_the_end_of_its_peer_id() {
        let peer = KeyPair::from_seed(&[2; 32]).public();
        let id = peer_id(peer).map(|id| id.to_string()).unwrap_or_default();
        assert_eq!(guest_name(peer), format!("guest {}", &id[id.len() - 8..]));
    }

    #[tokio::test]
    async fn a_peer_is_told_that_the_disk_is_full_and_of_no_other_error() {
        let mut database = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        // A table takes a second page.
        sqlx::query("PRAGMA max_page_count = 1").execute(&mut database).await.unwrap();
        let full = sqlx::query("CREATE TABLE tokens (peer TEXT)").execute(&mut database).await.unwrap_err();
        let wrong = sqlx::query("SELECT * FROM nothing").execute(&mut database).await.unwrap_err();
        let told = |error: sqlx::Error| match unavailable(StoreError::from(error)) {
            AccessRefusal::Unavailable { reason } => reason,
            other => panic!("{other}"),
        };
        assert_eq!((told(full) == FULL, told(wrong) == FULL), (true, false));
    }
}
