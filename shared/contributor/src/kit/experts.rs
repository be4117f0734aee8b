//! How the passes of a participant reach experts on other peers: its backbone searches the DHT for it, the platform dials.

use std::rc::Rc;

use barnraise_protocol::access::UnixTime;
use barnraise_protocol::dht::{self, Freshness, Record, RecordKey, UnixMillis};
use barnraise_protocol::experts;
use barnraise_swarm::dht::StorageLimits;
use barnraise_swarm::{Moment, PeerKey};

use super::meter::{Metered, TrafficMeter};
use super::operation::CountedStream;
use crate::experts::ExpertNetwork;
use crate::platform::{Platform, PlatformError};

/// Counts what it costs: a visitor may have bounded the data of a day.
pub(super) struct OfPlatform<'a, P> {
    pub(super) platform: &'a P,
    pub(super) meter: Rc<TrafficMeter>,
}

impl<P> Clone for OfPlatform<'_, P> {
    fn clone(&self) -> Self {
        Self { platform: self.platform, meter: Rc::clone(&self.meter) }
    }
}

impl<P: Platform> ExpertNetwork for OfPlatform<'_, P> {
    type Stream = CountedStream<P>;

    fn now(&self) -> Moment {
        self.platform.now()
    }

    fn unix_time(&self) -> UnixTime {
        self.platform.unix_time()
    }

    async fn sleep_until(&self, at: Moment) {
        self.platform.sleep_until(at).await;
    }

    async fn look_up(&self, keys: Vec<RecordKey>) -> Result<Vec<Vec<Record>>, PlatformError> {
        let stream = self.platform.open(dht::PROTOCOL).await?;
        let mut stream = Metered::new(stream, Rc::clone(&self.meter));
        let wall = UnixMillis(self.unix_time().0.saturating_mul(1000));
        let lifetime_max = StorageLimits::default().lifetime_max;
        let found = dht::get(&mut stream, keys, Freshness::Any, wall, lifetime_max).await;
        found.map_err(PlatformError::network)
    }

    async fn open_host(&self, host: &PeerKey, addresses: &[Vec<u8>]) -> Result<Self::Stream, PlatformError> {
        let stream = self.platform.open_host(host, addresses, experts::PROTOCOL).await?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)).with_peer())
    }
}
