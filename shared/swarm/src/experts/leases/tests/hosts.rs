//! The hosts that a backbone knows: as many as it may, where they are, and which of them keep checkpoints.

use super::super::standing::HostStandings;
use super::*;
use crate::experts::ANNOUNCED_MAX;

fn peer(number: u32) -> PublicKey {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_le_bytes());
    PublicKey(key)
}

fn hear(hosts: &mut HostStandings, now: Moment, number: u32, group: u64) -> Result<(), LeaseRefusal> {
    hosts.on_heard(now, peer(number), AddressGroup(group), &LeasingHost::new(8, [vec![1]]))
}

#[test]
fn a_backbone_that_knows_as_many_hosts_as_it_may_forgets_those_alone_that_are_gone() {
    let mut hosts = HostStandings::default();
    (0..HOSTS_MAX as u32).for_each(|number| hear(&mut hosts, secs(100), number, 0).unwrap());
    hosts.on_places(&peer(0), false, true);
    let busy = Err(LeaseRefusal::Busy { for_ms: 30_000 });
    assert_eq!(hear(&mut hosts, secs(129), 9000, 0), busy, "all of them may be there yet");
    assert_eq!(hear(&mut hosts, secs(129), 1, 0), Ok(()), "it is known");
    assert_eq!(hear(&mut hosts, secs(130), 9000, 0), Ok(()));
    assert_eq!(hosts.n_held(&peer(0)), 1, "it is silent, and its lease may hold elsewhere");
    assert_eq!(hosts.check_room(&peer(1)), Ok(()));
    assert_eq!(hosts.check_room(&peer(2)), Err(LeaseRefusal::Room { n_room: 0 }), "it is gone");
}

#[test]
fn a_host_has_no_more_room_than_it_may_announce() {
    let mut hosts = HostStandings::default();
    let large = LeasingHost { n_room: u32::MAX, addresses: vec![vec![1]; 1000] };
    hosts.on_heard(secs(0), peer(1), AddressGroup(5), &large).unwrap();
    (0..ANNOUNCED_MAX).for_each(|_| hosts.on_places(&peer(1), false, true));
    assert_eq!(hosts.check_room(&peer(1)), Err(LeaseRefusal::Room { n_room: ANNOUNCED_MAX as u32 }));
    let [keeper] = &hosts.keepers(secs(0), place(&[1]), &[], 1)[..] else { panic!("one host") };
    assert!(keeper.addresses.len() < 10, "as many addresses as others will read");
}

#[test]
fn what_a_host_holds_counts_where_it_is_now() {
    let mut hosts = HostStandings::default();
    hear(&mut hosts, secs(0), 1, 5).unwrap();
    hear(&mut hosts, secs(0), 2, 5).unwrap();
    (0..2).for_each(|_| hosts.on_places(&peer(1), false, true));
    assert_eq!(hosts.n_of_address(&peer(2), false), Some(2));
    hear(&mut hosts, secs(1), 1, 0).unwrap();
    assert_eq!(hosts.n_of_address(&peer(1), false), Some(2), "another backbone does not know where it is");
    hear(&mut hosts, secs(2), 1, 6).unwrap();
    assert_eq!(
        (hosts.n_of_address(&peer(1), false), hosts.n_of_address(&peer(2), false)),
        (Some(2), Some(0))
    );
    hosts.on_places(&peer(1), false, false);
    // Where it was known by no address at first.
    hear(&mut hosts, secs(3), 3, 0).unwrap();
    hosts.on_places(&peer(3), false, true);
    assert_eq!(hosts.n_of_address(&peer(3), false), None);
    hear(&mut hosts, secs(4), 3, 6).unwrap();
    assert_eq!(
        (hosts.n_of_address(&peer(3), false), hosts.n_of_address(&peer(1), false)),
        (Some(2), Some(2))
    );
}

#[test]
fn all_backbones_name_the_same_keepers() {
    let mut hosts = HostStandings::default();
    (1..=9).for_each(|number| hear(&mut hosts, secs(0), number, 0).unwrap());
    let nowhere = LeasingHost::new(8, []);
    (10..=99).for_each(|n| hosts.on_heard(secs(0), peer(n), AddressGroup(0), &nowhere).unwrap());
    let keepers = |index, n_max| -> Vec<u8> {
        hosts.keepers(secs(1), place(&[index]), &[], n_max).iter().map(|host| host.peer.0[0]).collect()
    };
    // Backbones of two versions, too: who looks for a checkpoint asks where it was put.
    let named: Vec<Vec<u8>> = (0..4).map(|index| keepers(index, 3)).collect();
    assert_eq!(named, [[9, 6, 4], [2, 4, 9], [2, 3, 7], [1, 2, 7]]);
    assert_eq!(keepers(0, 2), named[0][..2], "as many as are wanted, the first ones");
    let n_later = [29, 30].map(|at| hosts.keepers(secs(at), place(&[0]), &[], 20).len());
    assert_eq!(n_later, [9, 0], "those that are silent may be gone");
    assert_eq!(keepers(0, 20).len(), 9, "a host without an address is asked by nobody");
}
