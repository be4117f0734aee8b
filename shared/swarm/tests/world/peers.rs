//! The simulated peers, driven by the state machine of the tab and the native peer.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::gradient::{Accepted, ContributionRefusal, Offer};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::activity::Interruption;
use barnraise_swarm::contributor::{Contributor, ContributorAction};
use barnraise_swarm::session::Session;

use super::{
    BackboneMessage, CLOCKS_OFF_MS, ChurnEvent, ChurnSimulation, LATENCY_MS, MICRO_BATCH, N_PARAMETERS,
    UNNOTICED_MS, key,
};

impl ChurnSimulation {
    pub(super) fn is_current(&self, peer: usize, operation: u64) -> bool {
        let peer = &self.peers[peer];
        peer.is_alive && peer.is_busy && peer.operation == operation
    }

    pub(super) fn begin(&mut self, peer: usize) -> u64 {
        let number = self.number();
        (self.peers[peer].operation, self.peers[peer].is_busy) = (number, true);
        number
    }

    pub(super) fn finish(&mut self, peer: usize) {
        self.peers[peer].is_busy = false;
        self.drive(peer);
    }

    /// Executes the actions of the peer's state machine.
    pub(super) fn drive(&mut self, peer: usize) {
        while self.peers[peer].is_alive && !self.peers[peer].is_busy {
            let clock = self.clock(peer);
            let one = &mut self.peers[peer];
            match one.contributor.next_action(&mut one.link, clock) {
                ContributorAction::Connect => {
                    let operation = self.begin(peer);
                    self.after(LATENCY_MS, ChurnEvent::Connect(peer, operation));
                }
                ContributorAction::FetchState => {
                    let operation = self.begin(peer);
                    self.after(3 * LATENCY_MS, ChurnEvent::State(peer, operation));
                }
                ContributorAction::ComputeBatch => {
                    let operation = self.begin(peer);
                    let takes = self.slowed(peer, self.peers[peer].batch_ms);
                    self.after(takes, ChurnEvent::Batch(peer, operation));
                }
                ContributorAction::SendReport(report) => {
                    let session = self.peers[peer].session;
                    self.send(ChurnEvent::Report(peer, session, report));
                }
                ContributorAction::TakeGradient { contribution_id, epoch, n_samples } => {
                    self.peers[peer].next_id = contribution_id + 1;
                    self.peers[peer].offer = Some(Offer {
                        contribution_id,
                        epoch,
                        n_samples,
                        loss: 1.0,
                        n_values: N_PARAMETERS as u64,
                        codec: TensorCodec::F32,
                        transfer: Transfer::of(&[0; 4 * N_PARAMETERS]),
                    });
                }
                ContributorAction::Offer => {
                    let operation = self.begin(peer);
                    self.send(ChurnEvent::Offer(peer, operation, self.boot));
                }
                ContributorAction::Wait(Some(until)) => {
                    let operation = self.peers[peer].operation;
                    let wait = until.saturating_sub(clock).as_millis() as u64;
                    return self.after(wait.max(1), ChurnEvent::Wake(peer, operation));
                }
                // F32 leaves no residual either.
                action @ (ContributorAction::Wait(None)
                | ContributorAction::Leave
                | ContributorAction::KeepLate { .. }
                | ContributorAction::NameLate { .. }
                | ContributorAction::LoadState) => {
                    panic!("{action:?} of one that goes on")
                }
            }
        }
    }

    pub(super) fn start(&mut self, peer: usize) {
        let clock_ms = self.below(CLOCKS_OFF_MS);
        let seed = self.simulation.random.next_u64();
        let one = &mut self.peers[peer];
        one.contributor = Contributor::new(one.next_id);
        one.link = Session::new(seed);
        (one.is_alive, one.clock_ms, one.offer) = (true, clock_ms, None);
        let clock = self.clock(peer);
        self.peers[peer].link.start(clock);
        self.finish(peer);
    }

    pub(super) fn kill(&mut self, peer: usize) {
        self.seen.n_killed += 1;
        let gone = self.number();
        let one = &mut self.peers[peer];
        one.is_alive = false;
        one.operation = gone;
        let session = std::mem::replace(&mut one.session, gone);
        let (unnoticed, again) = (self.below(UNNOTICED_MS), 200 + self.below(4000));
        self.after(unnoticed, ChurnEvent::Lost(peer, session));
        self.after(again, ChurnEvent::Start(peer));
    }

    pub(super) fn connect(&mut self, peer: usize) {
        if !self.is_up || self.is_cut(peer) {
            return self.disconnected(peer);
        }
        let session = self.number();
        self.sessions.insert(peer, session);
        self.round.on_join(key(peer), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        let clock = self.clock(peer);
        let one = &mut self.peers[peer];
        one.session = session;
        one.link.on_connected(clock);
        one.contributor.on_connected(self.size.samples_max, MICRO_BATCH);
        one.contributor.on_epoch(self.round.epoch());
        self.finish(peer);
    }

    pub(super) fn disconnected(&mut self, peer: usize) {
        let (gone, clock) = (self.number(), self.clock(peer));
        let one = &mut self.peers[peer];
        (one.session, one.operation) = (gone, gone);
        one.link.on_disconnected(clock, Interruption::SessionEnded);
        self.finish(peer);
    }

    pub(super) fn on_message(&mut self, peer: usize, message: BackboneMessage) {
        let clock = self.clock(peer);
        let one = &mut self.peers[peer];
        one.link.on_message(clock);
        let contributor = &mut one.contributor;
        match message {
            BackboneMessage::Progress => {}
            BackboneMessage::Epoch(epoch) => contributor.on_epoch(epoch),
            BackboneMessage::Due(epoch) => contributor.on_due(epoch),
        }
        self.drive(peer);
    }

    pub(super) fn answered(
        &mut self,
        peer: usize,
        operation: u64,
        answer: &Result<Accepted, ContributionRefusal>,
    ) {
        if !self.is_current(peer, operation) {
            self.seen.n_unheard_answers += u64::from(answer.is_ok());
            return;
        }
        if let Ok(Accepted { contribution_id: id, .. })
        | Err(ContributionRefusal::Duplicate { contribution_id: id }) = answer
        {
            assert!(self.stored.contains(&(peer, *id)), "{id} of {peer} was never stored");
            self.seen.n_duplicates += u64::from(answer.is_err());
        }
        let clock = self.clock(peer);
        let one = &mut self.peers[peer];
        one.contributor.on_answer(&one.link, clock, answer);
        self.finish(peer);
    }
}
