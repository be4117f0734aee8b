#![allow(clippy::unwrap_used)]

use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::gradient::Offer;

use super::super::{PROBATION, Selection, rest_after};
use super::*;
use crate::random::SplitMix64;
use crate::{Moment, PeerKey};

#[test]
fn addresses_take_turns() {
    let mut queue = FairQueue::new(100);
    for (group, job) in [(1, "a1"), (1, "a2"), (2, "b1"), (3, "c1"), (3, "c2")] {
        assert_eq!(queue.push(AddressGroup(group), job), None);
    }
    assert_eq!(queue.push(AddressGroup(1), "a3"), Some("a3"), "two of an address wait");
    let order: Vec<&str> = std::iter::from_fn(|| queue.pop()).map(|(_, job)| job).collect();
    assert_eq!(order, ["a1", "b1", "c1", "a2", "c2"]);
    assert!(queue.is_empty());
}

#[test]
fn an_address_with_several_jobs_gives_one_up_for_an_address_without_any() {
    let mut queue = FairQueue::new(3);
    for (group, job) in [(1, 10), (1, 11), (2, 20)] {
        assert_eq!(queue.push(AddressGroup(group), job), None);
    }
    assert!(!queue.has_room(AddressGroup(2)) && queue.has_room(AddressGroup(3)));
    assert_eq!(queue.push(AddressGroup(3), 30), Some(11));
    assert_eq!(queue.push(AddressGroup(4), 40), Some(40), "each has one");
    assert!(queue.len() == 3 && !queue.is_empty());
}

#[test]
fn a_full_queue_takes_nothing_from_those_who_have_one_each() {
    let mut queue = FairQueue::new(2);
    for group in [1, 2] {
        assert_eq!(queue.push(AddressGroup(group), group), None);
    }
    for group in 1..4 {
        assert!(!queue.has_room(AddressGroup(group)));
        assert_eq!(queue.push(AddressGroup(group), 9), Some(9));
    }
    assert_eq!(queue.pop(), Some((AddressGroup(1), 1)));
    assert!(queue.has_room(AddressGroup(3)) && queue.has_room(AddressGroup(2)));
    // The one that gave its last way comes at the end again.
    assert_eq!(queue.push(AddressGroup(1), 3), None);
    assert_eq!((queue.pop(), queue.pop()), (Some((AddressGroup(2), 2)), Some((AddressGroup(1), 3))));
    assert_eq!((queue.pop(), queue.len()), (None, 0));
    let mut least = FairQueue::new(0);
    assert_eq!((least.push(AddressGroup(1), 1), least.push(AddressGroup(2), 2)), (None, Some(2)));
}

fn offer(contribution_id: u64) -> Offer {
    let transfer = Transfer::of(&contribution_id.to_le_bytes());
    let codec = TensorCodec::F32;
    Offer { contribution_id, epoch: 0, n_samples: 8, loss: 1.0, n_values: 2, codec, transfer }
}

/// How long the probation of an honest newcomer takes, where a machine with `n_keys` keys, at so many addresses, offers
/// all the time. Recomputing one contribution takes `took`, and as long a rest.
fn probation(seed: u64, n_keys: usize, n_groups: u64, took: Duration) -> Duration {
    let mut random = SplitMix64::new(seed);
    let mut selection = Selection::new(0.05, [7; 32]);
    let mut queue: FairQueue<(PeerKey, Offer)> = FairQueue::new(16);
    let honest = (PeerKey(b"honest".to_vec()), AddressGroup(u64::MAX));
    let (mut now, mut next_id) = (Moment::ZERO, 0);
    while selection.n_left(&honest.0) > 0 {
        assert!(now < Duration::from_secs(36_000), "the newcomer waits for ever");
        for _ in 0..20 {
            if n_keys > 0 {
                let key = PeerKey((random.below(n_keys) as u64).to_le_bytes().to_vec());
                next_id += 1;
                queue.push(AddressGroup(random.below(n_groups as usize) as u64), (key, offer(next_id)));
            }
        }
        next_id += 1;
        // A contribution that is not queued is offered again.
        queue.push(honest.1, (honest.0.clone(), offer(next_id)));
        if let Some((group, (peer, offer))) = queue.pop() {
            now += took;
            selection.on_verified(now, &peer, group, &offer, took);
        }
        now += rest_after(took);
    }
    now
}

#[test]
fn a_thousand_keys_of_one_machine_hardly_delay_the_probation_of_a_newcomer() {
    let took = Duration::from_secs(2);
    let alone = probation(1, 0, 1, took);
    assert_eq!(alone, 2 * PROBATION * took);
    for seed in 0..50 {
        // An IPv4 address and a /64: each time one more contribution of either is waited for.
        for (n_keys, n_groups) in [(1, 1), (64, 1), (1000, 1), (1000, 2)] {
            let attacked = probation(seed, n_keys, n_groups, took);
            let turns = u32::try_from(n_groups).unwrap() + 1;
            assert!(attacked <= turns * alone, "seed {seed}, {n_keys} keys: {attacked:?}, alone {alone:?}");
        }
    }
}
