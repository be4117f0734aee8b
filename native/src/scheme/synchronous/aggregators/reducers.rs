//! Native peers as reducers: their offers, whether they may reduce, the rounds they are sent, and the outcomes.
//!
//! None of them is trusted: the members of each averaging verify their means
//! (`barnraise_averaging::CheckedRound`); this module only keeps the outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barnraise_averaging::{CheckError, OpenError};
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::matchmaking::{Proposal, REDUCERS_MAX, Reducer};
use barnraise_protocol::reduce::{
    self, BackboneToReducer, MESSAGE_BYTES_MAX, Offer, OfferRefusal, PROTOCOL, ReducerRound,
};
use barnraise_protocol::{ConversationError, RefusalReason};
use barnraise_relay::tasks::TaskSet;
use barnraise_relay::{Node, NodeError, Violation};
use barnraise_swarm::averaging::{Group, Reputation, ReputationError};
use barnraise_swarm::{Moment, PeerKey};
use futures::future::Abortable;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::{PeerId, Stream};
use tokio::sync::mpsc;

use super::super::metrics::Metrics;
use crate::config::{AggregatorsSection, ReducersAllowed, RunConfig};
use crate::host::access::{Exclusion, Gate, Pass};
use crate::host::contributions::WorkMeter;
use crate::net::transfer_slots::TransferSlots;
use crate::net::violations;

/// Rounds that may wait to be sent to a reducer.
const ROUNDS_MAX: usize = 4;
/// Interval between keep-alives on an idle link to a reducer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Streams at a time: of reducers, and of peers that are about to be refused.
const STREAMS_MAX: usize = 4 * REDUCERS_MAX;
/// Streams of one peer: a new one may replace another.
const STREAMS_PER_PEER: usize = 2;

/// Why a reducer's registration ended.
#[derive(Debug, thiserror::Error)]
enum ReducerError {
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it does not answer")]
    Stalled,
    #[error("it sent an unexpected message")]
    Unexpected,
    #[error("it may take no more part: {0}")]
    AccessEnded(Exclusion),
    #[error("a new stream of it replaces this one")]
    Replaced,
}

/// The native peers that reduce parts. Cheap to clone.
#[derive(Clone)]
pub struct Reducers(Arc<ReducersInner>);

struct ReducersInner {
    run_id: String,
    config: AggregatorsSection,
    /// The backbones, which average anyway.
    backbones: BTreeSet<PeerId>,
    gate: Gate,
    work: Arc<WorkMeter>,
    metrics: Metrics,
    origin: Instant,
    state: Mutex<ReducerTable>,
}

#[derive(Default)]
struct ReducerTable {
    linked: BTreeMap<PeerId, RegisteredReducer>,
    n_links: u64,
    /// Reducers of other backbones, as those report them.
    elsewhere: BTreeMap<PeerId, Vec<Reducer>>,
    trust: Reputation,
}

/// A reducer that registered here.
struct RegisteredReducer {
    number: u64,
    reducer: Reducer,
    rounds: mpsc::Sender<ReducerRound>,
}

fn refusal_of(exclusion: &Exclusion) -> OfferRefusal {
    match exclusion {
        Exclusion::Access(refusal) => OfferRefusal::Access(refusal.clone()),
        Exclusion::Blocked(reason) => OfferRefusal::Blocked { reason: RefusalReason::of(reason) },
    }
}

fn refusal_by_reputation(error: ReputationError) -> OfferRefusal {
    match error {
        ReputationError::WrongMean => OfferRefusal::WrongMean,
        ReputationError::Suspended(wait) => OfferRefusal::Suspended { wait_s: wait.as_secs() + 1 },
    }
}

impl Reducers {
    /// Accepts offers of native peers, also where all are refused.
    ///
    /// # Errors
    /// The node accepts the conversation already.
    pub fn start(
        config: &RunConfig,
        node: &Node,
        gate: Gate,
        (work, metrics): (Arc<WorkMeter>, Metrics),
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), NodeError> {
        let here = node.peer_id();
        let inner = ReducersInner {
            run_id: config.run.id.clone(),
            config: config.aggregators.clone(),
            backbones: config
                .aggregators
                .peers()
                .map(|(peer, _)| peer)
                .filter(|peer| *peer != here)
                .collect(),
            gate,
            work,
            metrics,
            origin: Instant::now(),
            state: Mutex::default(),
        };
        let reducers = Self(Arc::new(inner));
        let accepting = reducers.accept(node)?;
        Ok((reducers, accepting))
    }

