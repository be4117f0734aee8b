//! A small model whose experts live on other processes, and clients that ask those by hand.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::experts::{ExpertHost, key, read_host};
use barnraise_protocol::dht::{self, Freshness, UnixMillis};
use barnraise_protocol::experts::{ExpertPrefix, LayerId};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use crate::client::{TestClient, within};

/// Model, data and scheme: eight experts on a grid of one dimension, after the first layer. Without them the last layer sees the
/// first one alone.
pub const RUN: &str = r#"
[model.kind.graph]
name = "experts for garments"
loss = "classification"
parts = [{ name = "expert", blocks = [
    { name = "up", op = { dense = { units = 32, initial = "he" } } },
    { name = "act", op = "relu" },
    { name = "down", op = { dense = { units = 16 } } },
] }]
blocks = [
    { name = "flat", op = "flatten" },
    { name = "first", op = { dense = { units = 16, initial = "he" } } },
    { name = "act", op = "relu" },
    { name = "moe", op = { experts = { part = "expert", side = 8, active = 2 } } },
    { name = "sum", op = "add", from = ["moe", "act"] },
    { name = "fc", op = { dense = { units = "classes" } } },
]

[model.experts]
schedule = { peak = 0.003 }

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 128
micro_batch_size = 32
schedule = { peak = 0.005 }

[evaluation]
every_epochs = 5
"#;

/// How long a record of a host that is known may last; those are left aside that last longer.
const DAY: Duration = Duration::from_secs(24 * 3600 + 60);

/// The host of experts of a layer with this key, or any one, once the DHT names it.
///
/// # Errors
/// Nobody is named, or the client has no way to the DHT.
pub async fn announced(
    client: &TestClient,
    (run_id, layer): (&str, LayerId),
    host: Option<PublicKey>,
) -> Result<ExpertHost> {
    let asking = async {
        loop {
            let mut stream = client.open(dht::PROTOCOL).await?;
            let keys = vec![key(run_id, layer, &ExpertPrefix::new(&[])?)];
            let now = UnixMillis(0).after(UNIX_EPOCH.elapsed()?);
            let records = dht::get(&mut stream, keys, Freshness::Newest, now, DAY).await?;
            let mut hosts = records.iter().flatten().filter_map(read_host).map(|(_, found)| found);
            if let Some(found) = hosts.find(|found| host.is_none_or(|host| found.peer == host)) {
                return anyhow::Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within("a host that announces itself", asking).await?
}

/// A client that is connected to a host over TCP.
///
/// # Errors
/// It listens on no TCP, or does not answer.
pub async fn client_of(host: &ExpertHost, keypair: Keypair) -> Result<TestClient> {
    let peer = PeerId::from_bytes(&host.peer.to_peer_id())?;
    let mut addresses = host.addresses.iter().filter_map(|bytes| Multiaddr::try_from(bytes.clone()).ok());
    let is_tcp = |address: &Multiaddr| {
        let mut parts = address.iter();
        parts.any(|part| matches!(part, Protocol::Tcp(_))) && !parts.any(|part| part == Protocol::P2pCircuit)
    };
    let address = addresses.find(is_tcp).context("it does not listen on TCP")?;
    let address = address.with_p2p(peer).map_err(|address| anyhow::anyhow!("{address} is another peer's"))?;
    TestClient::connect_as(keypair, address).await
}
