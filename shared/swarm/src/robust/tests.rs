//! Robust aggregation against crude and careful attacks, and with honest noise only.

use proptest::prelude::*;

use super::*;
use crate::AddressGroup;
use crate::random::SplitMix64;

/// Uniform in -1..1.
fn noise(random: &mut SplitMix64) -> f32 {
    (random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn peer(name: usize) -> PeerKey {
    PeerKey(vec![name as u8])
}

/// `truth`, with the noise of a mean over `n_samples`.
fn honest(truth: &[f32], n_samples: u64, random: &mut SplitMix64) -> Vec<f32> {
    let spread = 8.0 / (n_samples as f32).sqrt();
    truth.iter().map(|&value| value + spread * noise(random)).collect()
}

fn clip(members: &[(Vec<f32>, u64)]) -> Clipped {
    let members: Vec<WeightedGradient<'_>> = members
        .iter()
        .map(|(values, n_samples)| WeightedGradient { values, n_samples: *n_samples })
        .collect();
    centered_clip(&members)
}

fn far(a: &[f32], b: &[f32]) -> f64 {
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>())
}

fn verdicts(clipped: &Clipped) -> Vec<ClipVerdict> {
    clipped.outcomes.iter().map(|outcome| outcome.verdict).collect()
}

#[test]
fn the_median_of_columns() {
    let odd: [&[f32]; 3] = [&[3.0, -1.0], &[1.0, f32::MAX], &[2.0, 0.0]];
    assert_eq!(coordinate_median(&odd), [2.0, 0.0]);
    let even: [&[f32]; 4] = [&[1.0, f32::MAX], &[4.0, f32::MAX], &[2.0, -1.0], &[8.0, f32::MAX]];
    assert_eq!(coordinate_median(&even), [3.0, f64::from(f32::MAX)]);
    assert_eq!(coordinate_median(&[]), [0.0; 0]);
}

#[test]
fn honest_members_of_any_size_give_nearly_their_mean() {
    let mut random = SplitMix64::new(11);
    let truth: Vec<f32> = (0..400).map(|_| noise(&mut random)).collect();
    let sizes = [64, 512, 640, 900, 1000, 520, 96, 700, 530];
    let members: Vec<_> = sizes.map(|n| (honest(&truth, n, &mut random), n)).into();
    let clipped = clip(&members);
    assert_eq!(verdicts(&clipped), [ClipVerdict::Unclipped; 9], "{:?}", clipped.outcomes);
    // 530 samples are the median: the weights are capped there, and otherwise it is the mean.
    let weights: Vec<f32> = sizes.iter().map(|&n| n.min(530) as f32).collect();
    let total: f32 = weights.iter().sum();
    let mean = |at: usize| -> f32 {
        members.iter().zip(&weights).map(|((values, _), weight)| values[at] * weight / total).sum()
    };
    let mean: Vec<f32> = (0..truth.len()).map(mean).collect();
    assert!(far(&clipped.values, &mean) < 1e-4 * norm(&mean));
}

#[test]
fn a_crude_attack_has_no_pull() {
    let mut random = SplitMix64::new(12);
    let truth: Vec<f32> = (0..400).map(|_| noise(&mut random)).collect();
    let others: Vec<_> = (0..8).map(|_| (honest(&truth, 400, &mut random), 400)).collect();
    let without = clip(&others);
    for attack in [vec![1e30; 400], vec![-f32::MAX; 400], truth.iter().map(|value| -1e3 * value).collect()] {
        for claimed in [1, 400, u64::from(u32::MAX)] {
            let mut members = others.clone();
            members.insert(3, (attack.clone(), claimed));
            members.push((attack.clone(), claimed));
            let clipped = clip(&members);
            let left_out = |at: usize| clipped.outcomes[at].verdict == ClipVerdict::LeftOut;
            assert!(left_out(3) && left_out(9), "{:?}", clipped.outcomes);
            let off = far(&clipped.values, &without.values);
            assert!(off < 0.2 * norm(&without.values), "{claimed} samples moved it by {off}");
        }
    }
}

#[test]
fn a_careful_attack_pulls_as_far_as_an_honest_peer_could() {
    let mut random = SplitMix64::new(13);
    let truth: Vec<f32> = (0..400).map(|_| noise(&mut random)).collect();
    let mut members: Vec<_> = (0..8).map(|_| (honest(&truth, 400, &mut random), 400)).collect();
    let spread = far(&members[0].0, &truth);
    // Just near enough not to be left out, all in one direction.
    let push = 0.9 * FAR_MEDIANS as f32 * spread as f32 / 20.0;
    let attack: Vec<f32> = truth.iter().map(|value| value + push).collect();
    members.extend([(attack.clone(), 1_000_000), (attack, 1_000_000)]);
    let clipped = clip(&members);
    assert_eq!(verdicts(&clipped)[8..], [ClipVerdict::Clipped; 2], "{:?}", clipped.outcomes);
    // δτ/(1 − δ), and the noise of the mean of eight.
    let bound = 0.25 * RADIUS_MEDIANS * spread * 1.1 + spread / 2.0;
    let off = far(&clipped.values, &truth);
    assert!(off < bound, "moved by {off}, at most {bound} is wanted");
    assert!(far(&clipped.values, &truth) > 0.1 * spread, "the attack has no effect: nothing was shown");
}

/// Neither the number of values nor their size decides which members are clipped.
#[test]
fn gradients_of_any_size_are_clipped_alike() {
    for n_values in [5, 13] {
        let mut random = SplitMix64::new(14);
        let truth: Vec<f32> = (0..n_values).map(|_| noise(&mut random)).collect();
        let mut members: Vec<_> = (0..8).map(|_| (honest(&truth, 400, &mut random), 400)).collect();
        let spread = far(&members[0].0, &truth) as f32 / (n_values as f32).sqrt();
        members.push((truth.iter().map(|value| value + 4.0 * spread).collect(), 400));
        let times = |factor: f32| {
            let scale =
                |(values, n): &(Vec<f32>, u64)| (values.iter().map(|value| value * factor).collect(), *n);
            clip(&members.iter().map(scale).collect::<Vec<_>>())
        };
        let clipped = times(1.0);
        assert_eq!(verdicts(&clipped)[8], ClipVerdict::Clipped, "{:?}", clipped.outcomes);
        // By a power of two, so that nothing is rounded otherwise.
        for factor in [1024.0, 1.0 / 1024.0] {
            let scaled = times(factor);
            assert_eq!(scaled.outcomes, clipped.outcomes);
            assert!(
                scaled.values.iter().zip(&clipped.values).all(|(scaled, value)| *scaled == value * factor)
            );
        }
    }
}

#[test]
fn one_or_two_are_averaged_and_none_give_an_empty_gradient() {
    assert_eq!(clip(&[]).values, [0.0; 0]);
    assert_eq!(clip(&[(vec![f32::MAX, -1.0], 7)]).values, [f32::MAX, -1.0]);
    let two = clip(&[(vec![1.0, f32::MAX], 30), (vec![5.0, f32::MAX], 10)]);
    assert_eq!(two.values, [2.0, f32::MAX]);
    assert_eq!(verdicts(&two), [ClipVerdict::Unclipped; 2]);
}

#[test]
fn most_members_that_agree_to_the_bit_are_believed() {
    let clipped = clip(&[(vec![0.5; 9], 8), (vec![0.5; 9], 8), (vec![-1e38; 9], 8)]);
    assert_eq!(clipped.values, [0.5; 9]);
    assert_eq!(verdicts(&clipped), [ClipVerdict::Unclipped, ClipVerdict::Unclipped, ClipVerdict::LeftOut]);
    assert_eq!([0, 1, 2].map(|at| clipped.outcomes[at].distance), [0.0, 0.0, f64::INFINITY]);
}

#[test]
fn a_peer_has_one_vote_for_any_number_of_contributions() {
    let mut contributions = Contributions::new(Aggregation::CenteredClip { places: 8 }, 2);
    contributions.add(&peer(1), AddressGroup::UNKNOWN, 10, 1.0, &[1.0, f32::MAX]);
    contributions.add(&peer(2), AddressGroup::UNKNOWN, 10, 1.0, &[1.0, 1.0]);
    contributions.add(&peer(1), AddressGroup::UNKNOWN, 30, 5.0, &[5.0, f32::MAX]);
    assert_eq!(contributions.n_samples(), 50);
    let two = contributions.aggregate();
    assert_eq!(two.gradient[0], (4.0 * 40.0 + 1.0 * 10.0) / 50.0);
    assert!(two.gradient[1].is_finite());
    contributions.add(&peer(3), AddressGroup::UNKNOWN, 40, 2.0, &[1.0, 1.0]);
    for _ in 0..20 {
        contributions.add(&peer(4), AddressGroup::UNKNOWN, 1000, 1e38, &[-9.0, -9.0]);
    }
    let four = contributions.aggregate();
    // Losses are 1, 2, 4 and a false one.
    assert_eq!(four.loss, 2.0);
    assert_eq!(four.outcomes.iter().map(|of| of.peer.clone()).collect::<Vec<_>>(), [1, 2, 3, 4].map(peer));
    contributions.clear();
    assert_eq!(contributions.n_samples(), 0);
    let nothing = contributions.aggregate().gradient;
    assert!(nothing.len() == 2 && nothing.iter().all(|value| value.is_nan()));
    // Each has a slot of its own again.
    for name in 1..=8 {
        contributions.add(&peer(name), AddressGroup::UNKNOWN, 10, 1.0, &[1.0, 1.0]);
    }
    assert!(contributions.aggregate().outcomes.iter().all(|of| !of.is_shared));
}

#[test]
fn peers_beyond_the_slots_share_one_and_are_not_reported() {
    let mut contributions = Contributions::new(Aggregation::CenteredClip { places: 3 }, 1);
    let mut far_off = OutlierTracker::default();
    for (name, n_samples) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 1)] {
        contributions.add(&peer(name), AddressGroup::UNKNOWN, n_samples, 1.0, &[name as f32]);
    }
    let aggregate = contributions.aggregate();
    // The fourth shares the second's slot; then there are three slots of 30, 20 and 20.
    assert_eq!(
        aggregate.outcomes.iter().map(|of| of.is_shared).collect::<Vec<_>>(),
        [false, true, false, true, true]
    );
    assert_eq!(aggregate.outcomes.len(), 5);
    for _ in 0..2 * OUTLIER_ROUNDS {
        let shared = PeerOutcome {
            peer: peer(2),
            outcome: ClipOutcome { verdict: ClipVerdict::LeftOut, distance: 99.0 },
            is_shared: true,
        };
        assert_eq!(far_off.on_round(&[shared]), []);
    }
}

