//! Two backbones of a run, each with its collection round and its matchmaking. Each learns that the other one has closed
//! its round, even if that took no time.

use std::time::Duration;

use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::{DeviceKind, Report};
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::matchmaking::{AggregatorStatus, ModelVersion, Ready};
use barnraise_protocol::{Sha256Hash, TensorCodec};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::collection::{CollectionAction, CollectionConfig, CollectionRound, OtherAggregators};
use barnraise_swarm::matchmaking::{GATHER, Matchmaking, MatchmakingConfig, RETRY, SILENCE};
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::{Moment, PeerKey};

use crate::matchmaking::first_status;

const TARGET: u32 = 256;
/// Everything happens in one moment: nothing may depend on a timeout.
const NOW: Moment = Moment::from_secs(1);

fn key(number: u8) -> PeerKey {
    PeerKey(vec![number])
}

fn model(epoch: u64) -> ModelVersion {
    ModelVersion { n_samples_total: 256 * epoch, epoch, hash: Sha256Hash::of(&epoch.to_le_bytes()) }
}

fn standing(epoch: u64) -> AggregatorStatus {
    AggregatorStatus { model: model(epoch), ..first_status() }
}

struct AggregatorNode {
    name: u8,
    round: CollectionRound,
    matchmaking: Matchmaking,
    contributors: Vec<(u8, u32)>,
}

impl AggregatorNode {
    fn new(name: u8, contributors: &[(u8, u32)]) -> Self {
        let config = CollectionConfig {
            target_batch_size: TARGET,
            n_parameters: 1,
            codec: TensorCodec::F32,
            slow_codec: None,
            micro_batch_size: 1,
            contribution_samples_max: 1024,
            samples_per_second_max: 1_000_000,
            collect_timeout: Duration::from_secs(5),
            in_flight_max: 8,
            contributors_max: 8,
            is_open: true,
            aggregation: Aggregation::Mean,
            gradient_norm_max: 1e3,
        };
        let mut round = CollectionRound::new(config, 0);
        for (contributor, _) in contributors {
            let address = AddressGroup(u64::from(*contributor));
            round.on_join(key(*contributor), DeviceKind::NativeCpu, address).unwrap();
        }
        let matchmaking = MatchmakingConfig {
            target_batch_size: TARGET.into(),
            silence: SILENCE,
            gather: GATHER,
            retry: RETRY,
        };
        let matchmaking = Matchmaking::new(matchmaking, key(name), standing(0));
        Self { name, round, matchmaking, contributors: contributors.to_vec() }
    }

    fn report(&mut self) {
        for (contributor, n_samples) in self.contributors.clone() {
            let epoch = self.round.epoch();
            let report = Report { epoch, contribution_id: u64::MAX, n_samples, samples_per_second: 1.0 };
            self.round.on_report(NOW, &key(contributor), &report).unwrap();
        }
    }

    /// As its core does after each event. Returns whether gradients became due, and whether all of them were collected.
    fn drive(&mut self) -> (bool, bool) {
        let (mut is_due, mut has_collected) = (false, false);
        loop {
            let (n_samples, is_closing) = (self.round.n_samples_believed(), self.round.is_closing());
            let own = AggregatorStatus { n_samples, is_closing, ..*self.matchmaking.own() };
            self.matchmaking.on_own_status(NOW, own);
            let elsewhere = OtherAggregators {
                n_samples: self.matchmaking.n_samples_elsewhere(NOW),
                is_closing: self.matchmaking.is_closing_elsewhere(NOW),
            };
            self.round.on_other_aggregators(NOW, elsewhere);
            let Some(action) = self.round.poll_action() else { return (is_due, has_collected) };
            match action {
                CollectionAction::RequestGradients(_) => is_due = true,
                CollectionAction::Persist { ticket, .. } => self.round.on_persisted(NOW, ticket),
                CollectionAction::Step(mean) => {
                    has_collected = true;
                    let ready = Ready { n_samples: mean.n_samples, loss: mean.loss };
                    self.matchmaking.on_ready(NOW, ready);
                }
                _ => {}
            }
        }
    }

    fn deliver(&mut self) -> bool {
        for (contributor, n_samples) in self.contributors.clone() {
            let offer = Offer {
                contribution_id: self.round.epoch(),
                epoch: self.round.epoch(),
                n_samples,
                loss: 1.0,
                n_values: 1,
                codec: TensorCodec::F32,
                transfer: Transfer::of(&[0; 4]),
            };
            let ticket = self.round.on_offer(NOW, &key(contributor), &offer).unwrap();
            self.round.on_gradient(NOW, ticket, vec![1.0]);
        }
        self.drive().1
    }

    fn hears(&mut self, other: &Self) -> (bool, bool) {
        self.matchmaking.on_status(NOW, key(other.name), *other.matchmaking.own());
        self.drive()
    }

    fn step(&mut self) {
        let epoch = self.round.epoch() + 1;
        self.round.on_stepped(NOW);
        self.matchmaking.on_stepped(NOW, model(epoch));
        while self.matchmaking.poll_action().is_some() {}
        self.drive();
    }
}

/// A backbone that collects faster than its status travels is only seen to have collected. A contributor of the other
/// backbone claims so much more than all others that its claims alone do not close the round there, once the others are
/// known to deliver.
#[test]
fn a_round_that_closed_unnoticed_closes_those_of_the_other_backbones() {
    let mut one = AggregatorNode::new(1, &[(10, 40)]);
    let mut other = AggregatorNode::new(2, &[(20, 200), (21, 16)]);
    for epoch in 0..4 {
        one.hears(&other);
        other.hears(&one);
        one.report();
        one.drive();
        other.hears(&one);
        other.report();
        let (is_due, _) = other.drive();
        let (is_due_at_one, _) = one.hears(&other);
        assert!(is_due_at_one, "epoch {epoch}: there is enough");
        // Its status in between is not received.
        assert!(one.deliver());
        assert!(is_due || other.hears(&one).0, "epoch {epoch}: {:?}", other.round);
        assert!(epoch == 0 || !is_due, "epoch {epoch}: its own claims closed it");
        assert!(other.deliver());
        one.step();
        other.step();
    }
}
