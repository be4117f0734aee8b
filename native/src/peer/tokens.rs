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
/// Interval of looks at a gate.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A backbone is asked for revocations at the first look and after so many others.
const REVOKED_EVERY: u32 = 10;
/// Timeout of that question.
const REVOKED_TIMEOUT: Duration = Duration::from_secs(10);

/// Why revocations are not known.
#[derive(Debug, thiserror::Error)]
enum RevocationError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("revocations were asked for, the backbone answered something else")]
    Unexpected,
}

/// The gate of a peer with this key, to others in the run.
pub(super) fn gate_of(run: &RunDescription, key: PublicKey) -> Gate {
    let policy =
        Policy { mode: run.access.mode, authority: run.authority(), clock_tolerance: CLOCK_TOLERANCE };
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

/// Keeps a gate up to date.
#[derive(Default)]
pub(super) struct GateKeeper {
    n_looks: u32,
    since: u64,
}

impl GateKeeper {
    /// Drops expired tokens, and now and then those that a backbone says were revoked. To be called once each [`LOOK_EVERY`].
    ///
    /// - `opening`: opens a stream of `access` to the backbone
    pub(super) async fn look<E>(&mut self, gate: &Gate, opening: impl Future<Output = Result<Stream, E>>)
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        gate.on_timeout();
        let is_due = self.n_looks.is_multiple_of(REVOKED_EVERY);
        self.n_looks = self.n_looks.wrapping_add(1);
        if !is_due {
            return;
        }
        let learning = async { anyhow::Ok(learn_revoked(gate, opening.await?, &mut self.since).await?) };
        match tokio::time::timeout(REVOKED_TIMEOUT, learning).await {
            Ok(Ok(())) => {}
            // Until it answers, tokens are valid until they expire.
            Ok(Err(error)) => tracing::debug!(%error, "revocations are not known"),
            Err(_) => tracing::debug!("revocations are not known: the backbone does not answer"),
        }
    }
}

/// Asks a backbone for the revocations after `since`, and ends the access that they take back.
///
/// # Errors
/// It does not say. Until it does, tokens are valid until they expire.
async fn learn_revoked(gate: &Gate, mut stream: Stream, since: &mut u64) -> Result<(), RevocationError> {
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
