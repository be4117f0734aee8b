//! What a trainer knows of the hosts that it asks: what is in flight, how long they take, and which it leaves alone.
//!
//! One book for all batches of a trainer. A host that is busy is asked again when it said; one that fails twice in a row is left
//! alone for a time that grows; one that answers what no expert gives, at once and for much longer.

use std::collections::HashMap;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::experts::serving::WAIT_MAX;
use crate::random::SplitMix64;
use crate::{Moment, PeerKey};

/// Most hosts that are remembered. Those that were not asked for the longest time are forgotten.
pub const HOSTS_MAX: usize = 4096;
/// A host that gave an absurd answer is left alone for so many delays of one that fails: 6 s at first, 10 minutes at last.
const ABSURD_FACTOR: u32 = 32;
/// Failures in a row for which a host is left alone.
const FAILURES_MIN: u32 = 2;
/// Failures at most so long after each other are one: what was in flight together fails together.
const FAILURE_SPAN: Duration = Duration::from_millis(100);
/// A host that is busy is not asked again before that, if it says less.
pub(super) const RETRY_AFTER_MIN: Duration = Duration::from_millis(20);
/// Good answers in a row after which earlier failures do not count.
const GOOD_ANSWERS: u32 = 8;
/// Weight of one answer in the moving means.
const LATENCY_WEIGHT: f64 = 0.125;
/// A host is late after its mean and so many mean deviations.
const LATE_DEVIATIONS: f64 = 8.0;
/// No host is late before that.
const PATIENCE_MIN: Duration = Duration::from_millis(500);

/// Bounds on what a trainer has in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostBookLimits {
    /// Requests in all.
    pub in_flight_max: usize,
    /// Requests at one host.
    pub host_in_flight_max: usize,
}

/// The hosts that a trainer asks, for all its batches.
#[derive(Debug)]
pub struct HostBook {
    limits: HostBookLimits,
    hosts: HashMap<PeerKey, HostRecord>,
    n_in_flight: usize,
    next_request_id: u64,
    random: SplitMix64,
}

#[derive(Debug)]
struct HostRecord {
    n_in_flight: usize,
    /// Moving mean of the time to an answer, and of its deviation, in seconds.
    latency: Option<(f64, f64)>,
    n_failures: u32,
    failed_at: Moment,
    n_good: u32,
    backoff: Backoff,
    left_until: Moment,
    absurd_until: Moment,
    busy_until: Moment,
    used_at: Moment,
}

impl HostBook {
    /// `first_request_id` begins a session that this peer had not before ([`crate::experts::serving::SESSION_SHIFT`]); `seed`
    /// decides the jitter.
    pub fn new(limits: HostBookLimits, first_request_id: u64, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self { limits, hosts: HashMap::new(), n_in_flight: 0, next_request_id: first_request_id, random }
    }

    /// Whether the host is not asked now, for what it did before.
    pub fn is_left_alone(&self, now: Moment, host: &PeerKey) -> bool {
        self.hosts.get(host).is_some_and(|record| record.left_until > now)
    }

    /// Mean time to an answer of the host, once there was one.
    pub fn latency(&self, host: &PeerKey) -> Option<Duration> {
        self.hosts.get(host)?.latency.map(|(mean, _)| Duration::from_secs_f64(mean))
    }

    /// Requests in flight.
    pub fn n_in_flight(&self) -> usize {
        self.n_in_flight
    }

    /// Requests in flight at a host.
    pub fn n_in_flight_at(&self, host: &PeerKey) -> usize {
        self.hosts.get(host).map_or(0, |record| record.n_in_flight)
    }

    /// When the host may be asked. `is_counted` is for requests that nobody else can answer: they are kept from hosts that are
    /// busy, or gave absurd answers, alone.
    pub(super) fn available_at(&self, host: &PeerKey, is_counted: bool) -> Moment {
        let Some(record) = self.hosts.get(host) else { return Moment::ZERO };
        record.busy_until.max(if is_counted { record.absurd_until } else { record.left_until })
    }

    pub(super) fn has_slot(&self, host: &PeerKey) -> bool {
        self.n_in_flight < self.limits.in_flight_max.max(1)
            && self.n_in_flight_at(host) < self.limits.host_in_flight_max.max(1)
    }

    /// A number that no request has had.
    pub(super) fn new_request_id(&mut self) -> u64 {
        let id = self.next_request_id;
        self.next_request_id = self.next_request_id.saturating_add(1);
        id
    }

