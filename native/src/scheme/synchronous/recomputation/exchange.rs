//! Exchange of evidence: served to every peer that asks, and fetched from the other backbones of the run.
//!
//! A piece is as large as a model. It is read from the disk in chunks, for few readers at a time; and few pieces are
//! fetched from each backbone at a time.
//!
//! Of a stream each backbone reads the sources itself. What another one proves can be recomputed here as long as both have the
//! same shards, so their windows are compared.

use std::collections::BTreeSet;
use std::time::Duration;

use barnraise_protocol::commitment;
use barnraise_protocol::evidence::{self, Evidence, EvidenceRequest, EvidenceResponse};
use barnraise_protocol::run;
use barnraise_protocol::{ConversationError, Refusal, shard};
use barnraise_relay::{Node, Paced};
use barnraise_swarm::AddressGroup;
use libp2p::{PeerId, Stream};
use tokio_util::sync::CancellationToken;

use super::queue::Recomputing;
use crate::host::access::Access;
use crate::host::evidence::{EvidenceFetchError, EvidenceStore, PACE, SeenEvidence, fetch_next, is_same};

/// Interval at which the other backbones are polled, and most pieces that are fetched from each per poll.
const ASK_EVERY: Duration = Duration::from_secs(10);
const PIECES_PER_ASKING: usize = 2;
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

/// Polls `others`, the other backbones of the run, for evidence, which is recomputed here.
pub(in super::super) async fn poll_other_backbones(
    recomputing: Recomputing,
    access: Access,
    node: Node,
    others: Vec<PeerId>,
    shutdown: CancellationToken,
) {
    let mut ticks = tokio::time::interval(ASK_EVERY);
    let (mut seen, mut differing) = (SeenEvidence::default(), BTreeSet::new());
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
    seen: &mut SeenEvidence,
) -> Result<(), EvidenceFetchError> {
    let run = &recomputing.description;
    let (n_values, n_samples) = (recomputing.n_parameters, run.scheme.contribution_samples_max());
    let bytes_max = run::MESSAGE_BYTES_MAX as u64
        + run.scheme.gradient_codec().encoding().encoded_len(n_values) as u64
        + run.scheme.state_codec().encoded_len(n_values) as u64
        + u64::from(n_samples)
        + commitment::list_bytes(n_samples, &run.data.manifest);
    for _ in 0..PIECES_PER_ASKING {
        match fetch_next((node, &access.gate), peer, bytes_max, seen).await? {
            Some(Evidence::Contribution(evidence)) if is_same(&evidence.header.run, run) => {
                if recomputing.theirs.send(evidence).await.is_err() {
                    return Ok(());
                }
            }
            Some(Evidence::Contribution(_)) => return Err(EvidenceFetchError::OtherRun),
            Some(Evidence::Answer(_)) => {}
            None => return Ok(()),
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