    fn accept(&self, node: &Node) -> Result<impl Future<Output = ()> + Send + use<>, NodeError> {
        let mut incoming = node.accept(PROTOCOL)?;
        let slots = Arc::new(TransferSlots::new(STREAMS_MAX, STREAMS_PER_PEER));
        let (reducers, node) = (self.clone(), node.clone());
        Ok(async move {
            let conversations = TaskSet::default();
            while let Some((peer, stream)) = incoming.next().await {
                let Some((slot, registration)) = TransferSlots::take(&slots, peer) else {
                    node.report(peer, Violation::Streams);
                    continue;
                };
                let (reducers, node) = (reducers.clone(), node.clone());
                conversations.spawn("reducer", async move {
                    let ended = Abortable::new(reducers.converse(peer, stream), registration).await;
                    if let Ok(Err(error)) = ended {
                        tracing::debug!(%peer, %error, "a native peer is not asked to average");
                        if let Some(violation) = error.violation() {
                            node.report(peer, violation);
                        }
                    }
                    drop(slot);
                });
            }
        })
    }

    async fn converse(&self, peer: PeerId, mut stream: Stream) -> Result<(), ReducerError> {
        let admitted = self.0.gate.check(peer).map_err(|exclusion| refusal_of(&exclusion));
        let (refusal, mut pass) = match admitted {
            Ok(pass) => (None, pass),
            Err(refusal) => (Some(refusal), Pass::always()),
        };
        let check = |offer: &Offer| match refusal {
            Some(refusal) => Err(refusal),
            None => self.may(peer, offer),
        };
        let offer = match within(reduce::accept(&mut stream, check)).await? {
            Ok(offer) => offer,
            Err(error) => {
                // Dropped open, it would be reset, and the reason would not arrive.
                let _ = within(stream.close()).await;
                return Err(error.into());
            }
        };
        let (rounds, asked) = mpsc::channel(ROUNDS_MAX);
        let link = self.link(peer, offer.reducer, rounds);
        tracing::info!(%peer, "this native peer averages parts");
        let (mut reader, mut writer) = stream.split();
        let hear = async {
            match reader.read(&mut [0]).await {
                Ok(0) => Ok(()),
                Ok(_) => Err(ReducerError::Unexpected),
                Err(error) => Err(FrameError::from(error).into()),
            }
        };
        let ended = tokio::select! {
            ended = hear => ended,
            ended = ask(&mut writer, asked) => ended,
            exclusion = pass.ended() => Err(ReducerError::AccessEnded(exclusion)),
        };
        drop(link);
        tracing::info!(%peer, "this native peer averages no more parts");
        if let Err(ReducerError::AccessEnded(exclusion)) = &ended {
            let goodbye = BackboneToReducer::Refused(refusal_of(exclusion));
            within(framing::write(&mut writer, &goodbye, MESSAGE_BYTES_MAX)).await??;
        }
        let _ = within(writer.close()).await;
        ended
    }

    /// Whether a peer with access may reduce parts.
    fn may(&self, peer: PeerId, offer: &Offer) -> Result<(), OfferRefusal> {
        let ReducersInner { run_id, config, backbones, .. } = &*self.0;
        if offer.run_id != *run_id {
            let (here, asked) = (RefusalReason::of(run_id), RefusalReason::of(&offer.run_id));
            return Err(OfferRefusal::OtherRun { here, asked });
        }
        if offer.reducer.peer != peer.to_bytes() {
            return Err(OfferRefusal::OtherPeer);
        }
        if backbones.is_empty() {
            return Err(OfferRefusal::OneBackbone);
        }
        if backbones.contains(&peer) {
            return Err(OfferRefusal::Backbone);
        }
        match config.reducers {
            ReducersAllowed::Nobody => return Err(OfferRefusal::NoReducers),
            ReducersAllowed::Named if !config.reducer_peers.contains(&peer) => {
                return Err(OfferRefusal::NotNamed { peer: RefusalReason::of(peer) });
            }
            ReducersAllowed::Named | ReducersAllowed::Anybody => {}
        }
        let state = self.state();
        state.trust.check(self.now(), &key(peer)).map_err(refusal_by_reputation)?;
        if state.linked.len() >= REDUCERS_MAX && !state.linked.contains_key(&peer) {
            return Err(OfferRefusal::Full { n_reducers: REDUCERS_MAX as u32 });
        }
        Ok(())
    }

    fn link(
        &self,
        peer: PeerId,
        reducer: Reducer,
        rounds: mpsc::Sender<ReducerRound>,
    ) -> ReducerRegistration {
        let mut state = self.state();
        state.n_links += 1;
        let number = state.n_links;
        state.linked.insert(peer, RegisteredReducer { number, reducer, rounds });
        ReducerRegistration { reducers: self.clone(), peer, number }
    }

