//! A dishonest peer is told why its contribution does not count; no other peer notices.

use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::{self, BackboneToContributor, ContributorToBackbone, Report};
use barnraise_protocol::gradient::{self, ContributionRefusal, Offer};
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::{TensorCodec, access, shard, state};
use barnraise_swarm::recomputation::EPOCHS_MAX;
use barnraise_tests::client::{TestClient, n_parameters, within};
use barnraise_tests::process::{BackboneProcess, TestRun, metric};
use futures::{AsyncReadExt, AsyncWriteExt};

use super::SMALL;

const PROTOCOLS: [&str; 6] = [
    run::PROTOCOL,
    access::PROTOCOL,
    state::PROTOCOL,
    shard::PROTOCOL,
    contribute::PROTOCOL,
    gradient::PROTOCOL,
];
/// More than a peer may have at once.
const HALF_OPEN_STREAMS: usize = 100;

#[tokio::test]
async fn every_violation_is_refused_with_its_reason_while_an_honest_peer_trains_on() {
    let mut test_run = TestRun::new(&format!("{SMALL}\n[network]\noperator = \"127.0.0.1:0\"\n")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let honest = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(1).await.unwrap();

    let mut dishonest = DishonestContributor::connect(backbone.tcp().unwrap()).await;
    dishonest.offers_before_it_joins().await;
    let mut session = dishonest.client.join("test-run", "a dishonest peer").await.unwrap();
    assert!(matches!(session.receive().await.unwrap(), BackboneToContributor::Welcome(_)));
    dishonest.makes_invalid_offers().await;
    dishonest.sends_other_bytes().await;
    let n_counted = dishonest.counts_twice().await;
    let report = Report {
        epoch: dishonest.epoch,
        contribution_id: u64::MAX,
        n_samples: 1_000_000,
        samples_per_second: f32::NAN,
    };
    session.send(&ContributorToBackbone::Report(report)).await.unwrap();
    refused_for(&mut session, "1000000 samples reported").await;
    // What it only claims to have is waited for once, not for ever.
    for _ in 0..3 {
        session.report(dishonest.newest_epoch().await, 200).await.unwrap();
    }

    let garbage = DishonestContributor::connect(backbone.tcp().unwrap()).await;
    garbage.sends_garbage().await;
    let half_open = DishonestContributor::connect(backbone.tcp().unwrap()).await;
    let held = half_open.opens_streams_and_says_nothing().await;

    let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
    backbone.wait_for_epoch(epoch + 20).await.unwrap();
    let learnt = |progress: &contribute::RunProgress| progress.test_accuracy.is_some_and(|share| share > 0.7);
    backbone.wait_for("an accuracy of 70 %", learnt).await.unwrap();
    drop(held);
    honest.interrupt().unwrap();
    let given = honest.end().await.unwrap();
    assert!(given.status.success() && given.n_samples > 20 * 256, "{given:?}");
    drop(session);
    // All that was counted is the honest peer's and the honest contributions of the dishonest one.
    drop((dishonest, garbage, half_open));
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples + n_counted, "{given:?}");
    the_operator_sees_it(&backbone, given.n_samples + n_counted).await;
}

async fn the_operator_sees_it(backbone: &BackboneProcess, n_samples: u64) {
    let metrics = backbone.metrics().await.unwrap();
    let read = |name: &str| metric(&metrics, name).unwrap();
    assert_eq!(read("barnraise_samples_accepted_total"), n_samples as f64);
    assert_eq!(read("barnraise_contributors"), 0.0);
    assert!(read("barnraise_epoch") >= 20.0 && read("barnraise_test_accuracy") > 0.7, "{metrics}");
    for reason in [
        "length",
        "bytes",
        "codec",
        "samples",
        "not_finite",
        "duplicate",
        "transfer",
        "not_joined",
        "repeated",
    ] {
        let refused = format!("barnraise_contributions_refused_total{{reason=\"{reason}\"}}");
        assert!(read(&refused) >= 1.0, "{refused}: {metrics}");
    }
    assert!(metrics.contains("libp2p_swarm_connections_incoming_total") && metrics.ends_with("# EOF\n"));
}

