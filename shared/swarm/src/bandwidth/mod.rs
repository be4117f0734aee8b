//! How fast a peer's own link is, from the bytes that its averagings move.
//!
//! A transfer that waits for another peer says nothing of the link, so what counts of an averaging is its fastest
//! stretch, and of several averagings the fastest one. A program hands bytes to buffers faster than any link takes
//! them: as much as may be in buffers is left out of each stretch, so that no stretch is faster than the link, and
//! averagings that move little more than that say nothing. Old averagings are forgotten, so that a link that became
//! slow is seen, and one that slow partners hid is as fast as it is with the first averaging without them.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Moment;

#[cfg(test)]
mod tests;

/// The shortest stretch that says something: how a computer shares its time out to programs is over in less.
const STRETCH: Duration = Duration::from_millis(100);
/// Bytes are counted by slots of time of so much, or of twice, four times… as much where an averaging takes long.
const SLOT: Duration = Duration::from_millis(25);
/// Slots of an averaging, at most: each is compared with each.
const SLOTS_MAX: usize = 512;
/// A stretch moves so many times what may be in buffers, so that it is too slow by a quarter at most.
const IN_FLIGHT_TIMES: u64 = 4;
/// And so much, however little may be there.
const BYTES_MIN: u64 = 256 * 1024;
/// The fastest of so many averagings counts.
const ROUNDS: usize = 5;
/// What is older does not: a peer that is not asked to average because of it would never learn better.
const FORGET: Duration = Duration::from_secs(3600);
/// What was said stands as long as the link is not another one by more than a tenth: plans follow what is said.
const STEADY: u64 = 10;
/// Bytes per second that are believed, whatever was counted.
const SPEEDS: (u64, u64) = (1_000, 1_000_000_000_000);

const _: () = assert!(STRETCH.as_millis() >= 2 * SLOT.as_millis());

/// Bytes, each way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Of this peer.
    pub sent: u64,
    /// Of others.
    pub received: u64,
}

/// Bytes per second, each way, with two digits that count; `None` where nothing was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// What this peer can send.
    pub sent: Option<u64>,
    /// What it can receive.
    pub received: Option<u64>,
}

/// Measures one link.
#[derive(Debug)]
pub struct Bandwidth {
    /// Averagings that go on.
    n_going: usize,
    /// What may be in buffers because of them.
    in_flight: Bytes,
    /// When counting began.
    began: Moment,
    slot: Duration,
    sent: Way,
    received: Way,
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    /// Bytes of each slot of what goes on.
    slots: Vec<u64>,
    /// The last averagings that said something: when, and bytes per second.
    rounds: VecDeque<(Moment, u64)>,
    said: Option<u64>,
}

impl Default for Bandwidth {
    fn default() -> Self {
        Self {
            n_going: 0,
            in_flight: Bytes::default(),
            began: Moment::ZERO,
            slot: SLOT,
            sent: Way::default(),
            received: Way::default(),
        }
    }
}

impl Bandwidth {
    /// An averaging begins, of whose bytes so many may be counted without having crossed the link just then: those
    /// that are sent lie in buffers, and a piece that comes is counted when all of it is there.
    pub fn on_begin(&mut self, now: Moment, in_flight: Bytes) {
        if self.n_going == 0 {
            self.begin_anew(now);
        }
        self.n_going += 1;
        self.in_flight.sent = self.in_flight.sent.saturating_add(in_flight.sent);
        self.in_flight.received = self.in_flight.received.saturating_add(in_flight.received);
    }

    /// Bytes were given to the link, or came from it. Outside of averagings they do not count.
    pub fn on_moved(&mut self, now: Moment, bytes: Bytes) {
        if self.n_going == 0 {
            return;
        }
        let mut slot = self.slot_at(now);
        while slot >= SLOTS_MAX {
            self.slot *= 2;
            self.sent.halve();
            self.received.halve();
            slot = self.slot_at(now);
        }
        self.sent.count(slot, bytes.sent);
        self.received.count(slot, bytes.received);
    }

