//! Shards that peers pass on to each other: the backbone is spared, wrong bytes are refused, and nobody gets any who
//! may not take part.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use barnraise_native::host::access::signing_key;
use barnraise_protocol::access::{AccessToken, Claims, ContributorToBackbone, TokenId, UnixTime};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::dht::shards::{self, Holder, ShardSet};
use barnraise_protocol::dht::{self, Freshness, UnixMillis};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::{self, ShardId};
use barnraise_relay::{Node, NodeConfig};
use barnraise_tests::client::TestClient;
use barnraise_tests::process::{BackboneProcess, HANG, PeerProcess, TestRun, metric};
use futures::StreamExt;
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};

use super::SMALL;

const DAY: Duration = Duration::from_secs(24 * 3600 + 60);
/// More than the first shard has, so that a second one is fetched as well.
const SAMPLES: &str = "8000";

/// Few and large shards.
fn sections(more: &str) -> String {
    let small = SMALL.replace("[data]\n", "[data]\nshard_samples = 5000\n");
    assert_ne!(small, SMALL);
    format!("{small}\n[network]\noperator = \"127.0.0.1:0\"\n{more}")
}

fn now() -> UnixMillis {
    UnixMillis(0).after(UNIX_EPOCH.elapsed().unwrap())
}

/// Puts every shard into the folder of a peer, as if it had trained on all of them before.
async fn fill(folder: &Path, client: &TestClient, run: &RunDescription) {
    std::fs::create_dir_all(folder).unwrap();
    for (shard, entry) in (0..).zip(&run.data.manifest.shards) {
        let bytes = client.shard(run, ShardId::Numbered(shard)).await.unwrap();
        std::fs::write(folder.join(format!("{}.shard", entry.sha256)), bytes).unwrap();
    }
}

