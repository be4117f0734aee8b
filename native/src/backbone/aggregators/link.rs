//! One link in each direction with each of the others: how both stand, and proposals.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use barnraise_protocol::ConversationError;
use barnraise_protocol::contribute::ADDRESS_BYTES_MAX;
use barnraise_protocol::dht::Freshness;
use barnraise_protocol::dht::backbone::{self, Backbone};
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::matchmaking::{
    self, ADDRESSES_MAX, MESSAGE_BYTES_MAX, Message, PROTOCOL, Proposal, Standing,
};
use barnraise_relay::{NodeError, OpenError};
use barnraise_swarm::Moment;
use barnraise_swarm::rhythm::{DEAF_MIN, Rhythm};
use futures::StreamExt;
use futures::future::Abortable;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::sync::{mpsc, watch};

use super::super::places::Places;
use super::{Heard, Shared, key};

/// How often whoever has no news says so.
const REPEAT: Duration = Duration::from_secs(1);
/// News are told no more often.
const PAUSE: Duration = Duration::from_millis(20);
/// Until a link is tried again, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// In succession, until one that does not speak as this one does is said to be of another version.
const UNSPOKEN_MAX: u32 = 3;
/// Bytes of averages that may be before a message.
const IN_FLIGHT_BYTES: u64 = 2 * 1024 * 1024;
/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which of the others are told how this peer stands. Cheap to clone.
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
    #[error("nobody knows where it is")]
    Unknown,
    #[error(
        "it does not speak {PROTOCOL}, so it is of another version: upgrade the older one. Until then each trains \
         without the other, and what was accepted stays"
    )]
    OtherVersion,
    #[error("it does not take what it is told")]
    Stalled,
    #[error("it has gone silent")]
    Silent,
    #[error("this peer shuts down")]
    ShuttingDown,
}

