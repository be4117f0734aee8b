//! Simulated links of a known speed, with the traffic patterns of averaging rounds.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::random::SplitMix64;

const MEGA: u64 = 1_000_000;
/// A whole number of them is a slot.
const TICK: Duration = Duration::from_millis(5);
const NONE: Bytes = Bytes { sent: 0, received: 0 };

/// One direction of a link, with a buffer before it.
struct SimulatedLink {
    now: Moment,
    bytes_per_s: u64,
    /// Room in the buffer, and how much of it is taken.
    buffer: u64,
    buffered: f64,
}

/// Traffic on the link: as much as it takes, or none.
enum Spell {
    Moves(Duration),
    Waits(Duration),
}

use Spell::{Moves, Waits};

impl SimulatedLink {
    fn new(bytes_per_s: u64, buffer: u64) -> Self {
        Self { now: Duration::from_secs(9), bytes_per_s, buffer, buffered: 0.0 }
    }

    /// An averaging, whose bytes go the same way in both directions.
    fn round(&mut self, bandwidth: &mut Bandwidth, in_flight: u64, spells: &[Spell]) {
        let in_flight = Bytes { sent: in_flight, received: in_flight };
        bandwidth.on_begin(self.now, in_flight);
        for spell in spells {
            let (moves, until) = match spell {
                Moves(duration) => (true, self.now + *duration),
                Waits(duration) => (false, self.now + *duration),
            };
            while self.now < until {
                if moves {
                    let room = (self.buffer as f64 - self.buffered).max(0.0).floor();
                    let carried = if self.buffer == 0 { self.carries().floor() } else { room };
                    bandwidth.on_moved(self.now, Bytes { sent: carried as u64, received: carried as u64 });
                    self.buffered += if self.buffer == 0 { 0.0 } else { room };
                }
                self.buffered = (self.buffered - self.carries()).max(0.0);
                self.now += TICK;
            }
        }
        bandwidth.on_end(self.now, in_flight, true);
        self.now += Duration::from_secs(20);
    }

    fn carries(&self) -> f64 {
        self.bytes_per_s as f64 * TICK.as_secs_f64()
    }

    fn measured(&self, bandwidth: &mut Bandwidth) -> u64 {
        let MeasuredBandwidth { sent, received } = bandwidth.measured(self.now);
        assert_eq!(sent, received);
        sent.unwrap()
    }
}

