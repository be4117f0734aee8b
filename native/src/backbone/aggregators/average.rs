//! Averagings with the others: their streams, this peer's, and who averages how much.

use std::sync::Arc;
use std::time::Instant;

use barnraise_averaging::Platform;
use barnraise_planning::{Peer, PeerId as PlannedPeer, PlanError, Situation, Updates, Work};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::average::{CHUNK_VALUES, PROTOCOL};
use barnraise_protocol::matchmaking::{ModelVersion, Proposal, ProposedMember, Standing};
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::averaging::{Group, GroupError, Member};
use barnraise_swarm::{Moment, PeerKey};
use futures::StreamExt;
use futures::future::Abortable;
use libp2p::{PeerId, Stream};

use super::super::places::Places;
use super::{AveragingError, Heard, Shared};

/// Clock and network of an averaging over a libp2p node.
#[derive(Debug, Clone)]
pub struct NodePlatform {
    node: Node,
    origin: Instant,
}

impl NodePlatform {
    /// Its time begins now.
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self { node, origin: Instant::now() }
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
        self.node.open(peer, PROTOCOL).await.map_err(|error| error.to_string())
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
    let averaged = shared.hub.average(&shared.platform, &config, &group, &me, values).await;
    shared.tell_core(me, Heard::Averaged(proposal, averaged.map_err(AveragingError::from))).await;
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
    let members = proposal.members.iter().map(member).collect();
    Group::new(&round(&proposal.model, proposal.nonce), members, n_values, codec)
}

fn round(model: &ModelVersion, nonce: u64) -> Vec<u8> {
    [model.hash.0.as_slice(), &model.epoch.to_le_bytes(), &nonce.to_le_bytes()].concat()
}

/// Who averages how much (DeDLOC §3.2): the parts are planned by how fast the links are; equal ones, where that fails.
pub(in super::super) fn propose(
    model: ModelVersion,
    members: &[(PeerKey, Standing)],
    n_values: usize,
    codec: TensorCodec,
    (target_batch_size, nonce): (u32, u64),
) -> Result<Proposal, PlanError> {
    let ready = |standing: &Standing| standing.ready.map_or((0, 0.0), |ready| (ready.n_samples, ready.loss));
    let is_nobody_reachable = !members.iter().any(|(_, standing)| standing.is_reachable);
    let peer = |(peer, standing): &(PeerKey, Standing)| Peer {
        id: PlannedPeer(peer.0.clone()),
        samples_per_s: ready(standing).0 as f64,
        download_bytes_per_s: f64::from(standing.download_bytes_per_s),
        upload_bytes_per_s: f64::from(standing.upload_bytes_per_s),
        is_reachable: standing.is_reachable || is_nobody_reachable,
        receives: true,
    };
    let n_bytes = codec.encoded_len(n_values) as u64;
    let work = Work {
        vector_bytes: n_bytes.max(1),
        n_values: n_values as u64,
        target_batch_size: u64::from(target_batch_size),
        // A part of less than a chunk costs as many messages as one of a chunk.
        part_values_min: CHUNK_VALUES.min(n_values / members.len().max(1)).max(1) as u64,
        updates: Updates::Delayed,
    };
    let situation = Situation::new(members.iter().map(peer).collect(), &[], work)?;
    let with_samples = members.iter().filter(|(_, standing)| ready(standing).0 > 0);
    let contributors: Vec<PlannedPeer> = with_samples.map(|(peer, _)| PlannedPeer(peer.0.clone())).collect();
    let plan = match situation.plan_for(&contributors) {
        Ok(plan) => plan,
        Err(error) => {
            tracing::warn!(%error, "no parts could be planned; they are equal");
            situation.equal_parts()?
        }
    };
    let n_samples = members.iter().fold(0, |sum: u64, (_, standing)| sum.saturating_add(ready(standing).0));
    let loss: f64 = members
        .iter()
        .map(|(_, standing)| ready(standing))
        .map(|(n, loss)| f64::from(loss) * n as f64 / n_samples.max(1) as f64)
        .sum();
    let members = plan
        .roles
        .iter()
        .filter_map(|role| {
            let (_, standing) = members.iter().find(|(peer, _)| peer.0 == role.peer.0)?;
            let (n_samples, _) = ready(standing);
            let n_reduced = role.part.end - role.part.start;
            Some(ProposedMember { peer: role.peer.0.clone(), n_samples, n_reduced })
        })
        .collect();
    Ok(Proposal { model, nonce, members, loss: loss as f32 })
}
