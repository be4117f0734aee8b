//! Exchange of evidence: served to every peer that asks, and fetched from the other backbones of the run.
//!
//! A piece is as large as a model. It is read from the disk in chunks, for few readers at a time; and few pieces are
//! fetched from each backbone at a time.
//!
//! Of a stream each backbone reads the sources itself. What another one proves can be recomputed here as long as both have the
//! same shards, so their windows are compared.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use barnraise_protocol::commitment;
use barnraise_protocol::evidence::{self, Evidence, EvidenceRequest, EvidenceResponse, PROTOCOL};
use barnraise_protocol::run::{self, RunDescription, RunIdentity};
use barnraise_protocol::{ConversationError, Refusal, Sha256Hash, shard};
use barnraise_relay::{Node, NodeError, Paced};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::guard::PaceLimits;
use libp2p::{PeerId, Stream};
use tokio_util::sync::CancellationToken;

use super::EvidenceStore;
use super::queue::Recomputing;
use crate::host::access::Access;

/// Fetched pieces of evidence that are remembered, so that they are not fetched again.
const SEEN_MAX: usize = 1024;
/// Interval at which the other backbones are polled, and most pieces that are fetched from each per poll.
const ASK_EVERY: Duration = Duration::from_secs(10);
const PIECES_PER_ASKING: usize = 2;
/// Slowest pace of a transfer of evidence.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    bytes_per_second_min: 1024,
};

/// Serves evidence on a stream.
pub(in super::super) async fn serve_evidence(
    store: &EvidenceStore,
    group: AddressGroup,
    stream: &mut Paced<Stream>,
) -> Result<(), ConversationError> {
    let pace = stream.pace();
    let lookup = |request: EvidenceRequest| async move {
        match request {
            EvidenceRequest::List => (EvidenceResponse::Listed(store.listed().await), None),
            EvidenceRequest::Get(peer) => match store.read(peer, group).await {
                Ok((transfer, piece)) => (EvidenceResponse::Found(transfer), Some(piece)),
                Err(error) => (EvidenceResponse::Refused(Refusal::unavailable(error)), None),
            },
        }
    };
    evidence::serve(stream, lookup, || pace.wait()).await
}

/// Why another backbone's evidence cannot be fetched.
#[derive(Debug, thiserror::Error)]
enum EvidenceFetchError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("not evidence: {0}")]
    Evidence(#[from] evidence::EvidenceError),
    #[error("evidence of another run, or another model or data")]
    OtherRun,
}

/// Polls `others`, the other backbones of the run, for evidence, which is recomputed here.
pub(in super::super) async fn poll_other_backbones(
    recomputing: Recomputing,
    access: Access,
    node: Node,
    others: Vec<PeerId>,
    shutdown: CancellationToken,
) {
    let mut ticks = tokio::time::interval(ASK_EVERY);
    let (mut seen, mut differing) = (VecDeque::new(), BTreeSet::new());
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        for &peer in &others {
            let asking = async {
                ask(&recomputing, &access, &node, peer, &mut seen).await?;
                compare_windows(&recomputing, &node, peer).await
            };
            match shutdown.run_until_cancelled(asking).await {
                Some(Ok(Some(shard))) if differing.insert(peer) => tracing::error!(
                    %peer,
                    shard,
                    "this aggregator has another shard of the stream under the same number: compare the files of the \
                     sources; where they are the same, one of the two began with weights that an operator had changed"
                ),
                Some(Ok(Some(_))) => {}
                Some(Ok(None)) => {
                    differing.remove(&peer);
                }
                // The aggregators reconnect a link that is down.
                Some(Err(error)) => tracing::debug!(%peer, %error, "no evidence from an aggregator"),
                None => return,
            }
        }
    }
}

async fn ask(
    recomputing: &Recomputing,
    access: &Access,
    node: &Node,
    peer: PeerId,
    seen: &mut VecDeque<Sha256Hash>,
) -> Result<(), EvidenceFetchError> {
    let mut stream = Paced::new(node.open(peer, PROTOCOL).await?, PACE);
    let pace = stream.pace();
    let run = &recomputing.description;
    let (n_values, n_samples) = (recomputing.n_parameters, run.scheme.contribution_samples_max());
    let bytes_max = run::MESSAGE_BYTES_MAX as u64
        + run.scheme.gradient_codec().encoding().encoded_len(n_values) as u64
        + run.scheme.state_codec().encoded_len(n_values) as u64
        + u64::from(n_samples)
        + commitment::list_bytes(n_samples, &run.data.manifest);
    let listed = evidence::list(&mut stream).await?;
    let is_new = |listed: &evidence::EvidenceEntry| {
        !access.gate.is_convicted(listed.peer) && !seen.contains(&listed.transfer.sha256)
    };
    let news: Vec<_> = listed.into_iter().filter(is_new).take(PIECES_PER_ASKING).collect();
    for listed in news {
        pace.wait();
        let bytes = evidence::fetch(&mut stream, listed, bytes_max).await?;
        // It is not fetched again, also if it is refused below.
        seen.push_back(listed.transfer.sha256);
        if seen.len() > SEEN_MAX {
            seen.pop_front();
        }
        let evidence = Box::new(Evidence::decode(&bytes)?);
        if !is_same(&evidence.header.run, run) || evidence.header.peer != listed.peer {
            return Err(EvidenceFetchError::OtherRun);
        }
        if recomputing.theirs.send(evidence).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// The first shard of a stream that another backbone has with other bytes.
async fn compare_windows(
    recomputing: &Recomputing,
    node: &Node,
    peer: PeerId,
) -> Result<Option<u32>, EvidenceFetchError> {
    let data = recomputing.description.data.manifest.stream;
    let Some((data, ours)) = data.zip(recomputing.shards.window()) else { return Ok(None) };
    let mut stream = Paced::new(node.open(peer, shard::PROTOCOL).await?, PACE);
    let theirs = shard::fetch_window(&mut stream, &data).await?;
    Ok(ours.first_difference(&theirs))
}

/// Whether two descriptions are of the same computation: backbones may differ in title, purpose and access.
fn is_same(theirs: &RunDescription, ours: &RunDescription) -> bool {
    let RunDescription { identity, access, .. } = ours.clone();
    let RunIdentity { title, purpose, .. } = identity;
    let identity = RunIdentity { title, purpose, ..theirs.identity.clone() };
    RunDescription { identity, access, ..theirs.clone() } == *ours
}