/// Asks the backbone for those who keep shards until there are so many.
async fn holders(address: Multiaddr, run: &RunDescription, n_wanted: usize) -> Vec<Holder> {
    let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
    let peer = node.dial(address).await.unwrap();
    let mut stream = node.open(peer, dht::PROTOCOL).await.unwrap();
    let asking = async {
        loop {
            let keys = vec![shards::key(&run.identity.run_id, &run.data.manifest)];
            let records = dht::get(&mut stream, keys, Freshness::Newest, now(), DAY).await.unwrap();
            let found: Vec<Holder> = records.iter().flatten().filter_map(Holder::read).collect();
            let keeps = found.iter().filter(|holder| !holder.shards.is_empty()).count();
            if keeps >= n_wanted {
                return found;
            }
            // Nothing tells who asks that a record came.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, asking).await.expect("somebody keeps shards")
}

/// Shards that the backbone gave away so far.
async fn n_given_away(backbone: &BackboneProcess) -> f64 {
    metric(&backbone.metrics().await.unwrap(), "barnraise_shards_sent_total").unwrap()
}

/// A peer that keeps all of the data and passes it on; joined and found in the DHT.
async fn keeper(
    test_run: &mut TestRun,
    backbone: &BackboneProcess,
    link: &str,
    folder: &Path,
) -> (PeerProcess, Holder) {
    let run = backbone.status().await.unwrap().run;
    let args = [link, "--cache", folder.to_str().unwrap(), "--share", "1GiB"];
    let joined = test_run.join(&args).unwrap();
    let mut found = holders(backbone.tcp().unwrap(), &run, 1).await;
    let holder = found.pop().unwrap();
    assert_eq!(holder.shards.len(), run.data.manifest.shards.len());
    (joined, holder)
}

#[tokio::test]
async fn a_peer_that_keeps_the_data_spares_the_backbone() {
    let mut test_run = TestRun::new(&sections("")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let run = client.describe().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    fill(&folder.path().join("full"), &client, &run).await;
    let before = n_given_away(&backbone).await;
    assert_eq!(before, run.data.manifest.shards.len() as f64);
    let page = backbone.page();
    let (first, _) = keeper(&mut test_run, &backbone, &page, &folder.path().join("full")).await;

    let empty = folder.path().join("empty").display().to_string();
    let given =
        test_run.join(&[&page, "--cache", &empty, "--samples", SAMPLES]).unwrap().end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert!(given.said.contains(" from peers, 0 B from the backbone"), "{given:?}");
    assert_eq!(n_given_away(&backbone).await, before, "{given:?}");
    first.interrupt().unwrap();
    let first = first.end().await.unwrap();
    assert!(
        first.status.success() && first.log.contains("of shards were passed on to other peers"),
        "{first:?}"
    );
    // A peer that leaves withdraws its record: no peer is sent there any more.
    let left = holders(backbone.tcp().unwrap(), &run, 0).await;
    assert!(left.iter().all(|holder| holder.shards.is_empty()), "{left:?}");
}

/// Says that it keeps everything, and sends other bytes than it announces. Counts who asks.
async fn poisoner(backbone: &Multiaddr, run: &RunDescription) -> (Node, Arc<AtomicU32>) {
    let keypair = Keypair::generate_ed25519();
    let key = signing_key(&keypair).unwrap();
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    let node = Node::start(keypair, NodeConfig { listen, ..NodeConfig::default() }).await.unwrap();
    let mut incoming = node.accept(shard::PROTOCOL).unwrap();
    let n_asked = Arc::new(AtomicU32::new(0));
    let (counted, manifest) = (n_asked.clone(), run.data.manifest.clone());
    tokio::spawn(async move {
        while let Some((_, mut stream)) = incoming.next().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let lookup = |id: ShardId| {
                let entry = *id.entry(&manifest).unwrap();
                let transfer = Transfer { n_bytes: entry.n_bytes.into(), sha256: entry.sha256 };
                std::future::ready(Ok((transfer, Arc::from(vec![0x5a; entry.n_bytes as usize]))))
            };
            // The deceived client closes the stream.
            let _ = shard::serve(&mut stream, lookup, || ()).await;
        }
    });
    let all: ShardSet = (0..run.data.manifest.shards.len() as u32).collect();
    let addresses = node.addresses().iter().map(Multiaddr::to_vec).collect::<Vec<_>>();
    let until = now().after(Duration::from_secs(600));
    let record =
        Holder::sign(&key, (&run.identity.run_id, &run.data.manifest), &all, addresses, until).unwrap();
    let peer = node.dial(backbone.clone()).await.unwrap();
    let mut stream = node.open(peer, dht::PROTOCOL).await.unwrap();
    assert_eq!(dht::put(&mut stream, vec![record]).await.unwrap(), [Ok(())]);
    (node, n_asked)
}

#[tokio::test]
async fn wrong_bytes_are_refused_and_training_goes_on() {
    let mut test_run = TestRun::new(&sections("")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let run = backbone.status().await.unwrap().run;
    let (poisoner_node, n_asked) = poisoner(&backbone.tcp().unwrap(), &run).await;
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty").display().to_string();
    let joined = test_run.join(&[&backbone.page(), "--cache", &empty, "--samples", SAMPLES]).unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success() && given.n_samples >= 8000, "{given:?}");
    assert!(
        given.log.contains("wrong bytes of a shard")
            && given.log.contains(&poisoner_node.peer_id().to_string())
    );
    assert!(given.said.contains(", 1 shards refused"), "{given:?}");
    assert_eq!(n_asked.load(Ordering::Relaxed), 1, "once, and never again: {given:?}");
    assert!(n_given_away(&backbone).await >= 2.0);
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples);
}

/// A client of the peer that keeps the data.
async fn client_of(holder: &Holder, keypair: Keypair) -> TestClient {
    let peer = PeerId::from_bytes(&holder.peer.to_peer_id()).unwrap();
    let addresses = holder.addresses.iter().map(|bytes| Multiaddr::try_from(bytes.clone()).unwrap());
    let tcp = addresses.into_iter().find(|address| address.to_string().contains("/tcp/")).unwrap();
    TestClient::connect_as(keypair, tcp.with_p2p(peer).unwrap()).await.unwrap()
}

#[tokio::test]
async fn data_of_a_run_with_a_list_goes_to_those_on_it() {
    let access = "\n[access]\nmode = \"invitation\"\n";
    let mut test_run = TestRun::new(&sections(access)).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let link = test_run.command(&["invite", "--uses", "3"]).await.unwrap().trim().to_owned();
    let code = link.split_once("/#invitation=").unwrap().1.to_owned();
    // The page of a test is at another port than the configuration's.
    let link = format!("{}/#invitation={code}", backbone.page());
    let member = Keypair::generate_ed25519();
    let client = TestClient::connect_as(member.clone(), backbone.tcp().unwrap()).await.unwrap();
    let run = client.describe().await.unwrap();
    let granted = client.ask(&ContributorToBackbone::Redeem { code }).await.unwrap();
    let barnraise_protocol::access::BackboneToContributor::Granted(token) = granted else {
        panic!("{granted:?}")
    };
    let folder = tempfile::tempdir().unwrap();
    fill(&folder.path().join("full"), &client, &run).await;
    let before = n_given_away(&backbone).await;
    let (first, holder) = keeper(&mut test_run, &backbone, &link, &folder.path().join("full")).await;

    // A stranger, with nothing, with another's token and with one that it signed itself.
    let stranger = Keypair::generate_ed25519();
    let own = signing_key(&stranger).unwrap();
    let stranger = client_of(&holder, stranger).await;
    let refused = stranger.shard(&run, ShardId::Numbered(0)).await.unwrap_err().to_string();
    assert!(refused.contains("this run is by invitation"), "{refused}");
    let claims = Claims {
        run_id: run.identity.run_id.clone(),
        user: "stranger".into(),
        peer: own.public(),
        expires_at: UnixTime(u64::MAX),
        token_id: TokenId([7; 16]),
        may_host: false,
    };
    let forged = Box::new(AccessToken::sign(&own, claims).unwrap());
    for (shown, reason) in [(token.clone(), "is for the key"), (forged, "is not signed by the authority")] {
        let refused = stranger.ask(&ContributorToBackbone::Present(shown)).await.unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    assert!(stranger.shard(&run, ShardId::Numbered(0)).await.is_err());
    // Somebody on the list, by hand and by the program.
    let member = client_of(&holder, member).await;
    assert!(member.shard(&run, ShardId::Numbered(0)).await.is_err(), "before it has shown its token");
    member.ask(&ContributorToBackbone::Present(token)).await.unwrap();
    member.shard(&run, ShardId::Numbered(0)).await.unwrap();
    let empty = folder.path().join("empty").display().to_string();
    let joined = test_run.join(&[&link, "--cache", &empty, "--samples", SAMPLES]).unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert!(given.said.contains(" from peers, 0 B from the backbone"), "{given:?}");
    assert_eq!(n_given_away(&backbone).await, before);
    drop(first);
}
