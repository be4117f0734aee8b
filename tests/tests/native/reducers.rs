//! Native peers that average parts for two backbones: they help, some are killed, one is dishonest.

use std::path::Path;
use std::time::Duration;

use barnraise_protocol::average::{self, Finished, Join, ReducerToMember};
use barnraise_protocol::framing;
use barnraise_protocol::matchmaking::Reducer;
use barnraise_protocol::reduce::{self, BackboneToReducer, Offer, ReducerRound};
use barnraise_relay::{Node, NodeConfig, load_or_create_keypair};
use barnraise_tests::process::{BackboneProcess, HANG, JoinOutcome, metric};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, Stream};

use super::SMALL;
use super::aggregators::{TwoAggregators, agreed, is_exact, leave};

/// Two backbones that let native peers average as `more` says.
async fn two_with(more: &str) -> TwoAggregators {
    TwoAggregators::of(&format!("{SMALL}\n[aggregators]\n{more}\n")).await
}

/// The id of the peer with this key file.
fn peer_of(key: &Path) -> String {
    load_or_create_keypair(key).unwrap().public().to_peer_id().to_string()
}

/// Parts of native peers of which this came, as a backbone says.
async fn n_parts(backbone: &BackboneProcess, outcome: &str) -> f64 {
    let name = format!("barnraise_reducer_parts_total{{outcome=\"{outcome}\"}}");
    metric(&backbone.metrics().await.unwrap(), &name).unwrap()
}

/// Waits until either of them has so many.
async fn wait_for_parts(backbones: [&BackboneProcess; 2], outcome: &str, n_wanted: f64) {
    let waiting = async {
        while n_parts(backbones[0], outcome).await.max(n_parts(backbones[1], outcome).await) < n_wanted {
            // Nothing tells over HTTP that something was counted.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let waited = tokio::time::timeout(HANG, waiting).await;
    let logs = || backbones.map(|backbone| backbone.log().unwrap()).join("\n---\n");
    assert!(waited.is_ok(), "{n_wanted} parts {outcome}: {}", logs());
}

#[tokio::test]
async fn a_native_peer_averages_for_two_backbones_and_has_credit_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("helper.key");
    let peer = peer_of(&key);
    let mut two = two_with(&format!("reducers = \"named\"\nreducer_peers = [\"{peer}\"]")).await;
    let (one, other) = two.start().await;
    let page = one.page();
    let args = [page.as_str(), "--reduce", "1GiB", "--identity", key.to_str().unwrap()];
    let helper = two.one.join(&args).unwrap();
    let at_other = two.other.join(&[&other.page()]).unwrap();
    helper.wait_for_log("averaged a part").await.unwrap();
    wait_for_parts([&one, &other], "averaged", 6.0).await;
    helper.interrupt().unwrap();
    let helped: JoinOutcome = helper.end().await.unwrap();
    assert!(
        helped.status.success() && helped.log.contains("parts were averaged for the backbones"),
        "{helped:?}"
    );
    let n_samples = helped.n_samples + leave([at_other]).await;
    let counted = agreed([&one, &other]).await;
    assert!(counted <= n_samples, "{counted} of {n_samples}");
    assert!(counted == n_samples || !is_exact(&two), "{counted} of {n_samples}");
    assert_eq!((n_parts(&one, "wrong").await, n_parts(&other, "wrong").await), (0.0, 0.0));
    let given = one.contributions(helped.n_samples).await.unwrap();
    let credit = given.aggregators.iter().find(|totals| totals.peer == peer);
    assert!(credit.is_some_and(|totals| totals.n_bytes > 0), "{:?}", given.aggregators);
}

#[tokio::test]
async fn a_native_peer_that_is_killed_stops_nobody() {
    let mut two = two_with("reducers = \"anybody\"").await;
    let (one, other) = two.start().await;
    let at_one = two.one.join(&[&one.page()]).unwrap();
    let at_other = two.other.join(&[&other.page()]).unwrap();
    for _ in 0..3 {
        let helper = two.one.join(&[&one.page(), "--reduce", "1GiB"]).unwrap();
        helper.wait_for_log("averaged a part").await.unwrap();
        helper.kill().await.unwrap();
        let epoch = one.status().await.unwrap().progress.epoch;
        one.wait_for_epoch(epoch + 4).await.unwrap();
    }
    leave([at_one, at_other]).await;
    agreed([&one, &other]).await;
}

#[tokio::test]
async fn who_is_not_named_is_told_so_and_contributes_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let named = peer_of(&folder.path().join("named.key"));
    let mut two = two_with(&format!("reducers = \"named\"\nreducer_peers = [\"{named}\"]")).await;
    let (one, _other) = two.start().await;
    let joined = two.one.join(&[&one.page(), "--reduce", "auto"]).unwrap();
    joined.wait_for_log("is not among the reducer_peers of this backbone").await.unwrap();
    one.wait_for_epoch(2).await.unwrap();
    assert!(leave([joined]).await > 0);
}

/// A peer of this test that offers to reduce and returns zeros.
struct DishonestReducer {
    node: Node,
    run_id: String,
}

