//! The gate before all conversations: refuses peers without access, and ends the conversations of peers that lose it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barnraise_protocol::access::{
    AccessMode, AccessRefusal, AccessToken, ConvictedWork, PublicKey, RequestRefusal, RevokedToken,
    SignedRequest, TokenId, TokenRefusal, UnixTime,
};
use barnraise_protocol::{Refusal, RefusalReason};
use barnraise_swarm::PeerKey;
use barnraise_swarm::access::{Admissions, EndedAccess, Policy, RequestGuard, RequestLimits};
use libp2p::PeerId;
use tokio::sync::watch;

use crate::host::clock::WallClock;

/// Most peers with access at a time.
const PEERS_MAX: usize = 100_000;

/// Why a peer may hold no conversation, or not any longer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Exclusion {
    /// It has no access.
    #[error(transparent)]
    Access(#[from] AccessRefusal),
    /// The operator blocked it, for this reason.
    #[error("the operator of this backbone has blocked this peer: {0}")]
    Blocked(String),
}

impl From<&Exclusion> for Refusal {
    fn from(exclusion: &Exclusion) -> Self {
        match exclusion {
            Exclusion::Access(refusal) => Self::Access(refusal.clone()),
            Exclusion::Blocked(reason) => Self::Blocked { reason: RefusalReason::of(reason) },
        }
    }
}

impl From<TokenRefusal> for Exclusion {
    fn from(refusal: TokenRefusal) -> Self {
        Self::Access(refusal.into())
    }
}

/// Checks access for every stream. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    policy: Policy,
    clock: WallClock,
    gated: Arc<Mutex<GateState>>,
    /// Convicted peers, and what each was convicted for.
    convicted: Arc<watch::Sender<HashMap<PeerKey, ConvictedWork>>>,
    /// Peers that the operator blocked, and why.
    blocked: Arc<watch::Sender<HashMap<PeerKey, String>>>,
}

struct GateState {
    admissions: Admissions,
    requests: RequestGuard,
    /// For each peer with access, the channel that says when and why it ends.
    passes: HashMap<PeerKey, watch::Sender<Option<TokenRefusal>>>,
}

/// The access of one peer, held for the length of a conversation.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    token: Option<watch::Receiver<Option<TokenRefusal>>>,
    conviction: Option<(PeerKey, watch::Receiver<HashMap<PeerKey, ConvictedWork>>)>,
    block: Option<(PeerKey, watch::Receiver<HashMap<PeerKey, String>>)>,
}

impl Pass {
    /// The pass of a conversation that needs no access.
    pub(crate) fn always() -> Self {
        Self::default()
    }

