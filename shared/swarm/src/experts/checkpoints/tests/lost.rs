//! Files of places that a host has lost.

use super::*;

const fn version(term: u64, n_steps: u64) -> CheckpointVersion {
    CheckpointVersion { term, n_steps }
}

#[test]
fn a_file_is_deleted_once_others_have_a_newer_state() {
    let mut lost = LostExperts::default();
    assert_eq!((lost.next_check(secs(0)), lost.next_deadline()), (None, None));
    lost.on_lost(secs(0), place(1));
    lost.on_lost(secs(1), place(2));
    assert_eq!(lost.next_check(CHECK_INTERVAL - secs(1)), None);
    assert_eq!(lost.next_deadline(), Some(CHECK_INTERVAL));
    let first = lost.next_check(CHECK_INTERVAL).unwrap();
    assert_eq!(first.place, place(1));
    assert_eq!(
        (lost.next_check(CHECK_INTERVAL + secs(1)), lost.next_deadline()),
        (None, None),
        "one at a time"
    );
    // Nobody is known to have one: it is looked for again, after the others.
    assert!(!lost.on_checked(first, None));
    let now = CHECK_INTERVAL + secs(1);
    let second = lost.next_check(now).unwrap();
    assert_eq!(second.place, place(2));
    assert!(!lost.on_checked(second, Some((version(5, 10), version(4, 99)))), "of an earlier lease");
    let again = lost.next_check(2 * CHECK_INTERVAL).unwrap();
    assert_eq!(again.place, place(1));
    assert!(!lost.on_checked(again, Some((version(5, 10), version(5, 10)))), "the same");
    let again = lost.next_check(now + CHECK_INTERVAL).unwrap();
    assert_eq!(again.place, place(2));
    assert!(lost.on_checked(again, Some((version(5, 10), version(6, 0)))), "under a later lease");
    let again = lost.next_check(3 * CHECK_INTERVAL).unwrap();
    assert_eq!(again.place, place(1));
    assert!(lost.on_checked(again, Some((version(5, 10), version(5, 11)))));
    assert_eq!((lost.next_check(10 * CHECK_INTERVAL), lost.next_deadline()), (None, None));
}

#[test]
fn a_check_that_began_before_the_host_had_the_place_again_deletes_nothing() {
    let mut lost = LostExperts::default();
    let newer = Some((version(5, 10), version(6, 3)));
    lost.on_lost(secs(0), place(1));
    let before = lost.next_check(CHECK_INTERVAL).unwrap();
    lost.on_held(&place(1));
    assert!(!lost.on_checked(before, newer), "it is served here");
    assert_eq!(lost.next_check(10 * CHECK_INTERVAL), None);
    // And is lost once more: its file is another one.
    lost.on_lost(secs(10), place(1));
    let check = lost.next_check(secs(10) + CHECK_INTERVAL).unwrap();
    assert!(!lost.on_checked(before, newer));
    assert!(lost.on_checked(check, newer));
    assert!(!lost.on_checked(check, newer), "once");
}
