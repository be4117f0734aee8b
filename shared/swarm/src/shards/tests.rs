use proptest::prelude::*;

use super::*;

const NOW: Moment = Moment::from_secs(1000);

fn peer(n: u8) -> PeerKey {
    PeerKey(vec![n])
}

fn from(n: u8) -> ShardSource {
    ShardSource::Peer(peer(n))
}

fn set(shards: impl IntoIterator<Item = u32>) -> ShardSet {
    shards.into_iter().collect()
}

/// Ten shards of 100 bytes, room for `n_kept`; the other peers keep the given shards.
fn exchange(n_kept: u64, kept: &[u32], holders: &[(u8, &[u32])]) -> Exchange {
    exchange_of(peer(100), n_kept, kept, holders)
}

fn exchange_of(here: PeerKey, n_kept: u64, kept: &[u32], holders: &[(u8, &[u32])]) -> Exchange {
    let mut exchange = Exchange::new(vec![100; 10], n_kept * 100, 7);
    let holders = holders.iter().map(|&(n, shards)| (peer(n), set(shards.to_vec()))).collect();
    exchange.on_survey(Survey { here, kept: set(kept.to_vec()), holders });
    exchange
}

/// All peers that are asked for a shard until the backbone is; all fail.
fn asked(exchange: &mut Exchange, now: Moment, shard: u32) -> Vec<PeerKey> {
    let mut asked = Vec::new();
    loop {
        match exchange.source(now, shard, 0) {
            ShardSource::Backbone => return asked,
            source @ ShardSource::Peer(_) => {
                exchange.on_failed(now, shard, &source, &[]);
                let ShardSource::Peer(peer) = source else { continue };
                asked.push(peer);
            }
        }
    }
}

#[test]
fn a_shard_comes_from_those_who_keep_it_and_from_the_backbone_last() {
    let mut exchange = exchange(10, &[], &[(1, &[0, 1]), (2, &[1]), (3, &[1]), (4, &[1]), (5, &[1])]);
    assert_eq!(exchange.source(NOW, 9, 0), ShardSource::Backbone, "nobody keeps it");
    assert_eq!(asked(&mut exchange, NOW, 0), [peer(1)]);
    let mut others = asked(&mut exchange, NOW, 1);
    assert_eq!(others.len(), ATTEMPTS_MAX);
    others.sort_unstable();
    others.dedup();
    assert!(others.len() == ATTEMPTS_MAX && !others.contains(&peer(1)), "each once, and nobody who failed");
    assert_eq!(exchange.traffic().n_failed, 4);
    // After a while they are asked again, less and less often.
    exchange.on_delivered(1, &ShardSource::Backbone, &[0; 100]);
    assert_eq!(asked(&mut exchange, NOW + PAUSE_MIN, 0), [peer(1)]);
    exchange.on_delivered(0, &ShardSource::Backbone, &[0; 100]);
    assert!(asked(&mut exchange, NOW + PAUSE_MIN * 2, 0).is_empty());
    exchange.on_delivered(0, &ShardSource::Backbone, &[0; 100]);
    assert_eq!(asked(&mut exchange, NOW + PAUSE_MIN * 3, 0), [peer(1)]);
}

#[test]
fn a_backbone_that_fails_is_no_dead_end() {
    let mut exchange = exchange(10, &[], &[(1, &[0])]);
    assert_eq!(asked(&mut exchange, NOW, 0), [peer(1)]);
    exchange.on_failed(NOW, 0, &ShardSource::Backbone, &[]);
    assert_eq!(exchange.source(NOW + PAUSE_MAX, 0, 0), from(1));
}

#[test]
fn those_who_delivered_are_preferred_and_others_are_tried() {
    let mut exchange = exchange(10, &[], &[(1, &[0]), (2, &[0]), (3, &[0])]);
    exchange.on_delivered(1, &from(2), &[0; 100]);
    let mut n_asked = [0; 4];
    for _ in 0..1000 {
        let ShardSource::Peer(PeerKey(name)) = exchange.source(NOW, 0, 0) else { panic!("the backbone") };
        n_asked[usize::from(name[0])] += 1;
        exchange.on_delivered(0, &ShardSource::Backbone, &[0; 100]);
    }
    assert!(n_asked[2] > 650 && n_asked[1] > 50 && n_asked[3] > 50, "{n_asked:?}");
}

