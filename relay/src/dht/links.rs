//! Reuses streams to other peers for further requests, and backs off from peers that do not answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use barnraise_protocol::dht::{self, DhtError, NodeToPeer, PROTOCOL, PeerAddresses, PeerToNode};
use libp2p::{PeerId, Stream};
use tokio::sync::Semaphore;

use super::{DhtConfig, lock};
use crate::{Node, NodeError, OpenError};

/// Streams to one peer that wait for the next request.
const IDLE_MAX: usize = 4;
/// Longest backoff from a peer that fails repeatedly.
const AVOID_MAX: Duration = Duration::from_secs(300);

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("{0} bytes that are no peer id: {1}")]
    PeerId(usize, libp2p::identity::ParseError),
    #[error("the peer did not answer lately and is not asked for a while")]
    Avoided,
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] DhtError),
}

#[derive(Debug)]
pub(super) struct Links {
    node: Node,
    peers: Mutex<HashMap<PeerId, Arc<PeerStreams>>>,
    requests: Semaphore,
    requests_per_peer: usize,
    timeout: Duration,
    avoid: Duration,
    idle_timeout: Duration,
}

#[derive(Debug)]
struct PeerStreams {
    idle: Mutex<Vec<(Stream, Instant)>>,
    requests: Semaphore,
    /// One dial at a time.
    dialling: tokio::sync::Mutex<()>,
    health: Mutex<Health>,
}

#[derive(Debug, Default)]
struct Health {
    avoided_until: Option<Instant>,
    n_failures: u32,
}

impl Links {
    pub(super) fn new(node: Node, config: &DhtConfig) -> Self {
        Self {
            node,
            peers: Mutex::new(HashMap::new()),
            requests: Semaphore::new(config.requests),
            requests_per_peer: config.requests_per_peer,
            timeout: config.traversal.timeout,
            avoid: config.avoid,
            idle_timeout: config.idle_timeout,
        }
    }

    /// Asks a peer, over a stream that stands or a new one, and dials it where there is no connection.
    pub(super) async fn ask(
        &self,
        peer: &PeerAddresses,
        question: &PeerToNode,
    ) -> Result<NodeToPeer, RequestError> {
        let id = PeerId::from_bytes(&peer.peer_id)
            .map_err(|error| RequestError::PeerId(peer.peer_id.len(), error))?;
        let link = self.link(id);
        if link.is_avoided() {
            return Err(RequestError::Avoided);
        }
        let asking = self.ask_in_time(id, &link, &peer.addresses, question);
        let answer = tokio::time::timeout(self.timeout, asking).await;
        let answer = answer.unwrap_or(Err(RequestError::Timeout(self.timeout)));
        match &answer {
            // A refusal is an answer, too.
            Ok(_) | Err(RequestError::Conversation(DhtError::Refused(_))) => link.on_answer(),
            Err(_) => link.on_failure(self.avoid),
        }
        answer
    }

    async fn ask_in_time(
        &self,
        peer: PeerId,
        link: &PeerStreams,
        addresses: &[Vec<u8>],
        question: &PeerToNode,
    ) -> Result<NodeToPeer, RequestError> {
        // Neither semaphore is ever closed.
        let _one_of_all = self.requests.acquire().await.ok();
        let _one_of_peer = link.requests.acquire().await.ok();
        let idle = lock(&link.idle).pop();
        if let Some((mut stream, _)) = idle {
            // The other side may have closed it meanwhile; then another one is opened.
            match dht::ask(&mut stream, question).await {
                Err(DhtError::Frame(_)) => {}
                answer => return Ok(link.keep(stream, answer)?),
            }
        }
        let mut stream = self.open(peer, link, addresses).await?;
        let answer = dht::ask(&mut stream, question).await;
        Ok(link.keep(stream, answer)?)
    }

    async fn open(
        &self,
        peer: PeerId,
        link: &PeerStreams,
        addresses: &[Vec<u8>],
    ) -> Result<Stream, NodeError> {
        if let Some(stream) = self.try_open(peer).await? {
            return Ok(stream);
        }
        let _only_one = link.dialling.lock().await;
        // The previous dial may have succeeded.
        if let Some(stream) = self.try_open(peer).await? {
            return Ok(stream);
        }
        self.node.dial_peer(peer, self.node.within_reach(addresses).await).await?;
        self.node.open(peer, PROTOCOL).await
    }

    /// `None` without a connection.
    async fn try_open(&self, peer: PeerId) -> Result<Option<Stream>, NodeError> {
        match self.node.open(peer, PROTOCOL).await {
            Ok(stream) => Ok(Some(stream)),
            Err(NodeError::Open { source: OpenError::NotConnected, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn link(&self, peer: PeerId) -> Arc<PeerStreams> {
        let new = || {
            Arc::new(PeerStreams {
                idle: Mutex::new(Vec::new()),
                requests: Semaphore::new(self.requests_per_peer),
                dialling: tokio::sync::Mutex::new(()),
                health: Mutex::new(Health::default()),
            })
        };
        lock(&self.peers).entry(peer).or_insert_with(new).clone()
    }

    /// Drops streams that nobody used for a while, and peers of which nothing is to be remembered.
    pub(super) fn close_idle(&self) {
        let Some(oldest) = Instant::now().checked_sub(self.idle_timeout) else { return };
        lock(&self.peers).retain(|_, link| {
            let mut idle = lock(&link.idle);
            idle.retain(|(_, since)| *since > oldest);
            !idle.is_empty() || Arc::strong_count(link) > 1 || link.is_avoided()
        });
    }
}

impl PeerStreams {
    /// A stream is good for another question after an answer, and after no error.
    fn keep(&self, stream: Stream, answer: Result<NodeToPeer, DhtError>) -> Result<NodeToPeer, DhtError> {
        if matches!(answer, Ok(_) | Err(DhtError::Refused(_))) {
            let mut idle = lock(&self.idle);
            if idle.len() < IDLE_MAX {
                idle.push((stream, Instant::now()));
            }
        }
        answer
    }

    fn is_avoided(&self) -> bool {
        lock(&self.health).avoided_until.is_some_and(|until| until > Instant::now())
    }

    fn on_answer(&self) {
        *lock(&self.health) = Health::default();
    }

    fn on_failure(&self, avoid: Duration) {
        let mut health = lock(&self.health);
        let wait = avoid.saturating_mul(2u32.saturating_pow(health.n_failures)).min(AVOID_MAX);
        health.n_failures += 1;
        health.avoided_until = Some(Instant::now() + wait);
    }
}