    /// An averaging that began with `in_flight` is over. One that failed makes nothing faster: whoever made it fail may
    /// have pretended to have received what it had not.
    pub fn on_end(&mut self, now: Moment, in_flight: Bytes, has_succeeded: bool) {
        if self.n_going == 0 {
            return;
        }
        self.sent.on_end(now, self.slot, self.in_flight.sent, has_succeeded);
        self.received.on_end(now, self.slot, self.in_flight.received, has_succeeded);
        self.n_going -= 1;
        self.in_flight.sent = self.in_flight.sent.saturating_sub(in_flight.sent);
        self.in_flight.received = self.in_flight.received.saturating_sub(in_flight.received);
        // What still goes on is measured from here.
        self.begin_anew(now);
    }

    /// How fast the link is.
    pub fn measured(&mut self, now: Moment) -> Measured {
        Measured { sent: self.sent.say(now), received: self.received.say(now) }
    }

    fn begin_anew(&mut self, now: Moment) {
        (self.began, self.slot) = (now, SLOT);
        self.sent.slots.clear();
        self.received.slots.clear();
    }

    fn slot_at(&self, now: Moment) -> usize {
        let slot = now.saturating_sub(self.began).as_nanos() / self.slot.as_nanos();
        usize::try_from(slot).unwrap_or(usize::MAX)
    }
}

impl Way {
    fn count(&mut self, slot: usize, n_bytes: u64) {
        if n_bytes == 0 {
            return;
        }
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, 0);
        }
        if let Some(counted) = self.slots.get_mut(slot) {
            *counted = counted.saturating_add(n_bytes);
        }
    }

    /// Slots become twice as long.
    fn halve(&mut self) {
        let pairs =
            self.slots.chunks(2).map(|pair| pair.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)));
        self.slots = pairs.collect();
    }

    fn on_end(&mut self, now: Moment, slot: Duration, in_flight: u64, has_succeeded: bool) {
        let Some(speed) = fastest(&self.slots, slot, in_flight) else { return };
        let known = self.known(now);
        let speed = match (has_succeeded, known) {
            (true, _) => speed,
            (false, Some(known)) => speed.min(known),
            (false, None) => return,
        };
        if self.rounds.len() >= ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.push_back((now, speed));
    }

    /// Of the last averagings.
    fn known(&mut self, now: Moment) -> Option<u64> {
        self.rounds.retain(|(at, _)| now.saturating_sub(*at) < FORGET);
        self.rounds.iter().map(|(_, speed)| *speed).max()
    }

    fn say(&mut self, now: Moment) -> Option<u64> {
        let known = self.known(now);
        self.said = known.map(|speed| match self.said {
            Some(said) if said.abs_diff(speed) <= said / STEADY => said,
            _ => two_digits(speed),
        });
        self.said
    }
}

/// Bytes per second of the fastest stretch, without what may have been in buffers.
fn fastest(slots: &[u64], slot: Duration, in_flight: u64) -> Option<u64> {
    let n_bytes_min = in_flight.saturating_mul(IN_FLIGHT_TIMES).max(BYTES_MIN);
    let mut fastest: Option<f64> = None;
    for from in 0..slots.len() {
        let (mut n_bytes, mut took) = (0u64, Duration::ZERO);
        for of_slot in slots.iter().skip(from) {
            n_bytes = n_bytes.saturating_add(*of_slot);
            took = took.saturating_add(slot);
            if took >= STRETCH && n_bytes >= n_bytes_min {
                let speed = (n_bytes - in_flight) as f64 / took.as_secs_f64();
                fastest = Some(fastest.map_or(speed, |fastest| fastest.max(speed)));
            }
        }
    }
    fastest.map(|speed| (speed as u64).clamp(SPEEDS.0, SPEEDS.1))
}

/// As people would say it: 12,582,912 is 13,000,000.
fn two_digits(speed: u64) -> u64 {
    let unit = 10u64.pow(speed.max(10).ilog10() - 1);
    speed.saturating_add(unit / 2) / unit * unit
}
