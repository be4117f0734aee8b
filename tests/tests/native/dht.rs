//! A run is found through any peer of the DHT: here the backbone of another run.

use std::time::{Duration, UNIX_EPOCH};

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::backbone::{self, BackboneAnnouncement};
use barnraise_protocol::dht::{self, Freshness, UnixMillis};
use barnraise_relay::{Node, NodeConfig};
use barnraise_tests::process::{HANG, TestRun};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use super::SMALL;

const DAY: Duration = Duration::from_secs(24 * 3600 + 60);

/// Asks as a browser does, over one stream, until the run has so many backbones.
async fn found(address: &Multiaddr, run_id: &str, n_wanted: usize) -> Vec<BackboneAnnouncement> {
    let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
    let peer = node.dial(address.clone()).await.unwrap();
    let mut stream = node.open(peer, dht::PROTOCOL).await.unwrap();
    let asking = async {
        loop {
            let now = UnixMillis(0).after(UNIX_EPOCH.elapsed().unwrap());
            let keys = vec![backbone::key(run_id)];
            let records = dht::get(&mut stream, keys, Freshness::Newest, now, DAY).await.unwrap();
            let found: Vec<BackboneAnnouncement> =
                records.iter().flatten().filter_map(BackboneAnnouncement::read).collect();
            if found.len() >= n_wanted {
                return found;
            }
            // Nothing tells who asks that a record came.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, asking).await.expect("the backbones are in the DHT")
}

#[tokio::test]
async fn a_run_is_joined_through_the_backbone_of_another_one() {
    let mut first = TestRun::new(SMALL).unwrap();
    let meeting = first.backbone().await.unwrap();
    let known = meeting.tcp().unwrap();
    let other = SMALL.replace("test-run", "other-run");
    let mut second = TestRun::new(&format!("{other}\n[network]\ndht_peers = [\"{known}\"]\n")).unwrap();
    let backbone = second.backbone().await.unwrap();
    let there = found(&known, "other-run", 1).await;
    let addresses: Vec<Multiaddr> = there
        .into_iter()
        .flat_map(|there| there.addresses)
        .map(|bytes| Multiaddr::try_from(bytes).unwrap())
        .collect();
    assert!(addresses.contains(&backbone.tcp().unwrap()), "{addresses:?}");

    let joined = second.join(&[&known.to_string(), "--run", "other-run", "--samples", "600"]).unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");

    // It may be started later.
    let joined = second.join(&[&known.to_string(), "--run", "no-run"]).unwrap();
    joined.wait_for_log("no backbone of the run `no-run` is known").await.unwrap();
    joined.kill().await.unwrap();
}

/// Anybody may say that they are a backbone of a run: without the authority's key nobody is believed then, and
/// with it nobody else.
#[tokio::test]
async fn a_stranger_under_the_same_id_gets_nobody_to_work_for_him() {
    let mut first = TestRun::new(SMALL).unwrap();
    let meeting = first.backbone().await.unwrap();
    let known = meeting.tcp().unwrap();
    let same = SMALL.replace("test-run", "same-run");
    let sections = format!("{same}\n[network]\ndht_peers = [\"{known}\"]\n");
    let (mut own, mut strange) = (TestRun::new(&sections).unwrap(), TestRun::new(&sections).unwrap());
    let (backbone, stranger) = (own.backbone().await.unwrap(), strange.backbone().await.unwrap());
    found(&known, "same-run", 2).await;
    let authority = backbone.status().await.unwrap().run.access.authority;
    let other = stranger.status().await.unwrap().run.access.authority;

    let given = own.join(&[&known.to_string(), "--run", "same-run"]).unwrap().end().await.unwrap();
    assert_eq!(given.status.code(), Some(1), "{given:?}");
    for key in [authority, other] {
        let named = format!("--run same-run@{key}");
        assert!(
            given.log.contains("disagree about its authority") && given.log.contains(&named),
            "{given:?}"
        );
    }

    let run = format!("same-run@{authority}");
    let joined = own.join(&[&known.to_string(), "--run", &run, "--samples", "600"]).unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert!(given.log.contains("are skipped"), "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
    assert_eq!(stranger.samples_counted().await.unwrap(), 0);

    let run = format!("same-run@{}", PublicKey([7; 32]));
    // That one may be away.
    let joined = own.join(&[&known.to_string(), "--run", &run]).unwrap();
    joined.wait_for_log("is not known; 2 others say that they serve it").await.unwrap();
    joined.kill().await.unwrap();
}
