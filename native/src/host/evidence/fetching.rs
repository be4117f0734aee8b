//! Evidence that another backbone has, fetched piece by piece.

use std::collections::VecDeque;
use std::time::Duration;

use barnraise_protocol::evidence::{self, Evidence, EvidenceEntry, EvidenceError, PROTOCOL};
use barnraise_protocol::run::{RunDescription, RunIdentity};
use barnraise_protocol::{ConversationError, Sha256Hash};
use barnraise_relay::{Node, NodeError, Paced};
use barnraise_swarm::guard::PaceLimits;
use libp2p::PeerId;

use crate::host::access::Gate;

/// Fetched pieces of evidence that are remembered, so that they are not fetched again.
const SEEN_MAX: usize = 1024;
/// Slowest pace of a transfer of evidence.
pub(crate) const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    bytes_per_second_min: 1024,
};

/// Pieces that were fetched before.
#[derive(Debug, Default)]
pub(crate) struct SeenEvidence(VecDeque<Sha256Hash>);

/// Why another backbone's evidence cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvidenceFetchError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("not evidence: {0}")]
    Evidence(#[from] EvidenceError),
    #[error("evidence against another peer than was listed")]
    OtherPeer,
    #[error("evidence of another run, or another model or data")]
    OtherRun,
}

/// The newest piece of another backbone against a peer that is not convicted here, of at most `bytes_max` bytes; each once.
pub(crate) async fn fetch_next(
    (node, gate): (&Node, &Gate),
    peer: PeerId,
    bytes_max: u64,
    SeenEvidence(seen): &mut SeenEvidence,
) -> Result<Option<Evidence>, EvidenceFetchError> {
    let mut stream = Paced::new(node.open(peer, PROTOCOL).await?, PACE);
    let pace = stream.pace();
    let listed = evidence::list(&mut stream).await?;
    let is_new =
        |listed: &EvidenceEntry| !gate.is_convicted(listed.peer) && !seen.contains(&listed.transfer.sha256);
    let Some(listed) = listed.into_iter().find(is_new) else { return Ok(None) };
    pace.wait();
    let bytes = evidence::fetch(&mut stream, listed, bytes_max).await?;
    // It is not fetched again, also if it is refused below.
    seen.push_back(listed.transfer.sha256);
    if seen.len() > SEEN_MAX {
        seen.pop_front();
    }
    let evidence = Evidence::decode(&bytes)?;
    match evidence.peer() == listed.peer {
        true => Ok(Some(evidence)),
        false => Err(EvidenceFetchError::OtherPeer),
    }
}

/// Whether two descriptions are of the same computation: backbones may differ in title, purpose and access.
pub(crate) fn is_same(theirs: &RunDescription, ours: &RunDescription) -> bool {
    let RunDescription { identity, access, .. } = ours.clone();
    let RunIdentity { title, purpose, .. } = identity;
    let identity = RunIdentity { title, purpose, ..theirs.identity.clone() };
    RunDescription { identity, access, ..theirs.clone() } == *ours
}
