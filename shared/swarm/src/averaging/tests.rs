#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::{CHUNK_VALUES, Finished, JoinRefusal, MemberSet};
use proptest::prelude::*;

use super::*;
use crate::{Moment, PeerKey};

const PATIENCE: Duration = Duration::from_secs(5);

fn member(name: u8, n_samples: u64, n_reduced: u64) -> GroupMember {
    GroupMember { peer: PeerKey(vec![name]), n_samples, receives: true, n_reduced }
}

fn group(members: Vec<GroupMember>, n_values: usize) -> Result<Group, GroupError> {
    Group::new(b"round", members, n_values, TensorCodec::F32)
}

#[test]
fn parts_follow_one_another_and_cover_the_vector() {
    let group = group(vec![member(1, 1, 5), member(2, 3, 0), member(3, 0, 7)], 12).unwrap();
    assert_eq!((group.part(0), group.part(1), group.part(2), group.part(3)), (0..5, 5..5, 5..12, 0..0));
    assert_eq!(group.n_values(), 12);
    assert_eq!(group.position(&PeerKey(vec![3])), Some(2));
    assert_eq!(group.position(&PeerKey(vec![4])), None);
}

#[test]
fn the_next_one_that_averages_stands_by() {
    let group = group(vec![member(1, 1, 5), member(2, 3, 0), member(3, 0, 7)], 12).unwrap();
    assert_eq!((group.reducer(0, 0), group.reducer(0, 1), group.reducer(0, 2)), (Some(0), Some(2), None));
    assert_eq!((group.reducer(1, 0), group.reducer(1, 1)), (None, None));
    assert_eq!((group.reducer(2, 0), group.reducer(2, 1)), (Some(2), Some(0)));
    let one = self::group(vec![member(1, 1, 5), member(2, 3, 0)], 5).unwrap();
    assert_eq!((one.reducer(0, 0), one.reducer(0, 1)), (Some(0), None));
}

#[test]
fn a_reducer_that_does_not_receive_never_stands_by() {
    let helper = |name| GroupMember { receives: false, ..member(name, 0, 4) };
    let members = vec![member(1, 1, 4), helper(2), member(3, 1, 4), helper(4)];
    let group = self::group(members, 16).unwrap();
    let stands_by: Vec<_> = (0..4).map(|part| group.reducer(part, 1)).collect();
    assert_eq!(stands_by, [Some(2), Some(2), Some(0), Some(0)]);
    assert_eq!(group.parts_of_helpers().collect::<Vec<_>>(), [1, 3]);
    let alone = self::group(vec![member(1, 1, 0), helper(2)], 4).unwrap();
    assert_eq!((alone.reducer(1, 0), alone.reducer(1, 1)), (Some(1), None));
}

/// Members with other builds compute the same name.
#[test]
fn the_name_of_a_group_is_the_same_everywhere() {
    let group = group(vec![member(1, 300, 5), member(2, 3, 7)], 12).unwrap();
    assert_eq!(group.id().to_string(), "d11850370f10c27baae74c3907913c44dcbec11e765164b84c9e40e4d979491d");
}

#[test]
fn a_group_is_named_by_all_that_its_members_agree_on() {
    let of =
        |round: &[u8], members: Vec<GroupMember>, codec| Group::new(round, members, 12, codec).unwrap().id();
    let members = || vec![member(1, 1, 5), member(2, 3, 7)];
    let id = of(b"round", members(), TensorCodec::F32);
    assert_eq!(id, of(b"round", members(), TensorCodec::F32));
    let mut swapped = members();
    swapped.reverse();
    for other in [
        of(b"roumd", members(), TensorCodec::F32),
        of(b"round", members(), TensorCodec::F16),
        of(b"round", vec![member(1, 2, 5), member(2, 3, 7)], TensorCodec::F32),
        of(b"round", vec![member(1, 1, 6), member(2, 3, 6)], TensorCodec::F32),
        of(b"round", swapped, TensorCodec::F32),
        of(b"round", vec![member(1, 1, 5), member(2, 0, 7)], TensorCodec::F32),
        of(
            b"round",
            vec![member(1, 1, 5), GroupMember { receives: false, ..member(2, 0, 7) }],
            TensorCodec::F32,
        ),
    ] {
        assert_ne!(id, other);
    }
}

