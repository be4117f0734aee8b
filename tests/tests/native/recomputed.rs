//! Contributions are computed once more before they count: one that is not what its peer says never does, and the peer
//! takes no more part, here and at the other backbones, and anybody can see why. What is right counts once.

use std::time::Duration;

use barnraise_learning::{ComputeDevice, DataShape, Trainer};
use barnraise_native::host::access::signing_key;
use barnraise_protocol::TensorCodec;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::commitment::{Commitment, SampleId, encode_samples};
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::gradient::{ContributionRefusal, Offer, PreparedContribution};
use barnraise_protocol::run::{RunDescription, run_hash};
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::recomputation::PROBATION;
use barnraise_tests::client::{ContributeSession, EpochParameters, TestClient, n_parameters};
use barnraise_tests::process::{BackboneProcess, TestRun, metric};
use libp2p::identity::Keypair;

use super::SMALL;
use super::aggregators::TwoAggregators;

/// Nothing is chosen by chance: it is the first contributions of each key that are recomputed.
const RECOMPUTED: &str = "\n[scheme.synchronous.recomputation]\nshare = 1e-9\ntolerance = 0.02\n";

/// Trajectories of four steps.
const LOCAL_STEPS: &str = r#"[scheme.synchronous.local_steps]
steps = 4
optimizer = { kind = "sgd-momentum", momentum = 0.9 }
schedule = { peak = 0.05 }

[scheme.synchronous]"#;

/// What a convicted peer is told.
const CONVICTED: &str = "is not the gradient of the samples that it named";

/// Fails unless honest contributions were found to be what they are, and those of one forger were not.
async fn assert_one_was_found_out(backbone: &BackboneProcess) {
    let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
    // The honest one has the address of the forger: each of its contributions is recomputed now, one in a while.
    backbone.wait_for_epoch(epoch + 1).await.unwrap();
    let metrics = backbone.metrics().await.unwrap();
    let outcome = |outcome: &str| {
        let name = format!("barnraise_contributions_recomputed_total{{outcome=\"{outcome}\"}}");
        metric(&metrics, &name).unwrap_or(0.0)
    };
    let right = f64::from(PROBATION);
    assert!(outcome("same") >= right && outcome("wrong") == 1.0 && outcome("unknown") == 0.0, "{metrics}");
}

/// Offers forged gradients, and signs a commitment for each.
struct ForgingContributor {
    client: TestClient,
    identity: Keypair,
    key: KeyPair,
    run: RunDescription,
    next_id: u64,
}

impl ForgingContributor {
    async fn connect(backbone: &BackboneProcess) -> Self {
        Self::connect_as(Keypair::generate_ed25519(), backbone).await
    }

    async fn connect_as(identity: Keypair, backbone: &BackboneProcess) -> Self {
        let client = TestClient::connect_as(identity.clone(), backbone.tcp().unwrap()).await.unwrap();
        let run = client.describe().await.unwrap();
        assert!(run.synchronous().unwrap().recomputed);
        let key = signing_key(&identity).unwrap();
        Self { client, identity, key, run, next_id: 0 }
    }

    async fn join(&self) -> ContributeSession {
        let mut session = self.client.join("test-run", "a forger").await.unwrap();
        assert!(matches!(session.receive().await.unwrap(), BackboneToContributor::Welcome(_)));
        session
    }

    /// A gradient that nobody's samples have, with a valid offer and commitment.
    fn forge(&mut self, state: &EpochParameters) -> PreparedContribution {
        let values: Vec<f32> = (0..n_parameters(&self.run).unwrap()).map(|i| 1e-3 * (i % 7) as f32).collect();
        let bytes = TensorCodec::F32.encode(&values).unwrap();
        self.next_id += 1;
        let offer = Offer {
            contribution_id: self.next_id,
            epoch: state.epoch,
            n_samples: 8,
            loss: 1.0,
            n_values: n_parameters(&self.run).unwrap(),
            codec: TensorCodec::F32,
            transfer: Transfer::of(&bytes),
        };
        let samples: Vec<SampleId> = (0..8).map(|index| SampleId { shard: 1, index }).collect();
        self.signed(state, offer, bytes, &samples)
    }

