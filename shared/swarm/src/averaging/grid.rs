//! One peer's groups in a grid of groups (DeDLOC §3.2 and appendix C).
//!
//! The members of each group are given. This module derives the weight that each member can have in a round, whose values
//! can be in its input, and how much each reduces. It also derives where an empty cell of the grid leaves a member without
//! the values of some others.
//!
//! A member that vanishes is another matter. In the first round nobody else has its values, so all members agree on a
//! mean without them. In later rounds other members may have them.

use std::collections::BTreeSet;
use std::sync::Arc;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::MemberSet;

use super::group::{Group, GroupError, GroupMember, MEMBERS_MAX};

/// A peer's place in one round of the grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GridPosition {
    /// Its group; `None` where it is alone, or no member of the group has samples.
    pub group: Option<Arc<Group>>,
    /// No empty cell keeps values from the result of this round.
    pub is_complete: bool,
}

/// The groups of the member at position `me`, one for each of `rounds`. A round is a list of groups, each a list of
/// positions in `members`. `members` are all members of the grid, with the samples behind their own values. A group
/// divides the vector of `n_values` in proportion to `n_reduced`. Members with the same arguments get the same groups.
///
/// # Errors
/// See [`GroupError`].
pub fn grid_positions(
    name: &[u8],
    members: &[GroupMember],
    rounds: &[Vec<Vec<usize>>],
    me: usize,
    n_values: usize,
    codec: TensorCodec,
) -> Result<Vec<GridPosition>, GroupError> {
    if members.is_empty() || members.len() > MEMBERS_MAX {
        return Err(GroupError::Size(members.len()));
    }
    if members.iter().map(|member| &member.peer).collect::<BTreeSet<_>>().len() < members.len() {
        return Err(GroupError::Twice);
    }
    if codec == TensorCodec::Int8 {
        return Err(GroupError::BlockCodec(codec));
    }
    let mut reach: Vec<MemberSet> = (0..members.len()).map(|at| MemberSet::from_iter([at])).collect();
    // Members whose values would be in the result if no cell were empty.
    let mut sides = reach.clone();
    let mut positions = Vec::new();
    for (round, groups) in rounds.iter().enumerate() {
        let before = reach.clone();
        for group in groups {
            let of = |sets: &[MemberSet]| {
                let sets = group.iter().filter_map(|&at| sets.get(at));
                sets.fold(MemberSet::default(), |all, set| all.union(*set))
            };
            let (reached, side) = (of(&before), of(&sides));
            group.iter().for_each(|&at| set(&mut reach, at, reached));
            (0..members.len()).filter(|&at| side.contains(at)).for_each(|at| set(&mut sides, at, side));
        }
        let own = groups.iter().find(|group| group.contains(&me)).map_or(&[][..], Vec::as_slice);
        let name = [name, &(round as u64).to_le_bytes()].concat();
        let group = match own.len() {
            0 | 1 => None,
            _ => group_of(&name, members, own, &before, n_values, codec)?,
        };
        let group = group.map(|group| {
            let reach = own.iter().filter_map(|&at| before.get(at).copied()).collect();
            Arc::new(group.in_grid(reach, round == 0))
        });
        positions.push(GridPosition { group, is_complete: reach.get(me) == sides.get(me) });
    }
    Ok(positions)
}

fn set(sets: &mut [MemberSet], at: usize, to: MemberSet) {
    if let Some(set) = sets.get_mut(at) {
        *set = to;
    }
}

/// The group of the members at `own`, each with the samples that can be behind its input; `None` where no member has any.
fn group_of(
    name: &[u8],
    members: &[GroupMember],
    own: &[usize],
    reach: &[MemberSet],
    n_values: usize,
    codec: TensorCodec,
) -> Result<Option<Group>, GroupError> {
    let weights: Vec<u64> = own.iter().map(|&at| members.get(at).map_or(0, |of| of.n_reduced)).collect();
    let in_group = own.iter().zip(divided(&weights, n_values)).filter_map(|(&at, n_reduced)| {
        let n_samples = n_samples(members, *reach.get(at)?);
        Some(GroupMember { n_samples, receives: true, n_reduced, ..members.get(at)?.clone() })
    });
    let in_group: Vec<GroupMember> = in_group.collect();
    if in_group.iter().all(|member| member.n_samples == 0) {
        return Ok(None);
    }
    Group::new(name, in_group, n_values, codec).map(Some)
}