#[test]
fn a_peer_that_sent_all_of_a_wrong_shard_is_not_asked_again() {
    let mut exchange = exchange(10, &[], &[(1, &[0, 1])]);
    assert_eq!(exchange.rarity(0), 1);
    assert_eq!(exchange.source(NOW, 0, 0), from(1));
    exchange.on_wrong(0, &from(1));
    assert_eq!(exchange.poll_convicted(), Some(Convicted { peer: peer(1), shard: 0 }));
    assert_eq!(exchange.poll_convicted(), None);
    assert_eq!(exchange.source(NOW, 0, 0), ShardSource::Backbone);
    assert_eq!(exchange.source(NOW + PAUSE_MAX * 100, 1, 0), ShardSource::Backbone);
    assert_eq!((exchange.rarity(0), exchange.rarity(1)), (0, 0), "what it says it keeps does not count");
    let traffic = exchange.traffic();
    assert_eq!((traffic.n_wrong, traffic.bytes_from_peers, traffic.bytes_from_backbone), (1, 100, 0));
}

/// Three peers send a shard together; the piece of `byzantine` has a wrong byte.
fn sent_by_three(byzantine: u8) -> (Exchange, Vec<u8>) {
    let mut exchange = exchange(10, &[], &[]);
    let right: Vec<u8> = (0..100).collect();
    let mut sent = right.clone();
    sent[usize::from(byzantine - 1) * 40] ^= 1;
    exchange.source(NOW, 0, 0);
    exchange.on_failed(NOW, 0, &from(1), &sent[..40]);
    exchange.source(NOW, 0, 40);
    exchange.on_interrupted(0, &from(2), &sent[..80]);
    exchange.source(NOW, 0, 80);
    exchange.on_wrong(0, &from(3));
    assert_eq!(exchange.poll_convicted(), None, "it may have been any of them");
    (exchange, right)
}

#[test]
fn of_several_senders_the_right_bytes_convict_the_dishonest_one() {
    for byzantine in 1..=3 {
        let (mut exchange, right) = sent_by_three(byzantine);
        exchange.source(NOW, 0, 0);
        exchange.on_delivered(0, &ShardSource::Backbone, &right);
        assert_eq!(exchange.poll_convicted(), Some(Convicted { peer: peer(byzantine), shard: 0 }));
        assert_eq!(exchange.poll_convicted(), None);
        let traffic = exchange.traffic();
        assert_eq!((traffic.bytes_from_peers, traffic.bytes_from_backbone), (100, 100));
    }
}

#[test]
fn what_the_backbone_sent_of_it_blames_nobody() {
    let mut exchange = exchange(10, &[], &[(1, &[0])]);
    exchange.source(NOW, 0, 0);
    exchange.on_interrupted(0, &ShardSource::Backbone, &[0; 60]);
    exchange.source(NOW, 0, 60);
    assert!(exchange.on_wrong(0, &from(1)));
    assert_eq!(exchange.poll_convicted().map(|convicted| convicted.peer), Some(peer(1)));
    assert!(!exchange.on_wrong(0, &ShardSource::Backbone));
    assert_eq!(exchange.poll_convicted(), None);
}

#[test]
fn the_most_replicated_make_room_and_the_last_copy_stays() {
    let others: &[(u8, &[u32])] = &[(1, &[0, 1, 5]), (2, &[0, 5]), (3, &[0])];
    let is_far = |here: &PeerKey| {
        let exchange = exchange_of(here.clone(), 3, &[], others);
        [0, 1, 5].into_iter().all(|shard| !exchange.is_nearest(shard))
    };
    let here = (101..=255).map(peer).find(is_far).unwrap();
    let mut room = exchange_of(here.clone(), 3, &[0, 1, 2], others);
    assert_eq!(room.room_for(6), Some(vec![0]), "three others keep it");
    room.on_kept(6, &[0]);
    assert_eq!(room.room_for(5), Some(vec![1]));
    room.on_kept(5, &[1]);
    // Only the new shard and the one that no other peer keeps are left.
    assert_eq!(room.room_for(7), Some(vec![5]));
    room.on_kept(7, &[5]);
    assert_eq!(room.room_for(5), None, "two others keep it, and nobody else the rest");
    assert!(matches!(room.room_for(8).as_deref(), Some([2 | 6 | 7])), "nobody else keeps any of them");
    assert_eq!(exchange_of(here.clone(), 10, &[0, 1, 2], others).room_for(5), Some(vec![]));
    assert_eq!(exchange_of(here.clone(), 0, &[], others).room_for(5), None);
    // It counts itself, and does not keep a shard that does not exist.
    let mut counted = exchange_of(here, 3, &[0, 2], others);
    assert_eq!([0, 1, 2, 5].map(|shard| counted.rarity(shard)), [4, 1, 1, 2]);
    counted.on_kept(10, &[]);
    assert_eq!([0, 1, 2, 10].map(|shard| counted.keeps(shard)), [true, false, true, false]);
}