#[test]
fn an_invalid_group_is_refused() {
    assert_eq!(group(vec![], 0).unwrap_err(), GroupError::Size(0));
    assert_eq!(group(vec![member(1, 1, 1), member(1, 1, 1)], 2).unwrap_err(), GroupError::Twice);
    assert_eq!(group(vec![member(1, 1, 1)], 2).unwrap_err(), GroupError::Parts { want: 2, got: 1 });
    let not_receiving = vec![GroupMember { receives: false, ..member(1, 1, 2) }];
    assert_eq!(group(not_receiving, 2).unwrap_err(), GroupError::SenderNotReceiving);
    let huge = vec![member(1, 1, u64::MAX), member(2, 1, u64::MAX)];
    assert_eq!(group(huge, 2).unwrap_err(), GroupError::Parts { want: 2, got: u64::MAX });
    assert_eq!(group(vec![member(1, 0, 2)], 2).unwrap_err(), GroupError::NoSamples);
    let many = (0..=255u8)
        .map(|name| member(name, 1, 0))
        .chain([GroupMember { peer: PeerKey(vec![0, 0]), ..member(0, 1, 2) }]);
    assert_eq!(group(many.collect(), 2).unwrap_err(), GroupError::Size(257));
    let lossy = Group::new(b"round", vec![member(1, 1, 2)], 2, TensorCodec::Int4);
    assert_eq!(lossy.unwrap_err(), GroupError::Codec(TensorCodec::Int4));
    assert!(matches!(
        Group::new(&[0; 300], vec![member(1, 1, 2)], 2, TensorCodec::F32),
        Err(GroupError::Round(300))
    ));
}

fn reduction(n_values: usize, window_chunks: u32, n_samples: &[u64]) -> Reduction {
    Reduction::new(Moment::ZERO, ReductionConfig { n_values, window_chunks, patience: PATIENCE }, n_samples)
}

fn secs(secs: u64) -> Moment {
    Moment::from_secs(secs)
}

fn done(members: &[usize], n_samples: u64, is_whole: bool) -> ReductionState {
    let members: MemberSet = members.iter().copied().collect();
    ReductionState::Done(Finished { members, n_samples, behind: members, is_whole })
}

#[test]
fn the_mean_is_weighted_by_samples() {
    let mut reduction = reduction(2, 4, &[1, 3, 0]);
    reduction.on_chunk(secs(0), 0, 0, &[1.0, -4.0]).unwrap();
    assert_eq!(reduction.poll_mean(), None);
    assert_eq!(reduction.state(), ReductionState::Going);
    reduction.on_chunk(secs(0), 1, 0, &[5.0, 4.0]).unwrap();
    assert_eq!(reduction.poll_mean(), Some(ChunkOfMean { index: 0, values: vec![4.0, 2.0] }));
    assert_eq!(reduction.state(), done(&[0, 1], 4, true));
    assert_eq!(reduction.on_chunk(secs(0), 2, 0, &[0.0; 2]), Err(ReductionError::NotAwaited));
}

#[test]
fn no_member_runs_further_ahead_than_the_window() {
    let n_values = 4 * CHUNK_VALUES;
    let full = vec![1.0; CHUNK_VALUES];
    let mut reduction = reduction(n_values, 2, &[1, 1]);
    reduction.on_chunk(secs(0), 0, 0, &full).unwrap();
    reduction.on_chunk(secs(0), 0, 1, &full).unwrap();
    assert_eq!(reduction.wanted_of(0), None);
    assert_eq!(reduction.on_chunk(secs(0), 0, 2, &full), Err(ReductionError::Window { max: 1, got: 2 }));
    assert_eq!(reduction.on_chunk(secs(0), 1, 1, &full), Err(ReductionError::Order { want: 0, got: 1 }));
    let length = ReductionError::Length { want: CHUNK_VALUES, got: 1 };
    assert_eq!(reduction.on_chunk(secs(0), 1, 0, &[1.0]), Err(length));
    reduction.on_chunk(secs(0), 1, 0, &full).unwrap();
    assert_eq!(reduction.wanted_of(0), Some(2));
}

