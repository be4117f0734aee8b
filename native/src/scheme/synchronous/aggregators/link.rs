//! One link in each direction with each of the other aggregators, for standings and proposals.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use barnraise_protocol::contribute::ADDRESS_BYTES_MAX;
use barnraise_protocol::dht::Freshness;
use barnraise_protocol::dht::backbone::{self, BackboneAnnouncement};
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::matchmaking::{
    self, ADDRESSES_MAX, AggregatorStatus, HelloRefusal, MESSAGE_BYTES_MAX, MatchmakingMessage, PROTOCOL,
    Proposal,
};
use barnraise_protocol::{ConversationError, RefusalReason};
use barnraise_relay::tasks::TaskSet;
use barnraise_relay::{NodeError, OpenError};
use barnraise_swarm::Moment;
use barnraise_swarm::rhythm::{OWN_STALL_MIN, Rhythm};
use futures::StreamExt;
use futures::future::Abortable;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::{mpsc, watch};

use super::{AggregationContext, AggregatorEvent, key};
use crate::net::transfer_slots::TransferSlots;

/// Interval at which an unchanged standing is repeated.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval between two standings.
const PAUSE: Duration = Duration::from_millis(20);
/// Delay before a link is tried again: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// Consecutive attempts without the protocol before an aggregator is reported to have another version.
const UNSPOKEN_MAX: u32 = 3;
/// Bytes of averagings that may be in flight before a message.
const IN_FLIGHT_BYTES: u64 = 2 * 1024 * 1024;
/// Timeout of a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// The aggregators that a link is up to. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Links(Arc<Mutex<BTreeSet<PeerId>>>);

impl Links {
    /// Whether a link to a peer is up.
    pub fn has(&self, peer: &PeerId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(peer)
    }

    fn set(&self, peer: PeerId, is_up: bool) {
        let mut up = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = if is_up { up.insert(peer) } else { up.remove(&peer) };
    }
}

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("its address is unknown")]
    Unknown,
    #[error(
        "it does not speak {PROTOCOL}, so it is of another version: upgrade the older one. Until then each trains \
         without the other, and what was accepted stays"
    )]
    OtherVersion,
    #[error("it does not read its messages")]
    Stalled,
    #[error("it has gone silent")]
    Silent,
    #[error("this peer shuts down")]
    ShuttingDown,
}

/// Keeps a link to one of the other aggregators until the core has ended.
pub(super) async fn keep(
    shared: AggregationContext,
    peer: PeerId,
    address: Option<Multiaddr>,
    mut told: watch::Receiver<Option<AggregatorStatus>>,
    mut proposals: mpsc::Receiver<Proposal>,
) {
    let mut wait = RETRY.0;
    let (mut is_first, mut n_unspoken) = (true, 0);
    loop {
        let mut was_up = false;
        let ended = talk(&shared, peer, address.as_ref(), &mut told, &mut proposals, &mut was_up).await;
        shared.links.set(peer, false);
        match ended {
            Err(LinkError::ShuttingDown) => return,
            // One that has just started does not support the protocol yet.
            Err(error @ LinkError::OtherVersion) => {
                n_unspoken += 1;
                if n_unspoken == UNSPOKEN_MAX {
                    tracing::warn!(%peer, %error, "no link to this aggregator");
                }
            }
            Err(error) if was_up || is_first => tracing::warn!(%peer, %error, "no link to this aggregator"),
            Err(error) => tracing::debug!(%peer, %error, "no link to this aggregator"),
            Ok(()) => {}
        }
        is_first = false;
        n_unspoken = if was_up { 0 } else { n_unspoken };
        wait = if was_up { RETRY.0 } else { (wait * 2).min(RETRY.1) };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shared.core.closed() => return,
        }
    }
}