#[test]
fn each_shard_is_nearest_to_one_of_those_who_keep_it() {
    let all: Vec<u32> = (0..10).collect();
    let mut guardians = vec![0; 10];
    let mut first = vec![0; 10];
    for here in 0..5 {
        let others: Vec<(u8, &[u32])> = (0..5).filter(|&n| n != here).map(|n| (n, &all[..])).collect();
        let mut full = exchange_of(peer(here), 10, &all, &others);
        full.capacity = 1000 - 1;
        for shard in 0..10 {
            guardians[shard as usize] += u32::from(full.dispensable(shard) == 0);
        }
        let gone = full.room_for(0);
        assert!(gone.is_none_or(|gone| gone.iter().all(|&gone| full.dispensable(gone) == 4)));
        let nothing: Vec<(u8, &[u32])> = others.iter().map(|&(n, _)| (n, &[][..])).collect();
        let empty = exchange_of(peer(here), 10, &[], &nothing);
        for shard in 0..10 {
            assert!([0, u32::MAX].contains(&empty.rarity(shard)));
            first[shard as usize] += u32::from(empty.rarity(shard) == 0);
        }
    }
    assert_eq!(guardians, [1; 10], "one of them keeps it, independent of the others");
    assert_eq!(first, [1; 10], "one of them fetches it before anything else");
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut exchange = Exchange::new(vec![100; 4], 400, 1);
    let name = |n: u32| PeerKey(n.to_le_bytes().to_vec());
    let holders = (0..10_000).map(|n| (name(n), set([0]))).collect();
    exchange.on_survey(Survey { here: peer(0), kept: set([]), holders });
    assert_eq!(exchange.rarity(0), HOLDERS_MAX as u32);
    exchange.source(NOW, 0, 0);
    exchange.on_wrong(0, &ShardSource::Peer(name(1)));
    for n in 0..10_000 {
        exchange.on_failed(NOW, 1, &ShardSource::Peer(name(n + 2)), &[]);
    }
    assert_eq!(exchange.holder_records.len(), HOLDER_RECORDS_MAX);
    assert!(exchange.holder_records[&name(1)].is_banned, "the last to be forgotten");
}

#[test]
fn a_peer_that_fails_and_fails_is_asked_again_after_ten_minutes_at_most() {
    const MS: Duration = Duration::from_millis(1);
    let mut exchange = exchange(10, &[], &[(1, &[0])]);
    let mut now = NOW;
    for pause in
        [15, 30, 60, 120, 240, 480, 600, 600].map(Duration::from_secs).into_iter().chain([PAUSE_MAX; 20])
    {
        assert_eq!(exchange.source(now, 0, 0), from(1), "{pause:?}");
        exchange.on_failed(now, 0, &from(1), &[]);
        exchange.on_failed(now, 0, &ShardSource::Backbone, &[]);
        assert_eq!(exchange.source(now + pause - MS, 0, 0), ShardSource::Backbone, "{pause:?}");
        now += pause;
    }
    assert_eq!(exchange.traffic().n_failed, 28);
    // Once it has delivered, it begins anew.
    exchange.on_delivered(0, &from(1), &[0; 100]);
    exchange.on_failed(now, 1, &from(1), &[]);
    assert_eq!(exchange.source(now + PAUSE_MIN, 0, 0), from(1));
}

