//! Averaging in the groups of a grid, round after round, for many members or frequent failures (DeDLOC §3.2,
//! appendix C).
//!
//! The proposal determines the groups: its nonce assigns the cells. The proposer sets the group size by how often other
//! aggregators failed lately ([`barnraise_swarm::matchmaking::FailureRate`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use barnraise_averaging::GridRounds;
use barnraise_planning::PeerId as PlannedPeer;
use barnraise_planning::groups::size::group_size_up_to;
use barnraise_planning::groups::{Grid, groups};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::matchmaking::{
    AggregatorStatus, GROUP_SIZE_MIN, MEMBERS_MAX, Proposal, ProposedMember,
};
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{GridPosition, Group, GroupError, GroupMember, grid_positions};

use super::group::{group, round};
use super::{AggregationContext, AggregatorEvent, AveragingError};
use crate::config::AggregatorsSection;

/// Bytes per second to which the claimed speed of a link is clamped.
const SPEEDS: (f32, f32) = (1e3, 1e12);
/// Bytes per second that are one part of a vector.
const SPEED_UNIT: f32 = 1e3;

/// The topology of an averaging.
#[derive(Debug)]
pub enum Topology {
    /// All with all.
    Group(Group),
    /// In the groups of a grid, along one side after the other.
    Grid(OwnGrid),
}

/// A grid as one of its members sees it.
#[derive(Debug)]
pub struct OwnGrid {
    members: Vec<GroupMember>,
    me: usize,
    positions: Vec<GridPosition>,
    codec: TensorCodec,
}

/// Why a proposal is invalid.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum TopologyError {
    /// Its members form no valid group.
    #[error(transparent)]
    Group(#[from] GroupError),
}

/// What the group size depends on, beside the configuration.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct GroupSizing {
    /// Members of the averaging.
    pub(in super::super) n_members: usize,
    /// Codec of averages.
    pub(in super::super) codec: TensorCodec,
    /// How often a member fails, 0 to 1.
    pub(in super::super) failure_rate: f64,
    /// No averaging of this epoch has failed.
    pub(in super::super) is_first_attempt: bool,
    /// Native peers reduce parts.
    pub(in super::super) is_helped: bool,
}

/// The group size to propose; the number of members for one group.
pub(in super::super) fn group_size(config: &AggregatorsSection, of: GroupSizing) -> u16 {
    let all = of.n_members.max(usize::from(GROUP_SIZE_MIN));
    // Quantized values must be the same in every group, and after a failure all members average together.
    let is_for_all = of.codec == TensorCodec::Int8 || of.is_helped || !of.is_first_attempt;
    let size = match group_size_up_to(of.n_members, of.failure_rate, config.group_members_max) {
        Ok(best) if !is_for_all => best.size.max(usize::from(GROUP_SIZE_MIN)),
        Ok(_) => all,
        Err(error) => {
            tracing::warn!(%error, "all average in one group");
            all
        }
    };
    u16::try_from(size).unwrap_or(MEMBERS_MAX as u16)
}

/// Whether the members of a proposal average in a grid.
pub(super) fn is_in_grid(proposal: &Proposal) -> bool {
    usize::from(proposal.group_size) < proposal.members.len()
}

/// Side lengths of a proposal's grid, a round for each; one side with all members for one group.
pub(in super::super) fn sides(proposal: &Proposal) -> Vec<usize> {
    let n_members = proposal.members.len();
    match is_in_grid(proposal) {
        true => Grid::new(n_members, proposal.group_size.into()).sides().to_vec(),
        false => vec![n_members],
    }
}

/// A member's weight in dividing the vector within its groups, by its slower direction; 0 where others cannot dial it.
pub(super) fn weight(standing: &AggregatorStatus, is_reachable: bool) -> u64 {
    let slower = standing.download_bytes_per_s.min(standing.upload_bytes_per_s);
    let units = slower.clamp(SPEEDS.0, SPEEDS.1) / SPEED_UNIT;
    if is_reachable { units as u64 } else { 0 }
}

/// The topology of a proposal for one of its members.
///
/// # Errors
/// The proposal is invalid.
pub(in super::super) fn topology(
    proposal: &Proposal,
    me: &PeerKey,
    n_values: usize,
    codec: TensorCodec,
) -> Result<Topology, TopologyError> {
    if !is_in_grid(proposal) {
        return Ok(Topology::Group(group(proposal, n_values, codec)?));
    }
    let member = |member: &ProposedMember| GroupMember {
        peer: PeerKey(member.peer.clone()),
        n_samples: member.n_samples,
        receives: true,
        n_reduced: member.n_reduced,
    };
    let members: Vec<GroupMember> = proposal.members.iter().map(member).collect();
    let positions: BTreeMap<&[u8], usize> =
        members.iter().enumerate().map(|(position, member)| (member.peer.0.as_slice(), position)).collect();
    let peers: Vec<PlannedPeer> = members.iter().map(|member| PlannedPeer(member.peer.0.clone())).collect();
    let of_round = |round| -> Vec<Vec<usize>> {
        let size = proposal.group_size.into();
        let groups = groups(&peers, size, proposal.nonce, proposal.model.epoch, round);
        let position = |peer: &PlannedPeer| positions.get(peer.0.as_slice()).copied();
        groups.iter().map(|group| group.iter().filter_map(position).collect()).collect()
    };
    let rounds: Vec<Vec<Vec<usize>>> = (0..sides(proposal).len()).map(of_round).collect();
    // Out of range for a peer that is not a member.
    let me = positions.get(me.0.as_slice()).copied().unwrap_or(members.len());
    let name = round(&proposal.model, proposal.nonce);
    let positions = grid_positions(&name, &members, &rounds, me, n_values, codec)?;
    Ok(Topology::Grid(OwnGrid { members, me, positions, codec }))
}