/// Before it is rounded.
fn exact(bandwidth: &Bandwidth) -> u64 {
    bandwidth.sent.rounds.back().unwrap().1
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn waits_and_full_buffers_do_not_hide_the_link() {
    // From a telephone's to a server's; buffers that fit to what averagings of them have on the way.
    for (bytes_per_s, buffer) in
        [(200_000, 0), (MEGA, 512 << 10), (12 * MEGA, 4 << 20), (400 * MEGA, 8 << 20)]
    {
        let drains = Duration::from_secs_f64(buffer as f64 / bytes_per_s as f64);
        let busy = 40 * drains + ms(3000);
        let spells =
            [Waits(ms(700)), Moves(busy / 3), Waits(ms(5000)), Moves(busy), Waits(ms(90)), Moves(ms(50))];
        let mut bandwidth = Bandwidth::default();
        SimulatedLink::new(bytes_per_s, buffer).round(&mut bandwidth, buffer, &spells);
        let exact = exact(&bandwidth) as f64 / bytes_per_s as f64;
        assert!((0.96..1.001).contains(&exact), "{bytes_per_s}: {exact}");
    }
}

/// With buffers of any size, no interval is measured as faster than the link.
#[test]
fn what_buffers_take_at_once_is_no_speed() {
    let mut random = SplitMix64::new(7);
    for _ in 0..50 {
        let bytes_per_s = MEGA * (1 + random.below(30) as u64);
        let mut link = SimulatedLink::new(bytes_per_s, 2 << 20);
        let mut spell = |n: usize| ms(50 + random.below(n) as u64);
        let spells: Vec<Spell> = (0..8).flat_map(|_| [Moves(spell(6000)), Waits(spell(4000))]).collect();
        let mut bandwidth = Bandwidth::default();
        link.round(&mut bandwidth, 2 << 20, &spells);
        let exact = exact(&bandwidth) as f64 / bytes_per_s as f64;
        assert!((0.9..1.001).contains(&exact), "{bytes_per_s}: {exact}");
    }
}

#[test]
fn a_link_that_became_slow_is_seen_and_one_that_became_fast_at_once() {
    let (mut link, mut bandwidth) = (SimulatedLink::new(8 * MEGA, 0), Bandwidth::default());
    let round = [Moves(ms(2000))];
    link.round(&mut bandwidth, 0, &round);
    assert_eq!(link.measured(&mut bandwidth), 8 * MEGA);
    link.bytes_per_s = 2 * MEGA;
    for _ in 1..ROUNDS {
        link.round(&mut bandwidth, 0, &round);
        assert_eq!(link.measured(&mut bandwidth), 8 * MEGA);
    }
    link.round(&mut bandwidth, 0, &round);
    assert_eq!(link.measured(&mut bandwidth), 2 * MEGA);
    link.bytes_per_s = 5 * MEGA;
    link.round(&mut bandwidth, 0, &round);
    assert_eq!(link.measured(&mut bandwidth), 5 * MEGA);
}

#[test]
fn what_slow_partners_hid_is_forgotten() {
    let (mut link, mut bandwidth) = (SimulatedLink::new(50_000, 0), Bandwidth::default());
    for _ in 0..20 {
        link.round(&mut bandwidth, 0, &[Moves(ms(20_000))]);
    }
    assert_eq!(link.measured(&mut bandwidth), 50_000);
    // Without recent rounds there is no measurement, as before the first one.
    assert_eq!(bandwidth.measured(link.now + FORGET), MeasuredBandwidth::default());
    link.bytes_per_s = 30 * MEGA;
    link.round(&mut bandwidth, 0, &[Moves(ms(400))]);
    assert_eq!(link.measured(&mut bandwidth), 30 * MEGA);
}

#[test]
fn noise_does_not_change_what_is_said() {
    for middle in [995_000, 10_400_000, 12_500_000, 94_900_000] {
        let (mut link, mut bandwidth) = (SimulatedLink::new(middle, 0), Bandwidth::default());
        let mut random = SplitMix64::new(middle);
        let mut said = Vec::new();
        for _ in 0..100 {
            link.bytes_per_s = middle / 100 * (97 + random.below(7) as u64);
            link.round(&mut bandwidth, 0, &[Moves(ms(1500))]);
            said.push(link.measured(&mut bandwidth));
        }
        said.dedup();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].abs_diff(middle) < middle / 10, "{said:?}");
    }
}

#[test]
fn small_and_short_averagings_say_nothing() {
    let (mut link, mut bandwidth) = (SimulatedLink::new(4 * MEGA, 0), Bandwidth::default());
    // Three times what may be on the way.
    link.round(&mut bandwidth, 2 * MEGA, &[Moves(ms(1500))]);
    // A quarter of a megabyte, in a long time.
    link.bytes_per_s = 20_000;
    link.round(&mut bandwidth, 0, &[Moves(ms(10_000))]);
    // Everything at one moment, as on a loopback.
    bandwidth.on_begin(link.now, NONE);
    bandwidth.on_moved(link.now, Bytes { sent: u64::MAX, received: 4 << 30 });
    bandwidth.on_moved(link.now + ms(2), Bytes { sent: u64::MAX, received: 4 << 30 });
    bandwidth.on_end(link.now + ms(3), NONE, true);
    assert_eq!(bandwidth.measured(link.now), MeasuredBandwidth::default());
    // And not of an averaging either.
    bandwidth.on_moved(link.now, Bytes { sent: MEGA, received: MEGA });
    bandwidth.on_end(link.now, NONE, true);
    assert_eq!(bandwidth.measured(link.now), MeasuredBandwidth::default());
    // What was known before stays.
    link.bytes_per_s = 4 * MEGA;
    link.round(&mut bandwidth, 0, &[Moves(ms(1500))]);
    link.round(&mut bandwidth, 0, &[Moves(ms(50))]);
    assert_eq!(link.measured(&mut bandwidth), 4 * MEGA);
}