async fn refused_for(session: &mut barnraise_tests::client::ContributeSession, reason: &str) {
    loop {
        match session.receive().await.unwrap() {
            BackboneToContributor::Refused(refusal) => {
                assert!(refusal.to_string().contains(reason), "{refusal}");
                return;
            }
            BackboneToContributor::EpochStarted(_) | BackboneToContributor::GradientDue(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

struct DishonestContributor {
    client: TestClient,
    run: RunDescription,
    epoch: u64,
    next_id: u64,
}

impl DishonestContributor {
    async fn connect(address: libp2p::Multiaddr) -> Self {
        let client = TestClient::connect(address).await.unwrap();
        let run = client.describe().await.unwrap();
        Self { client, run, epoch: 0, next_id: 0 }
    }

    /// Others each time: the same gradient counts once.
    fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; n_parameters(&self.run).unwrap() as usize];
        values[0] = 1e-6 * (1 + self.next_id) as f32;
        values
    }

    /// An offer of `values` with nothing wrong.
    fn honest(&mut self, values: &[f32]) -> (Offer, Vec<u8>) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.next_id += 1;
        let offer = Offer {
            contribution_id: self.next_id,
            epoch: self.epoch,
            n_samples: 1,
            loss: 1.0,
            n_values: values.len() as u64,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&bytes),
        };
        (offer, bytes)
    }

    /// The answer to an offer for the current epoch, whichever that is by then.
    async fn offer(&mut self, mut offer: Offer, bytes: &[u8]) -> Result<SignedReceipt, ContributionRefusal> {
        loop {
            offer.epoch = self.epoch;
            match self.client.offer(&offer, bytes).await.unwrap() {
                Err(ContributionRefusal::Epoch { want, .. }) if want != self.epoch => self.epoch = want,
                Err(ContributionRefusal::Busy) => {}
                answer => return answer,
            }
        }
    }

    async fn newest_epoch(&mut self) -> u64 {
        self.epoch = self.client.state(&self.run).await.unwrap().epoch;
        self.epoch
    }

    async fn refusal(&mut self, forge: impl FnOnce(&mut Offer)) -> ContributionRefusal {
        let (mut offer, bytes) = self.honest(&self.values());
        forge(&mut offer);
        self.offer(offer, &bytes).await.unwrap_err()
    }

    async fn offers_before_it_joins(&mut self) {
        assert_eq!(self.refusal(|_| {}).await, ContributionRefusal::NotJoined);
        let mut session = self.client.session().await.unwrap();
        session.report(0, 1).await.unwrap();
        refused_for(&mut session, "join the run before reporting").await;
        let mut session = self.client.join("another-run", "a dishonest peer").await.unwrap();
        refused_for(&mut session, "`test-run`, not `another-run`").await;
        let mut session = self.client.join("test-run", &"x".repeat(1000)).await.unwrap();
        refused_for(&mut session, "too long").await;
    }

    async fn makes_invalid_offers(&mut self) {
        let n = n_parameters(&self.run).unwrap();
        let want = n;
        assert_eq!(
            self.refusal(|offer| offer.n_values = n + 1).await,
            ContributionRefusal::Length { want, got: n + 1 }
        );
        let got = u64::MAX;
        assert_eq!(
            self.refusal(|offer| offer.n_values = got).await,
            ContributionRefusal::Length { want, got }
        );
        for got in [0, 4 * n - 1, u64::MAX] {
            let refusal = self.refusal(|offer| offer.transfer.n_bytes = got).await;
            assert_eq!(refusal, ContributionRefusal::Bytes { want: 4 * n, got });
        }
        let refusal = self.refusal(|offer| offer.codec = TensorCodec::Int8).await;
        assert_eq!(refusal, ContributionRefusal::Codec { want: TensorCodec::F32, got: TensorCodec::Int8 });
        for got in [0, 257, u32::MAX] {
            let refusal = self.refusal(|offer| offer.n_samples = got).await;
            assert_eq!(refusal, ContributionRefusal::Samples { max: 256, got });
        }
        for loss in [f32::NAN, f32::NEG_INFINITY] {
            let refusal = self.refusal(|offer| offer.loss = loss).await;
            assert_eq!(refusal, ContributionRefusal::NotFinite { index: n });
        }
        for got in [0, u64::MAX] {
            let (mut offer, bytes) = self.honest(&self.values());
            offer.epoch = got;
            let refusal = self.client.offer(&offer, &bytes).await.unwrap().unwrap_err();
            assert!(
                matches!(refusal, ContributionRefusal::Epoch { got: named, .. } if named == got),
                "{refusal:?}"
            );
        }
    }

    async fn sends_other_bytes(&mut self) {
        for (index, poison) in [(0, f32::NAN), (7, f32::INFINITY), (11, f32::NEG_INFINITY)] {
            let mut values = self.values();
            values[index] = poison;
            let (offer, bytes) = self.honest(&values);
            let refusal = self.offer(offer, &bytes).await.unwrap_err();
            assert_eq!(refusal, ContributionRefusal::NotFinite { index: index as u64 });
        }
        let (offer, mut bytes) = self.honest(&self.values());
        bytes[5] ^= 1;
        let refusal = self.offer(offer, &bytes).await.unwrap_err();
        assert!(matches!(refusal, ContributionRefusal::Transfer(_)), "{refusal:?}");
    }

    /// Returns how many contributions, of a sample each, did count.
    async fn counts_twice(&mut self) -> u64 {
        let mut n_counted = 0;
        loop {
            let values = self.values();
            let (offer, bytes) = self.honest(&values);
            let first = self.offer(offer.clone(), &bytes).await.unwrap();
            n_counted += 1;
            let offer = Offer { epoch: first.receipt.epoch, ..offer };
            assert_eq!(first.verify_for("test-run", self.client.key(), &offer), Ok(()));
            // Under another number it is the same gradient, in this epoch and in the next.
            let (under_another_number, bytes) = self.honest(&values);
            match self.offer(under_another_number, &bytes).await {
                Err(ContributionRefusal::Repeated(reason)) => {
                    assert!(reason.contains("counts once"), "{reason}");
                }
                // The run is so far on that the first one is forgotten: too late to tell, so once more.
                Ok(later) if later.receipt.epoch >= first.receipt.epoch + EPOCHS_MAX as u64 => {
                    n_counted += 1;
                    continue;
                }
                other => panic!("{other:?}"),
            }
            match self.client.offer(&offer, &bytes).await.unwrap() {
                Ok(again) => {
                    assert_eq!(again, first, "the receipt of the one that counted");
                    return n_counted;
                }
                // The run is two epochs on already: likewise.
                Err(ContributionRefusal::Epoch { want, got }) => assert!(want > got + 1),
                Err(other) => panic!("{other}"),
            }
        }
    }

    /// The backbone ends each of these streams.
    async fn sends_garbage(&self) {
        let oversize = [1, 0xff, 0xff, 0xff, 0x7f];
        let another_version = [9, 1, 0, 0, 0, 0];
        let noise: Vec<u8> = (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let no_message = [1, 3, 0, 0, 0, 0xff, 0xff, 0xff];
        for protocol in PROTOCOLS {
            for garbage in [&oversize[..], &another_version, &noise, &no_message] {
                let mut stream = self.client.open(protocol).await.unwrap();
                // The other end may have closed before all of it was written.
                let _ = stream.write_all(garbage).await;
                let _ = stream.flush().await;
                let mut answer = Vec::new();
                let ended = within("garbage", stream.read_to_end(&mut answer)).await.unwrap();
                assert!(ended.is_err() || answer.is_empty(), "{protocol}: {answer:?}");
            }
        }
    }

    async fn opens_streams_and_says_nothing(&self) -> Vec<libp2p::Stream> {
        let mut held = Vec::new();
        for index in 0..HALF_OPEN_STREAMS {
            let mut stream = self.client.open(PROTOCOLS[index % PROTOCOLS.len()]).await.unwrap();
            // The first bytes of a message, and never the rest.
            let _ = stream.write_all(&[1, 8, 0]).await;
            let _ = stream.flush().await;
            held.push(stream);
        }
        held
    }
}