    fn signed(
        &self,
        state: &EpochParameters,
        offer: Offer,
        bytes: Vec<u8>,
        samples: &[SampleId],
    ) -> PreparedContribution {
        let n_samples = samples.len() as u32;
        let samples = encode_samples(samples, &self.run.data.manifest);
        let parameters = (state.sha256, state.epoch);
        let run = run_hash(&self.run).unwrap();
        let commitment = Commitment::sign(&self.key, run, &offer, parameters, (n_samples, &samples)).unwrap();
        PreparedContribution { offer, commitment: Some(commitment), bytes, samples }
    }

    /// The gradient of these samples of the first shard, with a valid offer and commitment.
    async fn honest(&mut self, state: &EpochParameters, indices: &[u32]) -> PreparedContribution {
        let entry = self.run.data.manifest.shards[0];
        let shard = self.client.shard(&self.run, ShardId::Numbered(0)).await.unwrap();
        let shard = Samples::decode(&shard, &entry, &self.run.data.manifest).unwrap();
        let data = DataShape::of(&self.run.data.manifest.samples);
        let mut trainer = Trainer::new(&self.run.model, data, ComputeDevice::cpu()).unwrap();
        trainer.load_parameters(&state.parameters).unwrap();
        for part in indices.chunks(self.run.scheme.micro_batch_size() as usize) {
            let mut batch = shard.none_of();
            part.iter().for_each(|&index| batch.push(&shard, index as usize));
            trainer.accumulate_samples(&batch, state.epoch).await.unwrap();
        }
        let mean = trainer.take_mean_gradient().await.unwrap().unwrap();
        let bytes = TensorCodec::F32.encode(&mean.values).unwrap();
        self.next_id += 1;
        let offer = Offer {
            contribution_id: self.next_id,
            epoch: state.epoch,
            n_samples: mean.n_samples,
            loss: mean.loss,
            n_values: n_parameters(&self.run).unwrap(),
            codec: TensorCodec::F32,
            transfer: Transfer::of(&bytes),
        };
        let samples: Vec<SampleId> = indices.iter().map(|&index| SampleId { shard: 0, index }).collect();
        self.signed(state, offer, bytes, &samples)
    }

    /// Returns what was left of its probation, if it was recomputed before it counted.
    async fn is_counted(&self, prepared: &PreparedContribution) -> Option<u32> {
        let (answer, checking) = self.client.offer_and_watch(prepared).await.unwrap();
        let receipt = answer.unwrap();
        assert_eq!(receipt.verify_for("test-run", self.client.key(), &prepared.offer), Ok(()));
        checking
    }

    async fn is_refused_as_repeated(&self, prepared: &PreparedContribution, words: &str) {
        match self.client.offer_prepared(prepared).await.unwrap() {
            Err(ContributionRefusal::Repeated(reason)) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{other:?}"),
        }
    }

    /// The refusal of a forged contribution that `change` altered, in the current epoch.
    async fn refusal(&mut self, change: impl Fn(&mut PreparedContribution)) -> ContributionRefusal {
        loop {
            let state = self.client.state(&self.run).await.unwrap();
            let mut prepared = self.forge(&state);
            change(&mut prepared);
            match self.client.offer_prepared(&prepared).await.unwrap() {
                Err(ContributionRefusal::Epoch { .. } | ContributionRefusal::Busy) => {}
                Err(refusal) => return refusal,
                Ok(receipt) => panic!("{receipt:?}"),
            }
        }
    }