#[test]
fn each_byte_is_counted_for_the_source_that_sent_it() {
    let mut exchange = exchange(10, &[], &[(1, &[0, 1])]);
    let bytes = |exchange: &Exchange| {
        let traffic = exchange.traffic();
        (traffic.bytes_from_peers, traffic.bytes_from_backbone)
    };
    exchange.source(NOW, 0, 0);
    exchange.on_interrupted(0, &from(1), &[0; 30]);
    exchange.on_interrupted(0, &from(1), &[0; 30]);
    assert_eq!(bytes(&exchange), (30, 0), "nothing new came");
    exchange.on_interrupted(1, &from(1), &[0; 30]);
    assert_eq!(bytes(&exchange), (30, 0), "that shard is not being fetched");
    exchange.source(NOW, 0, 30);
    exchange.on_failed(NOW, 0, &ShardSource::Backbone, &[0; 50]);
    assert_eq!(bytes(&exchange), (30, 20));
    exchange.source(NOW, 0, 50);
    exchange.on_delivered(0, &from(1), &[0; 100]);
    assert_eq!(bytes(&exchange), (80, 20));
    // Another begins anew, and wrong bytes are bytes.
    exchange.source(NOW, 1, 0);
    exchange.on_interrupted(1, &ShardSource::Backbone, &[0; 40]);
    assert!(exchange.on_wrong(1, &from(1)));
    assert_eq!(bytes(&exchange), (140, 60));
    assert_eq!((exchange.traffic().n_wrong, exchange.traffic().n_failed), (1, 0));
    exchange.source(NOW, 1, 0);
    assert!(!exchange.on_wrong(1, &ShardSource::Backbone), "to fetch it once more would not help");
    assert_eq!((bytes(&exchange), exchange.traffic().n_wrong), ((140, 160), 2));
}

#[test]
fn a_shard_that_begins_anew_blames_nobody_for_the_pieces_before() {
    let mut exchange = exchange(10, &[], &[(1, &[0]), (2, &[0])]);
    exchange.source(NOW, 0, 0);
    exchange.on_interrupted(0, &from(1), &[0; 30]);
    // What had arrived was thrown away.
    exchange.source(NOW, 0, 0);
    assert!(exchange.on_wrong(0, &from(2)));
    assert_eq!(exchange.poll_convicted(), Some(Convicted { peer: peer(2), shard: 0 }));
    assert_eq!(exchange.poll_convicted(), None);
}

#[test]
fn a_shard_as_large_as_all_room_fits_and_a_larger_one_does_not() {
    let mut exchange = Exchange::new(vec![100, 201, 200], 200, 1);
    assert_eq!(
        (exchange.room_for(0), exchange.room_for(1), exchange.room_for(2)),
        (Some(vec![]), None, Some(vec![]))
    );
    exchange.on_kept(0, &[]);
    assert_eq!(exchange.room_for(0), Some(vec![]), "it is here already");
    assert_eq!(exchange.room_for(2), Some(vec![0]));
    exchange.on_kept(2, &[0]);
    assert!(exchange.keeps(2) && !exchange.keeps(0));
    exchange.on_kept(3, &[]);
    assert!(!exchange.keeps(3), "there is no such shard");
}

