//! Averagings with the others: their streams, this peer's, and who averages how much.

use std::sync::Arc;
use std::time::Instant;

use barnraise_averaging::{Averaged, CheckedRound, Platform};
use barnraise_planning::{Peer, PeerId as PlannedPeer, Plan, PlanError, Situation, Updates, Work};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::{CHUNK_VALUES, PROTOCOL};
use barnraise_protocol::matchmaking::{
    MEMBERS_MAX, ModelVersion, Proposal, ProposedMember, ProposedReducer, REDUCERS_MAX, Reducer, Standing,
};
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::averaging::{Group, GroupError, Member};
use barnraise_swarm::bandwidth::Bytes;
use barnraise_swarm::{Moment, PeerKey};
use futures::StreamExt;
use futures::future::Abortable;
use libp2p::{PeerId, Stream};

use super::super::places::Places;
use super::grid::weight;
use super::{AveragingError, Heard, Reducers, Shared, SpeedMeter};

/// Where native peers average everything, two members that can stand by for them take such a part of it each.
const STAND_BY_PARTS: u64 = 64;
/// How many.
const STAND_BY: usize = 2;
/// Bytes per second of native peers that are planned with, whatever they claim.
const HELPER_SPEEDS: (f64, f64) = (1e3, 1e12);

/// Clock and network of an averaging over a libp2p node.
#[derive(Clone)]
pub struct NodePlatform {
    node: Node,
    origin: Instant,
    /// Native peers that average, who may have to be dialled first.
    reducers: Option<Reducers>,
    speed: Option<SpeedMeter>,
}

impl NodePlatform {
    /// Its time begins now.
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self { node, origin: Instant::now(), reducers: None, speed: None }
    }

    /// The same, for one that asks native peers to average.
    pub(super) fn with(self, reducers: Reducers) -> Self {
        Self { reducers: Some(reducers), ..self }
    }

    /// The same, which tells what moves.
    pub(crate) fn measured_by(self, speed: SpeedMeter) -> Self {
        Self { speed: Some(speed), ..self }
    }

    /// A connection to a native peer that averages; not over a relay, whose burden it would be.
    async fn dial(&self, peer: PeerId, addresses: Vec<libp2p::Multiaddr>) -> Result<(), String> {
        self.node.dial_peer(peer, addresses).await.map_err(|error| error.to_string())?;
        let path = self.node.path(peer).await.map_err(|error| error.to_string())?;
        match path.is_some_and(|path| path.is_relayed()) {
            true => Err("it can be reached through a relay only".to_owned()),
            false => Ok(()),
        }
    }
}

impl Platform for NodePlatform {
    type Stream = Stream;

    fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    async fn sleep_until(&self, at: Moment) {
        match self.origin.checked_add(at) {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    async fn open(&self, peer: &PeerKey) -> Result<Stream, String> {
        let peer = PeerId::from_bytes(&peer.0).map_err(|error| error.to_string())?;
        let helper = self.reducers.as_ref().map(|reducers| reducers.addresses(peer));
        if let Some(named) = helper.transpose()?.flatten() {
            let addresses = self.node.within_reach(&named).await.into_iter();
            self.dial(peer, addresses.filter_map(|address| address.with_p2p(peer).ok()).collect()).await?;
        }
        self.node.open(peer, PROTOCOL).await.map_err(|error| error.to_string())
    }

    fn on_moved(&self, bytes: Bytes) {
        if let Some(speed) = &self.speed {
            speed.on_moved(bytes);
        }
    }
}

/// Takes the streams of the others to the averaging that they are for.
pub(super) fn accept(shared: &Shared, places: &Arc<Places>) -> Result<(), NodeError> {
    let mut incoming = shared.node.accept(PROTOCOL)?;
    let (shared, places) = (shared.clone(), places.clone());
    tokio::spawn(async move {
        while let Some((peer, stream)) = incoming.next().await {
            if !shared.peers.contains(&peer) {
                tracing::debug!(%peer, "this peer is not averaged with");
                continue;
            }
            let Some((place, registration)) = Places::take(&places, peer) else { continue };
            let shared = shared.clone();
            tokio::spawn(async move {
                let taking = shared.hub.take(&shared.platform, PeerKey(peer.to_bytes()), stream);
                // Whoever has too many gives up the oldest.
                let _ = Abortable::new(taking, registration).await;
                drop(place);
            });
        }
    });
    Ok(())
}

/// Averages as proposed.
pub(super) async fn average(
    shared: Shared,
    proposal: Proposal,
    group: Arc<Group>,
    me: PeerKey,
    values: Vec<f32>,
) {
    let config = shared.config.averaging();
    let measuring = shared.speed.begin(&config, [&*group], &me);
    let averaged = if proposal.reducers.is_empty() {
        let averaged = shared.hub.average(&shared.platform, &config, &group, &me, values).await;
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
    shared.tell_core(me, Heard::Averaged(proposal, averaged)).await;
}

/// Averages where native peers average parts, and compares what they sent before it counts.
async fn with_help(
    shared: &Shared,
    proposal: &Proposal,
    group: &Arc<Group>,
    me: &PeerKey,
    values: Vec<f32>,
) -> Result<Arc<Averaged>, AveragingError> {
    let config = shared.config.averaging();
    let world = (&*shared.hub, &shared.platform, &config);
    let averaged = shared.hub.average(&shared.platform, &config, group, me, values.clone()).await?;
    let round = CheckedRound { group, me, seed: proposal.check_seed };
    let replaced = round.check(world, &values, &averaged).await?;
    shared.reducers.on_checked(group, Ok(&replaced));
    Ok(averaged)
}

/// The group that a proposal means.
///
/// # Errors
/// It means none.
pub(in super::super) fn group(
    proposal: &Proposal,
    n_values: usize,
    codec: TensorCodec,
) -> Result<Group, GroupError> {
    let member = |member: &ProposedMember| Member {
        peer: PeerKey(member.peer.clone()),
        n_samples: member.n_samples,
        receives: true,
        n_reduced: member.n_reduced,
    };
    let reducer = |reducer: &ProposedReducer| Member {
        peer: PeerKey(reducer.peer.clone()),
        n_samples: 0,
        receives: false,
        n_reduced: reducer.n_reduced,
    };
    let reducers = proposal.reducers.iter().map(reducer);
    let members = proposal.members.iter().map(member).chain(reducers).collect();
    Group::new(&round(&proposal.model, proposal.nonce), members, n_values, codec)
}

pub(super) fn round(model: &ModelVersion, nonce: u64) -> Vec<u8> {
    [model.hash.0.as_slice(), &model.epoch.to_le_bytes(), &nonce.to_le_bytes()].concat()
}

/// What is to be averaged, as it is planned.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Task {
    /// Values of the vector.
    pub(in super::super) n_values: usize,
    /// How they travel.
    pub(in super::super) codec: TensorCodec,
    /// Samples of a step.
    pub(in super::super) target_batch_size: u32,
    /// Names the averaging.
    pub(in super::super) nonce: u64,
    /// Most that average with each other at a time.
    pub(in super::super) group_size: u16,
    /// What is compared with, where native peers average; without one they do not.
    pub(in super::super) check_seed: Option<u64>,
}

/// Who averages how much (DeDLOC §3.2): the parts are planned by how fast the links are; equal ones, where that fails.
/// Native peers average where it helps, and beside some member, who can stand by for them. In a grid each group divides the
/// vector by the speed of its members' links, since no plan is for all groups.
pub(in super::super) fn propose(
    model: ModelVersion,
    of: &[(PeerKey, Standing)],
    helpers: &[Reducer],
    task: Task,
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

/// Of all samples.
fn mean_loss(members: &[(PeerKey, Standing)]) -> f32 {
    let n_samples = members.iter().fold(0, |sum: u64, (_, standing)| sum.saturating_add(ready(standing).0));
    let losses = members.iter().map(|(_, standing)| ready(standing));
    let parts = losses.map(|(n, loss)| f64::from(loss) * n as f64 / n_samples.max(1) as f64);
    parts.sum::<f64>() as f32
}

/// Members with the weights by which their groups divide the vector.
fn in_grid(members: &[(PeerKey, Standing)]) -> Vec<ProposedMember> {
    let is_nobody_reachable = !members.iter().any(|(_, standing)| standing.is_reachable);
    let member = |(peer, standing): &(PeerKey, Standing)| ProposedMember {
        peer: peer.0.clone(),
        n_samples: ready(standing).0,
        n_reduced: weight(standing, standing.is_reachable || is_nobody_reachable),
    };
    members.iter().map(member).collect()
}

/// Gives members that others can dial a little of what the reducers average.
fn stand_by(
    proposed: &mut [ProposedMember],
    reducers: &mut [ProposedReducer],
    members: &[(PeerKey, Standing)],
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

fn ready(standing: &Standing) -> (u64, f32) {
    standing.ready.map_or((0, 0.0), |ready| (ready.n_samples, ready.loss))
}

/// As many helpers as there is room for, others for each model.
fn chosen<'r>(
    model: &ModelVersion,
    n_members: usize,
    helpers: &'r [Reducer],
    task: Task,
) -> Vec<&'r Reducer> {
    let room = REDUCERS_MAX.min(MEMBERS_MAX.saturating_sub(n_members));
    let rank = |reducer: &Reducer| Sha256Hash::of(&[&model.hash.0[..], &reducer.peer].concat());
    let mut chosen: Vec<&Reducer> =
        if task.check_seed.is_some() { helpers.iter().collect() } else { Vec::new() };
    chosen.sort_by_cached_key(|reducer| rank(reducer));
    chosen.truncate(room);
    chosen
}

fn plan(members: &[(PeerKey, Standing)], helpers: &[&Reducer], task: Task) -> Result<Plan, PlanError> {
    let is_nobody_reachable = !members.iter().any(|(_, standing)| standing.is_reachable);
    let member = |(peer, standing): &(PeerKey, Standing)| Peer {
        id: PlannedPeer(peer.0.clone()),
        samples_per_s: ready(standing).0 as f64,
        download_bytes_per_s: f64::from(standing.download_bytes_per_s),
        upload_bytes_per_s: f64::from(standing.upload_bytes_per_s),
        is_reachable: standing.is_reachable || is_nobody_reachable,
        receives: true,
    };
    let believed = |claimed: f32| f64::from(claimed).clamp(HELPER_SPEEDS.0, HELPER_SPEEDS.1);
    let helper = |helper: &&Reducer| Peer {
        id: PlannedPeer(helper.peer.clone()),
        samples_per_s: 0.0,
        download_bytes_per_s: believed(helper.download_bytes_per_s),
        upload_bytes_per_s: believed(helper.upload_bytes_per_s),
        is_reachable: true,
        receives: false,
    };
    let n_bytes = task.codec.encoded_len(task.n_values) as u64;
    let n_peers = (members.len() + helpers.len()).max(1);
    let work = Work {
        vector_bytes: n_bytes.max(1),
        n_values: task.n_values as u64,
        target_batch_size: u64::from(task.target_batch_size),
        // A part of less than a chunk costs as many messages as one of a chunk.
        part_values_min: CHUNK_VALUES.min(task.n_values / n_peers).max(1) as u64,
        updates: Updates::Delayed,
    };
    let peers = members.iter().map(member).chain(helpers.iter().map(helper)).collect();
    let situation = Situation::new(peers, &[], work)?;
    let with_samples = members.iter().filter(|(_, standing)| ready(standing).0 > 0);
    let contributors: Vec<PlannedPeer> = with_samples.map(|(peer, _)| PlannedPeer(peer.0.clone())).collect();
    situation.plan_for(&contributors).or_else(|error| {
        if !helpers.is_empty() {
            tracing::warn!(%error, "no parts could be planned with native peers; they are planned without");
            return plan(members, &[], task);
        }
        tracing::warn!(%error, "no parts could be planned; they are equal");
        situation.equal_parts()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::matchmaking::Ready;

    use super::*;

    const MODEL: ModelVersion = ModelVersion { n_samples_total: 0, epoch: 3, hash: Sha256Hash([7; 32]) };
    const TASK: Task = Task {
        n_values: 900_000,
        codec: TensorCodec::F32,
        target_batch_size: 512,
        nonce: 1,
        group_size: MEMBERS_MAX as u16,
        check_seed: Some(5),
    };

    fn member(number: u8, is_reachable: bool) -> (PeerKey, Standing) {
        let standing = Standing {
            model: MODEL,
            n_samples: 256,
            n_contributors: 1,
            samples_per_second: 1.0,
            is_closing: true,
            ready: Some(Ready { n_samples: 256, loss: 1.0 }),
            is_busy: false,
            download_bytes_per_s: 1e6,
            upload_bytes_per_s: 1e6,
            is_reachable,
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
        let unchecked = Task { check_seed: None, ..TASK };
        assert!(propose(MODEL, &members, &helpers, unchecked).unwrap().reducers.is_empty());
        assert!(propose(MODEL, &members, &helpers, TASK).unwrap().reducers.len() <= REDUCERS_MAX);
    }

    #[test]
    fn in_a_grid_whoever_can_be_dialled_averages_by_the_speed_of_its_link() {
        let mut members: Vec<_> = (0..4).map(|number| member(number, number != 2)).collect();
        members[1].1.upload_bytes_per_s = 1e5;
        let task = Task { group_size: 2, ..TASK };
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
