//! Measures the bandwidth of a peer's own link from the bytes that its averaging rounds transfer.
//!
//! A transfer that waits for another peer does not show the bandwidth. So the fastest interval of a round counts, and
//! the fastest of several rounds. A program fills buffers faster than any link drains them: each interval is reduced by
//! the bytes that may be in buffers, so that none is faster than the link. Rounds that transfer little more than that
//! are not measured. Old rounds are forgotten, so that a link that became slow is noticed. A link that slow peers hid
//! is measured with the first round without them.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Moment;

#[cfg(test)]
mod tests;

/// The shortest interval that is measured; scheduling delays of the operating system are shorter.
const STRETCH: Duration = Duration::from_millis(100);
/// Length of the time slots in which bytes are counted; doubled while a round takes longer than [`SLOTS_MAX`] slots.
const SLOT: Duration = Duration::from_millis(25);
/// Most slots of a round: the search over intervals is quadratic in it.
const SLOTS_MAX: usize = 512;
/// An interval must transfer this many times the bytes that may be in buffers, so that it is too slow by at most a
/// quarter.
const IN_FLIGHT_TIMES: u64 = 4;
/// And at least this many bytes.
const BYTES_MIN: u64 = 256 * 1024;
/// The fastest of this many rounds counts.
const ROUNDS: usize = 5;
/// Older rounds do not count: a peer that is not assigned any part because of them would never be measured again.
const FORGET: Duration = Duration::from_secs(3600);
/// The announced value stays while the measured one differs from it by at most a tenth: plans depend on it.
const STEADY: u64 = 10;
/// Range of plausible bytes per second; measurements are clamped to it.
const SPEEDS: (u64, u64) = (1_000, 1_000_000_000_000);

const _: () = assert!(STRETCH.as_millis() >= 2 * SLOT.as_millis());

/// Bytes in each direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Sent by this peer.
    pub sent: u64,
    /// Received by this peer.
    pub received: u64,
}

/// Bytes per second in each direction, with two significant digits; `None` where not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeasuredBandwidth {
    /// Uplink.
    pub sent: Option<u64>,
    /// Downlink.
    pub received: Option<u64>,
}

/// Measures one link.
#[derive(Debug)]
pub struct Bandwidth {
    /// Number of rounds in progress.
    n_active_rounds: usize,
    /// Bytes of these that may be in buffers.
    in_flight: Bytes,
    /// When counting began.
    began: Moment,
    slot: Duration,
    sent: DirectionMeter,
    received: DirectionMeter,
}

/// One direction.
#[derive(Debug, Default)]
struct DirectionMeter {
    /// Bytes of each slot of the rounds in progress.
    slots: Vec<u64>,
    /// The last measured rounds: when, and bytes per second.
    rounds: VecDeque<(Moment, u64)>,
    announced: Option<u64>,
}

impl Default for Bandwidth {
    fn default() -> Self {
        Self {
            n_active_rounds: 0,
            in_flight: Bytes::default(),
            began: Moment::ZERO,
            slot: SLOT,
            sent: DirectionMeter::default(),
            received: DirectionMeter::default(),
        }
    }
}

impl Bandwidth {
    /// A round begins. `in_flight` of its bytes may be counted at a time when they do not cross the link: sent bytes
    /// lie in buffers, and a received piece is counted when all of it has arrived.
    pub fn on_begin(&mut self, now: Moment, in_flight: Bytes) {
        if self.n_active_rounds == 0 {
            self.begin_anew(now);
        }
        self.n_active_rounds += 1;
        self.in_flight.sent = self.in_flight.sent.saturating_add(in_flight.sent);
        self.in_flight.received = self.in_flight.received.saturating_add(in_flight.received);
    }

    /// Bytes were sent or received. Outside of rounds they do not count.
    pub fn on_moved(&mut self, now: Moment, bytes: Bytes) {
        if self.n_active_rounds == 0 {
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

    /// A round that began with `in_flight` is over. A failed one does not raise the measurement: the peer that made it
    /// fail may have acknowledged bytes that it had not received.
    pub fn on_end(&mut self, now: Moment, in_flight: Bytes, has_succeeded: bool) {
        if self.n_active_rounds == 0 {
            return;
        }
        self.sent.on_end(now, self.slot, self.in_flight.sent, has_succeeded);
        self.received.on_end(now, self.slot, self.in_flight.received, has_succeeded);
        self.n_active_rounds -= 1;
        self.in_flight.sent = self.in_flight.sent.saturating_sub(in_flight.sent);
        self.in_flight.received = self.in_flight.received.saturating_sub(in_flight.received);
        // Rounds in progress are measured from here.
        self.begin_anew(now);
    }

    /// The measured bandwidth.
    pub fn measured(&mut self, now: Moment) -> MeasuredBandwidth {
        MeasuredBandwidth { sent: self.sent.announce(now), received: self.received.announce(now) }
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

impl DirectionMeter {
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

    /// The fastest of the last rounds.
    fn known(&mut self, now: Moment) -> Option<u64> {
        self.rounds.retain(|(at, _)| now.saturating_sub(*at) < FORGET);
        self.rounds.iter().map(|(_, speed)| *speed).max()
    }

    fn announce(&mut self, now: Moment) -> Option<u64> {
        let known = self.known(now);
        self.announced = known.map(|speed| match self.announced {
            Some(said) if said.abs_diff(speed) <= said / STEADY => said,
            _ => two_digits(speed),
        });
        self.announced
    }
}

/// Bytes per second of the fastest interval, without bytes that may have been in buffers.
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

/// Rounds to two significant digits: 12,582,912 becomes 13,000,000.
fn two_digits(speed: u64) -> u64 {
    let unit = 10u64.pow(speed.max(10).ilog10() - 1);
    speed.saturating_add(unit / 2) / unit * unit
}
