//! Keeps a gate up to date: expired tokens every second, revocations every `access.poll_interval`. Revocations come
//! from the database where this backbone is the authority, and over the network otherwise.

use std::time::Duration;

use barnraise_protocol::access::{BackboneToContributor, ContributorToBackbone, REVOKED_MAX, RevokedToken};
use barnraise_relay::Node;
use libp2p::Multiaddr;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Access;
use super::conversation::{self, AskError};
use super::store::StoreError;

/// Interval at which the gate drops expired tokens.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the database deletes expired tokens.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

/// Runs until `shutdown`. An authority that does not answer is asked again; until it does, tokens that it
/// has signed stay valid here.
pub(crate) async fn keep_gate_current(
    access: Access,
    node: Node,
    poll_every: Duration,
    shutdown: CancellationToken,
) {
    let mut ticks = tokio::time::interval(EXPIRE_EVERY.min(poll_every));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut since = 0;
    let mut was_reached = true;
    let (mut poll_at, mut forget_at) = (Instant::now(), Instant::now());
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        access.gate.on_timeout();
        let now = Instant::now();
        if now >= forget_at
            && let Some(authority) = &access.authority
        {
            forget_at = now + FORGET_EVERY;
            if let Err(error) = authority.store().forget_expired(authority.now()).await {
                tracing::warn!(%error, "expired tokens could not be forgotten");
            }
        }
        if now < poll_at {
            continue;
        }
        poll_at = now + poll_every;
        let Some(polled) = shutdown.run_until_cancelled(poll(&access, &node, &mut since)).await else {
            break;
        };
        match polled {
            Ok(()) => was_reached = true,
            Err(error) => {
                // Once an outage, not with every poll.
                if std::mem::replace(&mut was_reached, false) {
                    tracing::warn!(reason = %error, "revocations are not known");
                }
            }
        }
    }
    if let Some(authority) = &access.authority {
        authority.store().close().await;
    }
}

/// Why the newest revocations are not known.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("{address} answered {got:?}")]
    Answer { address: Multiaddr, got: Box<BackboneToContributor> },
}

/// Fetches all revocations after `since`, applies them to the gate and advances `since`.
async fn poll(access: &Access, node: &Node, since: &mut u64) -> Result<(), PollError> {
    loop {
        let (tokens, next) = newly_revoked(access, node, *since).await?;
        access.gate.on_revoked(&tokens);
        if tokens.is_empty() || next <= *since {
            return Ok(());
        }
        *since = next;
    }
}

async fn newly_revoked(
    access: &Access,
    node: &Node,
    since: u64,
) -> Result<(Vec<RevokedToken>, u64), PollError> {
    if let Some(authority) = &access.authority {
        let store = authority.store();
        return Ok(store.revoked_since(since, REVOKED_MAX).await?);
    }
    let Some(address) = &access.remote_authority else { return Ok((Vec::new(), since)) };
    match conversation::ask(node, address, &ContributorToBackbone::Revoked { since }).await? {
        BackboneToContributor::Revoked { tokens, next } => Ok((tokens, next)),
        other => Err(PollError::Answer { address: address.clone(), got: Box::new(other) }),
    }
}
