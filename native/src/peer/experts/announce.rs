//! Tells the DHT of this host's experts, through the backbone, which is a DHT peer.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::dht::DhtRefusal;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_relay::tasks;
use barnraise_swarm::experts::{AnnouncerAction, ExpertAnnouncer};
use tokio_util::task::AbortOnDropHandle;

use super::super::find::now;
use super::super::sharing::announce::put_all;
use super::state::HostState;
use crate::net::announced::to_announce_to_all;

/// Interval of looks at what has changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Announces until the handle is dropped. Records expire by themselves.
pub(super) fn spawn(state: Arc<HostState>) -> AbortOnDropHandle<()> {
    tasks::spawn("announcing experts", async move {
        let (node, key) = (state.home.node.clone(), state.signer.key.clone());
        let mut known: Vec<ExpertPlace> = Vec::new();
        let seed = key.public().seed();
        let mut announcer = ExpertAnnouncer::new(key, state.run_id.clone(), Vec::new(), seed);
        let mut is_clock_told = false;
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            let addresses = to_announce_to_all(node.addresses(), node.reachability());
            announcer.on_addresses(state.now(), addresses);
            let announced = state.announced();
            let places: Vec<ExpertPlace> = announced.iter().map(|(layer, it)| (*layer, it.uid)).collect();
            for (layer, uid) in known.iter().filter(|place| !places.contains(place)) {
                announcer.on_removed(*layer, *uid);
            }
            known = places;
            for (layer, expert) in announced {
                if let Err(error) = announcer.on_expert(state.now(), layer, expert) {
                    tracing::warn!(%error, "an expert is not announced");
                }
            }
            while let Ok(Some(AnnouncerAction::Put(records))) = announcer.poll_action(state.now(), now()) {
                match put_all(&node, state.home.peer(), records).await {
                    Ok(verdicts) => {
                        for refusal in verdicts.into_iter().filter_map(Result::err) {
                            tracing::debug!(%refusal, "the DHT did not take a record of an expert");
                            let is_of_clocks = is_of_clocks(&refusal);
                            if is_of_clocks && !is_clock_told {
                                let now_ms = now().0;
                                tracing::warn!(%refusal, now_ms, "trainers do not find the experts of this host: \
                                    compare its clock with that of the backbone");
                            }
                            is_clock_told |= is_of_clocks;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "experts could not be announced in the DHT");
                        announcer.on_put_failed(state.now());
                    }
                }
            }
        }
    })
}

/// Whether a record was refused for its time alone: it is made now, so that one of the two clocks is wrong.
fn is_of_clocks(refusal: &DhtRefusal) -> bool {
    matches!(refusal, DhtRefusal::Expired { .. } | DhtRefusal::TooFar { .. })
}