    /// The reducers that registered here and may be asked, for the other backbones.
    pub(super) fn here(&self) -> Vec<Reducer> {
        let (now, state) = (self.now(), self.state());
        let may = |peer: &PeerId| state.trust.check(now, &key(*peer)).is_ok();
        let may_be_asked = state.linked.iter().filter(|(peer, _)| may(peer));
        may_be_asked.map(|(_, linked)| linked.reducer.clone()).take(REDUCERS_MAX).collect()
    }

    /// Reducers of another backbone; invalid ones are left out.
    pub(super) fn on_elsewhere(&self, backbone: PeerId, mut reducers: Vec<Reducer>) {
        reducers.truncate(REDUCERS_MAX);
        reducers.retain(|reducer| reducer.check().is_ok());
        self.state().elsewhere.insert(backbone, reducers);
    }

    /// The link from another backbone is gone.
    pub(super) fn on_gone(&self, backbone: &PeerId) {
        self.state().elsewhere.remove(backbone);
    }

    /// All reducers that may be asked now, without duplicates: those registered here or at another one of `members`,
    /// which sends them the round.
    pub(super) fn all(&self, members: &[PeerKey]) -> Vec<Reducer> {
        let ReducersInner { config, backbones, gate, .. } = &*self.0;
        if config.reducers == ReducersAllowed::Nobody {
            return Vec::new();
        }
        let may = |peer: &PeerKey| {
            let is_other = PeerId::from_bytes(&peer.0).is_ok_and(|peer| !backbones.contains(&peer));
            is_other && !gate.is_excluded(peer)
        };
        self.state().all(self.now(), members, may)
    }

    /// The addresses of a known reducer; `None` for any other peer.
    ///
    /// # Errors
    /// The reducer is blocked or convicted here, even if another backbone proposed it.
    pub(super) fn addresses(&self, peer: PeerId) -> Result<Option<Vec<Vec<u8>>>, OpenError> {
        let state = self.state();
        let bytes = peer.to_bytes();
        let linked = state.linked.get(&peer).map(|linked| &linked.reducer);
        let mut elsewhere = state.elsewhere.values().flatten();
        let Some(reducer) = linked.or_else(|| elsewhere.find(|reducer| reducer.peer == bytes)) else {
            return Ok(None);
        };
        if self.0.gate.is_excluded(&key(peer)) {
            return Err(OpenError::Excluded);
        }
        Ok(Some(reducer.addresses.clone()))
    }

    /// Sends a round to the reducers registered here that have a part in it.
    pub(super) fn ask(&self, proposal: &Proposal, group: &Group, round: &[u8]) {
        let state = self.state();
        for reducer in &proposal.reducers {
            let peer = PeerId::from_bytes(&reducer.peer).ok();
            if let Some(linked) = peer.and_then(|peer| state.linked.get(&peer)) {
                // The part of one that does not keep up is reduced again by another.
                let _ = linked.rounds.try_send(self.round(group, round));
            }
        }
    }

    fn round(&self, group: &Group, name: &[u8]) -> ReducerRound {
        let millis = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        let member = |member: &barnraise_swarm::averaging::GroupMember| reduce::RoundMember {
            peer: member.peer.0.clone(),
            n_samples: member.n_samples,
            receives: member.receives,
            n_reduced: member.n_reduced,
        };
        ReducerRound {
            name: name.to_vec(),
            members: group.members().iter().map(member).collect(),
            n_values: group.n_values() as u64,
            codec: group.codec(),
            patience_ms: millis(self.0.config.patience),
            reducer_timeout_ms: millis(self.0.config.reducer_timeout()),
            deadline_ms: millis(self.0.config.deadline()),
        }
    }

    /// Records the outcome of an averaging: the parts that a standby had to reduce, or the error.
    pub(super) fn on_checked(&self, group: &Group, checked: Result<&[usize], Option<&CheckError>>) {
        let now = self.now();
        let mut state = self.state();
        let liars = match checked {
            Err(Some(CheckError::Wrong(liars))) => liars.as_slice(),
            _ => &[],
        };
        let n_senders = group.members().iter().filter(|member| member.n_samples > 0).count();
        for part in group.parts_of_helpers() {
            let Some(member) = group.members().get(part) else { continue };
            let peer = PeerId::from_bytes(&member.peer.0).ok();
            let outcome = match checked {
                Ok(replaced) if !replaced.contains(&part) => {
                    state.trust.on_correct_mean(&member.peer);
                    if let Some(peer) = peer.filter(|peer| state.linked.contains_key(peer)) {
                        let n_bytes = group.codec().encoded_len(group.part(part).len()) * n_senders;
                        self.0.work.reducers.averaged(peer, n_bytes as u64);
                    }
                    "averaged"
                }
                Ok(_) => {
                    state.trust.on_failed_round(now, &member.peer);
                    "replaced"
                }
                Err(_) if liars.contains(&member.peer) => {
                    state.trust.on_wrong_mean(&member.peer);
                    tracing::warn!(
                        ?peer,
                        "a native peer sent something else than the mean; it is not asked again"
                    );
                    "wrong"
                }
                // It may be another one's fault, which is known where that lied.
                Err(_) if !liars.is_empty() => "failed",
                Err(_) => {
                    state.trust.on_failed_round(now, &member.peer);
                    "failed"
                }
            };
            self.0.metrics.on_reduced(outcome);
        }
        for linked in liars.iter().filter_map(|liar| PeerId::from_bytes(&liar.0).ok()) {
            state.linked.remove(&linked);
        }
    }