#[test]
fn no_speed_is_beyond_belief() {
    let mut bandwidth = Bandwidth::default();
    bandwidth.on_begin(Moment::ZERO, NONE);
    for slot in 0..8 {
        bandwidth.on_moved(SLOT * slot, Bytes { sent: u64::MAX, received: 0 });
    }
    bandwidth.on_end(8 * SLOT, NONE, true);
    let measured = bandwidth.measured(8 * SLOT);
    assert_eq!(measured, MeasuredBandwidth { sent: Some(SPEEDS.1), received: None });
    // Bytes of the beginning and of the end of time.
    bandwidth.on_begin(Moment::ZERO, NONE);
    bandwidth.on_moved(Moment::ZERO, Bytes { sent: 0, received: u64::MAX });
    bandwidth.on_moved(Moment::MAX, Bytes { sent: 0, received: u64::MAX });
    bandwidth.on_end(Moment::MAX, NONE, true);
    let measured = bandwidth.measured(Moment::MAX);
    assert_eq!(measured, MeasuredBandwidth { sent: None, received: Some(SPEEDS.0) });
}

#[test]
fn an_averaging_of_hours_is_counted_in_little_memory() {
    let (mut link, mut bandwidth) = (SimulatedLink::new(30_000, 0), Bandwidth::default());
    link.now = Moment::ZERO;
    bandwidth.on_begin(link.now, NONE);
    while link.now < Duration::from_secs(3 * 3600) {
        bandwidth.on_moved(link.now, Bytes { sent: 12_000, received: 24_000 });
        link.now += ms(400);
        assert!(bandwidth.sent.slots.len() <= SLOTS_MAX && bandwidth.received.slots.len() <= SLOTS_MAX);
    }
    bandwidth.on_end(link.now, NONE, true);
    let measured = bandwidth.measured(link.now);
    assert_eq!(measured, MeasuredBandwidth { sent: Some(30_000), received: Some(60_000) });
}

#[test]
fn what_failed_makes_nothing_faster() {
    let (mut link, mut bandwidth) = (SimulatedLink::new(3 * MEGA, 0), Bandwidth::default());
    let fails = |bandwidth: &mut Bandwidth, now: &mut Moment, bytes_per_slot: u64| {
        bandwidth.on_begin(*now, NONE);
        for _ in 0..80 {
            bandwidth.on_moved(*now, Bytes { sent: bytes_per_slot, received: bytes_per_slot });
            *now += SLOT;
        }
        bandwidth.on_end(*now, NONE, false);
    };
    fails(&mut bandwidth, &mut link.now, 25 * MEGA);
    assert_eq!(bandwidth.measured(link.now), MeasuredBandwidth::default());
    link.round(&mut bandwidth, 0, &[Moves(ms(1000))]);
    fails(&mut bandwidth, &mut link.now, 25 * MEGA);
    assert_eq!(link.measured(&mut bandwidth), 3 * MEGA);
    // A link on which nothing succeeds any longer is found to be slow.
    for _ in 0..ROUNDS {
        fails(&mut bandwidth, &mut link.now, 5_000);
    }
    assert_eq!(link.measured(&mut bandwidth), 200_000);
}

#[test]
fn averagings_at_the_same_time_are_of_one_link() {
    let mut bandwidth = Bandwidth::default();
    let in_flight = Bytes { sent: 50_000, received: 0 };
    let mut now = Moment::ZERO;
    let move_for = |bandwidth: &mut Bandwidth, now: &mut Moment, n_slots: u32| {
        for _ in 0..n_slots {
            bandwidth.on_moved(*now, Bytes { sent: 100_000, received: 100_000 });
            *now += SLOT;
        }
    };
    bandwidth.on_begin(now, in_flight);
    move_for(&mut bandwidth, &mut now, 40);
    bandwidth.on_begin(now, in_flight);
    move_for(&mut bandwidth, &mut now, 40);
    bandwidth.on_end(now, in_flight, true);
    // 100,000 bytes of those 8,000,000 may have been in buffers.
    assert_eq!(bandwidth.sent.rounds.back().unwrap().1, 3_950_000);
    move_for(&mut bandwidth, &mut now, 40);
    bandwidth.on_end(now, in_flight, true);
    assert_eq!(bandwidth.sent.rounds.back().unwrap().1, 3_950_000);
    let measured = MeasuredBandwidth { sent: Some(4 * MEGA), received: Some(4 * MEGA) };
    assert_eq!(bandwidth.measured(now), measured);
}

