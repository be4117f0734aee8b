//! Makes access tokens: for whoever redeems an invitation, signed in and is on the list, or renews.
//!
//! What it gave is in the database, so that it can be taken back. A peer that asks again while its token
//! is young gets the same one, whatever it asks: nobody fills the database by asking.

use std::time::Duration;

use barnraise_protocol::access::{
    AccessMode, AccessToken, Claims, KeyPair, PublicKey, Refusal, RelayedRequest, RelayedResponse,
    SignedRequest, SignedResponse, TokenId, TokenRefusal, UnixTime,
};
use barnraise_protocol::access::{signed, token};
use barnraise_protocol::{Sha256Hash, framing};
use barnraise_swarm::access::Policy;

use super::store::{Issued, Redeemed, Store, StoreError};
use super::{WallClock, hex, peer_id};
use crate::config::AccessSection;

/// How the authority calls itself in the token with which it answers.
const AUTHORITY_NAME: &str = "authority";
/// While nothing can be written down, nobody is let in.
pub(super) const FULL: &str = "the authority's disk is full, so nobody can be let in: try again later";
/// A ticket for a login is another one after this, and the one before is good as well.
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
    /// An authority that remembers in `store`.
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

    /// Where somebody signs in for `peer`. To be told to nobody but that peer, over a connection whose handshake attests
    /// its key: the ticket in it is all the proof that a login asks for.
    pub fn login_url(&self, peer: PublicKey) -> Option<String> {
        let (page, id) = (self.page.as_ref()?, peer_id(peer)?);
        let ticket = self.ticket(peer, self.now().0 / TICKET_S);
        Some(format!("{page}/login?peer={id}&ticket={ticket}"))
    }

    /// Whether `ticket` was given to `peer` within the last two hours.
    pub fn is_ticket(&self, peer: PublicKey, ticket: &str) -> bool {
        let hour = self.now().0 / TICKET_S;
        let got = Sha256Hash::of(ticket.as_bytes());
        // Of hashes, so that the time which a comparison takes tells nothing.
        let is_of = |hour: u64| Sha256Hash::of(self.ticket(peer, hour).as_bytes()) == got;
        is_of(hour) || is_of(hour.saturating_sub(1))
    }

    /// Nothing is kept of it: it follows from the authority's secret key.
    fn ticket(&self, peer: PublicKey, hour: u64) -> String {
        let run_id = self.policy.authority.run_id.as_bytes();
        let about = [&b"login ticket 1\0"[..], &peer.0, &hour.to_le_bytes(), run_id].concat();
        hex(&self.key.derive(&about))
    }

    /// A token for the code of an invitation.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn redeem(&self, peer: PublicKey, code: &str) -> Result<AccessToken, Refusal> {
        if self.policy.mode != AccessMode::Invitation {
            return Err(Refusal::OtherWay { mode: self.policy.mode, wanted: "invitation".into() });
        }
        let now = self.now();
        if self.store.was_revoked(peer).await.map_err(unavailable)? {
            return Err(TokenRefusal::Revoked.into());
        }
        let token = self.fresh(peer, shortened(&guest_name(peer)), String::new())?;
        match self.store.redeem(code, token, now).await.map_err(unavailable)? {
            Redeemed::SentAway => Err(TokenRefusal::Revoked.into()),
            Redeemed::Yes(invitation) => {
                let user = guest_name(peer);
                tracing::info!(user, %peer, "access granted");
                self.grant(peer, &user, invitation).await
            }
            Redeemed::Before(invitation) => self.grant(peer, &guest_name(peer), invitation).await,
            Redeemed::Unknown => Err(Refusal::NoInvitation),
            Redeemed::UsedUp => Err(Refusal::InvitationUsedUp),
            Redeemed::Expired(expired_at) => Err(Refusal::InvitationExpired { expired_at }),
        }
    }

    /// A token for whoever signed in for `peer`; `None` while nobody has.
    ///
    /// # Errors
    /// Somebody did who is not on the list, or was sent away since they were put there.
    pub async fn claim(&self, peer: PublicKey) -> Result<Option<AccessToken>, Refusal> {
        if self.policy.mode != AccessMode::Allowlist {
            return Err(Refusal::OtherWay { mode: self.policy.mode, wanted: "login".into() });
        }
        if self.store.was_revoked(peer).await.map_err(unavailable)? {
            return Err(TokenRefusal::Revoked.into());
        }
        match self.store.login(peer).await.map_err(unavailable)? {
            None => Ok(None),
            Some((user, false)) => Err(Refusal::NotOnList { user }),
            Some((user, true)) => self.grant(peer, &user, String::new()).await.map(Some),
        }
    }

    /// Answers a request that the gate has taken.
    ///
    /// # Errors
    /// Where not even a refusal could be signed.
    pub async fn answer(&self, request: &SignedRequest) -> Result<SignedResponse, Refusal> {
        let asked = framing::decode_payload(&request.payload);
        let answer = match asked {
            Ok(RelayedRequest::Renew) => match self.renew(&request.token).await {
                Ok(token) => RelayedResponse::Renewed(Box::new(token)),
                Err(refusal) => RelayedResponse::Refused(refusal),
            },
            Err(error) => RelayedResponse::Refused(Refusal::Unavailable { reason: error.to_string() }),
        };
        let unsigned = |error: &dyn std::fmt::Display| Refusal::Unavailable { reason: error.to_string() };
        let payload =
            framing::encode(&answer, signed::PAYLOAD_BYTES_MAX).map_err(|error| unsigned(&error))?;
        let payload = payload[framing::HEADER_BYTES..].to_vec();
        let token = self.own_token().map_err(|error| unsigned(&error))?;
        SignedResponse::sign(&self.key, token, request.nonce, payload).map_err(|error| unsigned(&error))
    }

    /// Another token for the same user and key, if they may still take part.
    async fn renew(&self, old: &AccessToken) -> Result<AccessToken, Refusal> {
        let peer = old.claims.peer;
        if self.policy.mode == AccessMode::Allowlist {
            let missing = || Refusal::NotOnList { user: old.claims.user.clone() };
            return self.claim(peer).await?.ok_or_else(missing);
        }
        // The database knows newer revocations than the gate does.
        let known = self.store.token_of(peer, self.now()).await.map_err(unavailable)?;
        let known = known.ok_or(TokenRefusal::Revoked)?;
        self.grant(peer, &known.user, known.invitation).await
    }

    async fn grant(&self, peer: PublicKey, user: &str, invitation: String) -> Result<AccessToken, Refusal> {
        let now = self.now();
        let user = shortened(user);
        let young = now.after(self.lifetime.as_secs() / 2);
        let known = self.store.token_of(peer, now).await.map_err(unavailable)?;
        if let Some(known) = known.filter(|known| known.user == user && known.expires_at > young) {
            // Ed25519 signatures are deterministic: this is the same token.
            return self.sign(user, peer, known.expires_at, known.token_id);
        }
        let issued = self.fresh(peer, user, invitation)?;
        if !self.store.issue(&issued).await.map_err(unavailable)? {
            return Err(TokenRefusal::Revoked.into());
        }
        let Issued { token_id, user, expires_at, .. } = issued;
        tracing::info!(user, %peer, "access granted");
        self.sign(user, peer, expires_at, token_id)
    }

    /// Another token from now on, which is not given yet.
    fn fresh(&self, peer: PublicKey, user: String, invitation: String) -> Result<Issued, Refusal> {
        let token_id = TokenId(super::random().map_err(unavailable)?);
        let expires_at = self.now().after(self.lifetime.as_secs());
        Ok(Issued { token_id, user, peer, expires_at, invitation })
    }

    fn sign(
        &self,
        user: String,
        peer: PublicKey,
        expires_at: UnixTime,
        token_id: TokenId,
    ) -> Result<AccessToken, Refusal> {
        let run_id = self.policy.authority.run_id.clone();
        let claims = Claims { run_id, user, peer, expires_at, token_id };
        AccessToken::sign(&self.key, claims).map_err(unavailable)
    }

    /// For the answers to signed requests, which carry the token of whoever answers.
    fn own_token(&self) -> Result<AccessToken, framing::FrameError> {
        let claims = Claims {
            run_id: self.policy.authority.run_id.clone(),
            user: AUTHORITY_NAME.into(),
            peer: self.key.public(),
            expires_at: self.now().after(self.lifetime.as_secs()),
            token_id: TokenId([0; 16]),
        };
        AccessToken::sign(&self.key, claims)
    }
}

/// Who came with an invitation has no name but the key.
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

fn unavailable(error: impl Into<Unavailable>) -> Refusal {
    let Unavailable { error, told } = error.into();
    tracing::error!(error, "access could not be decided");
    Refusal::Unavailable { reason: told.into() }
}

/// What went wrong, for the log; and what strangers are told of it.
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