    /// Waits until every request of this peer is refused for good.
    async fn is_sent_away(&self) {
        let sent_away = async {
            loop {
                let state = self.client.state(&self.run).await;
                if state.is_err_and(|error| error.to_string().contains(CONVICTED)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(100), sent_away).await.unwrap();
    }

    /// Forges until it is banned; returns how many forged contributions counted.
    async fn forges_until_it_is_banned(&mut self) -> u32 {
        let mut n_counted = 0;
        let forging = async {
            loop {
                let state = match self.client.state(&self.run).await {
                    Ok(state) => state,
                    // The first refusal may be one of parameters.
                    Err(error) if error.to_string().contains(CONVICTED) => break error.to_string(),
                    // Requests in flight when it is banned just end.
                    Err(_) => continue,
                };
                let prepared = self.forge(&state);
                match self.client.offer_prepared(&prepared).await {
                    Ok(Ok(_)) => n_counted += 1,
                    Ok(Err(ContributionRefusal::NoAccess(refusal))) => break refusal.to_string(),
                    Ok(Err(
                        ContributionRefusal::Epoch { .. }
                        | ContributionRefusal::Busy
                        | ContributionRefusal::Rate { .. },
                    ))
                    | Err(_) => {}
                    Ok(Err(refusal)) => panic!("{refusal}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let reason = tokio::time::timeout(Duration::from_secs(100), forging).await.unwrap();
        assert!(reason.contains(CONVICTED), "{reason}");
        n_counted
    }
}

#[tokio::test]
async fn a_peer_that_forges_gradients_is_banned_and_an_honest_peer_is_not() {
    let sections = format!("{SMALL}\n{RECOMPUTED}\n[network]\noperator = \"127.0.0.1:0\"\n");
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let honest = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(3).await.unwrap();

    let mut forger = ForgingContributor::connect(&backbone).await;
    let mut session = forger.join().await;
    let account = |refusal: ContributionRefusal, words: &str| match refusal {
        ContributionRefusal::Commitment(reason) => assert!(reason.contains(words), "{reason}"),
        refusal => panic!("{refusal}"),
    };
    account(forger.refusal(|prepared| prepared.commitment = None).await, "comes with a signed commitment");
    account(forger.refusal(|prepared| prepared.offer.loss = 2.0).await, "not signed by");
    account(forger.refusal(|prepared| prepared.samples[0] ^= 1).await, "not the one of the commitment");
    account(forger.refusal(|prepared| prepared.samples.truncate(4)).await, "the list of");
    assert_eq!(forger.forges_until_it_is_banned().await, 0);
    let goodbye = async {
        loop {
            match session.receive().await {
                Ok(BackboneToContributor::Refused(refusal)) => return refusal.to_string(),
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let goodbye = tokio::time::timeout(Duration::from_secs(20), goodbye).await.unwrap();
    assert!(goodbye.contains("takes no more part"), "{goodbye}");

    let said = test_run.run(&["evidence", &backbone.page()]).await.unwrap();
    let name = forger.client.peer_id().to_string();
    assert!(said.starts_with(&name) && said.contains("is not the gradient of its samples"), "{said}");
    assert_one_was_found_out(&backbone).await;
    honest.interrupt().unwrap();
    let given = honest.end().await.unwrap();
    assert!(given.status.success() && given.n_samples > 0, "{given:?}");

    // It stays that way.
    drop(session);
    backbone.kill().await.unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let mut again = ForgingContributor::connect_as(forger.identity.clone(), &backbone).await;
    assert_eq!(again.forges_until_it_is_banned().await, 0);
}

/// Who was found right is not new after a restart, and who lied is suspected, also where it was killed.
#[tokio::test]
async fn what_was_found_out_about_keys_and_addresses_lasts_over_restarts() {
    let sections = format!("{SMALL}\n{RECOMPUTED}\n[network]\noperator = \"127.0.0.1:0\"\n");
    let mut test_run = TestRun::new(&sections).unwrap();
    let identity = Keypair::generate_ed25519();
    let mut backbone = test_run.backbone().await.unwrap();
    let mut n_given = 0;
    // Fewer samples than a step has.
    let probation = (1..=PROBATION).rev().map(Some).collect();
    for (checked, then) in [(probation, "restart"), (vec![None], "is lied to"), (vec![Some(0)], "end")] {
        let mut honest = ForgingContributor::connect_as(identity.clone(), &backbone).await;
        honest.next_id = u64::from(n_given);
        let session = honest.join().await;
        let state = honest.client.state(&honest.run).await.unwrap();
        assert_eq!(state.epoch, 0);
        let mut seen = Vec::new();
        for _ in &checked {
            let indices: Vec<u32> = (32 * n_given..32 * (n_given + 1)).collect();
            let prepared = honest.honest(&state, &indices).await;
            seen.push(honest.is_counted(&prepared).await);
            n_given += 1;
        }
        assert_eq!(seen, checked, "then: {then}");
        drop(session);
        match then {
            "restart" => assert!(backbone.terminate().await.unwrap().success()),
            "is lied to" => {
                let mut forger = ForgingContributor::connect(&backbone).await;
                let _session = forger.join().await;
                assert_eq!(forger.forges_until_it_is_banned().await, 0);
                backbone.kill().await.unwrap();
            }
            _ => return,
        }
        backbone = test_run.backbone().await.unwrap();
    }
}

#[tokio::test]
async fn the_same_work_counts_once_under_whichever_key_and_number_it_comes() {
    let mut test_run = TestRun::new(&format!("{SMALL}\n{RECOMPUTED}")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let (mut one, mut other) =
        (ForgingContributor::connect(&backbone).await, ForgingContributor::connect(&backbone).await);
    let sessions = (one.join().await, other.join().await);
    // Together they stay below a step, so all of it is of one epoch.
    let state = one.client.state(&one.run).await.unwrap();
    let (first, second): (Vec<u32>, Vec<u32>) = ((0..32).collect(), (32..96).collect());
    let prepared = one.honest(&state, &first).await;
    one.is_counted(&prepared).await;
    // What was acknowledged is acknowledged again, and under another number it is the same work.
    one.is_counted(&prepared).await;
    let again = one.honest(&state, &first).await;
    one.is_refused_as_repeated(&again, "counts once").await;
    let backwards: Vec<u32> = first.iter().rev().copied().collect();
    let sold = other.honest(&state, &backwards).await;
    other.is_refused_as_repeated(&sold, "counts once").await;
    let prepared = other.honest(&state, &second).await;
    other.is_counted(&prepared).await;
    let union: Vec<u32> = (0..96).collect();
    let union = one.honest(&state, &union).await;
    one.is_refused_as_repeated(&union, "from this address").await;
    drop((sessions, one, other));
    assert_eq!(backbone.samples_counted().await.unwrap(), 96);
}

#[tokio::test]
async fn ways_of_local_steps_over_changed_pictures_are_computed_once_more_as_well() {
    let outer = SMALL.replace("momentum = 0.9 }", "momentum = 0.0 }").replace("peak = 0.05", "peak = 1.0");
    let run = outer.replace("[scheme.synchronous]", LOCAL_STEPS);
    let augment = "[data.augment]\ncrop_padding = 2\nflip = true\n";
    let sections = format!("{run}\n{RECOMPUTED}\n{augment}\n[network]\noperator = \"127.0.0.1:0\"\n");
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let honest = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(3).await.unwrap();
    let mut forger = ForgingContributor::connect(&backbone).await;
    let session = forger.join().await;
    assert_eq!(forger.forges_until_it_is_banned().await, 0);
    assert_one_was_found_out(&backbone).await;
    drop(session);
    honest.interrupt().unwrap();
    let given = honest.end().await.unwrap();
    assert!(given.status.success() && given.n_samples > 0, "{given:?}");
}

#[tokio::test]
async fn what_one_backbone_finds_out_the_others_find_out_for_themselves() {
    let mut two = TwoAggregators::of(&format!("{SMALL}\n{RECOMPUTED}")).await;
    let (one, other) = two.start().await;
    let mut forger = ForgingContributor::connect(&one).await;
    let _session = forger.join().await;
    assert_eq!(forger.forges_until_it_is_banned().await, 0);
    let elsewhere = ForgingContributor::connect_as(forger.identity.clone(), &other).await;
    elsewhere.is_sent_away().await;
    let log = other.log().unwrap();
    assert!(log.contains("a contribution is not the gradient of its samples"), "{log}");
}