#[test]
fn a_member_that_stalls_loses_its_own_share_only() {
    let n_values = CHUNK_VALUES + 1;
    let mut reduction = reduction(n_values, 4, &[1, 1, 2]);
    for member in 0..3 {
        reduction.on_chunk(secs(1), member, 0, vec![member as f32; CHUNK_VALUES]).unwrap();
    }
    // No member is ahead or late: all wait, for twice the patience.
    assert_eq!(reduction.next_deadline(), Some(secs(11)));
    reduction.on_chunk(secs(10), 0, 1, &[0.0]).unwrap();
    reduction.on_chunk(secs(11), 2, 1, &[3.0]).unwrap();
    assert_eq!(reduction.next_deadline(), Some(secs(15)));
    reduction.on_timeout(secs(14));
    assert_eq!(reduction.state(), ReductionState::Going);
    reduction.on_timeout(secs(15));
    assert_eq!(reduction.poll_mean().unwrap().values[0], 1.25);
    assert_eq!(reduction.poll_mean().unwrap(), ChunkOfMean { index: 1, values: vec![2.0] });
    assert_eq!(reduction.state(), done(&[0, 1, 2], 3, false), "all but one value have all four samples");
    assert_eq!(reduction.on_chunk(secs(16), 1, 1, &[9.0]), Err(ReductionError::NotAwaited));
}

/// A peer without values waits for the only member that has some, and not until the deadline of the round.
#[test]
fn a_part_without_any_values_fails_soon() {
    let mut reduction = reduction(2 * CHUNK_VALUES, 4, &[0, 0, 7]);
    assert_eq!(reduction.next_deadline(), Some(secs(10)));
    reduction.on_timeout(secs(9));
    assert_eq!(reduction.state(), ReductionState::Going);
    // It begins, and stops in the middle.
    reduction.on_chunk(secs(9), 2, 0, vec![1.0; CHUNK_VALUES]).unwrap();
    assert_eq!(reduction.next_deadline(), Some(secs(19)));
    reduction.on_timeout(secs(18));
    assert_eq!(reduction.state(), ReductionState::Going);
    reduction.on_timeout(secs(19));
    assert_eq!(reduction.state(), ReductionState::Failed);
    assert_eq!(reduction.next_deadline(), None);
}

#[test]
fn lateness_adds_up_over_chunks() {
    let mut reduction = reduction(8 * CHUNK_VALUES, 8, &[1, 1]);
    let full = vec![0.0; CHUNK_VALUES];
    for index in 0..8 {
        reduction.on_chunk(secs(0), 0, index, &full).unwrap();
    }
    for index in 0..4 {
        reduction.on_chunk(secs(u64::from(index) + 1), 1, index, &full).unwrap();
    }
    assert_eq!(reduction.next_deadline(), Some(secs(5)));
    reduction.on_timeout(secs(5));
    assert_eq!(reduction.state(), done(&[0, 1], 1, false), "half of the values have two samples");
}

#[test]
fn a_part_without_remaining_members_fails() {
    let mut reduction = reduction(2 * CHUNK_VALUES, 8, &[1, 1]);
    reduction.on_chunk(secs(0), 0, 0, vec![1.0; CHUNK_VALUES]).unwrap();
    reduction.on_lost(secs(1), 0);
    assert_eq!(reduction.state(), ReductionState::Going);
    reduction.on_lost(secs(1), 1);
    assert_eq!(reduction.poll_mean().unwrap().values[0], 1.0);
    assert_eq!(reduction.state(), ReductionState::Failed);
}

/// Groups that average the same values get the same bits in any order of arrival.
#[test]
fn the_order_of_arrival_does_not_matter_to_the_last_bit() {
    let values = [[1e8_f32, 0.1], [3.3, 0.7], [-1e8, -0.2], [7.7, 1e-9]];
    let mut means = Vec::new();
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let mut reduction = reduction(2, 4, &[3, 1, 4, 2]);
        for member in order {
            assert_eq!(reduction.poll_mean(), None);
            // Some are owned, some borrowed.
            match member % 2 {
                0 => reduction.on_chunk(secs(0), member, 0, values[member].to_vec()).unwrap(),
                _ => reduction.on_chunk(secs(0), member, 0, &values[member]).unwrap(),
            }
        }
        means.push(reduction.poll_mean().unwrap().values);
        assert!(reduction.poll_spare().is_some(), "buffers are used again");
    }
    assert!(means.iter().all(|mean| *mean == means[0]), "{means:?}");
    let mean = (3.0 * f64::from(0.1_f32) + f64::from(0.7_f32) - 4.0 * f64::from(0.2_f32)) / 10.0;
    assert!((f64::from(means[0][1]) - mean).abs() < 1e-6, "{means:?}");
}

