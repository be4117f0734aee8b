//! The peers' side of the world: each is driven by the state machine of the tab and the native peer.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::gradient::{Accepted, Offer, Refusal};
use barnraise_swarm::contributor::{Action, Contributor};
use barnraise_swarm::round::AddressGroup;

use super::{CLOCKS_OFF_MS, Event, LATENCY_MS, MICRO_BATCH, Message, N_PARAMETERS, UNNOTICED_MS, World, key};

impl World {
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

    /// Does what the peer's state machine says.
    pub(super) fn drive(&mut self, peer: usize) {
        while self.peers[peer].is_alive && !self.peers[peer].is_busy {
            let clock = self.clock(peer);
            match self.peers[peer].contributor.next_action(clock) {
                Action::Connect => {
                    let operation = self.begin(peer);
                    self.after(LATENCY_MS, Event::Connect(peer, operation));
                }
                Action::FetchState => {
                    let operation = self.begin(peer);
                    self.after(3 * LATENCY_MS, Event::State(peer, operation));
                }
                Action::ComputeBatch => {
                    let operation = self.begin(peer);
                    let takes = self.peers[peer].batch_ms * self.peers[peer].slower;
                    self.after(takes, Event::Batch(peer, operation));
                }
                Action::SendReport(report) => {
                    let session = self.peers[peer].session;
                    self.after(LATENCY_MS, Event::Report(peer, session, report));
                }
                Action::TakeGradient { contribution_id, epoch, n_samples } => {
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
                Action::Offer => {
                    let operation = self.begin(peer);
                    self.after(LATENCY_MS, Event::Offer(peer, operation, self.boot));
                }
                Action::Wait(Some(until)) => {
                    let operation = self.peers[peer].operation;
                    let wait = until.saturating_sub(clock).as_millis() as u64;
                    return self.after(wait.max(1), Event::Wake(peer, operation));
                }
                // Nor is anything kept of F32.
                action @ (Action::Wait(None)
                | Action::Leave
                | Action::KeepLate { .. }
                | Action::NameLate { .. }
                | Action::LoadState) => {
                    panic!("{action:?} of one that goes on")
                }
            }
        }
    }

    pub(super) fn start(&mut self, peer: usize) {
        let clock_ms = self.below(CLOCKS_OFF_MS);
        let seed = self.random.next_u64();
        let one = &mut self.peers[peer];
        one.contributor = Contributor::new(one.next_id, seed);
        (one.is_alive, one.clock_ms, one.offer) = (true, clock_ms, None);
        let clock = self.clock(peer);
        self.peers[peer].contributor.start(clock);
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
        self.after(unnoticed, Event::Lost(peer, session));
        self.after(again, Event::Start(peer));
    }

    pub(super) fn connect(&mut self, peer: usize) {
        if !self.is_up || self.cut.contains(&peer) {
            return self.disconnected(peer);
        }
        let session = self.number();
        self.sessions.insert(peer, session);
        self.round.on_join(key(peer), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        let clock = self.clock(peer);
        let one = &mut self.peers[peer];
        one.session = session;
        one.contributor.on_connected(clock, self.size.samples_max, MICRO_BATCH);
        one.contributor.on_epoch(self.round.epoch());
        self.finish(peer);
    }

    pub(super) fn disconnected(&mut self, peer: usize) {
        let (gone, clock) = (self.number(), self.clock(peer));
        let one = &mut self.peers[peer];
        (one.session, one.operation) = (gone, gone);
        one.contributor.on_disconnected(clock, "gone".into());
        self.finish(peer);
    }

    pub(super) fn hear(&mut self, peer: usize, message: Message) {
        let clock = self.clock(peer);
        let contributor = &mut self.peers[peer].contributor;
        contributor.on_heard(clock);
        match message {
            Message::Progress => {}
            Message::Epoch(epoch) => contributor.on_epoch(epoch),
            Message::Due(epoch) => contributor.on_due(epoch),
        }
        self.drive(peer);
    }

    pub(super) fn answered(&mut self, peer: usize, operation: u64, answer: &Result<Accepted, Refusal>) {
        if !self.is_current(peer, operation) {
            self.seen.n_unheard_answers += u64::from(answer.is_ok());
            return;
        }
        if let Ok(Accepted { contribution_id: id, .. }) | Err(Refusal::Duplicate { contribution_id: id }) =
            answer
        {
            assert!(self.stored.contains(&(peer, *id)), "{id} of {peer} was never stored");
            self.seen.n_duplicates += u64::from(answer.is_err());
        }
        let clock = self.clock(peer);
        self.peers[peer].contributor.on_answer(clock, answer);
        self.finish(peer);
    }
}