    fn state(&self) -> MutexGuard<'_, ReducerTable> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        self.0.origin.elapsed()
    }
}

impl ReducerTable {
    /// All reducers known here or at `members` that may be asked, without duplicates.
    fn all(&self, now: Moment, members: &[PeerKey], may: impl Fn(&PeerKey) -> bool) -> Vec<Reducer> {
        let linked = self.linked.values().map(|linked| &linked.reducer);
        let is_member = |backbone: &PeerId| members.contains(&key(*backbone));
        let elsewhere = self.elsewhere.iter().filter(|(backbone, _)| is_member(backbone));
        let all = linked.chain(elsewhere.flat_map(|(_, reducers)| reducers));
        let by_peer: BTreeMap<&[u8], &Reducer> =
            all.map(|reducer| (reducer.peer.as_slice(), reducer)).collect();
        let may_be_asked = by_peer.into_values().filter(|reducer| {
            let peer = PeerKey(reducer.peer.clone());
            self.trust.check(now, &peer).is_ok() && may(&peer)
        });
        may_be_asked.cloned().collect()
    }
}

/// Registration of a reducer, which ends on drop.
struct ReducerRegistration {
    reducers: Reducers,
    peer: PeerId,
    number: u64,
}

impl Drop for ReducerRegistration {
    fn drop(&mut self) {
        let mut state = self.reducers.state();
        if state.linked.get(&self.peer).is_some_and(|linked| linked.number == self.number) {
            state.linked.remove(&self.peer);
        }
    }
}

impl ReducerError {
    /// What it says of the other side.
    fn violation(&self) -> Option<Violation> {
        match self {
            Self::Conversation(error) => violations::of_conversation(error),
            Self::Frame(error) => Violation::of_frame(error),
            Self::Unexpected => Some(Violation::UnexpectedMessage),
            Self::Stalled | Self::AccessEnded(_) | Self::Replaced => None,
        }
    }
}

/// Sends rounds to a reducer as they come, and keep-alives in between.
async fn ask(
    writer: &mut (impl futures::AsyncWrite + Unpin),
    mut asked: mpsc::Receiver<ReducerRound>,
) -> Result<(), ReducerError> {
    loop {
        let message = tokio::select! {
            round = asked.recv() => BackboneToReducer::Round(round.ok_or(ReducerError::Replaced)?),
            () = tokio::time::sleep(KEEPALIVE_INTERVAL) => BackboneToReducer::KeepAlive,
        };
        within(framing::write(writer, &message, MESSAGE_BYTES_MAX)).await??;
    }
}

async fn within<T>(future: impl Future<Output = T>) -> Result<T, ReducerError> {
    tokio::time::timeout(PATIENCE, future).await.map_err(|_| ReducerError::Stalled)
}

fn key(peer: PeerId) -> PeerKey {
    PeerKey(peer.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reducer(peer: PeerId) -> Reducer {
        let peer = peer.to_bytes();
        Reducer { peer, download_bytes_per_s: 1.0, upload_bytes_per_s: 1.0, addresses: Vec::new() }
    }

    #[test]
    fn who_is_kept_out_or_lied_is_not_asked_wherever_it_offered_itself() {
        let [here, there, both, out, liar, stranger] = std::array::from_fn(|_| PeerId::random());
        let [member, other] = std::array::from_fn(|_| PeerId::random());
        let mut state = ReducerTable::default();
        for (number, peer) in [here, both].into_iter().enumerate() {
            let (rounds, _) = mpsc::channel(1);
            let linked = RegisteredReducer { number: number as u64, reducer: reducer(peer), rounds };
            state.linked.insert(peer, linked);
        }
        state.elsewhere.insert(member, [there, both, out, liar].map(reducer).into());
        state.elsewhere.insert(other, vec![reducer(stranger)]);
        state.trust.on_wrong_mean(&key(liar));
        let asked = state.all(Moment::ZERO, &[key(member)], |peer| *peer != key(out));
        let asked: BTreeSet<Vec<u8>> = asked.into_iter().map(|reducer| reducer.peer).collect();
        let wanted: BTreeSet<Vec<u8>> = [here, there, both].iter().map(|peer| peer.to_bytes()).collect();
        assert_eq!(asked, wanted);
    }
}
