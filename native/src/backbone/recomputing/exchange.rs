//! Evidence, given to whoever asks and looked for at the other backbones of the run.
//!
//! A piece is as large as a model. It is read from the disk as it goes, for few at a time; and of others' pieces few are
//! fetched each time that they are asked.

use std::collections::VecDeque;
use std::time::Duration;

use barnraise_protocol::account;
use barnraise_protocol::evidence::{self, Answer, Evidence, PROTOCOL, Request};
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::{ConversationError, Sha256Hash};
use barnraise_relay::{Node, NodeError, Paced};
use barnraise_swarm::guard::PaceLimits;
use barnraise_swarm::round::AddressGroup;
use libp2p::{PeerId, Stream};
use tokio_util::sync::CancellationToken;

use super::Recomputing;
use crate::access::Access;
use crate::recomputation::EvidenceStore;

/// Pieces of others' evidence that are remembered to have been looked at.
const SEEN_MAX: usize = 1024;
/// How often the others are asked for evidence, and how many pieces each may have fetched and recomputed here by that.
const ASK_EVERY: Duration = Duration::from_secs(10);
const PIECES_PER_ASKING: usize = 2;
/// How slowly it may come.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    bytes_per_second_min: 1024,
};

/// Gives evidence to whoever asks.
pub(in super::super) async fn give(
    store: &EvidenceStore,
    group: AddressGroup,
    stream: &mut Paced<Stream>,
) -> Result<(), ConversationError> {
    let pace = stream.pace();
    let lookup = |request: Request| async move {
        match request {
            Request::List => (Answer::Listed(store.listed().await), None),
            Request::Get(peer) => match store.read(peer, group).await {
                Ok((transfer, piece)) => (Answer::Found(transfer), Some(piece)),
                Err(error) => (Answer::Refused(error.to_string()), None),
            },
        }
    };
    evidence::serve(stream, lookup, || pace.wait()).await
}

/// Why another backbone's evidence cannot be had.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("not evidence: {0}")]
    Evidence(#[from] evidence::EvidenceError),
    #[error("evidence of another run, or another model or data")]
    OtherRun,
}

/// Asks `others`, who back the same run, for evidence, time and again; it is computed once more here.
pub(in super::super) async fn ask_others(
    recomputing: Recomputing,
    access: Access,
    node: Node,
    others: Vec<PeerId>,
    shutdown: CancellationToken,
) {
    let mut ticks = tokio::time::interval(ASK_EVERY);
    let mut seen = VecDeque::new();
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        for &peer in &others {
            let asking = ask(&recomputing, &access, &node, peer, &mut seen);
            match shutdown.run_until_cancelled(asking).await {
                Some(Ok(())) => {}
                // A link that is down is the aggregators' to mend.
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
) -> Result<(), AskError> {
    let mut stream = Paced::duplex(node.open(peer, PROTOCOL).await?, PACE);
    let run = &recomputing.description;
    let n_values = run.n_parameters as usize;
    let bytes_max = run::MESSAGE_BYTES_MAX as u64
        + run.gradient_codec.encoded_len(n_values) as u64
        + run.state_codec.encoded_len(n_values) as u64
        + u64::from(run.contribution_samples_max)
        + account::list_bytes(run.contribution_samples_max, &run.manifest);
    let listed = evidence::list(&mut stream).await?;
    let is_new = |listed: &evidence::Listed| {
        !access.gate.is_convicted(listed.peer) && !seen.contains(&listed.transfer.sha256)
    };
    let news: Vec<_> = listed.into_iter().filter(is_new).take(PIECES_PER_ASKING).collect();
    for listed in news {
        let bytes = evidence::fetch(&mut stream, listed, bytes_max).await?;
        // Whatever comes of it, it is not fetched again.
        seen.push_back(listed.transfer.sha256);
        if seen.len() > SEEN_MAX {
            seen.pop_front();
        }
        let evidence = Box::new(Evidence::decode(&bytes)?);
        if !is_same(&evidence.header.run, run) || evidence.header.peer != listed.peer {
            return Err(AskError::OtherRun);
        }
        if recomputing.theirs.send(evidence).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether a gradient for the one is a gradient for the other: backbones may differ in what they call it, and in who
/// lets others in.
fn is_same(theirs: &RunDescription, ours: &RunDescription) -> bool {
    let RunDescription { title, purpose, access, .. } = ours.clone();
    RunDescription { title, purpose, access, ..theirs.clone() } == *ours
}