    /// Completes when the access ends, with the reason.
    pub async fn ended(&mut self) -> Exclusion {
        let Self { token, conviction, block } = self;
        let token_ended = async {
            let Some(end) = token else { return std::future::pending().await };
            // The sender is dropped only when the backbone shuts down.
            let reason = end.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            reason.unwrap_or(TokenRefusal::Revoked)
        };
        let convicted = async {
            let Some((peer, convicted)) = conviction else { return std::future::pending().await };
            let known = convicted.wait_for(|convicted| convicted.contains_key(peer)).await;
            let work = known.ok().and_then(|known| known.get(peer).copied());
            work.map_or(TokenRefusal::Revoked, TokenRefusal::Convicted)
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
    /// A gate without admitted peers.
    pub fn new(policy: Policy, here: PublicKey, clock: WallClock) -> Self {
        let gated = GateState {
            admissions: Admissions::new(policy.clone(), PEERS_MAX),
            requests: RequestGuard::new(here, RequestLimits::default()),
            passes: HashMap::new(),
        };
        let convicted = Arc::new(watch::channel(HashMap::new()).0);
        let blocked = Arc::new(watch::channel(HashMap::new()).0);
        Self { policy, clock, gated: Arc::new(Mutex::new(gated)), convicted, blocked }
    }

    /// The policy that decides on access.
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
        if let Some(work) = known {
            return Err(TokenRefusal::Convicted(work).into());
        }
        let conviction = Some((key.clone(), self.convicted.subscribe()));
        let block = Some((key.clone(), self.blocked.subscribe()));
        if self.policy.mode == AccessMode::Open {
            return Ok(Pass { token: None, conviction, block });
        }
        let gated = self.lock();
        gated.admissions.check(self.now(), &key)?;
        if gated.admissions.is_backbone(&key) {
            return Ok(Pass { token: None, conviction, block });
        }
        let pass = gated.passes.get(&key).ok_or(AccessRefusal::Needed { mode: self.policy.mode })?;
        Ok(Pass { token: Some(pass.subscribe()), conviction, block })
    }

    /// Sets the backbones of the run, which need no token here.
    pub fn set_backbones(&self, backbones: impl IntoIterator<Item = PublicKey>) {
        self.lock().admissions.set_backbones(backbones);
    }

    /// Whether `peer`, which has access, may also host experts.
    pub fn may_host(&self, peer: PeerId) -> bool {
        self.lock().admissions.may_host(&PeerKey(peer.to_bytes()))
    }

    /// Whether `peer` was blocked by the operator or convicted. This backbone sends no requests to such a peer, although
    /// it may have access at another backbone.
    pub fn is_excluded(&self, peer: &PeerKey) -> bool {
        self.blocked.borrow().contains_key(peer) || self.convicted.borrow().contains_key(peer)
    }

    /// Excludes `peer` for good, for what it gave: its conversations end, and it may begin no others.
    pub fn convict(&self, peer: PublicKey, work: ConvictedWork) {
        self.convicted.send_modify(|convicted| {
            convicted.entry(PeerKey(peer.to_peer_id())).or_insert(work);
        });
    }

    /// Whether [`Self::convict`] was called for `peer`.
    pub fn is_convicted(&self, peer: PublicKey) -> bool {
        self.convicted.borrow().contains_key(&PeerKey(peer.to_peer_id()))
    }

    /// Replaces the set of blocked peers, each with its reason: their conversations end.
    pub fn set_blocked(&self, blocked: HashMap<PeerKey, String>) {
        self.blocked.send_replace(blocked);
    }

    /// Convicted peers, and what each was convicted for.
    pub fn convicted(&self) -> Vec<(PeerKey, ConvictedWork)> {
        self.convicted.borrow().iter().map(|(peer, work)| (peer.clone(), *work)).collect()
    }

    /// `peer` presents a token over its own connection.
    ///
    /// # Errors
    /// Why the token gives no access.
    pub fn present(&self, peer: PeerId, token: &AccessToken) -> Result<UnixTime, AccessRefusal> {
        let key = PeerKey(peer.to_bytes());
        let mut gated = self.lock();
        let until = gated.admissions.on_token(self.now(), &key, token)?;
        gated.passes.entry(key).or_insert_with(|| watch::channel(None).0);
        Ok(until)
    }

    /// Accepts a signed request for processing, once.
    ///
    /// # Errors
    /// A check of DeDLOC appendix I.5 failed.
    pub fn take_request(&self, request: &SignedRequest) -> Result<(), RequestRefusal> {
        let mut gated = self.lock();
        let GateState { admissions, requests, .. } = &mut *gated;
        requests.on_request(self.now(), admissions, request)
    }

    /// All tokens that the authority revoked.
    pub(crate) fn revoked(&self) -> Vec<TokenId> {
        self.lock().admissions.revoked().collect()
    }

    /// Whether the authority revoked a token.
    pub(crate) fn has_revoked(&self, token: &AccessToken) -> bool {
        self.lock().admissions.check_revoked(token).is_err()
    }

    /// Ends the conversations of peers whose tokens the authority revoked.
    pub fn on_revoked(&self, tokens: &[RevokedToken]) {
        let mut gated = self.lock();
        let ended = gated.admissions.on_revoked(tokens);
        gated.end(ended);
    }

    /// Ends the conversations of peers whose tokens expired.
    pub fn on_timeout(&self) {
        let mut gated = self.lock();
        let ended = gated.admissions.on_timeout(self.now());
        gated.end(ended);
    }

    /// Number of peers with access.
    pub fn n_admitted(&self) -> usize {
        self.lock().admissions.n_admitted()
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.gated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GateState {
    fn end(&mut self, ended: Vec<EndedAccess>) {
        for EndedAccess { peer, reason } in ended {
            if let Some(pass) = self.passes.remove(&peer) {
                tracing::info!(?peer, %reason, "access ended");
                pass.send_replace(Some(reason));
            }
        }
    }
}