    pub(super) fn on_sent(&mut self, now: Moment, host: &PeerKey) {
        if !self.hosts.contains_key(host) {
            self.make_room();
            let backoff = Backoff::new(self.random.next_u64());
            self.hosts.insert(host.clone(), HostRecord::new(backoff));
        }
        if let Some(record) = self.hosts.get_mut(host) {
            record.used_at = now;
            record.n_in_flight += 1;
            self.n_in_flight += 1;
        }
    }

    /// A request is no longer in flight. One of the next follows where its end says something of the host.
    pub(super) fn on_over(&mut self, host: &PeerKey) {
        if let Some(record) = self.hosts.get_mut(host).filter(|record| record.n_in_flight > 0) {
            record.n_in_flight -= 1;
            self.n_in_flight -= 1;
        }
    }

    pub(super) fn on_good(&mut self, host: &PeerKey, took: Duration) {
        let Some(record) = self.hosts.get_mut(host) else { return };
        let took = took.as_secs_f64();
        let (mean, deviation) = record.latency.unwrap_or((took, took / 2.0));
        let deviation = deviation + LATENCY_WEIGHT * ((took - mean).abs() - deviation);
        record.latency = Some((mean + LATENCY_WEIGHT * (took - mean), deviation));
        record.n_failures = 0;
        record.n_good = record.n_good.saturating_add(1);
        if record.n_good == GOOD_ANSWERS {
            record.backoff.reset();
        }
    }

    pub(super) fn on_busy(&mut self, now: Moment, host: &PeerKey, retry_after: Duration) {
        if let Some(record) = self.hosts.get_mut(host) {
            record.busy_until = record.busy_until.max(now + retry_after.clamp(RETRY_AFTER_MIN, WAIT_MAX));
        }
    }

    /// The connection broke, or no answer came in time.
    pub(super) fn on_failed(&mut self, now: Moment, host: &PeerKey) {
        let Some(record) = self.hosts.get_mut(host) else { return };
        record.n_good = 0;
        if record.n_failures > 0 && now.saturating_sub(record.failed_at) <= FAILURE_SPAN {
            return;
        }
        record.failed_at = now;
        record.n_failures = record.n_failures.saturating_add(1);
        if record.n_failures >= FAILURES_MIN && record.left_until <= now {
            record.left_until = now + record.backoff.next_delay();
        }
    }

    /// The answer was none that an expert gives.
    pub(super) fn on_absurd(&mut self, now: Moment, host: &PeerKey) {
        let Some(record) = self.hosts.get_mut(host) else { return };
        record.n_good = 0;
        if record.absurd_until <= now {
            record.absurd_until = now + record.backoff.next_delay() * ABSURD_FACTOR;
            record.left_until = record.left_until.max(record.absurd_until);
        }
    }

    /// How long an answer of the host is waited for where another one could be asked; none until it has answered.
    pub(super) fn patience(&self, host: &PeerKey) -> Option<Duration> {
        let (mean, deviation) = self.hosts.get(host)?.latency?;
        let seconds = mean + LATE_DEVIATIONS * deviation;
        Some(Duration::from_secs_f64(seconds.clamp(0.0, WAIT_MAX.as_secs_f64())).max(PATIENCE_MIN))
    }

    fn make_room(&mut self) {
        if self.hosts.len() < HOSTS_MAX {
            return;
        }
        let idle = self.hosts.iter().filter(|(_, record)| record.n_in_flight == 0);
        let oldest = idle.min_by_key(|(key, record)| (record.used_at, *key)).map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            self.hosts.remove(&oldest);
        }
    }
}

