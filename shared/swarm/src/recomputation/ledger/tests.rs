#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::random::SplitMix64;

const N_DATA: u64 = 60_000;
const PARAMETERS: Sha256Hash = Sha256Hash([1; 32]);

fn name(peer: u8, contribution_id: u64) -> ContributionName {
    ContributionName { peer: PeerKey(vec![peer]), contribution_id }
}

fn sample(place: u64) -> SampleId {
    SampleId { shard: (place / 500) as u32, index: (place % 500) as u32 }
}

fn samples(places: std::ops::Range<u64>) -> Vec<SampleId> {
    places.map(sample).collect()
}

fn ledger() -> Ledger {
    Ledger::new(N_DATA)
}

const HERE: AddressGroup = AddressGroup(1);
const ELSEWHERE: AddressGroup = AddressGroup(2);

#[test]
fn one_that_did_not_count_may_be_offered_again_and_one_under_way_is_busy() {
    let mut ledger = ledger();
    let list = samples(0..64);
    let claim = ledger.claim(&name(1, 1), HERE, PARAMETERS, &list).unwrap();
    assert_eq!(ledger.claim(&name(1, 1), HERE, PARAMETERS, &list), Err(RepeatError::UnderWay));
    assert_eq!(ledger.claim(&name(1, 2), HERE, PARAMETERS, &list), Err(RepeatError::List), "while in flight");
    ledger.give_back(&claim);
    ledger.give_back(&claim);
    let again = ledger.claim(&name(1, 2), HERE, PARAMETERS, &list).unwrap();
    // By other parameters they have another gradient.
    ledger.claim(&name(1, 3), HERE, Sha256Hash([2; 32]), &list).unwrap();
    ledger.give_back(&again);
    ledger.claim(&name(2, 1), ELSEWHERE, PARAMETERS, &list).unwrap();
}

#[test]
fn one_honest_computation_is_not_sold_as_its_parts_and_their_union() {
    let mut ledger = ledger();
    ledger.claim(&name(1, 1), HERE, PARAMETERS, &samples(0..256)).unwrap();
    ledger.claim(&name(2, 1), HERE, PARAMETERS, &samples(256..512)).unwrap();
    let union = ledger.claim(&name(3, 1), HERE, PARAMETERS, &samples(0..512));
    assert!(matches!(union, Err(RepeatError::Own { got: 512, .. })), "{union:?}");
    // Nor from the other address that the same machine has.
    let elsewhere = ledger.claim(&name(3, 1), ELSEWHERE, PARAMETERS, &samples(0..512));
    assert!(matches!(elsewhere, Err(RepeatError::Others { got: 512, .. })), "{elsewhere:?}");
    // Nor with a sample more, nor with each of them twice.
    let more = [samples(0..512), samples(900..901)].concat();
    assert!(ledger.claim(&name(3, 1), HERE, PARAMETERS, &more).is_err());
    let twice = [samples(1000..1128), samples(1000..1128)].concat();
    assert!(matches!(
        ledger.claim(&name(4, 1), AddressGroup(4), PARAMETERS, &twice),
        Err(RepeatError::Own { .. })
    ));
    assert!(matches!(
        ledger.claim(&name(4, 1), AddressGroup(4), PARAMETERS, &[sample(7); 64]),
        Err(RepeatError::Own { .. })
    ));
}

/// A peer that repeats as much as it may: how many samples count for each that it computed.
#[test]
fn repeating_as_much_as_is_let_pass_is_hardly_worth_it() {
    let mut ledger = ledger();
    let (mut n_computed, mut n_counted, mut id) = (0u64, 0u64, 0);
    while n_computed < 1024 {
        for n_new in [0, 1, 8, 16, 24, 31, 32] {
            // The rest of 32 was contributed before.
            let list = [samples(0..32 - n_new), samples(100 + n_computed..100 + n_computed + n_new)].concat();
            id += 1;
            if ledger.claim(&name(id as u8, id), HERE, PARAMETERS, &list).is_ok() {
                n_computed += n_new;
                n_counted += 32;
                break;
            }
        }
    }
    let worth = n_counted as f64 / n_computed as f64;
    println!("{n_counted} samples counted for {n_computed} that were computed: {worth:.3}");
    assert!(worth < 1.12, "{worth}");
}