impl DishonestReducer {
    async fn new(backbone: &BackboneProcess) -> Self {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let config = NodeConfig { listen, ..NodeConfig::default() };
        let node = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
        let run_id = backbone.status().await.unwrap().run.identity.run_id;
        Self { node, run_id }
    }

    /// The conversation, or why there is none.
    async fn offer(&self, backbone: &BackboneProcess) -> Result<Stream, String> {
        let backbone = self.node.dial(backbone.tcp().unwrap()).await.unwrap();
        let mut stream = self.node.open(backbone, reduce::PROTOCOL).await.unwrap();
        let reducer = Reducer {
            peer: self.node.peer_id().to_bytes(),
            download_bytes_per_s: 1e9,
            upload_bytes_per_s: 1e9,
            addresses: self.node.addresses().iter().map(Multiaddr::to_vec).take(4).collect(),
        };
        let offer = Offer { run_id: self.run_id.clone(), reducer };
        reduce::offer(&mut stream, &offer).await.map(|()| stream).map_err(|error| error.to_string())
    }

    /// Waits for the next round; a reducer that is banned waits for ever.
    async fn receive(stream: &mut Stream) -> ReducerRound {
        loop {
            match framing::read(stream, reduce::MESSAGE_BYTES_MAX).await {
                Ok(BackboneToReducer::Round(round)) => return round,
                Ok(BackboneToReducer::KeepAlive) => {}
                Ok(other) => panic!("{other:?}"),
                // It is banned.
                Err(_) => std::future::pending().await,
            }
        }
    }
}

/// Takes a member's values of the only chunk of a part, and returns zeros.
async fn return_zeros(mut stream: Stream, peer: Vec<u8>, round: ReducerRound, me: Vec<u8>) {
    let join: Join = framing::read(&mut stream, average::MESSAGE_BYTES_MAX).await.unwrap();
    let own = round.members.iter().find(|member| member.peer == me).unwrap();
    let member = round.members.iter().find(|member| member.peer == peer).unwrap();
    assert_eq!(round.members[usize::from(join.part)].peer, me);
    let granted = ReducerToMember::Granted { window_chunks: 8 };
    framing::write(&mut stream, &granted, average::MESSAGE_BYTES_MAX).await.unwrap();
    let mut values = vec![0.0; own.n_reduced as usize];
    if member.n_samples > 0 {
        average::read_chunk(&mut stream, 0, &mut values, round.codec, &mut Vec::new()).await.unwrap();
    }
    let mut zeros = Vec::new();
    average::pack_chunk(0, &vec![0.0; values.len()], round.codec, &mut zeros).unwrap();
    average::write_chunk(&mut stream, &zeros).await.unwrap();
    let senders = round.members.iter().enumerate().filter(|(_, member)| member.n_samples > 0);
    let n_samples = round.members.iter().map(|member| member.n_samples).sum();
    let members = senders.map(|(position, _)| position).collect();
    let finished = Finished { members, n_samples, behind: members, is_whole: true };
    let finished = ReducerToMember::Finished(finished);
    framing::write(&mut stream, &finished, average::MESSAGE_BYTES_MAX).await.unwrap();
    stream.close().await.unwrap();
}

#[tokio::test]
async fn a_dishonest_native_reducer_is_banned_and_spoils_no_step() {
    let mut two = two_with("reducers = \"anybody\"").await;
    let (one, other) = two.start().await;
    let at_one = two.one.join(&[&one.page()]).unwrap();
    let at_other = two.other.join(&[&other.page()]).unwrap();
    one.wait_for_epoch(2).await.unwrap();
    let dishonest = DishonestReducer::new(&one).await;
    let mut incoming = dishonest.node.accept(average::PROTOCOL).unwrap();
    let me = dishonest.node.peer_id().to_bytes();
    let mut stream = dishonest.offer(&one).await.unwrap();
    let cheating = async {
        loop {
            let round = DishonestReducer::receive(&mut stream).await;
            let n_members = round.members.iter().filter(|member| member.receives).count();
            for _ in 0..n_members {
                let (peer, stream) = incoming.next().await.unwrap();
                tokio::spawn(return_zeros(stream, peer.to_bytes(), round.clone(), me.clone()));
            }
        }
    };
    tokio::select! {
        () = wait_for_parts([&one, &other], "wrong", 1.0) => {}
        () = cheating => {}
    }
    let epoch = one.status().await.unwrap().progress.epoch;
    one.wait_for_epoch(epoch + 4).await.unwrap();
    let n_wrong_parts = [n_parts(&one, "wrong").await, n_parts(&other, "wrong").await];
    assert!(n_wrong_parts.iter().any(|&n_wrong| n_wrong > 0.0));
    for (backbone, _) in [&one, &other].into_iter().zip(n_wrong_parts).filter(|&(_, n_wrong)| n_wrong > 0.0) {
        let refused = dishonest.offer(backbone).await.unwrap_err();
        assert!(refused.contains("was not the mean"), "{refused}");
    }
    let status = one.status().await.unwrap();
    let losses: Vec<f32> = status.history.iter().filter_map(|point| point.train_loss).collect();
    assert!(losses.last().unwrap() < &losses[0], "{losses:?}");
    leave([at_one, at_other]).await;
    agreed([&one, &other]).await;
}