impl HostRecord {
    fn new(backoff: Backoff) -> Self {
        Self {
            n_in_flight: 0,
            latency: None,
            n_failures: 0,
            failed_at: Moment::ZERO,
            n_good: 0,
            backoff,
            left_until: Moment::ZERO,
            absurd_until: Moment::ZERO,
            busy_until: Moment::ZERO,
            used_at: Moment::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HostBookLimits = HostBookLimits { in_flight_max: 3, host_in_flight_max: 2 };

    fn host(number: u16) -> PeerKey {
        PeerKey(number.to_le_bytes().to_vec())
    }

    const fn ms(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    fn asked(book: &mut HostBook, number: u16) {
        book.on_sent(ms(0), &host(number));
        book.on_over(&host(number));
    }

    #[test]
    fn slots_are_bounded_for_each_host_and_in_all() {
        let mut book = HostBook::new(LIMITS, 7, 1);
        book.on_sent(ms(0), &host(1));
        book.on_sent(ms(0), &host(1));
        assert!(!book.has_slot(&host(1)) && book.has_slot(&host(2)));
        book.on_sent(ms(0), &host(2));
        assert!(!book.has_slot(&host(3)));
        book.on_over(&host(1));
        book.on_over(&host(9));
        (0..2).for_each(|_| book.on_over(&host(2)));
        book.on_sent(ms(0), &host(2));
        assert!(book.has_slot(&host(1)) && book.n_in_flight() == 2 && book.n_in_flight_at(&host(1)) == 1);
        assert_eq!((book.new_request_id(), book.new_request_id()), (7, 8));
    }

    #[test]
    fn one_failure_is_nothing_and_more_are_longer() {
        let mut book = HostBook::new(LIMITS, 0, 1);
        asked(&mut book, 1);
        book.on_failed(ms(0), &host(1));
        assert!(!book.is_left_alone(ms(0), &host(1)));
        book.on_good(&host(1), ms(10));
        book.on_failed(ms(0), &host(1));
        book.on_failed(ms(100), &host(1));
        assert!(!book.is_left_alone(ms(100), &host(1)), "not in a row, or together");
        let mut now = ms(1000);
        let times = (0..8).map(|_| {
            book.on_failed(now, &host(1));
            let before = now;
            while book.is_left_alone(now, &host(1)) {
                now += ms(10);
            }
            let took = now - before;
            now += ms(1000);
            took
        });
        let times: Vec<Duration> = times.collect();
        assert!(times[0] >= ms(200) && times[0] <= ms(410) && times[7] >= ms(10_000), "{times:?}");
        book.on_failed(now, &host(1));
        assert!(book.is_left_alone(now, &host(1)));
        assert_eq!(book.available_at(&host(1), true), Moment::ZERO, "but for what it alone can answer");
    }

    #[test]
    fn an_absurd_answer_is_not_forgiven_soon() {
        let mut book = HostBook::new(LIMITS, 0, 1);
        asked(&mut book, 1);
        book.on_absurd(ms(0), &host(1));
        assert!(book.is_left_alone(ms(6000), &host(1)) && !book.is_left_alone(ms(13_000), &host(1)));
        let first = book.available_at(&host(1), true);
        assert!(first > ms(6000), "not even for what it alone can answer");
        book.on_good(&host(1), ms(10));
        book.on_absurd(ms(20_000), &host(1));
        assert!(book.available_at(&host(1), true) - ms(20_000) > first, "it grows");
        let mut at_last = ms(0);
        for at in 1..12 {
            book.on_absurd(ms(at * 1_000_000), &host(1));
            at_last = book.available_at(&host(1), true) - ms(at * 1_000_000);
        }
        assert!(at_last >= ms(320_000) && at_last <= ms(640_000), "{at_last:?}");
    }

    #[test]
    fn a_busy_host_says_when_and_not_for_ever() {
        let mut book = HostBook::new(LIMITS, 0, 1);
        asked(&mut book, 1);
        book.on_busy(ms(5), &host(1), ms(100));
        assert_eq!(book.available_at(&host(1), false), ms(105));
        book.on_busy(ms(200), &host(1), ms(0));
        assert_eq!(book.available_at(&host(1), false), ms(220));
        book.on_busy(ms(5), &host(1), Duration::MAX);
        assert_eq!(book.available_at(&host(1), false), ms(5) + WAIT_MAX);
    }

    #[test]
    fn any_number_of_hosts_takes_bounded_memory() {
        let mut book = HostBook::new(LIMITS, 0, 1);
        book.on_sent(ms(0), &host(0));
        for number in 1..6000 {
            book.on_sent(ms(number.into()), &host(number));
            book.on_over(&host(number));
            assert!(book.hosts.len() <= HOSTS_MAX);
        }
        assert_eq!(book.n_in_flight_at(&host(0)), 1, "what is in flight is not forgotten");
    }

    #[test]
    fn patience_follows_what_a_host_takes() {
        let mut book = HostBook::new(LIMITS, 0, 1);
        asked(&mut book, 1);
        assert_eq!(book.patience(&host(1)), None);
        (0..50).for_each(|_| book.on_good(&host(1), ms(1000)));
        let patience = book.patience(&host(1)).unwrap();
        assert!(patience >= ms(1000) && patience < ms(1100), "{patience:?}");
        (0..50).for_each(|at| book.on_good(&host(1), ms(500 + at % 2 * 1000)));
        assert!(book.patience(&host(1)).unwrap() > ms(3000));
        (0..90).for_each(|_| book.on_good(&host(1), ms(1)));
        assert_eq!(book.patience(&host(1)), Some(PATIENCE_MIN));
    }

    #[test]
    fn pauses_begin_anew_after_some_good_answers_and_grow_once_each() {
        let pause_after = |n_good: u32| {
            let mut book = HostBook::new(LIMITS, 0, 1);
            asked(&mut book, 1);
            let mut now = ms(0);
            for _ in 0..6 {
                now = book.available_at(&host(1), false).max(now + ms(1000));
                book.on_failed(now, &host(1));
            }
            (0..n_good).for_each(|_| book.on_good(&host(1), ms(10)));
            now += ms(1_000_000);
            (0..2).for_each(|at| book.on_failed(now + ms(at * 200), &host(1)));
            book.available_at(&host(1), false) - (now + ms(200))
        };
        let (short, long) = (pause_after(GOOD_ANSWERS), pause_after(GOOD_ANSWERS - 1));
        assert!(short * 8 < long, "{short:?} {long:?}");
        // What fails while a host is left alone was sent before, and says nothing new.
        let pausing = || {
            let mut book = HostBook::new(LIMITS, 0, 1);
            asked(&mut book, 1);
            (0..2).for_each(|at| book.on_failed(ms(at * 101), &host(1)));
            book
        };
        let mut book = pausing();
        let until = book.available_at(&host(1), false);
        assert!(until > ms(202) && book.is_left_alone(until - ms(1), &host(1)));
        assert!(!book.is_left_alone(until, &host(1)), "it is asked then");
        let mut again = pausing();
        again.on_failed(until, &host(1));
        assert!(again.available_at(&host(1), false) > until, "it has failed once more");
        book.on_failed(until - ms(1), &host(1));
        assert_eq!(book.available_at(&host(1), false), until);
        book.on_absurd(ms(101), &host(1));
        let until = book.available_at(&host(1), false);
        book.on_absurd(until - ms(1), &host(1));
        assert_eq!(book.available_at(&host(1), false), until);
        book.on_absurd(until, &host(1));
        assert!(book.available_at(&host(1), false) > until);
    }

    #[test]
    fn the_host_that_was_asked_the_longest_ago_is_forgotten() {
        let mut book = HostBook::new(LIMITS, 0, 1);
        for number in 0..HOSTS_MAX as u16 {
            book.on_sent(ms(1000 - u64::from(number % 1000)), &host(number));
            book.on_over(&host(number));
            book.on_good(&host(number), ms(7));
        }
        asked(&mut book, 999);
        book.on_sent(ms(5000), &host(1998));
        book.on_over(&host(1998));
        asked(&mut book, 9000);
        let is_known = |book: &HostBook, number| book.latency(&host(number)) == Some(ms(7));
        assert!(!is_known(&book, 999), "it was asked at 0");
        asked(&mut book, 9001);
        asked(&mut book, 9002);
        asked(&mut book, 9003);
        let of_last = [2999, 3999, 1998].map(|number| is_known(&book, number));
        assert_eq!(of_last, [true, true, true]);
        assert_eq!(book.hosts.len(), HOSTS_MAX);
    }

    #[test]
    fn the_mean_time_of_a_host_follows_its_answers() {
        let mut book = HostBook::new(LIMITS, 0, 1);
        asked(&mut book, 1);
        book.on_good(&host(1), ms(800));
        assert_eq!(book.latency(&host(1)), Some(ms(800)));
        // A deviation of half of it at first, of which an eighth goes with each answer.
        assert_eq!(book.patience(&host(1)), Some(ms(800 + 8 * 350)));
        book.on_good(&host(1), ms(1600));
        assert_eq!(book.latency(&host(1)), Some(ms(900)));
        // 350 and an eighth of what 800 is above it.
        let patience = book.patience(&host(1)).unwrap();
        assert_eq!(patience.as_millis(), 900 + 8 * 406 + 2, "{patience:?}");
        (0..99).for_each(|_| book.on_good(&host(1), ms(900_000)));
        assert_eq!(book.patience(&host(1)), Some(WAIT_MAX));
    }
}