/// Averages as proposed, in a grid.
pub(super) async fn average(
    shared: AggregationContext,
    proposal: Proposal,
    grid: OwnGrid,
    me: PeerKey,
    values: Vec<f32>,
) {
    let config = shared.config.averaging();
    let OwnGrid { members, me: position, positions, codec } = &grid;
    let rounds = GridRounds { members, me: *position, positions, codec: *codec };
    let groups = positions.iter().filter_map(|position| position.group.as_deref());
    let measuring = shared.speed.begin(&config, groups, &me);
    let averaged = rounds.average((&*shared.rounds, &shared.platform, &config), values).await;
    measuring.end(averaged.is_ok());
    let averaged = averaged.map(Arc::new).map_err(AveragingError::from);
    shared.tell_core(me, AggregatorEvent::Averaged(proposal, averaged)).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use barnraise_protocol::Sha256Hash;
    use barnraise_protocol::matchmaking::ModelVersion;

    use super::*;

    const F32: TensorCodec = TensorCodec::F32;

    fn proposal(n_members: u8, group_size: u16) -> Proposal {
        let member = |number: u8| ProposedMember {
            peer: vec![number],
            n_samples: u64::from(number),
            n_reduced: u64::from(number != 2),
        };
        Proposal {
            model: ModelVersion { n_samples_total: 0, epoch: 3, hash: Sha256Hash([7; 32]) },
            nonce: 5,
            group_size,
            members: (0..n_members).map(member).collect(),
            reducers: Vec::new(),
            check_seed: 0,
            loss: 1.0,
        }
    }

    fn lines_of(proposal: &Proposal, me: u8) -> Vec<GridPosition> {
        match topology(proposal, &PeerKey(vec![me]), 100, F32).unwrap() {
            Topology::Grid(grid) => grid.positions,
            Topology::Group(group) => panic!("{group:?}"),
        }
    }

    #[test]
    fn all_members_mean_the_same_groups_and_meet_everybody() {
        let proposal = proposal(9, 3);
        assert_eq!(sides(&proposal), [3, 3]);
        let of_all: Vec<Vec<GridPosition>> = (0..9).map(|me| lines_of(&proposal, me)).collect();
        for round in 0..2 {
            for (me, positions) in (0u8..9).zip(&of_all) {
                let group = positions[round].group.as_ref().unwrap();
                assert!(positions[round].is_complete && group.position(&PeerKey(vec![me])).is_some());
                assert_eq!(group.members().len(), 3);
                for member in group.members() {
                    assert_eq!(of_all[usize::from(member.peer.0[0])][round].group.as_ref(), Some(group));
                    assert!(member.peer.0 != [2] || member.n_reduced == 0, "nobody can dial it");
                }
            }
        }
        let last = of_all[0][1].group.as_ref().unwrap();
        assert_eq!(last.expected().n_members(), 9);
        let other = Proposal { nonce: 6, ..proposal.clone() };
        assert_ne!(lines_of(&other, 0), of_all[0], "cells are dealt anew");
        let Topology::Grid(grid) = topology(&proposal, &PeerKey(vec![99]), 100, F32).unwrap() else {
            panic!()
        };
        assert!(grid.positions.iter().all(|position| position.group.is_none()), "a stranger has no group");
    }

    #[test]
    fn what_is_no_grid_is_one_group_or_refused() {
        let me = PeerKey(vec![1]);
        let of_all = Proposal { group_size: 4, ..proposal(4, 2) };
        assert_eq!(sides(&of_all), [4]);
        let group = topology(&of_all, &me, 3, TensorCodec::Int8).unwrap();
        assert!(matches!(group, Topology::Group(_)), "three of four average one value each");
        let refused = topology(&proposal(4, 2), &me, 100, TensorCodec::Int8);
        assert!(matches!(refused, Err(TopologyError::Group(GroupError::BlockCodec(TensorCodec::Int8)))));
        let mut twice = proposal(4, 2);
        twice.members[0] = twice.members[1].clone();
        assert!(matches!(topology(&twice, &me, 100, F32), Err(TopologyError::Group(GroupError::Twice))));
    }

    #[test]
    fn the_size_of_groups_follows_from_failures_unless_all_must_average_together() {
        let config = AggregatorsSection::default();
        let seldom = GroupSizing {
            n_members: 16,
            codec: F32,
            failure_rate: 0.001,
            is_first_attempt: true,
            is_helped: false,
        };
        let often = GroupSizing { failure_rate: 0.4, ..seldom };
        assert_eq!(group_size(&config, seldom), 16);
        assert!((2..=4).contains(&group_size(&config, often)), "{}", group_size(&config, often));
        let four = AggregatorsSection { group_members_max: 4, ..config.clone() };
        assert_eq!(group_size(&four, seldom), 4);
        for all in [
            group_size(&config, GroupSizing { is_first_attempt: false, ..often }),
            group_size(&config, GroupSizing { is_helped: true, ..often }),
            group_size(&four, GroupSizing { codec: TensorCodec::Int8, ..often }),
            group_size(&config, GroupSizing { failure_rate: f64::NAN, ..often }),
        ] {
            assert_eq!(all, 16);
        }
        let alone = GroupSizing { n_members: 1, ..often };
        assert_eq!(group_size(&config, alone), 2);
    }
}