#[test]
fn two_digits_count() {
    for (speed, said) in [
        (1_000, 1_000),
        (1_049, 1_000),
        (1_050, 1_100),
        (12_582_912, 13_000_000),
        (99_600_000, 100_000_000),
        (SPEEDS.1, SPEEDS.1),
        (7, 7),
        (0, 0),
    ] {
        assert_eq!(two_digits(speed), said);
    }
}

#[test]
fn the_fastest_interval_is_long_enough_and_has_enough_bytes() {
    let of = |slots: &[u64], in_flight| fastest(slots, SLOT, in_flight);
    let quarter = BYTES_MIN / 4;
    // A tenth of a second, and as many bytes as are needed.
    assert_eq!(of(&[quarter; 4], 0), Some(10 * BYTES_MIN));
    assert_eq!(of(&[quarter - 1, quarter, quarter, quarter], 0), None);
    assert_eq!(of(&[BYTES_MIN; 3], 0), None, "too short");
    assert_eq!(of(&[], 0), None);
    // What may be in buffers is a quarter at most, and does not count.
    assert_eq!(of(&[quarter; 4], quarter), Some(10 * (BYTES_MIN - quarter)));
    assert_eq!(of(&[quarter; 4], quarter + 1), None);
    // The burst begins in the third slot; twice as slow with the two slots before it and after it.
    let burst = [0, 0, MEGA, MEGA, MEGA, MEGA, 0, 0];
    assert_eq!(of(&burst, 0), Some(40 * MEGA));
    assert_eq!(fastest(&burst, 2 * SLOT, 0), Some(20 * MEGA));
}

#[test]
fn what_is_said_stays_within_a_tenth_and_changes_beyond_it() {
    let mut meter = DirectionMeter { announced: Some(1_000_000), ..DirectionMeter::default() };
    for (speed, said) in [
        (1_100_000, 1_000_000),
        (900_000, 1_000_000),
        (1_100_001, 1_100_000),
        (990_000, 1_100_000),
        (989_999, 990_000),
    ] {
        meter.rounds = [(Moment::ZERO, speed)].into();
        assert_eq!(meter.announce(Moment::ZERO), Some(said), "{speed}");
    }
    assert_eq!(meter.announce(FORGET - ms(1)), Some(990_000));
    assert_eq!(meter.announce(FORGET), None, "it is an hour old");
}

#[test]
fn each_slot_has_its_bytes_and_becomes_one_with_its_neighbour() {
    let mut meter = DirectionMeter::default();
    for (slot, n_bytes) in [(0, 1), (1, 2), (1, 3), (4, 0), (2, 7)] {
        meter.count(slot, n_bytes);
    }
    assert_eq!(meter.slots, [1, 5, 7]);
    meter.halve();
    assert_eq!(meter.slots, [6, 7]);
    let mut bandwidth = Bandwidth::default();
    bandwidth.on_begin(10 * SLOT, NONE);
    for (at, sent) in [(10 * SLOT, 1), (11 * SLOT - ms(1), 2), (11 * SLOT, 4), (9 * SLOT, 8)] {
        bandwidth.on_moved(at, Bytes { sent, received: 2 * sent });
    }
    assert_eq!(bandwidth.sent.slots, [11, 4]);
    assert_eq!(bandwidth.received.slots, [22, 8]);
    // The last slot that there is room for, and the first beyond it.
    bandwidth.on_moved((10 + SLOTS_MAX as u32 - 1) * SLOT, Bytes { sent: 1, received: 0 });
    assert_eq!((bandwidth.sent.slots.len(), bandwidth.slot), (SLOTS_MAX, SLOT));
    bandwidth.on_moved((10 + SLOTS_MAX as u32) * SLOT, Bytes { sent: 1, received: 0 });
    assert_eq!((bandwidth.sent.slots.len(), bandwidth.slot), (SLOTS_MAX / 2 + 1, 2 * SLOT));
}