/// Keeps telling one of the others how this peer stands, for as long as the core lives.
pub(super) async fn keep(
    shared: Shared,
    peer: PeerId,
    address: Option<Multiaddr>,
    mut told: watch::Receiver<Option<Standing>>,
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
            // One that has just begun speaks nothing yet.
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
    shared: &Shared,
    peer: PeerId,
    address: Option<&Multiaddr>,
    told: &mut watch::Receiver<Option<Standing>>,
    proposals: &mut mpsc::Receiver<Proposal>,
    was_up: &mut bool,
) -> Result<(), LinkError> {
    let mut stream = open(shared, peer, address).await?;
    within(matchmaking::introduce(&mut stream, &shared.hello)).await??;
    *was_up = true;
    shared.links.set(peer, true);
    tracing::info!(%peer, "averages with this aggregator");
    // What was proposed while there was no link is over.
    while proposals.try_recv().is_ok() {}
    told.mark_changed();
    let (mut addresses, mut reducers) = (Vec::new(), Vec::new());
    loop {
        let helpers = shared.reducers.here();
        if helpers != reducers {
            reducers.clone_from(&helpers);
            let message = Message::Reducers(helpers);
            within(framing::write(&mut stream, &message, MESSAGE_BYTES_MAX)).await??;
        }
        let newest = listed(&shared.node.addresses());
        if newest != addresses {
            addresses.clone_from(&newest);
            let message = Message::Addresses(newest);
            within(framing::write(&mut stream, &message, MESSAGE_BYTES_MAX)).await??;
        }
        let message = tokio::select! {
            changed = told.changed() => {
                changed.map_err(|_| LinkError::ShuttingDown)?;
                told.borrow_and_update().map(Message::Standing)
            }
            proposal = proposals.recv() => Some(Message::Proposal(proposal.ok_or(LinkError::ShuttingDown)?)),
            () = tokio::time::sleep(REPEAT) => told.borrow().map(Message::Standing),
        };
        let Some(message) = message else { continue };
        let is_standing = matches!(message, Message::Standing(_));
        within(framing::write(&mut stream, &message, MESSAGE_BYTES_MAX)).await??;
        if is_standing {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Addresses as contributors of others are told, in the order in which this peer listens.
fn listed(addresses: &[Multiaddr]) -> Vec<String> {
    let mut listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    listed.retain(|address| address.len() <= ADDRESS_BYTES_MAX);
    listed.truncate(ADDRESSES_MAX);
    listed
}

/// What `peer` says of where it is, without what is no address of it.
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
async fn open(shared: &Shared, peer: PeerId, address: Option<&Multiaddr>) -> Result<Stream, LinkError> {
    if let Ok(stream) = shared.node.open(peer, PROTOCOL).await {
        return Ok(stream);
    }
    let failed = match address {
        Some(address) => shared.node.dial(address.clone()).await.err(),
        None => None,
    };
    // It may have moved from where it was configured to be.
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

async fn look_up(shared: &Shared, peer: PeerId) -> Result<(), LinkError> {
    let records = shared.dht.get_one(backbone::key(&shared.run_id), Freshness::Newest).await;
    let places = records.iter().filter_map(Backbone::read);
    let place = places.into_iter().find(|place| place.peer.to_peer_id() == peer.to_bytes());
    let mut failed = LinkError::Unknown;
    for address in place.map(|place| place.addresses).unwrap_or_default() {
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

/// What comes before the peer has been silent for too long. One that is up says something every second, behind which
/// there may be as much as averagings keep on their way.
async fn while_heard<T>(
    shared: &Shared,
    origin: Instant,
    rhythm: &mut Rhythm,
    reading: impl Future<Output = T>,
) -> Option<T> {
    let mut reading = pin!(reading);
    loop {
        let silence = shared.config.silence;
        let behind = IN_FLIGHT_BYTES as f64 / shared.speed.speeds().download.max(1) as f64;
        let behind = Duration::from_secs_f64(behind.min(silence.as_secs_f64()));
        let silent_at = origin + rhythm.silent_at(silence) + behind;
        if let Ok(read) = tokio::time::timeout_at(silent_at.into(), &mut reading).await {
            rhythm.on_heard(origin.elapsed());
            return Some(read);
        }
        let late = silent_at.elapsed();
        if late < DEAF_MIN {
            return None;
        }
        // This machine stood still, and not the other one.
        rhythm.on_deaf(origin.elapsed(), late);
    }
}

/// Which of the streams of a peer is the newest.
type Newest = Arc<Mutex<HashMap<PeerId, u64>>>;

/// Hears the others from now on.
pub(super) fn accept(
    shared: &Shared,
    places: &Arc<Places>,
    strangers: &Arc<Places>,
) -> Result<(), NodeError> {
    let mut incoming = shared.node.accept(PROTOCOL)?;
    let (shared, places, strangers) = (shared.clone(), places.clone(), strangers.clone());
    tokio::spawn(async move {
        let newest = Newest::default();
        let mut number = 0;
        while let Some((peer, stream)) = incoming.next().await {
            let is_known = shared.peers.contains(&peer);
            let places = if is_known { &places } else { &strangers };
            let Some((place, registration)) = Places::take(places, peer) else { continue };
            number += 1;
            let hearing = hear(shared.clone(), peer, stream, is_known, newest.clone(), number);
            tokio::spawn(async move {
                if let Ok(Err(error)) = Abortable::new(hearing, registration).await {
                    tracing::debug!(%peer, %error, "an aggregator is not heard any longer");
                }
                drop(place);
            });
        }
    });
    Ok(())
}

async fn hear(
    shared: Shared,
    peer: PeerId,
    mut stream: Stream,
    is_known: bool,
    newest: Newest,
    number: u64,
) -> Result<(), LinkError> {
    let check = |hello: &matchmaking::Hello| {
        if !is_known {
            return Err("this peer is not among the [aggregators] of the backbone that it asks".to_owned());
        }
        if hello.run_id != shared.hello.run_id {
            return Err(format!("the run here is `{}`, not `{}`", shared.hello.run_id, hello.run_id));
        }
        if hello.recipe != shared.hello.recipe {
            return Err("model, seed, data, batch size, optimizer, schedule, local steps, codecs, \
                        reducers and checkpoint_every_epochs must be the same in the configurations of all aggregators, and \
                        are not"
                .to_owned());
        }
        Ok(())
    };
    within(matchmaking::welcome(&mut stream, check)).await??;
    lock(&newest).insert(peer, number);
    let ended = listen(&shared, peer, &mut stream).await;
    let is_newest = lock(&newest).get(&peer) == Some(&number);
    if is_newest {
        shared.reducers.on_gone(&peer);
        shared.tell_core(key(peer), Heard::Gone).await;
    }
    ended
}

async fn listen(shared: &Shared, peer: PeerId, stream: &mut Stream) -> Result<(), LinkError> {
    let origin = Instant::now();
    let mut rhythm = Rhythm::new(Moment::ZERO);
    loop {
        let reading = framing::read(stream, MESSAGE_BYTES_MAX);
        let Some(message) = while_heard(shared, origin, &mut rhythm, reading).await else {
            // Averagings and models that it had a part in would wait for it for as long as a transfer may stand still.
            tracing::warn!(%peer, "this aggregator has gone silent: its connections are cut");
            shared.node.disconnect(peer).await;
            return Err(LinkError::Silent);
        };
        let heard = match message? {
            Message::Standing(standing) => Heard::Standing(standing),
            Message::Proposal(proposal) => Heard::Proposal(proposal),
            Message::Addresses(told) => Heard::Addresses(addresses_of(peer, told)),
            Message::Reducers(told) => {
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