/// The next member in order stalls in the middle: the others wait for its patience only, and are added in order.
#[test]
fn values_wait_for_their_turn_no_longer_than_for_the_member() {
    let n_values = CHUNK_VALUES + 1;
    let mut reduction = reduction(n_values, 4, &[1, 1, 1]);
    let chunk_of = |index: u32, value: f32| vec![value; chunk(n_values, index).len()];
    reduction.on_chunk(secs(0), 0, 0, chunk_of(0, 1.0)).unwrap();
    for index in [0, 1] {
        for member in [2, 1] {
            reduction.on_chunk(secs(0), member, index, chunk_of(index, 4.0)).unwrap();
        }
    }
    assert!((reduction.poll_mean().unwrap().values[0] - 3.0).abs() < 1e-6);
    assert_eq!(reduction.poll_mean(), None);
    reduction.on_timeout(secs(5));
    let rest = reduction.poll_mean().unwrap();
    assert!(rest.index == 1 && (rest.values[0] - 4.0).abs() < 1e-6, "{rest:?}");
    assert_eq!(reduction.state(), done(&[0, 1, 2], 2, false));
}

#[test]
fn the_mean_of_an_earlier_round_has_the_weight_of_all_members_in_it() {
    let input = |n_samples, behind: &[usize], is_whole| MemberInput {
        n_samples,
        behind: behind.iter().copied().collect(),
        is_whole,
    };
    for is_whole in [true, false] {
        // Of at most ten samples each: one of the first one's group had failed.
        let mut reduction = reduction(1, 4, &[10, 10]);
        reduction.on_joined(secs(0), 0, input(3, &[0, 1], true));
        reduction.on_joined(secs(0), 1, input(6, &[5, 7], is_whole));
        reduction.on_chunk(secs(0), 0, 0, &[1.0]).unwrap();
        reduction.on_chunk(secs(0), 1, 0, &[4.0]).unwrap();
        assert!((reduction.poll_mean().unwrap().values[0] - 3.0).abs() < 1e-6);
        let ReductionState::Done(finished) = reduction.state() else { panic!("{:?}", reduction.state()) };
        assert_eq!(finished.members, [0, 1].into_iter().collect());
        assert_eq!(finished.behind, [0, 1, 5, 7].into_iter().collect());
        assert_eq!((finished.n_samples, finished.is_whole), (9, is_whole));
    }
    let mut reduction = reduction(1, 4, &[10, 10, 0]);
    reduction.on_chunk(secs(0), 0, 0, &[1.0]).unwrap();
    assert_eq!(reduction.state(), ReductionState::Going);
    reduction.on_joined(secs(0), 1, MemberInput::nothing());
    assert_eq!(reduction.poll_mean().unwrap().values, [1.0], "a member without values is not waited for");
    assert_eq!(reduction.state(), done(&[0], 10, false));
}

/// A chunk that waits is copied into a spare buffer, one that is added becomes a spare.
#[test]
fn buffers_are_used_again_and_few_are_kept() {
    let mut reduction = reduction(2 * CHUNK_VALUES, 2, &[1, 1, 1]);
    let full = |value: f32| vec![value; CHUNK_VALUES];
    assert_eq!(reduction.poll_spare(), None);
    // The first one becomes the sum, the second one is added to it.
    reduction.on_chunk(secs(0), 0, 0, full(1.0)).unwrap();
    assert_eq!(reduction.poll_spare(), None);
    reduction.on_chunk(secs(0), 1, 0, full(2.0)).unwrap();
    let spare = reduction.poll_spare().unwrap();
    assert_eq!((spare, reduction.poll_spare()), (full(2.0), None));
    // What is borrowed is not kept.
    reduction.on_chunk(secs(0), 2, 0, full(3.0).as_slice()).unwrap();
    assert_eq!(reduction.poll_spare(), None);
    // What is borrowed and waits is copied into a spare buffer, over what is in that.
    reduction.on_spare(vec![9.0; 7]);
    reduction.on_chunk(secs(0), 2, 1, full(3.0).as_slice()).unwrap();
    assert_eq!(reduction.poll_spare(), None);
    reduction.on_spare(vec![8.0; 7]);
    reduction.on_chunk(secs(0), 0, 1, full(1.0).as_slice()).unwrap();
    assert_eq!(reduction.poll_spare(), None, "the sum is a copy, too");
    reduction.on_chunk(secs(0), 1, 1, full(2.0).as_slice()).unwrap();
    assert_eq!(reduction.poll_spare(), Some(full(3.0)), "the one that waited");
    let means: Vec<ChunkOfMean> = std::iter::from_fn(|| reduction.poll_mean()).collect();
    assert_eq!(means.len(), 2);
    assert!(means.iter().all(|mean| mean.values.iter().all(|value| (value - 2.0).abs() < 1e-6)));
    for _ in 0..40 {
        reduction.on_spare(vec![1.0]);
    }
    assert_eq!(std::iter::from_fn(|| reduction.poll_spare()).count(), 16);
}

