//! Averagings with the other aggregators: streams in both directions, and the plan of parts.

use std::sync::Arc;

use barnraise_averaging::{Averaged, CheckedRound};
use barnraise_planning::{
    AveragingPlan, MeasuredPeer, PeerId as PlannedPeer, PlanError, PlanningProblem, RoundWorkload, Updates,
};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::{CHUNK_VALUES, PROTOCOL};
use barnraise_protocol::matchmaking::{
    AggregatorStatus, MEMBERS_MAX, ModelVersion, Proposal, ProposedMember, ProposedReducer, REDUCERS_MAX,
    Reducer,
};
use barnraise_relay::NodeError;
use barnraise_relay::tasks::TaskSet;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::Group;
use futures::StreamExt;
use futures::future::Abortable;

use super::grid::weight;
use super::{AggregationContext, AggregatorEvent, AveragingError};
use crate::net::transfer_slots::TransferSlots;

/// Where native peers reduce everything, standby members take this fraction of it each: `1 / STAND_BY_PARTS`.
const STAND_BY_PARTS: u64 = 64;
/// Number of standby members, which can take over the parts of native peers.
const STAND_BY: usize = 2;
/// Bytes per second to which the claimed speeds of native peers are clamped.
const HELPER_SPEEDS: (f64, f64) = (1e3, 1e12);

/// Routes the streams of the other aggregators to their averagings.
pub(super) fn accept(
    shared: &AggregationContext,
    slots: &Arc<TransferSlots>,
) -> Result<impl Future<Output = ()> + Send + use<>, NodeError> {
    let mut incoming = shared.node.accept(PROTOCOL)?;
    let (shared, slots) = (shared.clone(), slots.clone());
    Ok(async move {
        let conversations = TaskSet::default();
        while let Some((peer, stream)) = incoming.next().await {
            if !shared.peers.contains(&peer) {
                tracing::debug!(%peer, "this peer is not averaged with");
                continue;
            }
            let Some((slot, registration)) = TransferSlots::take(&slots, peer) else { continue };
            let shared = shared.clone();
            conversations.spawn("averaging stream", async move {
                let taking = shared.rounds.take(&shared.platform, PeerKey(peer.to_bytes()), stream);
                // A peer with too many streams loses its oldest.
                let _ = Abortable::new(taking, registration).await;
                drop(slot);
            });
        }
    })
}

/// Averages as proposed.
pub(super) async fn average(
    shared: AggregationContext,
    proposal: Proposal,
    group: Arc<Group>,
    me: PeerKey,
    values: Vec<f32>,
) {
    let config = shared.config.averaging();
    let measuring = shared.speed.begin(&config, [&*group], &me);
    let averaged = if proposal.reducers.is_empty() {
        let averaged = shared.rounds.average(&shared.platform, &config, &group, &me, values).await;
        averaged.map_err(AveragingError::from)
    } else {
        let averaged = with_help(&shared, &proposal, &group, &me, values).await;
        if let Err(error) = &averaged {
            let check = if let AveragingError::Check(error) = error { Some(error) } else { None };
            shared.reducers.on_checked(&group, Err(check));
        }
        averaged
    };
    measuring.end(averaged.as_ref().is_ok_and(|averaged| averaged.is_complete()));
    shared.tell_core(me, AggregatorEvent::Averaged(proposal, averaged)).await;
}

/// Averages with native peers as reducers, and verifies their means before they count.
async fn with_help(
    shared: &AggregationContext,
    proposal: &Proposal,
    group: &Arc<Group>,
    me: &PeerKey,
    values: Vec<f32>,
) -> Result<Arc<Averaged>, AveragingError> {
    let config = shared.config.averaging();
    let world = (&*shared.rounds, &shared.platform, &config);
    let averaged = shared.rounds.average(&shared.platform, &config, group, me, values.clone()).await?;
    let round = CheckedRound { group, me, seed: proposal.check_seed };
    let replaced = round.check(world, &values, &averaged).await?;
    shared.reducers.on_checked(group, Ok(&replaced));
    Ok(averaged)
}

