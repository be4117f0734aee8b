//! Publishes this backbone's progress in the DHT, and reads that of the other aggregators: a backbone that is cut off
//! from all of them learns that they are ahead.
//!
//! It only informs the operator: whose model is followed is decided by what comes over the links.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::dht::Freshness;
use barnraise_protocol::dht::progress::{self, BackboneProgress, LIFETIME, LocalProgress};
use barnraise_relay::dht::Dht;
use libp2p::PeerId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::aggregators::Links;
use super::metrics::Metrics;
use crate::config::AggregatorsSection;
use crate::net::speed::{SpeedMeter, Speeds};

/// Interval at which progress is published and read: three times within the record's lifetime.
const EVERY: Duration = Duration::from_secs(12);

const _: () = assert!(EVERY.as_millis() * 3 < LIFETIME.as_millis());

/// What a record contains beside the progress of the run, and whose records are read.
pub(super) struct ProgressAnnouncer {
    pub(super) run_id: String,
    pub(super) key: KeyPair,
    /// The other aggregators.
    pub(super) others: BTreeSet<PeerId>,
    pub(super) speed: SpeedMeter,
    /// Those of them that a link is up to.
    pub(super) links: Links,
}

impl ProgressAnnouncer {
    /// From the configuration.
    pub(super) fn new(
        run_id: String,
        key: KeyPair,
        aggregators: &AggregatorsSection,
        (links, speed): (Links, SpeedMeter),
    ) -> Self {
        let here = PeerId::from_bytes(&key.public().to_peer_id()).ok();
        let others = aggregators.peers().map(|(peer, _)| peer).filter(|peer| Some(*peer) != here).collect();
        Self { run_id, key, others, speed, links }
    }

    fn says(&self, progress: LocalProgress, dht: &Dht) -> BackboneProgress {
        let aggregators = self.others.iter().filter_map(|peer| PublicKey::of_peer_id(&peer.to_bytes()));
        let Speeds { download, upload } = self.speed.speeds();
        BackboneProgress {
            peer: self.key.public(),
            progress,
            bytes_per_second: download.min(upload),
            aggregators: aggregators.collect(),
            reported_at: dht.now(),
        }
    }
}

/// Publishes and reads progress until `shutdown`.
pub(super) async fn tell(
    dht: Dht,
    telling: ProgressAnnouncer,
    stands: watch::Receiver<LocalProgress>,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let mut warned = BTreeMap::new();
    loop {
        let progress = *stands.borrow();
        let round = async {
            match telling.says(progress, &dht).sign(&telling.key, &telling.run_id) {
                Ok(record) => {
                    if let Some(Err(refusal)) = dht.store(vec![record]).await.pop() {
                        tracing::warn!(%refusal, "the DHT does not keep how this backbone stands");
                    }
                }
                Err(error) => tracing::warn!(%error, "no record of how this backbone stands can be made"),
            }
            if !telling.others.is_empty() {
                let records = dht.get_one(progress::key(&telling.run_id), Freshness::Newest).await;
                let said: Vec<_> = records.iter().filter_map(BackboneProgress::read).collect();
                let cut_off = |peer: &PeerId| telling.others.contains(peer) && !telling.links.has(peer);
                let ahead = ahead(stands.borrow().epoch, &said, cut_off);
                say(&metrics, &mut warned, ahead, stands.borrow().epoch);
            }
            tokio::time::sleep(EVERY).await;
        };
        if shutdown.run_until_cancelled(round).await.is_none() {
            return;
        }
    }
}

/// Peers that `counts` and that are ahead of `epoch`, with their epochs.
fn ahead(epoch: u64, said: &[BackboneProgress], counts: impl Fn(&PeerId) -> bool) -> BTreeMap<PeerId, u64> {
    let of = |said: &BackboneProgress| {
        let peer = PeerId::from_bytes(&said.peer.to_peer_id()).ok()?;
        (said.progress.epoch > epoch && counts(&peer)).then_some((peer, said.progress.epoch))
    };
    said.iter().filter_map(of).collect()
}

/// Warns once for each aggregator that is newly ahead.
fn say(metrics: &Metrics, warned: &mut BTreeMap<PeerId, u64>, ahead: BTreeMap<PeerId, u64>, epoch_here: u64) {
    let most = ahead.values().max().map_or(0, |epoch| epoch.saturating_sub(epoch_here));
    metrics.on_cut_off(most);
    for (peer, epoch) in ahead.iter().filter(|(peer, _)| !warned.contains_key(peer)) {
        tracing::warn!(%peer, epoch, epoch_here, "this aggregator is ahead, as the DHT says, and no link leads to it");
    }
    *warned = ahead;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn says(seed: u8, epoch: u64) -> (PeerId, BackboneProgress) {
        let peer = KeyPair::from_seed(&[seed; 32]).public();
        let progress = LocalProgress {
            epoch,
            n_samples_total: 0,
            model: None,
            n_samples: 0,
            n_contributors: 0,
            samples_per_second: 0.0,
        };
        let said = BackboneProgress {
            peer,
            progress,
            bytes_per_second: 1,
            aggregators: Vec::new(),
            reported_at: barnraise_protocol::dht::UnixMillis(1),
        };
        (PeerId::from_bytes(&peer.to_peer_id()).unwrap(), said)
    }

    #[test]
    fn only_those_who_count_are_ahead() {
        let ((one, of_one), (other, of_other)) = (says(1, 12), says(2, 9));
        // A peer that is no aggregator may claim any epoch.
        let (_, of_stranger) = says(3, u64::MAX);
        let said = [of_one, of_other, of_stranger];
        let counts = |peer: &PeerId| [one, other].contains(peer);
        assert_eq!(ahead(10, &said, counts), BTreeMap::from([(one, 12)]));
        assert_eq!(ahead(12, &said, counts), BTreeMap::new());
        assert_eq!(ahead(0, &said, |peer| *peer == other), BTreeMap::from([(other, 9)]));
    }
}