#[test]
fn a_peer_that_is_left_out_time_and_again_is_reported_once() {
    let mut far_off = OutlierTracker::default();
    let of = |verdict| {
        let outcome = ClipOutcome { verdict, distance: 1.0 };
        [PeerOutcome { peer: peer(1), outcome, is_shared: false }]
    };
    let named = |far_off: &mut OutlierTracker, verdict| !far_off.on_round(&of(verdict)).is_empty();
    for _ in 0..3 {
        let times: Vec<bool> = (0..9).map(|_| named(&mut far_off, ClipVerdict::LeftOut)).collect();
        assert_eq!(times, [false, false, false, false, true, false, false, false, false]);
        assert_eq!(far_off.n_outliers(), 1);
        assert!(!named(&mut far_off, ClipVerdict::Clipped));
        assert_eq!(far_off.n_outliers(), 0);
    }
}

#[test]
fn of_many_who_are_left_out_as_many_are_remembered_as_there_is_room_for() {
    let mut far_off = OutlierTracker::default();
    let left_out = |name: u32| PeerOutcome {
        peer: PeerKey(name.to_le_bytes().to_vec()),
        outcome: ClipOutcome { verdict: ClipVerdict::LeftOut, distance: 9.0 },
        is_shared: false,
    };
    let crowd: Vec<PeerOutcome> = (0..10_001).map(left_out).collect();
    for round in 1..=OUTLIER_ROUNDS {
        let n_named = far_off.on_round(&crowd).len();
        assert_eq!(n_named, if round == OUTLIER_ROUNDS { 10_000 } else { 0 });
    }
    assert_eq!(far_off.n_outliers(), 10_000);
    // One of them that comes back near makes room.
    let back = ClipOutcome { verdict: ClipVerdict::Unclipped, distance: 1.0 };
    far_off.on_round(&[PeerOutcome { outcome: back, ..left_out(3) }]);
    let named = (0..OUTLIER_ROUNDS).flat_map(|_| far_off.on_round(&[left_out(10_000)])).count();
    assert_eq!((named, far_off.n_outliers()), (1, 10_000));
}

