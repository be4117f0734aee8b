//! The one gate before the conversations: who has no access is refused, and whose access ends is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barnraise_protocol::access::{
    AccessMode, AccessToken, PublicKey, Refusal, RequestRefusal, RevokedToken, SignedRequest, TokenRefusal,
    UnixTime,
};
use barnraise_swarm::PeerKey;
use barnraise_swarm::access::{Admissions, Ended, Policy, RequestGuard, RequestLimits};
use libp2p::PeerId;
use tokio::sync::watch;

use super::WallClock;

/// Most peers with access at a time.
const PEERS_MAX: usize = 100_000;

/// Asked for every stream. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    policy: Policy,
    clock: WallClock,
    gated: Arc<Mutex<Gated>>,
}

struct Gated {
    admissions: Admissions,
    requests: RequestGuard,
    /// Of each peer with access, told when it ends.
    passes: HashMap<PeerKey, watch::Sender<Option<TokenRefusal>>>,
}

/// One peer's access, for as long as a conversation needs it.
#[derive(Debug, Clone)]
pub struct Pass(Option<watch::Receiver<Option<TokenRefusal>>>);

impl Pass {
    /// For a conversation that needs no access.
    pub(crate) fn always() -> Self {
        Self(None)
    }

    /// Completes when the access ends, with the reason.
    pub async fn ended(&mut self) -> TokenRefusal {
        let Some(end) = &mut self.0 else { return std::future::pending().await };
        let reason = match end.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            // The gate itself is gone: the backbone shuts down.
            Err(_) => None,
        };
        reason.unwrap_or(TokenRefusal::Revoked)
    }
}

impl Gate {
    /// A gate at which nobody has shown a token yet.
    pub fn new(policy: Policy, here: PublicKey, clock: WallClock) -> Self {
        let gated = Gated {
            admissions: Admissions::new(policy.clone(), PEERS_MAX),
            requests: RequestGuard::new(here, RequestLimits::default()),
            passes: HashMap::new(),
        };
        Self { policy, clock, gated: Arc::new(Mutex::new(gated)) }
    }

    /// What decides here.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The time by this gate's clock.
    pub fn now(&self) -> UnixTime {
        (self.clock)()
    }

    /// Whether `peer` may hold a conversation now.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, peer: PeerId) -> Result<Pass, Refusal> {
        if self.policy.mode == AccessMode::Open {
            return Ok(Pass::always());
        }
        let key = PeerKey(peer.to_bytes());
        let gated = self.lock();
        gated.admissions.check(self.now(), &key)?;
        let pass = gated.passes.get(&key).ok_or(Refusal::Needed { mode: self.policy.mode })?;
        Ok(Pass(Some(pass.subscribe())))
    }

    /// `peer` presents a token over its own connection.
    ///
    /// # Errors
    /// Why it gives no access.
    pub fn present(&self, peer: PeerId, token: &AccessToken) -> Result<UnixTime, Refusal> {
        let key = PeerKey(peer.to_bytes());
        let mut gated = self.lock();
        let until = gated.admissions.on_token(self.now(), &key, token)?;
        gated.passes.entry(key).or_insert_with(|| watch::channel(None).0);
        Ok(until)
    }

    /// Whether a signed request is to be processed, which it is once.
    ///
    /// # Errors
    /// As the paper lists.
    pub fn take_request(&self, request: &SignedRequest) -> Result<(), RequestRefusal> {
        let mut gated = self.lock();
        let Gated { admissions, requests, .. } = &mut *gated;
        requests.on_request(self.now(), admissions, request)
    }

    /// The authority took tokens back: their conversations end.
    pub fn on_revoked(&self, tokens: &[RevokedToken]) {
        let mut gated = self.lock();
        let ended = gated.admissions.on_revoked(tokens);
        gated.end(ended);
    }

    /// Ends what has expired.
    pub fn on_timeout(&self) {
        let mut gated = self.lock();
        let ended = gated.admissions.on_timeout(self.now());
        gated.end(ended);
    }

    /// Peers with access.
    pub fn n_admitted(&self) -> usize {
        self.lock().admissions.n_admitted()
    }

    fn lock(&self) -> MutexGuard<'_, Gated> {
        self.gated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gated {
    fn end(&mut self, ended: Vec<Ended>) {
        for Ended { peer, reason } in ended {
            if let Some(pass) = self.passes.remove(&peer) {
                tracing::info!(?peer, %reason, "access ended");
                pass.send_replace(Some(reason));
            }
        }
    }
}
