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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use barnraise_protocol::access::{self, AccessMode, Authority, MESSAGE_BYTES_MAX, TokenId, UnixTime};
    use barnraise_protocol::framing;
    use barnraise_relay::NodeConfig;
    use barnraise_swarm::access::Policy;
    use libp2p::identity::Keypair;
    use tokio::task::JoinHandle;

    use super::super::store::{RevocationTarget, Store};
    use super::super::tests::{pair, terms, world};
    use super::super::{AccessAuthority, Gate};
    use super::*;
    use crate::config::AccessSection;
    use crate::host::clock::WallClock;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    /// A clock that stands still, and how often it was read.
    fn clock() -> (WallClock, Arc<AtomicUsize>) {
        let n_read = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&n_read);
        let clock: WallClock = Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            NOW
        });
        (clock, n_read)
    }

    #[tokio::test(start_paused = true)]
    async fn revocations_are_looked_for_at_their_interval_and_expired_tokens_are_forgotten_every_hour() {
        // While this waits, time goes on only as the test says, also when all others wait for the database.
        let (_goes_on, waits) = std::sync::mpsc::sync_channel::<()>(1);
        tokio::task::spawn_blocking(move || waits.recv());
        let folder = tempfile::tempdir().unwrap();
        let here = pair(1).public();
        let authority = Authority { key: here, run_id: "barn".into() };
        let policy =
            Policy { mode: AccessMode::Invitation, authority, clock_tolerance: Duration::from_secs(30) };
        let (of_gate, n_ticks) = clock();
        let (of_authority, n_forgotten) = clock();
        let gate = Gate::new(policy.clone(), here, of_gate);
        let store = Store::open(folder.path()).await.unwrap();
        let section = AccessSection { mode: AccessMode::Invitation, ..AccessSection::default() };
        let authority = AccessAuthority::new(pair(1), policy, &section, store.clone(), of_authority);
        store.invite("code", terms(2, NOW.after(60)), NOW).await.unwrap();
        let first = authority.redeem(pair(2).public(), "code").await.unwrap();
        let second = authority.redeem(pair(3).public(), "code").await.unwrap();
        let whose = RevocationTarget::Peer(pair(2).public());
        assert_eq!(store.revoke(&whose, false, NOW).await.unwrap(), 1);

        for n_read in [&n_ticks, &n_forgotten] {
            n_read.store(0, Ordering::Relaxed);
        }
        let access = Access { gate: gate.clone(), authority: Some(authority), remote_authority: None, here };
        let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
        let shutdown = CancellationToken::new();
        let keeping = keep_gate_current(access, node, 10 * EXPIRE_EVERY, shutdown.clone());
        let keeping = tokio::spawn(keeping);
        let begins = async |tick: usize| {
            while n_ticks.load(Ordering::Relaxed) < tick {
                tokio::task::yield_now().await;
            }
        };
        begins(1).await;
        assert_eq!(n_forgotten.load(Ordering::Relaxed), 1);
        // Once a tick has begun, the one before it has ended. Revocations are looked for in the first and the eleventh.
        for tick in 2..=12 {
            tokio::time::advance(EXPIRE_EVERY).await;
            begins(tick).await;
            match tick {
                2 => {
                    assert!(gate.has_revoked(&first));
                    let whose = RevocationTarget::Peer(pair(3).public());
                    assert_eq!(store.revoke(&whose, false, NOW).await.unwrap(), 1);
                }
                3..=10 => assert!(!gate.has_revoked(&second), "{tick}"),
                11 => {}
                _ => assert!(gate.has_revoked(&second), "{tick}"),
            }
            assert_eq!(n_forgotten.load(Ordering::Relaxed), 1, "{tick}");
        }
        tokio::time::advance(FORGET_EVERY).await;
        begins(13).await;
        assert_eq!(n_forgotten.load(Ordering::Relaxed), 2);
        shutdown.cancel();
        keeping.await.unwrap();
    }

    /// An authority that gives these answers in turn, and what it was asked.
    async fn answering(
        answers: Vec<BackboneToContributor>,
    ) -> (Node, Multiaddr, JoinHandle<Vec<ContributorToBackbone>>) {
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let config = NodeConfig { listen, ..NodeConfig::default() };
        let node = Node::start(Keypair::generate_ed25519(), config).await.unwrap();
        let address = node.addresses().into_iter().next().unwrap();
        let mut incoming = node.accept(access::PROTOCOL).unwrap();
        let asked = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (_, mut stream) = incoming.recv().await.unwrap();
                let question =
                    framing::read::<ContributorToBackbone, _>(&mut stream, MESSAGE_BYTES_MAX).await;
                asked.push(question.unwrap());
                framing::write(&mut stream, &answer, MESSAGE_BYTES_MAX).await.unwrap();
                // Until the other side has read it.
                let _ = framing::read::<ContributorToBackbone, _>(&mut stream, MESSAGE_BYTES_MAX).await;
            }
            asked
        });
        (node, address, asked)
    }

    #[tokio::test]
    async fn another_backbone_is_asked_until_it_knows_no_more_or_says_nothing_new() {
        let token = |seed: u8| RevokedToken { token_id: TokenId([seed; 16]), expires_at: NOW };
        let says = |seeds: &[u8], next: u64| {
            let tokens = seeds.iter().map(|&seed| token(seed)).collect();
            BackboneToContributor::Revoked { tokens, next }
        };
        for (begun, answers, ended, n_revoked) in [
            (0, vec![says(&[1, 2], 7), says(&[], 7)], 7, 2),
            (3, vec![says(&[1], 4), says(&[2], 9), says(&[], 9)], 9, 2),
            // It would be asked for ever.
            (7, vec![says(&[1], 7)], 7, 1),
            (7, vec![says(&[1], 3)], 7, 1),
            (7, vec![says(&[], 9)], 7, 0),
        ] {
            let what = format!("{answers:?}");
            let n_answers = answers.len();
            let (_authority, address, asked) = answering(answers).await;
            let gate = world(AccessMode::Invitation).await.gate;
            let here = pair(8).public();
            let access =
                Access { gate: gate.clone(), authority: None, remote_authority: Some(address), here };
            let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await.unwrap();
            let mut since = begun;
            poll(&access, &node, &mut since).await.unwrap();
            assert_eq!((since, gate.revoked().len()), (ended, n_revoked), "{what}");
            let asked = asked.await.unwrap();
            assert_eq!(asked.len(), n_answers, "{what}");
            assert_eq!(asked[0], ContributorToBackbone::Revoked { since: begun });
        }
    }
}