proptest! {
    /// Any finite values, any weights: the aggregate is within their range, coordinate by coordinate, and the
    /// same contributions in the same order give the same bits.
    #[test]
    fn the_aggregate_is_within_the_members(
        values in proptest::collection::vec((proptest::array::uniform4(-f32::MAX..f32::MAX), 1u32..), 1..12),
        places in 1u32..12,
    ) {
        let mut aggregates = Vec::new();
        for _ in 0..2 {
            let mut contributions = Contributions::new(Aggregation::CenteredClip { places }, 4);
            for (name, (values, n_samples)) in values.iter().enumerate() {
                contributions.add(&peer(name), AddressGroup::UNKNOWN, *n_samples, 1.0, values);
            }
            aggregates.push(contributions.aggregate());
        }
        let bits = |of: &Aggregate| of.gradient.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&aggregates[0]), bits(&aggregates[1]));
        for (at, got) in aggregates[0].gradient.iter().enumerate() {
            let column = values.iter().map(|(values, _)| values[at]);
            let (low, high) = column.fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(v), high.max(v)));
            let slack = 1e-6 * low.abs().max(high.abs());
            prop_assert!(got.is_finite() && *got >= low - slack && *got <= high + slack, "{got} in {low}..{high}");
        }
    }
}

#[test]
fn the_keys_of_an_address_have_one_vote() {
    let mut random = SplitMix64::new(5);
    let truth: Vec<f32> = (0..50).map(|_| noise(&mut random)).collect();
    let mut contributions = Contributions::new(Aggregation::CenteredClip { places: 64 }, 50);
    for name in 0..5 {
        let values = honest(&truth, 100, &mut random);
        contributions.add(&peer(name), AddressGroup(1 + name as u64), 100, 1.0, &values);
    }
    // Twenty keys of one machine, which would be most of all peers.
    for name in 100..120 {
        contributions.add(&peer(name), AddressGroup(666), 100, 1.0, &[-9.0; 50]);
    }
    let aggregate = contributions.aggregate();
    assert!(far(&aggregate.gradient, &truth) < 6.0, "{}", far(&aggregate.gradient, &truth));
    let bad = aggregate.outcomes.iter().filter(|of| of.outcome.verdict == ClipVerdict::LeftOut);
    assert_eq!((bad.count(), aggregate.outcomes.len()), (20, 25));
    assert!(aggregate.outcomes.iter().filter(|of| of.is_shared).all(|of| of.outcome.distance > 1.0));
}
