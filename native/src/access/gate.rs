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

/// Why a peer may hold no conversation, or no longer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Exclusion {
    /// It has no access.
    #[error(transparent)]
    Access(#[from] Refusal),
    /// The operator keeps it out, with the reason.
    #[error("the operator of this backbone has blocked this peer: {0}")]
    Blocked(String),
}

impl From<TokenRefusal> for Exclusion {
    fn from(refusal: TokenRefusal) -> Self {
        Self::Access(refusal.into())
    }
}

/// Asked for every stream. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    policy: Policy,
    clock: WallClock,
    gated: Arc<Mutex<Gated>>,
    /// Peers that take no more part, and the epoch of what they were convicted of.
    convicted: Arc<watch::Sender<HashMap<PeerKey, u64>>>,
    /// Peers that the operator keeps out, and why.
    blocked: Arc<watch::Sender<HashMap<PeerKey, String>>>,
}

struct Gated {
    admissions: Admissions,
    requests: RequestGuard,
    /// Of each peer with access, told when it ends.
    passes: HashMap<PeerKey, watch::Sender<Option<TokenRefusal>>>,
}

/// One peer's access, for as long as a conversation needs it.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    token: Option<watch::Receiver<Option<TokenRefusal>>>,
    conviction: Option<(PeerKey, watch::Receiver<HashMap<PeerKey, u64>>)>,
    block: Option<(PeerKey, watch::Receiver<HashMap<PeerKey, String>>)>,
}

impl Pass {
    /// For a conversation that needs no access.
    pub(crate) fn always() -> Self {
        Self::default()
    }

    /// Completes when the access ends, with the reason.
    pub async fn ended(&mut self) -> Exclusion {
        let Self { token, conviction, block } = self;
        let token_ended = async {
            let Some(end) = token else { return std::future::pending().await };
            // Where the gate itself is gone the backbone shuts down.
            let reason = end.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            reason.unwrap_or(TokenRefusal::Revoked)
        };
        let convicted = async {
            let Some((peer, convicted)) = conviction else { return std::future::pending().await };
            let known = convicted.wait_for(|convicted| convicted.contains_key(peer)).await;
            let epoch = known.ok().and_then(|known| known.get(peer).copied());
            epoch.map_or(TokenRefusal::Revoked, |epoch| TokenRefusal::Convicted { epoch })
        };
        let blocked = async {
            let Some((peer, blocked)) = block else { return std::future::pending().await };
            let known = blocked.wait_for(|blocked| blocked.contains_key(peer)).await;
            let reason = known.ok().and_then(|known| known.get(peer).cloned());
            reason.map_or_else(|| TokenRefusal::Revoked.into(), Exclusion::Blocked)
        };
        tokio::select! {
            reason = token_ended => reason.into(),
            reason = convicted => reason.into(),
            reason = blocked => reason,
        }
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
        let convicted = Arc::new(watch::channel(HashMap::new()).0);
        let blocked = Arc::new(watch::channel(HashMap::new()).0);
        Self { policy, clock, gated: Arc::new(Mutex::new(gated)), convicted, blocked }
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
    pub fn check(&self, peer: PeerId) -> Result<Pass, Exclusion> {
        let key = PeerKey(peer.to_bytes());
        let blocked = self.blocked.borrow().get(&key).cloned();
        if let Some(reason) = blocked {
            return Err(Exclusion::Blocked(reason));
        }
        let known = self.convicted.borrow().get(&key).copied();
        if let Some(epoch) = known {
            return Err(TokenRefusal::Convicted { epoch }.into());
        }
        let conviction = Some((key.clone(), self.convicted.subscribe()));
        let block = Some((key.clone(), self.blocked.subscribe()));
        if self.policy.mode == AccessMode::Open {
            return Ok(Pass { token: None, conviction, block });
        }
        let gated = self.lock();
        gated.admissions.check(self.now(), &key)?;
        let pass = gated.passes.get(&key).ok_or(Refusal::Needed { mode: self.policy.mode })?;
        Ok(Pass { token: Some(pass.subscribe()), conviction, block })
    }

    /// Whether the operator keeps `peer` out, or it was convicted: nothing is asked of it then, although it may have
    /// access at another backbone.
    pub fn is_out(&self, peer: &PeerKey) -> bool {
        self.blocked.borrow().contains_key(peer) || self.convicted.borrow().contains_key(peer)
    }

    /// `peer` takes no more part, for what it contributed to `epoch`: its conversations end, and there are no others.
    pub fn convict(&self, peer: PublicKey, epoch: u64) {
        self.convicted.send_modify(|convicted| {
            convicted.entry(PeerKey(peer.to_peer_id())).or_insert(epoch);
        });
    }

    /// Whether [`Self::convict`] was told of `peer`.
    pub fn is_convicted(&self, peer: PublicKey) -> bool {
        self.convicted.borrow().contains_key(&PeerKey(peer.to_peer_id()))
    }

    /// The operator keeps exactly these out from now on, with the reason of each: their conversations end.
    pub fn block_only(&self, blocked: HashMap<PeerKey, String>) {
        self.blocked.send_replace(blocked);
    }

    /// Those who take no more part, and the epoch of what each was convicted of.
    pub fn convicted(&self) -> Vec<(PeerKey, u64)> {
        self.convicted.borrow().iter().map(|(peer, epoch)| (peer.clone(), *epoch)).collect()
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