#[test]
fn the_window_is_divided_among_the_members_with_samples() {
    let window_of = |wanted: u32, n_samples: &[u64]| reduction(9, wanted, n_samples).window_chunks();
    let n_chunks = (HELD_VALUES_MAX / CHUNK_VALUES) as u32;
    assert_eq!(window_of(u32::MAX, &[]), n_chunks);
    assert_eq!(window_of(u32::MAX, &[1]), n_chunks);
    assert_eq!(window_of(u32::MAX, &[1, 0, 7, 1]), n_chunks / 3);
    assert_eq!(window_of(3, &[1, 0, 7, 1]), 3);
    assert_eq!(window_of(u32::MAX, &vec![1; 2 * n_chunks as usize]), 1, "one chunk of each at least");
}

#[test]
fn the_input_of_a_member_is_final_once_it_has_sent() {
    let mut reduction = reduction(1, 4, &[10, 10]);
    let input = |n_samples| MemberInput { n_samples, behind: MemberSet::from_iter([0]), is_whole: false };
    reduction.on_chunk(secs(0), 0, 0, &[1.0]).unwrap();
    reduction.on_joined(secs(0), 0, input(2));
    reduction.on_joined(secs(0), 7, input(2));
    reduction.on_lost(secs(0), 7);
    reduction.on_chunk(secs(0), 1, 0, &[3.0]).unwrap();
    assert_eq!(reduction.poll_mean().unwrap().values, [2.0]);
    assert_eq!(reduction.state(), done(&[0, 1], 20, true));
    // Who has sent everything is not lost any more.
    reduction.on_lost(secs(1), 0);
    reduction.on_timeout(secs(100));
    assert_eq!((reduction.state(), reduction.next_deadline()), (done(&[0, 1], 20, true), None));
    assert_eq!((reduction.wanted_of(0), reduction.wanted_of(7)), (None, None));
    assert_eq!(reduction.on_chunk(secs(1), 0, 1, &[1.0]), Err(ReductionError::NotAwaited));
    assert_eq!(reduction.on_chunk(secs(1), 7, 0, &[1.0]), Err(ReductionError::NotAwaited));
}

#[test]
fn the_largest_group_and_the_longest_name_are_accepted() {
    let n_values = MEMBERS_MAX;
    let peer = |number: usize| PeerKey(number.to_be_bytes().to_vec());
    let members: Vec<GroupMember> =
        (0..MEMBERS_MAX).map(|number| GroupMember { peer: peer(number), ..member(0, 1, 1) }).collect();
    let of = |n_name: usize| Group::new(&vec![0; n_name], members.clone(), n_values, TensorCodec::F32);
    assert_eq!(of(256).unwrap().part(MEMBERS_MAX - 1), n_values - 1..n_values);
    assert_eq!(of(257).unwrap_err(), GroupError::Round(257));
    let rounds = [vec![(0..MEMBERS_MAX).collect()]];
    let positions = grid_positions(b"round", &members, &rounds, 0, n_values, TensorCodec::F32).unwrap();
    assert!(positions[0].is_complete && positions[0].group.is_some());
    let more = [members, vec![GroupMember { peer: peer(MEMBERS_MAX), ..member(0, 1, 1) }]].concat();
    let refused = grid_positions(b"round", &more, &rounds, 0, n_values, TensorCodec::F32);
    assert_eq!(refused, Err(GroupError::Size(MEMBERS_MAX + 1)));
}

#[test]
fn a_member_states_of_its_input_what_the_group_knows_of_it() {
    let group = group(vec![member(1, 3, 5), member(2, 0, 7)], 12).unwrap();
    let own = group.own(0);
    assert_eq!(own, MemberInput { n_samples: 3, behind: MemberSet::from_iter([0]), is_whole: true });
    assert_eq!(group.own(1), MemberInput { is_whole: true, ..MemberInput::nothing() });
    assert_eq!(group.own(2), group.own(1));
    assert_eq!((group.check(0, &own), group.check(1, &group.own(1))), (Ok(()), Ok(())));
    assert_eq!(group.check(2, &own), Err(JoinRefusal::NotAMember));
    for n_samples in [2, 4] {
        let other = MemberInput { n_samples, ..own };
        assert_eq!(group.check(0, &other), Err(JoinRefusal::Weight { want: 3, got: n_samples }));
    }
    for behind in [MemberSet::default(), MemberSet::from_iter([1]), MemberSet::from_iter([0, 1])] {
        assert_eq!(group.check(0, &MemberInput { behind, ..own }), Err(JoinRefusal::Behind));
    }
    assert_eq!(group.expected(), MemberSet::from_iter([0]));
    assert_eq!((group.n_samples(), group.codec()), (vec![3, 0], TensorCodec::F32));
    assert_eq!(group.members()[1], member(2, 0, 7));
}