async fn talk(
    shared: &AggregationContext,
    peer: PeerId,
    address: Option<&Multiaddr>,
    told: &mut watch::Receiver<Option<AggregatorStatus>>,
    proposals: &mut mpsc::Receiver<Proposal>,
    was_up: &mut bool,
) -> Result<(), LinkError> {
    let mut stream = open(shared, peer, address).await?;
    within(matchmaking::introduce(&mut stream, &shared.hello)).await??;
    *was_up = true;
    shared.links.set(peer, true);
    tracing::info!(%peer, "averages with this aggregator");
    // Proposals from before the link are outdated.
    while proposals.try_recv().is_ok() {}
    told.mark_changed();
    let (mut addresses, mut reducers) = (Vec::new(), Vec::new());
    loop {
        let helpers = shared.reducers.here();
        if helpers != reducers {
            reducers.clone_from(&helpers);
            let message = MatchmakingMessage::Reducers(helpers);
            within(framing::write(&mut stream, &message, MESSAGE_BYTES_MAX)).await??;
        }
        let newest = listed(&shared.node.addresses());
        if newest != addresses {
            addresses.clone_from(&newest);
            let message = MatchmakingMessage::Addresses(newest);
            within(framing::write(&mut stream, &message, MESSAGE_BYTES_MAX)).await??;
        }
        let message = tokio::select! {
            changed = told.changed() => {
                changed.map_err(|_| LinkError::ShuttingDown)?;
                told.borrow_and_update().map(MatchmakingMessage::Status)
            }
            proposal = proposals.recv() => Some(MatchmakingMessage::Proposal(proposal.ok_or(LinkError::ShuttingDown)?)),
            () = tokio::time::sleep(HEARTBEAT_INTERVAL) => told.borrow().map(MatchmakingMessage::Status),
        };
        let Some(message) = message else { continue };
        let is_standing = matches!(message, MatchmakingMessage::Status(_));
        within(framing::write(&mut stream, &message, MESSAGE_BYTES_MAX)).await??;
        if is_standing {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Addresses for the contributors of other aggregators, in the order in which this peer listens.
fn listed(addresses: &[Multiaddr]) -> Vec<String> {
    let mut listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    listed.retain(|address| address.len() <= ADDRESS_BYTES_MAX);
    listed.truncate(ADDRESSES_MAX);
    listed
}

/// The addresses that `peer` sent, without those that are not its own.
fn addresses_of(peer: PeerId, told: Vec<String>) -> Vec<String> {
    let is_of_peer = |text: &String| {
        let address = text.parse::<Multiaddr>();
        let last =
            address.ok().and_then(|address| address.iter().last().map(|last| last == Protocol::P2p(peer)));
        text.len() <= ADDRESS_BYTES_MAX && last == Some(true)
    };
    told.into_iter().take(ADDRESSES_MAX).filter(is_of_peer).collect()
}

/// A stream to a peer that may not be connected yet.
async fn open(
    shared: &AggregationContext,
    peer: PeerId,
    address: Option<&Multiaddr>,
) -> Result<Stream, LinkError> {
    if let Ok(stream) = shared.node.open(peer, PROTOCOL).await {
        return Ok(stream);
    }
    let failed = match address {
        Some(address) => shared.node.dial(address.clone()).await.err(),
        None => None,
    };
    // Its address may have changed since it was configured.
    if (address.is_none() || failed.is_some())
        && let Err(unknown) = look_up(shared, peer).await
    {
        return Err(failed.map_or(unknown, LinkError::from));
    }
    match shared.node.open(peer, PROTOCOL).await {
        Err(NodeError::Open { source: OpenError::Unsupported, .. }) => Err(LinkError::OtherVersion),
        opened => Ok(opened?),
    }
}

async fn look_up(shared: &AggregationContext, peer: PeerId) -> Result<(), LinkError> {
    let records = shared.dht.get_one(backbone::key(&shared.run_id), Freshness::Newest).await;
    let announcements = records.iter().filter_map(BackboneAnnouncement::read);
    let announced =
        announcements.into_iter().find(|announced| announced.peer.to_peer_id() == peer.to_bytes());
    let mut failed = LinkError::Unknown;
    for address in announced.map(|announced| announced.addresses).unwrap_or_default() {
        let address = Multiaddr::try_from(address).ok().and_then(|address| address.with_p2p(peer).ok());
        let Some(address) = address else { continue };
        match shared.node.dial(address).await {
            Ok(_) => return Ok(()),
            Err(error) => failed = error.into(),
        }
    }
    Err(failed)
}

async fn within<T>(future: impl Future<Output = T>) -> Result<T, LinkError> {
    tokio::time::timeout(PATIENCE, future).await.map_err(|_| LinkError::Stalled)
}

/// The result of `reading`; `None` where the peer is silent for too long. A live peer sends a message every second, which
/// may wait behind the bytes of averagings in flight.
async fn while_heard<T>(
    shared: &AggregationContext,
    origin: Instant,
    rhythm: &mut Rhythm,
    reading: impl Future<Output = T>,
) -> Option<T> {
    let mut reading = pin!(reading);
    loop {
        let silence = shared.config.silence();
        let behind = IN_FLIGHT_BYTES as f64 / shared.speed.speeds().download.max(1) as f64;
        let behind = Duration::from_secs_f64(behind.min(silence.as_secs_f64()));
        let silent_at = origin + rhythm.silent_at(silence) + behind;
        if let Ok(read) = tokio::time::timeout_at(silent_at.into(), &mut reading).await {
            rhythm.on_message(origin.elapsed());
            return Some(read);
        }
        let late = silent_at.elapsed();
        if late < OWN_STALL_MIN {
            return None;
        }
        // This machine was suspended, not the other one.
        rhythm.on_own_stall(origin.elapsed(), late);
    }
}

/// The number of each peer's newest stream.
type Newest = Arc<Mutex<HashMap<PeerId, u64>>>;

/// Accepts links of the other aggregators.
pub(super) fn accept(
    shared: &AggregationContext,
    slots: &Arc<TransferSlots>,
    strangers: &Arc<TransferSlots>,
) -> Result<impl Future<Output = ()> + Send + use<>, NodeError> {
    let mut incoming = shared.node.accept(PROTOCOL)?;
    let (shared, slots, strangers) = (shared.clone(), slots.clone(), strangers.clone());
    Ok(async move {
        let conversations = TaskSet::default();
        let newest = Newest::default();
        let mut number = 0;
        while let Some((peer, stream)) = incoming.next().await {
            let is_known = shared.peers.contains(&peer);
            let slots = if is_known { &slots } else { &strangers };
            let Some((slot, registration)) = TransferSlots::take(slots, peer) else { continue };
            number += 1;
            let hearing = receive(shared.clone(), peer, stream, is_known, newest.clone(), number);
            conversations.spawn("link of an aggregator", async move {
                if let Ok(Err(error)) = Abortable::new(hearing, registration).await {
                    tracing::debug!(%peer, %error, "link from an aggregator ended");
                }
                drop(slot);
            });
        }
    })
}

async fn receive(
    shared: AggregationContext,
    peer: PeerId,
    mut stream: Stream,
    is_known: bool,
    newest: Newest,
    number: u64,
) -> Result<(), LinkError> {
    let check = |hello: &matchmaking::Hello| {
        let here = &shared.hello;
        if !is_known {
            return Err(HelloRefusal::NotNamed);
        }
        if hello.run_id != here.run_id {
            let (here, asked) = (RefusalReason::of(&here.run_id), RefusalReason::of(&hello.run_id));
            return Err(HelloRefusal::OtherRun { here, asked });
        }
        if hello.recipe != here.recipe {
            return Err(HelloRefusal::OtherRecipe);
        }
        Ok(())
    };
    within(matchmaking::accept(&mut stream, check)).await??;
    lock(&newest).insert(peer, number);
    let ended = listen(&shared, peer, &mut stream).await;
    let is_newest = lock(&newest).get(&peer) == Some(&number);
    if is_newest {
        shared.reducers.on_gone(&peer);
        shared.tell_core(key(peer), AggregatorEvent::Gone).await;
    }
    ended
}

async fn listen(shared: &AggregationContext, peer: PeerId, stream: &mut Stream) -> Result<(), LinkError> {
    let origin = Instant::now();
    let mut rhythm = Rhythm::new(Moment::ZERO);
    loop {
        let reading = framing::read(stream, MESSAGE_BYTES_MAX);
        let Some(message) = while_heard(shared, origin, &mut rhythm, reading).await else {
            // Averagings and transfers with it would otherwise wait until they time out.
            tracing::warn!(%peer, "this aggregator has gone silent: its connections are cut");
            shared.node.disconnect(peer).await;
            return Err(LinkError::Silent);
        };
        let heard = match message? {
            MatchmakingMessage::Status(standing) => AggregatorEvent::Standing(standing),
            MatchmakingMessage::Proposal(proposal) => AggregatorEvent::Proposal(proposal),
            MatchmakingMessage::Addresses(told) => AggregatorEvent::Addresses(addresses_of(peer, told)),
            MatchmakingMessage::Reducers(told) => {
                shared.reducers.on_elsewhere(peer, told);
                continue;
            }
        };
        if !shared.tell_core(key(peer), heard).await {
            return Err(LinkError::ShuttingDown);
        }
    }
}

fn lock(newest: &Newest) -> std::sync::MutexGuard<'_, HashMap<PeerId, u64>> {
    newest.lock().unwrap_or_else(PoisonError::into_inner)
}
