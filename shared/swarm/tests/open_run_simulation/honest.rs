//! The honest contributors, driven by the state machine of the tab and the native peer.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::gradient::{Accepted, ContributionRefusal, Offer};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::contributor::ContributorAction;

use super::{
    BackboneMessage, Contribution, LATENCY_MS, MICRO_BATCH, OpenRunEvent, OpenRunSimulation, TARGET,
    honest_key, model,
};

impl OpenRunSimulation {
    pub(super) fn is_current(&self, peer: usize, operation: u64) -> bool {
        self.honest[peer].is_busy && self.honest[peer].operation == operation
    }

    fn begin(&mut self, peer: usize) -> u64 {
        let one = &mut self.honest[peer];
        one.operation += 1;
        one.is_busy = true;
        one.operation
    }

    pub(super) fn finish(&mut self, peer: usize) {
        self.honest[peer].is_busy = false;
        self.drive(peer);
    }

    /// Executes the actions of the peer's state machine.
    pub(super) fn drive(&mut self, peer: usize) {
        while !self.honest[peer].is_busy {
            let clock = self.clock();
            let one = &mut self.honest[peer];
            match one.contributor.next_action(&mut one.link, clock) {
                ContributorAction::Connect => {
                    let operation = self.begin(peer);
                    self.after(LATENCY_MS, OpenRunEvent::Connect(peer, operation));
                }
                ContributorAction::FetchState => {
                    let operation = self.begin(peer);
                    self.after(3 * LATENCY_MS, OpenRunEvent::State(peer, operation));
                }
                ContributorAction::ComputeBatch => {
                    let operation = self.begin(peer);
                    self.after(self.honest[peer].batch_ms, OpenRunEvent::Batch(peer, operation));
                }
                ContributorAction::SendReport(report) => {
                    self.send(OpenRunEvent::Report(honest_key(peer), report));
                }
                ContributorAction::TakeGradient { contribution_id, epoch, n_samples } => {
                    self.take_gradient(peer, contribution_id, epoch, n_samples);
                }
                ContributorAction::Offer => {
                    self.begin(peer);
                    let contribution = self.honest[peer].contribution.clone().unwrap();
                    self.send(OpenRunEvent::Offer(Box::new(contribution)));
                }
                ContributorAction::Wait(Some(until)) => {
                    let operation = self.honest[peer].operation;
                    let wait = until.saturating_sub(clock).as_millis() as u64;
                    return self.after(wait.max(1), OpenRunEvent::Wake(peer, operation));
                }
                action => panic!("{action:?} of one that goes on"),
            }
        }
    }

    fn take_gradient(&mut self, peer: usize, contribution_id: u64, epoch: u64, n_samples: u32) {
        let one = &mut self.honest[peer];
        let samples = std::mem::take(&mut one.samples);
        assert_eq!(samples.len(), n_samples as usize);
        let values = model::gradient(&one.parameters, &samples);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let n_values = model::N as u64;
        let (codec, transfer) = (TensorCodec::F32, Transfer::of(&bytes));
        let offer = Offer { contribution_id, epoch, n_samples, loss: 1.0, n_values, codec, transfer };
        one.contribution = Some(Contribution {
            peer: honest_key(peer),
            group: AddressGroup(1 + peer as u64),
            offer,
            samples,
            values,
            is_true: true,
            transfer_ms: Some(one.transfer_ms),
        });
    }

    pub(super) fn computed(&mut self, peer: usize) {
        let samples = self.draw(MICRO_BATCH);
        self.seen.n_computed += u64::from(MICRO_BATCH);
        let one = &mut self.honest[peer];
        one.samples.extend(samples);
        one.contributor.on_batch(MICRO_BATCH, 1000.0 * MICRO_BATCH as f32 / one.batch_ms as f32);
        self.finish(peer);
    }

    pub(super) fn connect(&mut self, peer: usize) {
        let group = AddressGroup(1 + peer as u64);
        self.round.on_join(honest_key(peer), DeviceKind::NativeCpu, group).unwrap();
        let clock = self.clock();
        let epoch = self.round.epoch();
        let one = &mut self.honest[peer];
        one.link.on_connected(clock);
        one.contributor.on_connected(TARGET, MICRO_BATCH);
        one.contributor.on_epoch(epoch);
        self.act();
        self.finish(peer);
    }

    pub(super) fn on_message(&mut self, peer: usize, message: BackboneMessage) {
        let clock = self.clock();
        let one = &mut self.honest[peer];
        one.link.on_message(clock);
        let contributor = &mut one.contributor;
        match message {
            BackboneMessage::Progress => {}
            BackboneMessage::Epoch(epoch) => contributor.on_epoch(epoch),
            BackboneMessage::Due(epoch) => contributor.on_due(epoch),
        }
        self.drive(peer);
    }

    pub(super) fn answered_honest(&mut self, peer: usize, answer: &Result<Accepted, ContributionRefusal>) {
        if let Ok(accepted) = answer {
            self.seen.n_honest += u64::from(accepted.n_samples);
        }
        let clock = self.clock();
        let one = &mut self.honest[peer];
        one.contributor.on_answer(&one.link, clock, answer);
        self.finish(peer);
    }
}
