//! Other contributors that hold shards, honest or not, for the backbone in memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use barnraise_contributor::{PeerShardOutcome, Platform, PlatformError};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::shard;
use barnraise_swarm::PeerKey;
use barnraise_swarm::shards::Survey;
use tokio::task::spawn_local;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::{CutStream, DUPLEX_BYTES, TestPlatform, of_test_platform};

/// Behaviour of a peer that is asked for a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HolderBehaviour {
    Honest,
    /// Its streams end after so many bytes.
    BreaksOff(u64),
    /// Announces the shard, and sends other bytes.
    WrongBytes,
}

/// A platform with other peers, which claim to hold every shard.
pub(crate) struct PlatformWithPeers {
    pub(crate) platform: Rc<TestPlatform>,
    /// A peer's key is its index.
    pub(crate) peers: Vec<HolderBehaviour>,
    /// Most bytes of cached shards.
    pub(crate) room: u64,
    pub(crate) asked: RefCell<Vec<PeerKey>>,
    /// Peers that were reported for wrong bytes.
    pub(crate) wrong_senders: RefCell<Vec<PeerKey>>,
    is_surveyed: Cell<bool>,
    n_read: Rc<Cell<u64>>,
}

impl PlatformWithPeers {
    pub(crate) fn new(platform: &Rc<TestPlatform>, peers: &[HolderBehaviour]) -> Self {
        Self {
            platform: Rc::clone(platform),
            peers: peers.to_vec(),
            room: u64::MAX,
            asked: RefCell::default(),
            wrong_senders: RefCell::default(),
            is_surveyed: Cell::new(false),
            n_read: Rc::default(),
        }
    }
}

impl Platform for PlatformWithPeers {
    type Stream = CutStream;

    of_test_platform!();

    async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
        self.platform.connect().await
    }

    async fn open(&self, protocol: &'static str) -> Result<CutStream, PlatformError> {
        self.platform.open(protocol).await
    }

    async fn evict(&self, sha256: Sha256Hash) {
        self.platform.cache.borrow_mut().remove(&sha256);
    }

    fn shard_cache_bytes_max(&self) -> u64 {
        self.room
    }

    fn has_peers(&self) -> bool {
        true
    }

    fn survey(&self) -> Option<Survey> {
        if self.is_surveyed.replace(true) {
            return None;
        }
        let holders = (0..self.peers.len() as u8).map(|n| (PeerKey(vec![n]), (0..100).collect()));
        let here = PeerKey(vec![255]);
        Some(Survey { here, kept: [].into_iter().collect(), holders: holders.collect() })
    }

    async fn open_to(&self, peer: &PeerKey, protocol: &'static str) -> Result<CutStream, PlatformError> {
        assert_eq!(protocol, shard::PROTOCOL, "an open run asks for no token");
        self.asked.borrow_mut().push(peer.clone());
        let manner = self.peers[usize::from(peer.0[0])];
        let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
        let backbone = Rc::clone(&self.platform.backbone);
        spawn_local(async move {
            let lookup = async |id| {
                let (transfer, bytes) = backbone.shard_transfer(id);
                let mut sent = bytes.to_vec();
                if let HolderBehaviour::WrongBytes = manner {
                    sent[100] ^= 1;
                }
                Ok((transfer, Arc::from(sent)))
            };
            // The contributor may hang up at any time.
            let _ = shard::serve(&mut theirs.compat(), lookup, || ()).await;
        });
        let left = match manner {
            HolderBehaviour::BreaksOff(n_bytes) => Some(n_bytes),
            HolderBehaviour::Honest | HolderBehaviour::WrongBytes => None,
        };
        Ok(CutStream { inner: ours.compat(), left, read: Rc::clone(&self.n_read) })
    }

    fn on_peer_shard(&self, peer: &PeerKey, _: u32, outcome: PeerShardOutcome<'_>) {
        if let PeerShardOutcome::Wrong = outcome {
            self.wrong_senders.borrow_mut().push(peer.clone());
        }
    }
}