#[test]
fn a_new_record_takes_the_place_of_the_one_that_costs_the_least_to_forget() {
    let mut exchange = exchange(10, &[], &[(2, &[0])]);
    let name = |n: usize| PeerKey(vec![0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
    // A banned one, a holder, and others that failed twice and once.
    exchange.holder_record(&peer(1)).is_banned = true;
    exchange.holder_record(&peer(2));
    for n in 2..HOLDER_RECORDS_MAX {
        exchange.holder_record(&name(n)).n_failures = 2;
        assert_eq!(exchange.holder_records.len(), n + 1);
    }
    exchange.holder_record(&name(7)).n_failures = 1;
    assert_eq!(exchange.holder_records.len(), HOLDER_RECORDS_MAX, "one that is known takes nobody's place");
    exchange.holder_record(&peer(3)).n_failures = 3;
    assert_eq!(exchange.holder_records.len(), HOLDER_RECORDS_MAX);
    let is_known =
        [peer(1), peer(2), peer(3), name(6), name(7)].map(|of| exchange.holder_records.contains_key(&of));
    assert_eq!(is_known, [true, true, true, true, false]);
}

#[derive(Debug, Clone)]
enum ExchangeOperation {
    Survey { kept: Vec<u32>, holders: Vec<(u8, Vec<u32>)> },
    Fetch { shard: u32, ends: Vec<u8> },
    Keep(u32),
}

fn steps() -> impl Strategy<Value = Vec<ExchangeOperation>> {
    let shards = || proptest::collection::vec(0u32..14, 0..8);
    let step = prop_oneof![
        (shards(), proptest::collection::vec((0u8..6, shards()), 0..6))
            .prop_map(|(kept, holders)| ExchangeOperation::Survey { kept, holders }),
        (0u32..10, proptest::collection::vec(0u8..5, 1..8))
            .prop_map(|(shard, ends)| ExchangeOperation::Fetch { shard, ends }),
        (0u32..12).prop_map(ExchangeOperation::Keep),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// For any surveys and results: only holders that were not convicted are asked for a shard, a fetch falls back to the
    /// backbone in the end, and the kept shards fit the capacity.
    #[test]
    fn the_rules_hold_after_anything(steps in steps(), seed in any::<u64>()) {
        let (sizes, capacity) = ([30, 100, 7, 100, 55, 100, 1, 100, 100, 90].to_vec(), 300);
        let mut exchange = Exchange::new(sizes.clone(), capacity, seed);
        let (mut announced, mut convicted, mut now) = (BTreeMap::new(), Vec::new(), NOW);
        for step in steps {
            now += Duration::from_secs(5);
            match step {
                ExchangeOperation::Survey { kept, holders } => {
                    announced = holders.iter().map(|(n, shards)| (peer(*n), set(shards.clone()))).collect();
                    let mut room = capacity;
                    let fits = |shard: &u32| {
                        let n_bytes = sizes.get(*shard as usize).copied().unwrap_or(0);
                        room.checked_sub(u64::from(n_bytes)).map(|left| room = left).is_some()
                    };
                    let kept: Vec<u32> = set(kept).iter().filter(fits).collect();
                    let holders = holders.into_iter().map(|(n, shards)| (peer(n), set(shards))).collect();
                    exchange.on_survey(Survey { here: peer(9), kept: set(kept), holders });
                }
                ExchangeOperation::Fetch { shard, ends } => {
                    let size = sizes[shard as usize] as usize;
                    let mut here = 0;
                    for end in ends {
                        let source = exchange.source(now, shard, here as u64);
                        if let ShardSource::Peer(peer) = &source {
                            prop_assert!(announced.get(peer).is_some_and(|shards: &ShardSet| shards.contains(shard)));
                            prop_assert!(!convicted.contains(peer));
                        }
                        match end {
                            0 => { exchange.on_delivered(shard, &source, &vec![0; size]); here = 0; }
                            1 => { exchange.on_wrong(shard, &source); here = 0; }
                            2 => { here = size / 2; exchange.on_interrupted(shard, &source, &vec![1; here]); }
                            _ => exchange.on_failed(now, shard, &source, &vec![1; here]),
                        }
                        while let Some(Convicted { peer, .. }) = exchange.poll_convicted() {
                            convicted.push(peer);
                        }
                    }
                    // Only so many holders that fail are asked.
                    let mut n_asked = 0;
                    loop {
                        let source = exchange.source(now, shard, 0);
                        if source == ShardSource::Backbone {
                            break;
                        }
                        n_asked += 1;
                        prop_assert!(n_asked <= ATTEMPTS_MAX);
                        exchange.on_failed(now, shard, &source, &[]);
                    }
                }
                ExchangeOperation::Keep(shard) => {
                    let before = exchange.kept.clone();
                    if let Some(evicted) = exchange.room_for(shard) {
                        prop_assert!(evicted.iter().all(|&gone| before.contains(gone) && gone != shard));
                        exchange.on_kept(shard, &evicted);
                        prop_assert!(shard >= 10 || exchange.keeps(shard));
                    }
                }
            }
            let n_bytes: u64 = exchange.kept.iter().map(|shard| exchange.size(shard)).sum();
            prop_assert!(n_bytes <= capacity, "{} bytes", n_bytes);
        }
    }
}