#[test]
fn late_work_counts_in_one_epoch() {
    let mut ledger = ledger();
    // The list and the parameters are the same in every epoch and under every name.
    let first = ledger.claim(&name(1, 7), HERE, PARAMETERS, &samples(0..64));
    let second = ledger.claim(&name(1, 8), HERE, PARAMETERS, &samples(0..64));
    assert!(first.is_ok() && second == Err(RepeatError::List));
    for epoch in 1..PARAMETERS_MAX as u8 {
        ledger.claim(&name(1, 9), HERE, Sha256Hash([100 + epoch; 32]), &samples(0..64)).unwrap();
    }
    assert_eq!(
        ledger.claim(&name(2, 8), HERE, PARAMETERS, &samples(0..64)),
        Err(RepeatError::List),
        "four epochs later"
    );
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut ledger = ledger();
    for epoch in 0..100u64 {
        let parameters = Sha256Hash([epoch as u8; 32]);
        ledger.claim(&name(1, epoch), HERE, parameters, &samples(0..64)).unwrap();
        ledger.claim_gradient(&name(1, epoch), epoch, values_hash(&[epoch as f32])).unwrap();
    }
    assert_eq!((ledger.of_parameters.len(), ledger.gradients.len()), (PARAMETERS_MAX, EPOCHS_MAX));
    assert_eq!(ledger.gradients.front().map(|(epoch, _)| *epoch), Some(95));
}

#[test]
fn the_same_values_count_once_in_every_codec() {
    let mut ledger = ledger();
    let hash = values_hash(&[1.0, 0.0, -2.0]);
    assert_eq!(hash, values_hash(&[1.0, -0.0, -2.0]));
    ledger.claim_gradient(&name(1, 1), 4, hash).unwrap();
    assert_eq!(ledger.claim_gradient(&name(1, 1), 4, hash), Err(RepeatError::UnderWay));
    for (other, epoch) in [(name(1, 2), 4), (name(2, 1), 4), (name(2, 1), 5), (name(2, 1), 3)] {
        assert_eq!(ledger.claim_gradient(&other, epoch, hash), Err(RepeatError::Gradient));
    }
    ledger.give_back_gradient(4, &hash);
    ledger.claim_gradient(&name(2, 1), 5, hash).unwrap();
}

/// A claim of `n` samples from `HERE` with so many duplicates.
fn claim_of(n: u64, n_own: u64, n_others: u64, n_by_chance: u64) -> SampleClaim {
    let (parameters, digest, group) = (PARAMETERS, PARAMETERS, HERE);
    SampleClaim { parameters, digest, group, samples: samples(0..n), n_own, n_others, n_by_chance }
}

#[test]
fn an_address_repeats_its_own_samples_as_often_as_chance_does_and_not_once_more() {
    let before = OfGroup { n_samples: 600, n_own: 200, ..OfGroup::default() };
    // A thousand draws from a thousand samples: 1000 / e of them are drawn before, 62 and 8 more are let pass.
    let max = 437;
    assert_eq!(check(&before, &claim_of(400, max - 200, 0, 0), 1000), Ok(()));
    let got = max + 1;
    assert_eq!(check(&before, &claim_of(400, got - 200, 0, 0), 1000), Err(RepeatError::Own { got, max }));
    // From a large data set hardly any is drawn twice.
    let max = 62 + 8;
    let before = OfGroup { n_samples: 600, ..OfGroup::default() };
    assert_eq!(check(&before, &claim_of(400, max, 0, 0), 1_000_000_000), Ok(()));
    let got = max + 1;
    let refused = check(&before, &claim_of(400, got, 0, 0), 1_000_000_000);
    assert_eq!(refused, Err(RepeatError::Own { got, max }));
}

#[test]
fn an_address_shares_samples_with_others_as_often_as_chance_does_and_not_once_more() {
    let before = OfGroup { n_samples: 600, n_others: 250, n_by_chance: 30, ..OfGroup::default() };
    // Twice what chance gives, half of a thousand, and 8.
    let max = 2 * (30 + 25) + 500 + 8;
    assert_eq!(check(&before, &claim_of(400, 0, max - 250, 25), 100_000), Ok(()));
    let got = max + 1;
    let refused = check(&before, &claim_of(400, 0, got - 250, 25), 100_000);
    assert_eq!(refused, Err(RepeatError::Others { got, max }));
}

