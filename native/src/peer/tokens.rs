//! How a peer that serves others in a run that is not open keeps its gate: they show it their tokens, and a backbone says which were
//! revoked.

use std::time::Duration;

use barnraise_protocol::access::{
    self, AccessError, AccessRefusal, BackboneToContributor, ContributorToBackbone, MESSAGE_BYTES_MAX,
    PublicKey,
};
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::run::RunDescription;
use barnraise_relay::{Node, Paced};
use barnraise_swarm::access::Policy;
use libp2p::{PeerId, Stream};

use crate::host::access::Gate;
use crate::host::clock::system_clock;
use crate::net::violations;

/// Clock tolerance of signed requests, which such a gate never receives.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(30);

/// Why revocations are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum RevocationError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("revocations were asked for, the backbone answered something else")]
    Unexpected,
}

/// The gate of a peer with this key, to others in the run.
pub(super) fn gate_of(run: &RunDescription, key: PublicKey) -> Gate {
    let authority = access::Authority { key: run.access.authority, run_id: run.identity.run_id.clone() };
    let policy = Policy { mode: run.access.mode, authority, clock_tolerance: CLOCK_TOLERANCE };
    Gate::new(policy, key, system_clock())
}

/// Holds the `access` conversation: a peer that shows a token of the run's authority is let in at the gate, if there is one yet.
///
/// # Errors
/// The stream failed, or what came is none of this conversation.
pub(super) async fn take_tokens(
    gate: impl Fn() -> Option<Gate>,
    (node, peer): (&Node, PeerId),
    stream: &mut Paced<Stream>,
) -> Result<(), FrameError> {
    let pace = stream.pace();
    loop {
        pace.wait();
        let question = match framing::read(stream, MESSAGE_BYTES_MAX).await {
            Err(FrameError::Closed) => return Ok(()),
            question => question?,
        };
        let answer = match (question, gate()) {
            (ContributorToBackbone::Present(token), Some(gate)) => gate.present(peer, &token),
            _ => Err(AccessRefusal::Unavailable {
                reason: "this peer takes tokens of its run, and grants none".into(),
            }),
        };
        if let Err(refusal) = &answer
            && let Some(violation) = violations::of_access(refusal)
        {
            tracing::debug!(%peer, %refusal, "a token gives no access");
            node.report(peer, violation);
        }
        let answer = answer.map_or_else(BackboneToContributor::Refused, BackboneToContributor::Admitted);
        pace.answer();
        framing::write(stream, &answer, MESSAGE_BYTES_MAX).await?;
    }
}

/// Asks a backbone for the revocations after `since`, and ends the access that they take back.
///
/// # Errors
/// It does not say. Until it does, tokens are valid until they expire.
pub(super) async fn learn_revoked(
    gate: &Gate,
    mut stream: Stream,
    since: &mut u64,
) -> Result<(), RevocationError> {
    loop {
        let question = ContributorToBackbone::Revoked { since: *since };
        match access::ask(&mut stream, &question).await? {
            BackboneToContributor::Revoked { tokens, next } => {
                gate.on_revoked(&tokens);
                if tokens.is_empty() || next <= *since {
                    return Ok(());
                }
                *since = next;
            }
            _ => return Err(RevocationError::Unexpected),
        }
    }
}
