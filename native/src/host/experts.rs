//! How a backbone asks experts on other peers, to evaluate a model that has such.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use barnraise_contributor::{ExpertNetwork, ExpertService, PlatformError};
use barnraise_learning::ModelError;
use barnraise_learning::experts::ExpertPort;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::dht::{Freshness, Record, RecordKey};
use barnraise_protocol::experts::leases::{CopyHolder, LeaseRefusal};
use barnraise_protocol::experts::{self, ExpertPlace};
use barnraise_protocol::run::RunDescription;
use barnraise_relay::Node;
use barnraise_relay::dht::Dht;
use barnraise_swarm::{Moment, PeerKey};
use futures::future::{self, Either};
use libp2p::{PeerId, Stream};
use tokio::runtime::Handle;

use crate::net::announced::open_announced;

/// Says which hosts have these places now, in their order.
pub(crate) type HolderLookUp =
    Arc<dyn Fn(&[ExpertPlace]) -> Result<Vec<Vec<CopyHolder>>, LeaseRefusal> + Send + Sync>;

/// What a backbone asks experts with.
#[derive(Clone)]
pub(crate) struct AskedExperts {
    pub(crate) run: RunDescription,
    pub(crate) node: Node,
    pub(crate) dht: Dht,
    /// Says which hosts have which experts.
    pub(crate) holders: Option<HolderLookUp>,
    /// Of the process.
    pub(crate) runtime: Handle,
}

#[derive(Clone)]
struct HostNetwork {
    node: Node,
    dht: Dht,
    holders: Option<HolderLookUp>,
    started: Instant,
}

impl AskedExperts {
    /// Does some work that asks experts through a port. Blocks: call it on a thread of its own.
    ///
    /// # Errors
    /// Those of the work; a model that does not fit the run's data.
    pub(crate) fn with<T>(
        &self,
        work: impl AsyncFnOnce(ExpertPort) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        let (node, dht, holders) = (self.node.clone(), self.dht.clone(), self.holders.clone());
        let network = HostNetwork { node, dht, holders, started: Instant::now() };
        let (port, calls) = ExpertPort::new();
        let service = ExpertService::new(network, &Rc::new(self.run.clone()), (0, 0))?;
        self.runtime.block_on(async {
            let working = std::pin::pin!(work(port));
            let serving = std::pin::pin!(async {
                match service {
                    Some(service) => Box::pin(service.serve(calls)).await,
                    None => drop(calls),
                }
            });
            match future::select(working, serving).await {
                Either::Left((result, _)) => result,
                // Nobody answers any more: the work goes on without experts.
                Either::Right(((), working)) => working.await,
            }
        })
    }
}

impl ExpertNetwork for HostNetwork {
    type Stream = Stream;
    type BackboneStream = Stream;

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    fn unix_time(&self) -> UnixTime {
        UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    async fn sleep_until(&self, at: Moment) {
        tokio::time::sleep(at.saturating_sub(self.now())).await;
    }

    async fn look_up(&self, keys: Vec<RecordKey>) -> Result<Vec<Vec<Record>>, PlatformError> {
        let found = self.dht.get(&keys, Freshness::Any).await;
        tracing::debug!(n_keys = keys.len(), n_records = found.iter().flatten().count(), "looked up experts");
        Ok(found)
    }

    async fn holders(
        &self,
        _: &str,
        places: Vec<ExpertPlace>,
    ) -> Result<Vec<Vec<CopyHolder>>, PlatformError> {
        let holders = self.holders.as_ref().ok_or(PlatformError::NotConnected)?;
        holders(&places).map_err(PlatformError::network)
    }

    async fn open_audit(&self) -> Result<Stream, PlatformError> {
        // Hosts know a backbone by its key: what they say to it proves nothing of what they say to trainers.
        Err(PlatformError::NotConnected)
    }

    async fn open_host(&self, host: &PeerKey, addresses: &[Vec<u8>]) -> Result<Stream, PlatformError> {
        let peer = PeerId::from_bytes(&host.0).map_err(PlatformError::network)?;
        let opening = open_announced(&self.node, peer, addresses, experts::PROTOCOL);
        opening.await.map_err(|error| {
            tracing::debug!(%peer, %error, "a host of experts cannot be reached");
            PlatformError::network(error)
        })
    }
}
