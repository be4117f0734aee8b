//! The schedule over years of moved clock.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use super::schedule::*;
use super::{Certhash, certhash};

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + 20_000 * DAY
}

fn certificate(serves_from: SystemTime) -> ScheduledCertificate {
    let valid_from = serves_from - VALIDITY_MARGIN;
    let seconds = valid_from.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    ScheduledCertificate {
        hash: certhash(&seconds.to_be_bytes()).unwrap(),
        valid_from,
        valid_until: valid_from + CERTIFICATE_VALIDITY,
    }
}

fn fill(schedule: &mut CertificateSchedule, now: SystemTime) -> usize {
    let mut n_made = 0;
    while let Some(serves_from) = schedule.missing(now) {
        schedule.insert(certificate(serves_from)).unwrap();
        n_made += 1;
        assert!(n_made <= 3, "the schedule never fills");
    }
    schedule.remove_stale(now);
    n_made
}

/// What an address that was written down at `at` names.
fn published(schedule: &CertificateSchedule, at: SystemTime) -> [Certhash; 2] {
    let CertificatesAt { current, next, .. } = schedule.at(at).unwrap();
    [current.hash, next.hash]
}

#[test]
fn every_certificate_is_valid_while_it_is_served_and_was_published_a_period_before() {
    let mut schedule = CertificateSchedule::default();
    let mut published_since: Vec<(Certhash, SystemTime)> = Vec::new();
    let mut n_rotations = 0;
    let mut served = None;
    for n_hours in 0..24 * 100 {
        let now = start() + n_hours * HOUR;
        fill(&mut schedule, now);
        let CertificatesAt { current, next, .. } = schedule.at(now).unwrap();
        for hash in [current.hash, next.hash] {
            if published_since.iter().all(|(known, _)| *known != hash) {
                published_since.push((hash, now));
            }
        }
        assert!(current.valid_from <= now && now < current.valid_until);
        assert!(now.duration_since(current.valid_from).unwrap() <= CERTIFICATE_VALIDITY);
        assert!(next.valid_from < current.valid_until, "neighbours overlap");
        if served.is_some_and(|served| served != current.hash) {
            n_rotations += 1;
            let (_, since) = published_since.iter().find(|(hash, _)| *hash == current.hash).unwrap();
            assert!(now.duration_since(*since).unwrap() >= SERVICE_PERIOD, "published too late");
        }
        served = Some(current.hash);
    }
    assert_eq!(n_rotations, 100 / 12);
}

#[test]
fn an_address_connects_for_a_whole_period_after_it_was_written_down() {
    let mut schedule = CertificateSchedule::default();
    let mut addresses: Vec<(SystemTime, [Certhash; 2])> = Vec::new();
    for n_hours in 0..24 * 60 {
        let now = start() + n_hours * HOUR;
        fill(&mut schedule, now);
        addresses.push((now, published(&schedule, now)));
        addresses.retain(|(at, _)| now.duration_since(*at).unwrap() <= SERVICE_PERIOD);
        let CertificatesAt { previous, current, next } = schedule.at(now).unwrap();
        let attested: Vec<_> =
            previous.into_iter().chain([current, next]).map(|certificate| certificate.hash).collect();
        for (at, address) in &addresses {
            assert!(address.contains(&current.hash), "TLS refuses the address of {at:?}");
            assert!(address.iter().all(|hash| attested.contains(hash)), "Noise refuses that of {at:?}");
        }
    }
}

#[test]
fn stale_certificates_are_forgotten() {
    let mut schedule = CertificateSchedule::default();
    let mut n_made = 0;
    for n_days in 0..365 {
        n_made += fill(&mut schedule, start() + n_days * DAY);
    }
    let now = start() + 365 * DAY;
    assert_eq!(n_made, 2 + 364 / 12);
    let CertificatesAt { previous, .. } = schedule.at(now).unwrap();
    assert_eq!(schedule.remove_stale(now), vec![], "they were removed on the way");
    assert!(previous.is_some());
}

#[test]
fn after_a_long_rest_two_new_ones_are_made() {
    let mut schedule = CertificateSchedule::default();
    fill(&mut schedule, start());
    let now = start() + 400 * DAY;
    assert_eq!(schedule.at(now), None);
    assert_eq!(fill(&mut schedule, now), 2);
    let at = schedule.at(now).unwrap();
    assert_eq!(at.current.serves_from(), now);
}

#[test]
fn after_a_short_rest_the_published_next_one_serves() {
    let mut schedule = CertificateSchedule::default();
    fill(&mut schedule, start());
    let next = schedule.at(start()).unwrap().next;
    let now = start() + SERVICE_PERIOD + 3 * DAY;
    assert_eq!(fill(&mut schedule, now), 1);
    assert_eq!(schedule.at(now).unwrap().current, next);
}

#[test]
fn a_clock_set_back_still_serves_something_valid() {
    let mut schedule = CertificateSchedule::default();
    fill(&mut schedule, start());
    let now = start() - 90 * DAY;
    fill(&mut schedule, now);
    let CertificatesAt { current, next, .. } = schedule.at(now).unwrap();
    assert!(current.valid_from <= now && now < current.valid_until);
    assert!(next.serves_from() <= now + SERVICE_PERIOD);
}

#[test]
fn a_certificate_of_another_validity_has_no_place() {
    let mut schedule = CertificateSchedule::default();
    let mut long = certificate(start());
    long.valid_until += DAY;
    let got = Some(CERTIFICATE_VALIDITY + DAY);
    assert_eq!(schedule.insert(long), Err(ScheduleError::Validity { got }));
    let mut backwards = certificate(start());
    backwards.valid_until = backwards.valid_from - DAY;
    assert_eq!(schedule.insert(backwards), Err(ScheduleError::Validity { got: None }));
    schedule.insert(certificate(start())).unwrap();
    let duplicate = Err(ScheduleError::Duplicate(start()));
    assert_eq!(schedule.insert(certificate(start())), duplicate);
}
