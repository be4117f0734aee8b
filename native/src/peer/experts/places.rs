//! Which experts a new host takes: places of the grid that nobody hosts, in an order of its own, so that hosts that begin at the
//! same time rarely take the same ones.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use barnraise_protocol::dht::{self, Freshness};
use barnraise_protocol::experts::{ExpertPrefix, LayerId};
use barnraise_protocol::run::RunDescription;
use barnraise_relay::Node;
use barnraise_swarm::dht::StorageLimits;
use libp2p::PeerId;

use super::super::find::now;
use super::{ExpertPlace, HostedLayer, order_of};

/// Places that are looked at, at most. In a grid with more, some that are free may be missed.
const LOOKED_AT_MAX: usize = 4096;
/// Timeout of a look.
const DHT_TIMEOUT: Duration = Duration::from_secs(20);

/// Up to `n_wanted` places without a host, and none of `own`.
pub(super) async fn vacant(
    (node, home): (&Node, PeerId),
    run: &RunDescription,
    layers: &[HostedLayer],
    own: &[ExpertPlace],
    n_wanted: usize,
) -> anyhow::Result<Vec<ExpertPlace>> {
    let by = node.peer_id().to_bytes();
    let mut candidates = Vec::new();
    for layer in layers {
        let n_places = layer.grid.sides().iter().map(|side| u64::from(*side)).product::<u64>();
        // Of a large grid a stretch that begins by chance.
        let first = if n_places > LOOKED_AT_MAX as u64 { seed(&by) % n_places } else { 0 };
        let numbers = (0..n_places.min(LOOKED_AT_MAX as u64)).map(|at| (first + at) % n_places);
        let places = numbers.filter_map(|number| Some((layer.id, layer.grid.uid(number)?)));
        candidates.extend(places.filter(|place| !own.contains(place)));
    }
    candidates.sort_unstable_by_key(|place| order_of(*place, &by).0);
    let mut known: BTreeMap<(LayerId, Vec<u16>), Vec<u16>> = BTreeMap::new();
    let mut found = Vec::new();
    for place in candidates {
        if found.len() >= n_wanted {
            break;
        }
        let (prefix, last) = place.1.leaf();
        let at = (place.0, prefix.indices().to_vec());
        if !known.contains_key(&at) {
            let asking = hosted(node, home, run, place.0, &prefix);
            let hosted =
                tokio::time::timeout(DHT_TIMEOUT, asking).await.context("the DHT does not answer")?;
            known.insert(at.clone(), hosted.context("nobody says who hosts which expert")?);
        }
        if known.get(&at).is_some_and(|hosted| !hosted.contains(&last)) {
            found.push(place);
        }
    }
    Ok(found)
}

/// The last indices after a prefix that have a host.
async fn hosted(
    node: &Node,
    home: PeerId,
    run: &RunDescription,
    layer: LayerId,
    prefix: &ExpertPrefix,
) -> anyhow::Result<Vec<u16>> {
    let key = dht::experts::key(&run.identity.run_id, layer, prefix);
    let lifetime_max = StorageLimits::default().lifetime_max;
    let mut stream = node.open(home, dht::PROTOCOL).await?;
    let records = dht::get(&mut stream, vec![key], Freshness::Newest, now(), lifetime_max).await?;
    let hosts = records.iter().flatten().filter_map(dht::experts::read_host);
    Ok(hosts.map(|(last, _)| last).collect())
}

fn seed(bytes: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = barnraise_protocol::Sha256Hash::of(bytes).0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
