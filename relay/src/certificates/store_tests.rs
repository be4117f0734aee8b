//! The store on a real directory, with a clock of the test's own.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use super::{Certificates, SERVICE_PERIOD, SystemClock};

fn clock_at(now: SystemTime) -> (Arc<Mutex<SystemTime>>, SystemClock) {
    let hand = Arc::new(Mutex::new(now));
    let shown = Arc::clone(&hand);
    (hand, Arc::new(move || *shown.lock().unwrap()))
}

fn pem_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "pem")).collect();
    files.sort();
    files
}

#[test]
fn a_restart_keeps_the_hashes() {
    let directory = tempfile::tempdir().unwrap();
    let (_, clock) = clock_at(SystemTime::now());
    let first = Certificates::open(directory.path(), Arc::clone(&clock)).unwrap();
    assert_eq!(first.hashes_in_addresses().len(), 2);
    let second = Certificates::open(directory.path(), clock).unwrap();
    assert_eq!(first.hashes_in_addresses(), second.hashes_in_addresses());
}

/// A file that an earlier build wrote, with its name; its key serves nothing.
#[test]
fn a_golden_file_is_the_same_certificate() {
    const SERVES_FROM: u64 = 1_795_594_866;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(format!("certificate-{SERVES_FROM}.pem"));
    std::fs::write(&file, include_str!("golden.pem")).unwrap();
    let (_, clock) = clock_at(SystemTime::UNIX_EPOCH + Duration::from_secs(SERVES_FROM));
    let certificates = Certificates::open(directory.path(), clock).unwrap();
    let current = certificates.hashes_in_addresses()[0];
    let address = Multiaddr::empty().with(Protocol::Certhash(current));
    assert_eq!(address.to_string(), "/certhash/uEiC8yiOnHZ_PQW58ZnnwKWMbLEQ7LCCIf5la43afS94vlQ");
    let [first, _] = pem_files(directory.path()).try_into().unwrap();
    assert_eq!(first, file, "it is neither written again nor set aside");
    assert_eq!(std::fs::read_to_string(file).unwrap(), include_str!("golden.pem"));
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_the_keys() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let (_, clock) = clock_at(SystemTime::now());
    let _certificates = Certificates::open(directory.path(), clock).unwrap();
    let files = pem_files(directory.path());
    assert_eq!(files.len(), 2);
    for file in files {
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_broken_file_is_set_aside_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (_, clock) = clock_at(SystemTime::now());
    let first = Certificates::open(directory.path(), Arc::clone(&clock)).unwrap().hashes_in_addresses();
    let [current, next] = pem_files(directory.path()).try_into().unwrap();
    let text = std::fs::read_to_string(&next).unwrap();
    std::fs::write(&next, &text[..text.len() / 2]).unwrap();
    let second = Certificates::open(directory.path(), clock).unwrap().hashes_in_addresses();
    assert_eq!(first[0], second[0], "the sound one is kept");
    assert_ne!(first[1], second[1]);
    let aside = PathBuf::from(format!("{}.broken", next.display()));
    assert_eq!(std::fs::read_to_string(aside).unwrap(), &text[..text.len() / 2]);
    assert_eq!(pem_files(directory.path()), vec![current, next]);
}

#[test]
fn a_key_of_another_certificate_is_found_out() {
    let directory = tempfile::tempdir().unwrap();
    let (_, clock) = clock_at(SystemTime::now());
    let _first = Certificates::open(directory.path(), Arc::clone(&clock)).unwrap();
    let [current, next] = pem_files(directory.path()).try_into().unwrap();
    let (current_text, next_text) =
        (std::fs::read_to_string(&current).unwrap(), std::fs::read_to_string(&next).unwrap());
    let key_at = |text: &str| text.find("-----BEGIN PRIVATE KEY").unwrap();
    let mixed = format!("{}{}", &current_text[..key_at(&current_text)], &next_text[key_at(&next_text)..]);
    std::fs::write(&current, mixed).unwrap();
    let _second = Certificates::open(directory.path(), clock).unwrap();
    assert!(PathBuf::from(format!("{}.broken", current.display())).exists());
}

#[test]
fn rotation_publishes_and_forgets() {
    let directory = tempfile::tempdir().unwrap();
    let (hand, clock) = clock_at(SystemTime::now());
    let certificates = Certificates::open(directory.path(), clock).unwrap();
    let mut subscription = certificates.subscribe();
    let mut before = subscription.borrow_and_update().clone();
    for _ in 0..4 {
        certificates.refresh().unwrap();
        assert!(!subscription.has_changed().unwrap(), "nothing changes within a period");
        *hand.lock().unwrap() += SERVICE_PERIOD;
        certificates.refresh().unwrap();
        assert!(subscription.has_changed().unwrap());
        let after = subscription.borrow_and_update().clone();
        assert_eq!(before[1], after[0], "the next one became the current one");
        let attested = certificates.hashes_in_handshake();
        assert!(before.iter().chain(&after).all(|hash| attested.contains(hash)));
        assert_eq!(attested.len(), 3);
        before = after;
    }
    assert_eq!(pem_files(directory.path()).len(), 3, "previous, current, next");
}

#[test]
fn clients_connect_between_the_end_of_a_period_and_the_refresh() {
    let directory = tempfile::tempdir().unwrap();
    let (hand, clock) = clock_at(SystemTime::now());
    let certificates = Certificates::open(directory.path(), clock).unwrap();
    let published = certificates.subscribe().borrow().clone();
    *hand.lock().unwrap() += SERVICE_PERIOD;
    let attested = certificates.hashes_in_handshake();
    assert!(published.iter().all(|hash| attested.contains(hash)));
    assert_eq!(published.len(), 2);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a-file");
    std::fs::write(&file, b"").unwrap();
    let (_, clock) = clock_at(SystemTime::now());
    let error = Certificates::open(file.join("certificates"), clock).unwrap_err();
    assert!(error.to_string().contains("a-file"), "{error}");
}
