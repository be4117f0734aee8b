//! How a host reaches those who keep the checkpoints of its experts.

use std::sync::Arc;
use std::time::Duration;

use barnraise_contributor::PlatformError;
use barnraise_contributor::hosting::{CopyTrouble, Keeper, KeeperNetwork, StoredExpert, StoredExpertError};
use barnraise_learning::hosted::HostedLayer;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{self, KeyPair, PublicKey};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::dht::checkpoints as records;
use barnraise_protocol::dht::{DhtRefusal, Record, UnixMillis};
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::{self, CheckpointVersion, ExpertCheckpoint};
use barnraise_protocol::experts::leases::{CopyHolder, Grantors, KnownHost};
use libp2p::Stream;

use super::super::find::now;
use super::super::sharing::announce::put_all;
use super::leasing;
use super::state::HostState;
use crate::computing::compute;
use crate::host::peer_id;
use crate::net::announced::open_announced;

#[derive(Debug, thiserror::Error)]
#[error("its key is no peer's")]
struct NoPeerError;

impl KeeperNetwork for HostState {
    type Stream = Stream;

    fn run_id(&self) -> &str {
        &self.run_id
    }

    fn layers(&self) -> &[HostedLayer] {
        &self.layers
    }

    fn key(&self) -> &KeyPair {
        &self.signer.key
    }

    fn grantors(&self) -> Option<Grantors> {
        self.keeper.grantors().cloned()
    }

    fn wall(&self) -> UnixMillis {
        now()
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn open_keeper(&self, keeper: &Keeper) -> Result<Stream, PlatformError> {
        let host = match keeper {
            Keeper::Backbone => {
                return self.home.open(checkpoints::PROTOCOL).await.map_err(PlatformError::network);
            }
            Keeper::Host(host) => host,
        };
        let peer = peer_id(host.peer).ok_or_else(|| PlatformError::network(NoPeerError))?;
        let node = &self.home.node;
        let showing = self.home.present(open_announced(node, peer, &host.addresses, access::PROTOCOL));
        showing.await.map_err(PlatformError::network)?;
        let opened = open_announced(node, peer, &host.addresses, checkpoints::PROTOCOL).await;
        opened.map_err(PlatformError::network)
    }

    async fn keepers(&self, place: ExpertPlace) -> Result<Vec<KnownHost>, PlatformError> {
        leasing::keepers(self, place).await.map_err(PlatformError::network)
    }

    async fn holders(&self, place: ExpertPlace) -> Result<Vec<CopyHolder>, PlatformError> {
        let holders = leasing::holders(self, vec![place]).await.map_err(PlatformError::network)?;
        Ok(holders.into_iter().flatten().collect())
    }

    async fn backbone(&self) -> Option<KnownHost> {
        let addresses = self.home.addresses().await;
        let key = PublicKey::of_peer_id(&self.home.peer().to_bytes())?;
        Some(KnownHost::new(key, addresses))
    }

    async fn checkpoint_records(&self, place: ExpertPlace) -> Result<Vec<Record>, PlatformError> {
        let found = self.home.look_up(records::key(&self.run_id, place)).await;
        found.map_err(PlatformError::network)
    }

    async fn put_record(&self, record: Record) -> Result<Result<(), DhtRefusal>, PlatformError> {
        let put = put_all(&self.home.node, self.home.peer(), vec![record]).await;
        Ok(put.map_err(PlatformError::network)?.pop().unwrap_or(Ok(())))
    }

    fn kept_here(&self, place: ExpertPlace) -> Vec<ExpertCheckpoint> {
        self.keeper.kept(place)
    }

    async fn read_kept(&self, place: ExpertPlace, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.keeper.read(place, sha256).await
    }

    async fn hashed(&self, bytes: Arc<[u8]>) -> Transfer {
        compute(bytes.len(), move || Transfer::of(&bytes)).await
    }

    async fn opened(
        &self,
        bytes: Vec<u8>,
        layer: &HostedLayer,
        version: CheckpointVersion,
    ) -> Result<StoredExpert, StoredExpertError> {
        let layer = layer.clone();
        compute(bytes.len(), move || StoredExpert::open_kept(&bytes, &layer, version)).await
    }

    fn on_trouble(&self, trouble: CopyTrouble<'_>) {
        match trouble {
            CopyTrouble::Useless(..) => tracing::warn!("{trouble}"),
            _ => tracing::debug!("{trouble}"),
        }
    }
}
