//! A peer that forges its gradients among honest peers, at a backbone that trusts nobody: it is left
//! out, the operator sees it, and a restart repeats the same steps even if the configuration is another one.

use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::robust::OUTLIER_ROUNDS;
use barnraise_tests::client::{ContributeSession, TestClient, n_parameters};
use barnraise_tests::process::{BackboneProcess, TestRun, metric};

use super::SMALL;

const N_HONEST: usize = 3;
/// Of each peer in each epoch, the dishonest one included: together the target.
const N_SAMPLES: u32 = 64;
const LEARNING_RATE: f32 = 0.05;
/// Times the honest gradient: its length stays below the largest that counts.
const FORGED_SCALE: f32 = -5.0;

fn sections() -> String {
    let changes = [
        ("[scheme.synchronous]", "[scheme.synchronous]\naggregation = \"centered-clip\""),
        ("collect_timeout = \"2s\"", "collect_timeout = \"1m\""),
        ("momentum = 0.9", "momentum = 0.0"),
        ("checkpoint_every_epochs = 7", "checkpoint_every_epochs = 1000000"),
    ];
    let mut sections = SMALL.to_owned();
    for (from, to) in changes {
        assert!(sections.contains(from), "{from}");
        sections = sections.replace(from, to);
    }
    sections + "\n[network]\noperator = \"127.0.0.1:0\"\n"
}

#[tokio::test]
async fn a_lying_peer_is_left_out_now_and_when_the_journal_is_replayed() {
    let mut test_run = TestRun::new(&sections()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let mut peers = join(&backbone).await;
    peers[N_HONEST].is_refused_for_the_length_of_its_gradient().await;

    let n_epochs = u64::from(OUTLIER_ROUNDS);
    let mut before = peers[0].parameters().await;
    for epoch in 0..n_epochs {
        contribute(&mut peers, epoch).await;
        let after = peers[0].parameters().await;
        for (at, gradient) in gradient(&before, &after).into_iter().enumerate() {
            assert!((0.8..1.2).contains(&gradient), "epoch {epoch}, value {at}: {gradient}");
        }
        before = after;
    }
    the_operator_sees_it(&backbone).await;

    backbone.kill().await.unwrap();
    let path = test_run.storage().with_file_name("run.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let trusting = config.replace("\"centered-clip\"", "\"mean\"");
    assert_ne!(trusting, config);
    test_run.write("run.toml", &trusting).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let mut peers = join(&backbone).await;
    let replayed = peers[0].parameters().await;
    assert!(replayed == before, "the steps are repeated as they were made");
    // And from now on the dishonest peer prevails.
    contribute(&mut peers, n_epochs).await;
    let after = peers[0].parameters().await;
    assert!(gradient(&before, &after).into_iter().all(|gradient| gradient < 0.0));
}

/// What a plain step was made of.
fn gradient(before: &[f32], after: &[f32]) -> Vec<f32> {
    before.iter().zip(after).map(|(before, after)| (before - after) / LEARNING_RATE).collect()
}

async fn the_operator_sees_it(backbone: &BackboneProcess) {
    let metrics = backbone.metrics().await.unwrap();
    let read = |name: &str| metric(&metrics, name).unwrap();
    let rounds = f64::from(OUTLIER_ROUNDS);
    assert_eq!(read("barnraise_peers_aggregated_total{outcome=\"left_out\"}"), rounds);
    assert_eq!(read("barnraise_peers_aggregated_total{outcome=\"kept\"}"), rounds * N_HONEST as f64);
    assert_eq!(read("barnraise_outlier_peers"), 1.0);
    assert_eq!(read("barnraise_contributions_refused_total{reason=\"norm\"}"), 1.0);
    assert!(backbone.log().unwrap().contains("far from all others"));
}

/// The honest peers, then the dishonest one.
async fn join(backbone: &BackboneProcess) -> Vec<OutvotedPeer> {
    let mut peers = Vec::new();
    for index in 0..=N_HONEST {
        peers.push(OutvotedPeer::join(&backbone.tcp().unwrap(), index).await);
    }
    peers
}

/// One epoch: everybody reports, everybody delivers, a step is made.
async fn contribute(peers: &mut [OutvotedPeer], epoch: u64) {
    for peer in &mut *peers {
        peer.session.report(epoch, N_SAMPLES).await.unwrap();
    }
    for peer in &mut *peers {
        assert_eq!(peer.session.receive().await.unwrap(), BackboneToContributor::GradientDue(epoch));
        let values = peer.values(epoch);
        peer.offer(epoch, N_SAMPLES, &values).await.unwrap();
    }
    for peer in peers {
        assert_eq!(peer.session.receive().await.unwrap(), BackboneToContributor::EpochStarted(epoch + 1));
    }
}

struct OutvotedPeer {
    index: usize,
    client: TestClient,
    run: RunDescription,
    session: ContributeSession,
    next_id: u64,
}

impl OutvotedPeer {
    async fn join(address: &libp2p::Multiaddr, index: usize) -> Self {
        let client = TestClient::connect(address.clone()).await.unwrap();
        let run = client.describe().await.unwrap();
        let mut session = client.join(&run.identity.run_id, "a test").await.unwrap();
        assert!(matches!(session.receive().await.unwrap(), BackboneToContributor::Welcome(_)));
        Self { index, client, run, session, next_id: 0 }
    }

    async fn parameters(&self) -> Vec<f32> {
        self.client.state(&self.run).await.unwrap().parameters
    }

    /// Ones, with noise of each peer's own in each epoch; or the forged values.
    fn values(&self, epoch: u64) -> Vec<f32> {
        let noise = |at: u64| {
            let random =
                (at * 16 + self.index as u64 + (epoch << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            random as f32 / (1 << 24) as f32 - 0.5
        };
        let honest = (0..n_parameters(&self.run).unwrap()).map(|at| 1.0 + 0.3 * noise(at));
        honest.map(|value| if self.index == N_HONEST { FORGED_SCALE * value } else { value }).collect()
    }

    async fn offer(&mut self, epoch: u64, n_samples: u32, values: &[f32]) -> Result<(), ContributionRefusal> {
        let codec = self.run.scheme.gradient_codec().encoding();
        let bytes = codec.encode(values).unwrap();
        self.next_id += 1;
        let offer = Offer {
            contribution_id: self.next_id,
            epoch,
            n_samples,
            loss: 1.0,
            n_values: values.len() as u64,
            codec,
            transfer: Transfer::of(&bytes),
        };
        self.client.offer(&offer, &bytes).await.unwrap().map(drop)
    }

    async fn is_refused_for_the_length_of_its_gradient(&mut self) {
        let values = vec![1e30; n_parameters(&self.run).unwrap() as usize];
        let refused = self.offer(0, 1, &values).await;
        assert!(
            matches!(refused, Err(ContributionRefusal::Norm { max, got }) if max == 1000.0 && got > 1e30),
            "{refused:?}"
        );
    }
}