#[test]
fn each_claim_is_counted_for_its_address_until_it_is_given_back() {
    let mut ledger = Ledger::new(1000);
    // Every sample of the second list is the address's own or another's; two are in it twice.
    ledger.claim(&name(1, 1), HERE, PARAMETERS, &samples(0..100)).unwrap();
    ledger.claim(&name(2, 1), ELSEWHERE, PARAMETERS, &samples(100..300)).unwrap();
    let list = [samples(97..110), samples(500..700), samples(500..502)].concat();
    let claim = ledger.claim(&name(1, 2), HERE, PARAMETERS, &list).unwrap();
    // Of 215 samples 3 and the 2 repeated ones are its own, 10 others'; 300 of 1000 are known.
    assert_eq!((claim.n_own, claim.n_others, claim.n_by_chance), (5, 10, 215 * 300 / 1000));
    let more = [samples(98..100), samples(100..104), samples(700..900)].concat();
    let second = ledger.claim(&name(1, 3), HERE, PARAMETERS, &more).unwrap();
    assert_eq!((second.n_own, second.n_others, second.n_by_chance), (6, 4, 206 * 500 / 1000));
    let counts = |ledger: &mut Ledger| {
        let of = &ledger.contributed(PARAMETERS).of_groups[&HERE];
        (of.n_samples, of.n_own, of.n_others, of.n_by_chance)
    };
    assert_eq!(counts(&mut ledger), (100 + 215 + 206, 5 + 6, 10 + 4, 64 + 103));
    ledger.give_back(&claim);
    assert_eq!(counts(&mut ledger), (100 + 206, 6, 4, 103));
    let times = &ledger.contributed(PARAMETERS).times;
    assert_eq!(
        [97, 98, 104, 500].map(|at| times.get(&sample(at)).copied()),
        [Some(1), Some(2), Some(1), None]
    );
}

#[test]
fn the_overlap_by_chance_is_of_the_data_that_there_are() {
    // More names of samples than samples: a contribution that was restored after the data set shrank.
    let mut ledger = Ledger::new(10);
    ledger.claim(&name(1, 1), HERE, PARAMETERS, &samples(0..20)).unwrap();
    let claim = ledger.claim(&name(2, 1), ELSEWHERE, PARAMETERS, &samples(50..57)).unwrap();
    assert_eq!(claim.n_by_chance, 7);
    assert_eq!(Ledger::new(0).n_samples, 1, "no division by nothing");
}

#[test]
fn gradients_of_as_many_epochs_are_remembered_in_any_order_of_their_coming() {
    let mut ledger = ledger();
    for epoch in [7, 3, 5, 4, 6] {
        ledger.claim_gradient(&name(1, epoch), epoch, values_hash(&[epoch as f32])).unwrap();
    }
    let epochs = |ledger: &Ledger| ledger.gradients.iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>();
    assert_eq!(epochs(&ledger), [3, 4, 5, 6, 7]);
    ledger.claim_gradient(&name(2, 1), 5, values_hash(&[0.5])).unwrap();
    assert_eq!(ledger.gradients[2].1.len(), 2, "both are of one epoch");
    ledger.claim_gradient(&name(1, 8), 8, values_hash(&[8.0])).unwrap();
    assert_eq!(epochs(&ledger), [4, 5, 6, 7, 8]);
    ledger.give_back_gradient(5, &values_hash(&[0.5]));
    assert_eq!(ledger.gradients[1].1.len(), 1);
}

/// Peers that draw as contributors do: shards in a random order of their own, through a shuffle buffer.
struct Drawing {
    random: SplitMix64,
    order: Vec<u64>,
    buffer: Vec<u64>,
}

impl Drawing {
    fn new(seed: u64) -> Self {
        Self { random: SplitMix64::new(seed), order: Vec::new(), buffer: Vec::new() }
    }

    fn take(&mut self, n: usize, (n_shards, shard, capacity): (u64, u64, usize)) -> Vec<SampleId> {
        let mut taken = Vec::new();
        for _ in 0..n {
            while self.buffer.len() < capacity {
                if self.order.is_empty() {
                    self.order.extend(0..n_shards);
                    self.random.shuffle(&mut self.order);
                }
                let from = self.order.pop().unwrap() * shard;
                self.buffer.extend(from..from + shard);
            }
            let at = self.random.below(self.buffer.len());
            taken.push(sample(self.buffer.swap_remove(at)));
        }
        taken
    }
}