#[test]
fn a_vector_is_divided_into_full_chunks_and_a_rest() {
    assert_eq!((n_chunks(0), n_chunks(1), n_chunks(CHUNK_VALUES), n_chunks(CHUNK_VALUES + 1)), (0, 1, 1, 2));
    assert_eq!(chunk(CHUNK_VALUES + 3, 0), 0..CHUNK_VALUES);
    assert_eq!(chunk(CHUNK_VALUES + 3, 1), CHUNK_VALUES..CHUNK_VALUES + 3);
    assert!(chunk(CHUNK_VALUES + 3, 2).is_empty());
}

#[test]
fn the_held_values_of_many_members_are_bounded() {
    let window_of = |n_members: usize| {
        let members = vec![1; n_members];
        reduction(9 * CHUNK_VALUES, 8, &members).window_chunks()
    };
    assert_eq!(window_of(2), 8);
    assert!((1..8).contains(&window_of(MEMBERS_MAX)));
    let n_values = MEMBERS_MAX * window_of(MEMBERS_MAX) as usize * CHUNK_VALUES;
    assert!(n_values <= HELD_VALUES_MAX.max(MEMBERS_MAX * CHUNK_VALUES));
}

#[test]
fn the_largest_finite_values_stay_finite() {
    let mut reduction = reduction(2, 1, &[u64::MAX, u64::MAX / 2, 1]);
    reduction.on_chunk(secs(0), 0, 0, &[f32::MAX, f32::MIN]).unwrap();
    reduction.on_lost(secs(0), 1);
    reduction.on_chunk(secs(0), 2, 0, &[f32::MAX, f32::MIN]).unwrap();
    assert!(reduction.poll_mean().unwrap().values.iter().all(|value| value.is_finite()));
}

proptest! {
    #[test]
    fn any_order_gives_the_mean_of_what_came(
        n_values in 0usize..(3 * CHUNK_VALUES),
        weights in proptest::collection::vec(0u64..5, 1..6),
        window in 1u32..4,
        choices in proptest::collection::vec((0usize..6, 0u8..40), 0..60),
    ) {
        let mut reduction = reduction(n_values, window, &weights);
        let mut came: Vec<Vec<usize>> = vec![Vec::new(); n_chunks(n_values) as usize];
        let mut means = Vec::new();
        let mut now = Moment::ZERO;
        // The choices first, then everybody in turn until it is over.
        let in_turn = (0..).map(|turn: usize| (turn % weights.len(), 1));
        for (member, what) in choices.into_iter().chain(in_turn).take(2000) {
            now += Duration::from_millis(10);
            let member = member % weights.len();
            match reduction.wanted_of(member) {
                _ if what == 0 => reduction.on_lost(now, member),
                Some(index) => {
                    let values = vec![member as f32 + 1.0; chunk(n_values, index).len()];
                    reduction.on_chunk(now, member, index, &values).unwrap();
                    came[index as usize].push(member);
                }
                None => reduction.on_timeout(now),
            }
            means.extend(std::iter::from_fn(|| reduction.poll_mean()));
        }
        prop_assert_ne!(reduction.state(), ReductionState::Going);
        for (position, mean) in means.iter().enumerate() {
            prop_assert_eq!(mean.index as usize, position);
            prop_assert_eq!(mean.values.len(), chunk(n_values, mean.index).len());
            let members = &came[position];
            let sum: u64 = members.iter().map(|&member| weights[member]).sum();
            let want = members.iter().map(|&member| weights[member] as f64 * (member as f64 + 1.0)).sum::<f64>();
            let want = (want / sum as f64) as f32;
            for value in [mean.values.first(), mean.values.last()].into_iter().flatten() {
                prop_assert!((value - want).abs() <= 1e-5 * want.abs(), "{} for {}", value, want);
            }
        }
    }
}
