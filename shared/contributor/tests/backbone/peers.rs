//! Other contributors that keep shards, honest or not, beside the backbone in memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use barnraise_contributor::{PeerShard, Platform};
use barnraise_learning::DeviceChoice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::shard;
use barnraise_swarm::shards::Survey;
use barnraise_swarm::{Moment, PeerKey};
use tokio::task::spawn_local;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::{CutStream, DUPLEX_BYTES, TestPlatform};

/// What a peer does that is asked for a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Manner {
    Honest,
    /// Its streams end after so many bytes.
    BreaksOff(u64),
    /// Announces the shard, and sends other bytes.
    Lies,
}

/// A contributor that can ask other peers, who keep every shard as they say.
pub(crate) struct WithPeers {
    pub(crate) platform: Rc<TestPlatform>,
    /// The peer's name is its place.
    pub(crate) peers: Vec<Manner>,
    /// Bytes that shards may take.
    pub(crate) room: u64,
    pub(crate) asked: RefCell<Vec<PeerKey>>,
    pub(crate) liars: RefCell<Vec<PeerKey>>,
    is_surveyed: Cell<bool>,
    n_read: Rc<Cell<u64>>,
}

impl WithPeers {
    pub(crate) fn new(platform: &Rc<TestPlatform>, peers: &[Manner]) -> Self {
        Self {
            platform: Rc::clone(platform),
            peers: peers.to_vec(),
            room: u64::MAX,
            asked: RefCell::default(),
            liars: RefCell::default(),
            is_surveyed: Cell::new(false),
            n_read: Rc::default(),
        }
    }
}

impl Platform for WithPeers {
    type Stream = CutStream;

    fn now(&self) -> Moment {
        self.platform.now()
    }

    fn unix_time(&self) -> UnixTime {
        self.platform.unix_time()
    }

    fn device_kind(&self, choice: DeviceChoice) -> DeviceKind {
        self.platform.device_kind(choice)
    }

    async fn sleep_until(&self, at: Moment) {
        self.platform.sleep_until(at).await;
    }

    async fn yield_now(&self) {
        self.platform.yield_now().await;
    }

    async fn connect(&self) -> Result<Vec<u8>, String> {
        self.platform.connect().await
    }

    fn elsewhere(&self, addresses: Vec<String>) {
        self.platform.elsewhere(addresses);
    }

    async fn disconnect(&self) {
        self.platform.disconnect().await;
    }

    async fn open(&self, protocol: &'static str) -> Result<CutStream, String> {
        self.platform.open(protocol).await
    }

    async fn cached(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.platform.cached(sha256).await
    }

    async fn cache(&self, sha256: Sha256Hash, bytes: &[u8]) {
        self.platform.cache(sha256, bytes).await;
    }

    async fn forget(&self, sha256: Sha256Hash) {
        self.platform.cache.borrow_mut().remove(&sha256);
    }

    fn shard_room(&self) -> u64 {
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

    async fn open_to(&self, peer: &PeerKey, protocol: &'static str) -> Result<CutStream, String> {
        assert_eq!(protocol, shard::PROTOCOL, "an open run asks for no token");
        self.asked.borrow_mut().push(peer.clone());
        let manner = self.peers[usize::from(peer.0[0])];
        let (ours, theirs) = tokio::io::duplex(DUPLEX_BYTES);
        let backbone = Rc::clone(&self.platform.backbone);
        spawn_local(async move {
            let lookup = async |id| {
                let (transfer, bytes) = backbone.shard_transfer(id);
                let mut sent = bytes.to_vec();
                if let Manner::Lies = manner {
                    sent[100] ^= 1;
                }
                Ok((transfer, Arc::from(sent)))
            };
            // The contributor may hang up at any time.
            let _ = shard::serve(&mut theirs.compat(), lookup, || ()).await;
        });
        let left = match manner {
            Manner::BreaksOff(n_bytes) => Some(n_bytes),
            Manner::Honest | Manner::Lies => None,
        };
        Ok(CutStream { inner: ours.compat(), left, read: Rc::clone(&self.n_read) })
    }

    fn on_peer_shard(&self, peer: &PeerKey, _: u32, outcome: PeerShard<'_>) {
        if outcome == PeerShard::Wrong {
            self.liars.borrow_mut().push(peer.clone());
        }
    }
}