/// Contributions of a class of honest peers that are refused, of so many.
fn refused(seed: u64, n_peers: u64, n: usize, n_epochs: u64, data: (u64, u64, usize)) -> (u64, u64) {
    let mut ledger = Ledger::new(data.0 * data.1);
    let mut peers: Vec<Drawing> = (0..n_peers).map(|peer| Drawing::new(seed * 1000 + peer)).collect();
    let (mut n_refused, mut n_all) = (0, 0);
    for epoch in 0..n_epochs {
        let parameters = Sha256Hash::of(&epoch.to_le_bytes());
        for (peer, drawing) in peers.iter_mut().enumerate() {
            let list = drawing.take(n, data);
            // Half of them share one address, the others have one each.
            let group = if peer % 2 == 0 { HERE } else { AddressGroup(peer as u64 + 10) };
            let claimed = ledger.claim(&name(peer as u8, epoch), group, parameters, &list);
            n_refused += u64::from(claimed.is_err());
            n_all += 1;
        }
    }
    (n_refused, n_all)
}

#[test]
fn honest_peers_are_hardly_ever_refused() {
    // Shards, their samples, and the shuffle buffer.
    let (fashion_mnist, small, tiny) = ((120, 500, 2000), (8, 100, 200), (2, 250, 300));
    for (what, n_peers, n, data) in [
        ("one alone", 1, 1024, fashion_mnist),
        ("three", 3, 341, fashion_mnist),
        ("a class", 30, 34, fashion_mnist),
        ("a class of large contributions", 30, 1024, fashion_mnist),
        ("few data", 4, 64, small),
        ("more than there are data", 3, 2000, tiny),
    ] {
        let (mut n_refused, mut n_all) = (0, 0);
        for seed in 0..10 {
            let (refused, all) = refused(seed, n_peers, n, 20, data);
            (n_refused, n_all) = (n_refused + refused, n_all + all);
        }
        println!("{what}: {n_refused} of {n_all} refused");
        assert!(n_refused * 100 <= n_all, "{what}: {n_refused} of {n_all} refused");
    }
}

proptest! {
    /// In any order, under any key, number and address: the same samples count once.
    #[test]
    fn a_list_counts_once_in_any_order_under_any_name(
        places in prop::collection::hash_set(0..N_DATA, 1..200),
        copies in prop::collection::vec((any::<u64>(), any::<u8>(), any::<u64>(), any::<u64>()), 1..20),
    ) {
        let mut ledger = ledger();
        let places: Vec<u64> = places.into_iter().collect();
        let first: Vec<SampleId> = places.iter().map(|&place| sample(place)).collect();
        let original = name(0, 0);
        ledger.claim(&original, HERE, PARAMETERS, &first).unwrap();
        for (seed, peer, id, group) in copies {
            let mut list = first.clone();
            SplitMix64::new(seed).shuffle(&mut list);
            let copy = name(peer, id);
            let want = if copy == original { RepeatError::UnderWay } else { RepeatError::List };
            prop_assert_eq!(ledger.claim(&copy, AddressGroup(group), PARAMETERS, &list), Err(want));
        }
    }

    /// After any sequence of claims and returns exactly the claims that were kept are left.
    #[test]
    fn what_is_given_back_leaves_nothing(
        lists in prop::collection::vec((0u64..1000, 1u64..64, 0u64..4, any::<bool>()), 1..40),
    ) {
        let mut ledger = ledger();
        let (mut given_back, mut kept) = (Vec::new(), HashSet::new());
        for (n, (from, n_samples, group, is_kept)) in lists.into_iter().enumerate() {
            let list = samples(from..from + n_samples);
            let claimed = ledger.claim(&name(1, n as u64), AddressGroup(group), PARAMETERS, &list);
            match claimed {
                Ok(claim) if !is_kept => given_back.push(claim),
                Ok(_) => kept.extend(list),
                Err(_) => {}
            }
        }
        given_back.iter().for_each(|claim| ledger.give_back(claim));
        let left: HashSet<SampleId> = ledger.contributed(PARAMETERS).times.keys().copied().collect();
        prop_assert_eq!(left, kept);
    }
}
