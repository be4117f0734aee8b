//! Everybody stands still for a while, or is slow: tabs in the background, suspended laptops, a busy backbone.

use super::{COLLECT_TIMEOUT_MS, Event, LATENCY_MS, MICRO_BATCH, STORE_MS, World};

/// The slowest peer's pass and transfer, at its own speed.
const BATCH_MS_MAX: u64 = 200;
const TRANSFER_MS_MAX: u64 = 600;
/// The longest that anybody stands still, and the most that it is slower.
const STALL_MS_MAX: usize = 40_000;
const SLOWER_MAX: usize = 20;
/// From one trouble to the next.
const PAUSE_MS_MAX: usize = 12_000;

/// Who stands still, and since when everybody has done as it should.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// Until when, of each peer and of the backbone.
    peers_until: Vec<u64>,
    backbone_until: u64,
    /// Since when each computes, connected and at its own speed.
    peers_since: Vec<u64>,
    backbone_since: u64,
    pub(super) accepted_at: u64,
    n_checked: u64,
    /// The number of the event that is handled.
    handled: u64,
}

impl Stalls {
    pub(super) fn new(n_peers: usize) -> Self {
        Self { peers_until: vec![0; n_peers], peers_since: vec![0; n_peers], ..Self::default() }
    }
}

impl World {
    /// How long it takes at most until something is accepted where one peer computes that nothing befalls, whoever else
    /// there is: to compute a step alone; to wait for others three times, for those who delivered before, for all who
    /// are counted on when gradients are due, and once more for those who reported meanwhile; and to deliver.
    pub(crate) fn accepted_within_ms(&self) -> u64 {
        let compute = u64::from(self.size.target.div_ceil(MICRO_BATCH)) * BATCH_MS_MAX;
        compute + 3 * COLLECT_TIMEOUT_MS + 2 * (TRANSFER_MS_MAX + STORE_MS) + 10 * LATENCY_MS
    }

    /// Stalls and throttles everybody at random until `end_ms`, then nobody; checks all the time, and for as long
    /// afterwards as it may take.
    pub(crate) fn run_stalling(&mut self, end_ms: u64) -> u64 {
        let n_peers = self.size.n_peers;
        let mut at = 0;
        while at < end_ms {
            at += 1 + self.below(PAUSE_MS_MAX);
            let whom = self.below(n_peers + 1) as usize;
            let stall = 100 + self.below(STALL_MS_MAX);
            let event = match self.below(3) {
                _ if whom == n_peers => Event::Stall(None, stall / 2),
                0 => Event::Throttle(whom, 1 + self.below(SLOWER_MAX)),
                _ => Event::Stall(Some(whom), stall),
            };
            self.after(at, event);
        }
        for peer in 0..n_peers {
            self.after(end_ms, Event::Throttle(peer, 1));
        }
        let calm = end_ms + 2 * STALL_MS_MAX as u64 + 4 * self.accepted_within_ms();
        while self.now < calm {
            let ((at, number), event) = self.events.pop_first().expect("something always happens");
            self.stalls.handled = number;
            self.now = at;
            self.on(event);
            self.check_progress();
        }
        self.stalls.n_checked
    }

    pub(super) fn stall(&mut self, of: Option<usize>, for_ms: u64) {
        let until = self.now + for_ms;
        match of {
            Some(peer) => self.stalls.peers_until[peer] = until.max(self.stalls.peers_until[peer]),
            None => self.stalls.backbone_until = until.max(self.stalls.backbone_until),
        }
    }

    pub(super) fn throttle(&mut self, peer: usize, slower: u64) {
        self.peers[peer].slower = slower;
    }

    /// What comes to one that stands still is handled once it goes on, in its order. Connections stay: nobody noticed.
    pub(super) fn put_off(&mut self, event: Event) -> Option<Event> {
        let until = match &event {
            Event::Wake(peer, _)
            | Event::Connect(peer, _)
            | Event::State(peer, _)
            | Event::Batch(peer, _)
            | Event::Answer(peer, ..)
            | Event::Hear(peer, ..)
            | Event::Disconnected(peer, _) => self.stalls.peers_until[*peer],
            Event::Report(..)
            | Event::Offer(..)
            | Event::Stored(..)
            | Event::Deadline(_)
            | Event::Progress => self.stalls.backbone_until,
            // Bytes that a peer did not send do not arrive.
            Event::Received(ticket, boot) if *boot == self.boot => {
                let sender = self.flights.get(ticket).map(|flight| self.stalls.peers_until[flight.peer]);
                sender.unwrap_or(0).max(self.stalls.backbone_until)
            }
            _ => 0,
        };
        if until <= self.now {
            return Some(event);
        }
        // In the order in which all of it was sent.
        self.events.insert((until, self.stalls.handled), event);
        None
    }

    /// Where one peer has computed for long enough, something was accepted.
    fn check_progress(&mut self) {
        let stalls = &mut self.stalls;
        stalls.backbone_since = stalls.backbone_since.max(stalls.backbone_until);
        for (peer, of) in self.peers.iter().enumerate() {
            stalls.peers_since[peer] = stalls.peers_since[peer].max(stalls.peers_until[peer]);
            // One without a connection says so, and when it tries again.
            if of.slower > 1 || of.contributor.down().is_some() {
                stalls.peers_since[peer] = self.now;
            }
        }
        let within = self.accepted_within_ms();
        let backbone = self.stalls.backbone_since;
        let longest = self.stalls.peers_since.iter().map(|&since| since.max(backbone)).min().unwrap_or(0);
        if self.now < longest + within {
            return;
        }
        self.stalls.n_checked += 1;
        let waited = self.now - self.stalls.accepted_at;
        assert!(
            waited <= within,
            "nothing was accepted for {waited} ms, though a peer computed for {} ms: {:?}",
            self.now - longest,
            self.round
        );
    }
}