/// Samples of the members in `set`.
#[must_use]
pub fn n_samples(members: &[GroupMember], set: MemberSet) -> u64 {
    let inside = members.iter().enumerate().filter(|(at, _)| set.contains(*at));
    inside.fold(0, |sum, (_, member)| sum.saturating_add(member.n_samples))
}

/// `n_values` in proportion to the weights; in equal parts where there are none.
fn divided(weights: &[u64], n_values: usize) -> Vec<u64> {
    let is_any = weights.iter().any(|weight| *weight > 0);
    let weight = |weight: &u64| if is_any { u128::from(*weight) } else { 1 };
    let of_all = weights.iter().map(weight).sum::<u128>().max(1);
    let mut before = 0;
    let mut given = 0;
    let part = |of: &u64| {
        before += weight(of);
        // The weights of 256 members and a vector that fits into memory: no product overflows.
        let end = (n_values as u128 * before / of_all) as u64;
        let part = end - given;
        given = end;
        part
    };
    weights.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::BTreeMap;

    use barnraise_protocol::average::JoinRefusal;
    use proptest::prelude::*;

    use super::*;
    use crate::PeerKey;
    use crate::averaging::MemberInput;

    const F32: TensorCodec = TensorCodec::F32;

    fn members(n_samples: &[u64]) -> Vec<GroupMember> {
        let member = |(number, &n_samples): (usize, &u64)| GroupMember {
            peer: PeerKey(vec![number as u8]),
            n_samples,
            receives: true,
            n_reduced: 1,
        };
        n_samples.iter().enumerate().map(member).collect()
    }

    fn set(of: &[usize]) -> MemberSet {
        of.iter().copied().collect()
    }

    /// Five in a grid of three by two: 0 1 2 / 3 4.
    fn five() -> Vec<Vec<Vec<usize>>> {
        vec![vec![vec![0, 1, 2], vec![3, 4]], vec![vec![0, 3], vec![1, 4], vec![2]]]
    }

    #[test]
    fn a_member_can_send_the_mean_of_the_round_before() {
        let all = members(&[1, 2, 3, 4, 5]);
        let of = |me| grid_positions(b"round", &all, &five(), me, 60, F32).unwrap();
        let group = of(4)[1].group.clone().unwrap();
        let peers: Vec<u8> = group.members().iter().map(|member| member.peer.0[0]).collect();
        assert_eq!((peers, group.n_samples()), (vec![1, 4], vec![6, 9]));
        assert_eq!(of(1)[1].group, of(4)[1].group, "both mean the same");
        assert_ne!(of(0)[1].group.clone().unwrap().id(), of(0)[0].group.clone().unwrap().id());
        assert_eq!(group.expected(), set(&[0, 1, 2, 3, 4]));
        let input = |n_samples, behind| MemberInput { n_samples, behind, is_whole: true };
        // Two of its first round, of whom one failed.
        assert_eq!(group.check(0, &input(3, set(&[0, 1]))), Ok(()));
        assert_eq!(group.check(0, &input(7, set(&[0, 1]))), Err(JoinRefusal::Weight { want: 6, got: 7 }));
        assert_eq!(group.check(0, &input(3, set(&[0, 4]))), Err(JoinRefusal::Behind));
        assert_eq!(group.check(0, &input(3, set(&[]))), Err(JoinRefusal::Behind));
        assert_eq!(group.check(0, &input(0, set(&[1]))), Err(JoinRefusal::Behind));
        assert_eq!(group.check(0, &MemberInput::nothing()), Ok(()));
        assert_eq!(group.check(0, &input(0, set(&[]))), Err(JoinRefusal::Behind), "whole, and nothing in it");
        assert_eq!(group.check(2, &MemberInput::nothing()), Err(JoinRefusal::NotAMember));
        let first = of(4)[0].group.clone().unwrap();
        assert_eq!(first.check(1, &first.own(1)), Ok(()));
        assert_eq!(first.own(1), input(5, set(&[4])));
        assert_eq!(first.check(1, &MemberInput::nothing()), Err(JoinRefusal::Weight { want: 5, got: 0 }));
    }

    #[test]
    fn a_member_across_from_an_empty_cell_knows_it() {
        let all = members(&[1; 5]);
        let is_complete = |me| {
            let positions = grid_positions(b"round", &all, &five(), me, 60, F32).unwrap();
            positions.iter().map(|position| position.is_complete).collect::<Vec<_>>()
        };
        for me in [0, 1, 3, 4] {
            assert_eq!(is_complete(me), [true, true], "{me}");
        }
        assert_eq!(is_complete(2), [true, false], "3 and 4 are in no group of it");
    }

    #[test]
    fn a_member_without_samples_sends_from_the_second_round_on() {
        let all = members(&[0, 4, 0, 0]);
        let rounds = vec![vec![vec![0, 1], vec![2, 3]], vec![vec![0, 2], vec![1, 3]]];
        let positions = grid_positions(b"round", &all, &rounds, 2, 10, F32).unwrap();
        assert_eq!(positions[0], GridPosition { group: None, is_complete: true });
        assert_eq!(positions[1].group.as_ref().unwrap().n_samples(), [4, 0]);
        assert!(positions[1].is_complete);
    }

    #[test]
    fn the_vector_is_divided_by_weight() {
        assert_eq!(divided(&[1, 1, 1], 10), [3, 3, 4]);
        assert_eq!(divided(&[0, 0], 9), [4, 5]);
        assert_eq!(divided(&[0, 5, 10], 9), [0, 3, 6]);
        assert_eq!(divided(&[u64::MAX; 256], 1 << 40).iter().sum::<u64>(), 1 << 40);
        assert!(divided(&[], 9).is_empty());
    }

    #[test]
    fn an_invalid_grid_is_refused() {
        let of = |members: &[GroupMember], codec| grid_positions(b"round", members, &five(), 0, 60, codec);
        assert_eq!(of(&[], F32), Err(GroupError::Size(0)));
        let of_size = |n_members| grid_positions(b"round", &members(&vec![1; n_members]), &[], 0, 60, F32);
        assert_eq!(of_size(MEMBERS_MAX), Ok(Vec::new()));
        assert_eq!(of_size(MEMBERS_MAX + 1), Err(GroupError::Size(MEMBERS_MAX + 1)));
        let twice = [members(&[1; 4]), members(&[1])].concat();
        assert_eq!(of(&twice, F32), Err(GroupError::Twice));
        assert_eq!(of(&members(&[1; 5]), TensorCodec::Int8), Err(GroupError::BlockCodec(TensorCodec::Int8)));
        assert_eq!(of(&members(&[1; 5]), TensorCodec::Int4), Err(GroupError::Codec(TensorCodec::Int4)));
    }

    /// Cells that differ along one axis after the other.
    fn grid(n_cells: usize, side: usize) -> Vec<Vec<Vec<usize>>> {
        let strides = std::iter::successors(Some(1), |stride| Some(stride * side));
        let round = |stride: usize| {
            let mut groups = BTreeMap::<_, Vec<usize>>::new();
            for cell in 0..n_cells {
                groups.entry((cell % stride, cell / (stride * side))).or_default().push(cell);
            }
            groups.into_values().collect()
        };
        strides.take_while(|stride| *stride < n_cells).map(round).collect()
    }

    proptest! {
        #[test]
        fn inputs_of_honest_members_are_accepted_and_the_first_one_gets_the_mean_of_all(
            given in prop::collection::vec(0u64..4, 2..40),
            side in 2usize..6,
            n_values in 1usize..2000,
        ) {
            let all = members(&given);
            let of_all: u64 = given.iter().sum();
            prop_assume!(of_all > 0);
            let rounds = grid(given.len(), side);
            for me in 0..given.len() {
                let positions = grid_positions(b"round", &all, &rounds, me, n_values, F32).unwrap();
                let with_samples = |set: MemberSet| -> MemberSet {
                    (0..given.len()).filter(|&at| set.contains(at) && given[at] > 0).collect()
                };
                let behind = with_samples(set(&[me]));
                let mut input = MemberInput { n_samples: given[me], behind, is_whole: true };
                for group in positions.iter().filter_map(|position| position.group.as_ref()) {
                    prop_assert_eq!(group.n_values(), n_values);
                    let position = group.position(&all[me].peer).unwrap();
                    prop_assert_eq!(group.check(position, &input), Ok(()));
                    let behind = with_samples(group.expected());
                    input = MemberInput { n_samples: n_samples(&all, behind), behind, is_whole: true };
                }
                let is_complete = positions.iter().all(|position| position.is_complete);
                prop_assert!(is_complete || me > 0);
                prop_assert!(!is_complete || input.n_samples == of_all);
            }
        }
    }
}