/// An averaging to plan.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct AveragingTask {
    /// Values of the vector.
    pub(in super::super) n_values: usize,
    /// Codec of the values on the wire.
    pub(in super::super) codec: TensorCodec,
    /// Samples of a step.
    pub(in super::super) target_batch_size: u32,
    /// Identifies the averaging.
    pub(in super::super) nonce: u64,
    /// Most members of a group.
    pub(in super::super) group_size: u16,
    /// Seed of the verification of native peers; without one they do not take part.
    pub(in super::super) check_seed: Option<u64>,
}

/// Plans which member reduces how much (DeDLOC §3.2), by the speed of the links; equal parts where planning fails.
/// Native peers reduce parts where it helps, with some member on standby for them. In a grid each group divides the
/// vector by the speed of its members' links, since no plan covers all groups.
pub(in super::super) fn propose(
    model: ModelVersion,
    of: &[(PeerKey, AggregatorStatus)],
    helpers: &[Reducer],
    task: AveragingTask,
) -> Result<Proposal, PlanError> {
    let proposal = |members, reducers| {
        let (nonce, check_seed) = (task.nonce, task.check_seed.unwrap_or_default());
        let (group_size, loss) = (task.group_size, mean_loss(of));
        Proposal { model, nonce, group_size, members, reducers, check_seed, loss }
    };
    if usize::from(task.group_size) < of.len() {
        return Ok(proposal(in_grid(of), Vec::new()));
    }
    let helpers = chosen(&model, of.len(), helpers, task);
    let plan = plan(of, &helpers, task)?;
    let (mut proposed, mut reducers) = (Vec::new(), Vec::new());
    for role in &plan.roles {
        let (peer, n_reduced) = (role.peer.0.clone(), role.part.end - role.part.start);
        match of.iter().find(|(member, _)| member.0 == peer) {
            Some((_, standing)) => {
                proposed.push(ProposedMember { peer, n_samples: ready(standing).0, n_reduced });
            }
            None if n_reduced > 0 => reducers.push(ProposedReducer { peer, n_reduced }),
            None => {}
        }
    }
    if proposed.iter().all(|member| member.n_reduced == 0) {
        stand_by(&mut proposed, &mut reducers, of);
    }
    Ok(proposal(proposed, reducers))
}

/// Mean loss over all samples.
fn mean_loss(members: &[(PeerKey, AggregatorStatus)]) -> f32 {
    let n_samples = members.iter().fold(0, |sum: u64, (_, standing)| sum.saturating_add(ready(standing).0));
    let losses = members.iter().map(|(_, standing)| ready(standing));
    let parts = losses.map(|(n, loss)| f64::from(loss) * n as f64 / n_samples.max(1) as f64);
    parts.sum::<f64>() as f32
}

/// Members with the weights by which their groups divide the vector.
fn in_grid(members: &[(PeerKey, AggregatorStatus)]) -> Vec<ProposedMember> {
    let is_nobody_reachable = !members.iter().any(|(_, standing)| standing.is_reachable);
    let member = |(peer, standing): &(PeerKey, AggregatorStatus)| ProposedMember {
        peer: peer.0.clone(),
        n_samples: ready(standing).0,
        n_reduced: weight(standing, standing.is_reachable || is_nobody_reachable),
    };
    members.iter().map(member).collect()
}

/// Gives members that others can dial a small part of the reducers' work.
fn stand_by(
    proposed: &mut [ProposedMember],
    reducers: &mut [ProposedReducer],
    members: &[(PeerKey, AggregatorStatus)],
) {
    let share = (reducers.iter().map(|reducer| reducer.n_reduced).sum::<u64>() / STAND_BY_PARTS).max(1);
    let is_nobody_reachable = !members.iter().any(|(_, standing)| standing.is_reachable);
    let is_reachable = |peer: &[u8]| {
        is_nobody_reachable
            || members.iter().any(|(member, standing)| member.0 == peer && standing.is_reachable)
    };
    for member in proposed.iter_mut().filter(|member| is_reachable(&member.peer)).take(STAND_BY) {
        let most = reducers.iter_mut().max_by_key(|reducer| reducer.n_reduced);
        if let Some(most) = most.filter(|most| most.n_reduced > share) {
            most.n_reduced -= share;
            member.n_reduced += share;
        }
    }
}

