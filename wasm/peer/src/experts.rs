//! How models that are tried beside the contributor ask experts on other peers: over the tab's links, whether or not it
//! contributes.

use std::cell::Cell;
use std::rc::Rc;

use barnraise_contributor::{ExpertNetwork, ExpertService, PlatformError};
use barnraise_learning::experts::ExpertPort;
use barnraise_learning::{ModelError, Trainer};
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::dht::{self, Freshness, Record, RecordKey, UnixMillis};
use barnraise_protocol::experts::{self, ExpertPlace, audits, leases};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::dht::StorageLimits;
use barnraise_swarm::{Moment, PeerKey};
use libp2p::PeerId;
use wasm_bindgen_futures::spawn_local;
use web_time::Instant;

use crate::platform::{TabNetwork, unix_time};

/// Without its experts it would be another model.
#[derive(Debug, thiserror::Error)]
#[error("its experts are on other machines, and none of them answered")]
pub(crate) struct NoExpertAnswered;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct TrialExperts {
    network: Rc<TabNetwork>,
    origin: Instant,
    /// Rows that experts answered.
    answered: Rc<Cell<u64>>,
}

/// Whether experts answered while something was computed.
pub(crate) struct ExpertWatch {
    answered: Rc<Cell<u64>>,
    before: u64,
    asks: bool,
}

impl TrialExperts {
    pub(crate) fn new(network: Rc<TabNetwork>) -> Self {
        Self { network, origin: Instant::now(), answered: Rc::default() }
    }

    /// Watches what a trainer computes from now on.
    pub(crate) fn watch(&self, trainer: &Trainer) -> ExpertWatch {
        let answered = Rc::clone(&self.answered);
        ExpertWatch { before: answered.get(), answered, asks: trainer.asks_experts() }
    }

    /// The trainer, which asks the experts of a run where its model has such.
    ///
    /// # Errors
    /// A model that does not fit the run's data.
    pub(crate) fn equip(&self, trainer: Trainer, run: &RunDescription) -> Result<Trainer, ModelError> {
        let seed = self.now().subsec_nanos().into();
        let Some(service) = ExpertService::new(self.clone(), &Rc::new(run.clone()), (seed, 0))? else {
            return Ok(trainer);
        };
        let service = service.counting(Rc::clone(&self.answered));
        let (port, calls) = ExpertPort::new();
        // It ends with the trainer.
        spawn_local(service.serve(calls));
        Ok(trainer.with_experts(port))
    }
}

impl ExpertWatch {
    /// # Errors
    /// It asked experts, and none answered.
    pub(crate) fn check(self) -> Result<(), NoExpertAnswered> {
        match self.asks && self.answered.get() == self.before {
            true => Err(NoExpertAnswered),
            false => Ok(()),
        }
    }
}

impl ExpertNetwork for TrialExperts {
    type Stream = libp2p::Stream;
    type BackboneStream = libp2p::Stream;

    fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    fn unix_time(&self) -> UnixTime {
        unix_time()
    }

    async fn sleep_until(&self, at: Moment) {
        gloo::timers::future::sleep(at.saturating_sub(self.now())).await;
    }

    async fn look_up(&self, keys: Vec<RecordKey>) -> Result<Vec<Vec<Record>>, PlatformError> {
        let opened = self.network.open_any_backbone(dht::PROTOCOL).await;
        let mut stream = opened.map_err(PlatformError::network)?;
        let wall = UnixMillis(js_sys::Date::now() as u64);
        let lifetime_max = StorageLimits::default().lifetime_max;
        let found = dht::get(&mut stream, keys, Freshness::Any, wall, lifetime_max).await;
        found.map_err(PlatformError::network)
    }

    async fn holders(
        &self,
        run_id: &str,
        places: Vec<ExpertPlace>,
    ) -> Result<Vec<Vec<leases::CopyHolder>>, PlatformError> {
        let opened = self.network.open_any_backbone(leases::PROTOCOL).await;
        let mut stream = opened.map_err(PlatformError::network)?;
        leases::holders(&mut stream, run_id, places).await.map_err(PlatformError::network)
    }

    async fn open_audit(&self) -> Result<libp2p::Stream, PlatformError> {
        self.network.open_any_backbone(audits::PROTOCOL).await.map_err(PlatformError::network)
    }

    async fn open_host(&self, host: &PeerKey, addresses: &[Vec<u8>]) -> Result<Self::Stream, PlatformError> {
        let host = PeerId::from_bytes(&host.0).map_err(PlatformError::network)?;
        let opened = self.network.open_host(host, addresses, experts::PROTOCOL).await;
        opened.map_err(PlatformError::network)
    }
}