fn ready(standing: &AggregatorStatus) -> (u64, f32) {
    standing.ready.map_or((0, 0.0), |ready| (ready.n_samples, ready.loss))
}

/// As many helpers as fit into a group, a different selection for each model.
fn chosen<'r>(
    model: &ModelVersion,
    n_members: usize,
    helpers: &'r [Reducer],
    task: AveragingTask,
) -> Vec<&'r Reducer> {
    let room = REDUCERS_MAX.min(MEMBERS_MAX.saturating_sub(n_members));
    let rank = |reducer: &Reducer| Sha256Hash::of(&[&model.hash.0[..], &reducer.peer].concat());
    let mut chosen: Vec<&Reducer> =
        if task.check_seed.is_some() { helpers.iter().collect() } else { Vec::new() };
    chosen.sort_by_cached_key(|reducer| rank(reducer));
    chosen.truncate(room);
    chosen
}

fn plan(
    members: &[(PeerKey, AggregatorStatus)],
    helpers: &[&Reducer],
    task: AveragingTask,
) -> Result<AveragingPlan, PlanError> {
    let is_nobody_reachable = !members.iter().any(|(_, standing)| standing.is_reachable);
    let member = |(peer, standing): &(PeerKey, AggregatorStatus)| MeasuredPeer {
        id: PlannedPeer(peer.0.clone()),
        samples_per_s: ready(standing).0 as f64,
        download_bytes_per_s: f64::from(standing.download_bytes_per_s),
        upload_bytes_per_s: f64::from(standing.upload_bytes_per_s),
        is_reachable: standing.is_reachable || is_nobody_reachable,
        receives: true,
    };
    let believed = |claimed: f32| f64::from(claimed).clamp(HELPER_SPEEDS.0, HELPER_SPEEDS.1);
    let helper = |helper: &&Reducer| MeasuredPeer {
        id: PlannedPeer(helper.peer.clone()),
        samples_per_s: 0.0,
        download_bytes_per_s: believed(helper.download_bytes_per_s),
        upload_bytes_per_s: believed(helper.upload_bytes_per_s),
        is_reachable: true,
        receives: false,
    };
    let n_bytes = task.codec.encoded_len(task.n_values) as u64;
    let n_peers = (members.len() + helpers.len()).max(1);
    let work = RoundWorkload {
        vector_bytes: n_bytes.max(1),
        n_values: task.n_values as u64,
        target_batch_size: u64::from(task.target_batch_size),
        // A part of less than a chunk costs as many messages as one of a chunk.
        part_values_min: CHUNK_VALUES.min(task.n_values / n_peers).max(1) as u64,
        updates: Updates::Delayed,
    };
    let peers = members.iter().map(member).chain(helpers.iter().map(helper)).collect();
    let problem = PlanningProblem::new(peers, &[], work)?;
    let with_samples = members.iter().filter(|(_, standing)| ready(standing).0 > 0);
    let contributors: Vec<PlannedPeer> = with_samples.map(|(peer, _)| PlannedPeer(peer.0.clone())).collect();
    problem.plan_for(&contributors).or_else(|error| {
        if !helpers.is_empty() {
            tracing::warn!(%error, "no parts could be planned with native peers; they are planned without");
            return plan(members, &[], task);
        }
        tracing::warn!(%error, "no parts could be planned; they are equal");
        problem.equal_parts()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::matchmaking::Ready;

    use super::super::group::group;
    use super::*;

    const MODEL: ModelVersion = ModelVersion { n_samples_total: 0, epoch: 3, hash: Sha256Hash([7; 32]) };
    const TASK: AveragingTask = AveragingTask {
        n_values: 900_000,
        codec: TensorCodec::F32,
        target_batch_size: 512,
        nonce: 1,
        group_size: MEMBERS_MAX as u16,
        check_seed: Some(5),
    };

    fn member(number: u8, is_reachable: bool) -> (PeerKey, AggregatorStatus) {
        let standing = AggregatorStatus {
            n_samples: 256,
            n_contributors: 1,
            samples_per_second: 1.0,
            is_closing: true,
            ready: Some(Ready { n_samples: 256, loss: 1.0 }),
            download_bytes_per_s: 1e6,
            upload_bytes_per_s: 1e6,
            is_reachable,
            ..AggregatorStatus::new(MODEL)
        };
        (PeerKey(vec![number]), standing)
    }

    fn helper(number: u8) -> Reducer {
        let peer = vec![100, number];
        Reducer { peer, download_bytes_per_s: 1e8, upload_bytes_per_s: 1e8, addresses: Vec::new() }
    }

    #[test]
    fn a_native_peer_with_a_fast_link_averages_beside_the_members() {
        let members: Vec<_> = (0..4).map(|number| member(number, true)).collect();
        let alone = propose(MODEL, &members, &[], TASK).unwrap();
        assert!(alone.reducers.is_empty() && alone.members.len() == 4);
        let proposal = propose(MODEL, &members, &[helper(1)], TASK).unwrap();
        assert_eq!((proposal.members.len(), proposal.reducers.len()), (4, 1));
        let most = proposal.members.iter().map(|member| member.n_reduced).max().unwrap();
        assert!(proposal.reducers[0].n_reduced > most, "{proposal:?}");
        let group = group(&proposal, TASK.n_values, TASK.codec).unwrap();
        assert_eq!(group.parts_of_helpers().collect::<Vec<_>>(), [4]);
        assert!(group.reducer(4, 1).is_some_and(|position| position < 4), "somebody stands by");
        assert_eq!(proposal.check_seed, 5);
    }

    #[test]
    fn nobody_helps_unchecked_and_no_more_than_there_is_room_for() {
        let members: Vec<_> = (0..3).map(|number| member(number, true)).collect();
        let helpers: Vec<_> = (0..100).map(helper).collect();
        let unchecked = AveragingTask { check_seed: None, ..TASK };
        assert!(propose(MODEL, &members, &helpers, unchecked).unwrap().reducers.is_empty());
        assert!(propose(MODEL, &members, &helpers, TASK).unwrap().reducers.len() <= REDUCERS_MAX);
    }

    #[test]
    fn in_a_grid_reachable_members_average_by_the_speed_of_their_links() {
        let mut members: Vec<_> = (0..4).map(|number| member(number, number != 2)).collect();
        members[1].1.upload_bytes_per_s = 1e5;
        let task = AveragingTask { group_size: 2, ..TASK };
        let proposal = propose(MODEL, &members, &[helper(1)], task).unwrap();
        let weights: Vec<u64> = proposal.members.iter().map(|member| member.n_reduced).collect();
        assert_eq!(weights, [1000, 100, 0, 1000]);
        assert!(proposal.reducers.is_empty() && proposal.group_size == 2);
        assert!((proposal.loss - 1.0).abs() < 1e-6);
        members.iter_mut().for_each(|(_, standing)| standing.is_reachable = false);
        let proposal = propose(MODEL, &members, &[], task).unwrap();
        assert!(proposal.members.iter().all(|member| member.n_reduced > 0), "somebody must average");
    }

    #[test]
    fn some_member_averages_and_can_stand_by() {
        for is_reachable in [true, false] {
            let members = [member(0, is_reachable), member(1, false)];
            let proposal = propose(MODEL, &members, &[helper(1), helper(2)], TASK).unwrap();
            assert!(proposal.members.iter().any(|member| member.n_reduced > 0), "{proposal:?}");
            let sum: u64 = proposal.members.iter().map(|member| member.n_reduced).sum();
            let of_helpers: u64 = proposal.reducers.iter().map(|reducer| reducer.n_reduced).sum();
            assert_eq!(sum + of_helpers, TASK.n_values as u64);
        }
    }
}
