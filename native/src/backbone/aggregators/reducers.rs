//! Native peers that average parts for the backbones: who offers it, who may, what they are asked, and how it went.
//!
//! None of them is believed: what they send is compared by the members of each averaging
//! (`barnraise_averaging::CheckedRound`), and here is only kept what came of that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barnraise_averaging::CheckError;
use barnraise_protocol::ConversationError;
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::matchmaking::{Proposal, REDUCERS_MAX, Reducer};
use barnraise_protocol::reduce::{self, BackboneToReducer, MESSAGE_BYTES_MAX, Offer, PROTOCOL, Round};
use barnraise_relay::{Misdeed, Node, NodeError};
use barnraise_swarm::averaging::{Group, Trust};
use barnraise_swarm::{Moment, PeerKey};
use futures::future::Abortable;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::{PeerId, Stream};
use tokio::sync::mpsc;

use super::super::metrics::Metrics;
use super::super::misdeeds;
use super::super::places::Places;
use crate::access::{Gate, Pass};
use crate::config::{AggregatorsSection, ReducersAllowed, RunConfig};
use crate::contributions::WorkMeter;

/// Averagings that one may be told of before it has heard of the first.
const ROUNDS_MAX: usize = 4;
/// How often whoever is asked nothing hears that this backbone is there.
const STILL: Duration = Duration::from_secs(5);
/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Conversations at a time: those with reducers, and those with peers that are about to be refused.
const STREAMS_MAX: usize = 4 * REDUCERS_MAX;
/// Of one peer: one that replaces another.
const STREAMS_PER_PEER: usize = 2;

/// Why a reducer is asked no longer.
#[derive(Debug, thiserror::Error)]
enum ReducerError {
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it takes or says nothing")]
    Stalled,
    #[error("it said something when it was not its turn")]
    Unexpected,
    #[error("it may take no more part: {0}")]
    AccessEnded(String),
    #[error("it offers itself anew")]
    Replaced,
}

/// All that is known of native peers that average. Cheap to clone.
#[derive(Clone)]
pub struct Reducers(Arc<Inner>);

struct Inner {
    run_id: String,
    config: AggregatorsSection,
    /// The backbones, which average anyway.
    backbones: BTreeSet<PeerId>,
    gate: Gate,
    work: Arc<WorkMeter>,
    metrics: Metrics,
    origin: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    linked: BTreeMap<PeerId, Linked>,
    n_links: u64,
    /// What other backbones say that they have.
    elsewhere: BTreeMap<PeerId, Vec<Reducer>>,
    trust: Trust,
}

/// One that offered itself here.
struct Linked {
    number: u64,
    reducer: Reducer,
    rounds: mpsc::Sender<Round>,
}

impl Reducers {
    /// Hears offers from now on, if only to say why they are refused.
    ///
    /// # Errors
    /// The node accepts the conversation already.
    pub fn start(
        config: &RunConfig,
        node: &Node,
        gate: Gate,
        (work, metrics): (Arc<WorkMeter>, Metrics),
    ) -> Result<Self, NodeError> {
        let here = node.peer_id();
        let inner = Inner {
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
        reducers.accept(node)?;
        Ok(reducers)
    }

    fn accept(&self, node: &Node) -> Result<(), NodeError> {
        let mut incoming = node.accept(PROTOCOL)?;
        let places = Arc::new(Places::new(STREAMS_MAX, STREAMS_PER_PEER));
        let (reducers, node) = (self.clone(), node.clone());
        tokio::spawn(async move {
            while let Some((peer, stream)) = incoming.next().await {
                let Some((place, registration)) = Places::take(&places, peer) else {
                    node.report(peer, Misdeed::Streams);
                    continue;
                };
                let (reducers, node) = (reducers.clone(), node.clone());
                tokio::spawn(async move {
                    let ended = Abortable::new(reducers.converse(peer, stream), registration).await;
                    if let Ok(Err(error)) = ended {
                        tracing::debug!(%peer, %error, "a native peer is not asked to average");
                        if let Some(misdeed) = error.misdeed() {
                            node.report(peer, misdeed);
                        }
                    }
                    drop(place);
                });
            }
        });
        Ok(())
    }

    async fn converse(&self, peer: PeerId, mut stream: Stream) -> Result<(), ReducerError> {
        let admitted = self.0.gate.check(peer).map_err(|refusal| refusal.to_string());
        let (refusal, mut pass) = match admitted {
            Ok(pass) => (None, pass),
            Err(refusal) => (Some(refusal), Pass::always()),
        };
        let check = |offer: &Offer| match refusal {
            Some(refusal) => Err(refusal),
            None => self.may(peer, offer),
        };
        let offer = match within(reduce::welcome(&mut stream, check)).await? {
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
            reason = pass.ended() => Err(ReducerError::AccessEnded(reason.to_string())),
        };
        drop(link);
        tracing::info!(%peer, "this native peer averages no more parts");
        if let Err(ReducerError::AccessEnded(reason)) = &ended {
            let goodbye = BackboneToReducer::Refused(reason.clone());
            within(framing::write(&mut writer, &goodbye, MESSAGE_BYTES_MAX)).await??;
        }
        let _ = within(writer.close()).await;
        ended
    }

    /// Whether a peer that has access is asked to average.
    fn may(&self, peer: PeerId, offer: &Offer) -> Result<(), String> {
        let Inner { run_id, config, backbones, .. } = &*self.0;
        if offer.run_id != *run_id {
            return Err(format!("the run here is `{run_id}`, not `{}`", offer.run_id));
        }
        if offer.reducer.peer != peer.to_bytes() {
            return Err("it offers another peer than itself".to_owned());
        }
        if backbones.is_empty() {
            return Err("this run has one backbone, which averages with nobody".to_owned());
        }
        if backbones.contains(&peer) {
            return Err("it is one of the backbones".to_owned());
        }
        match config.reducers {
            ReducersAllowed::Nobody => return Err("native peers do not average in this run".to_owned()),
            ReducersAllowed::Named if !config.reducer_peers.contains(&peer) => {
                return Err(format!("{peer} is not among the reducer_peers of this backbone"));
            }
            ReducersAllowed::Named | ReducersAllowed::Anybody => {}
        }
        let state = self.state();
        state.trust.check(self.now(), &key(peer)).map_err(|distrust| distrust.to_string())?;
        if state.linked.len() >= REDUCERS_MAX && !state.linked.contains_key(&peer) {
            return Err(format!("{REDUCERS_MAX} native peers average already"));
        }
        Ok(())
    }

    fn link(&self, peer: PeerId, reducer: Reducer, rounds: mpsc::Sender<Round>) -> Link {
        let mut state = self.state();
        state.n_links += 1;
        let number = state.n_links;
        state.linked.insert(peer, Linked { number, reducer, rounds });
        Link { reducers: self.clone(), peer, number }
    }

    /// Those that offered themselves here and may be asked, for the other backbones.
    pub(super) fn here(&self) -> Vec<Reducer> {
        let (now, state) = (self.now(), self.state());
        let may = |peer: &PeerId| state.trust.check(now, &key(*peer)).is_ok();
        let may_be_asked = state.linked.iter().filter(|(peer, _)| may(peer));
        may_be_asked.map(|(_, linked)| linked.reducer.clone()).take(REDUCERS_MAX).collect()
    }

    /// What another backbone says of those that it has; what is none is left out.
    pub(super) fn on_elsewhere(&self, backbone: PeerId, mut reducers: Vec<Reducer>) {
        reducers.truncate(REDUCERS_MAX);
        reducers.retain(|reducer| reducer.check().is_ok());
        self.state().elsewhere.insert(backbone, reducers);
    }

    /// Another backbone cannot be heard any longer.
    pub(super) fn on_gone(&self, backbone: &PeerId) {
        self.state().elsewhere.remove(backbone);
    }

    /// All that may be asked now, each of them once: those that offered themselves here or to another one of `members`,
    /// which tells them of the averaging.
    pub(super) fn all(&self, members: &[PeerKey]) -> Vec<Reducer> {
        let Inner { config, backbones, gate, .. } = &*self.0;
        if config.reducers == ReducersAllowed::Nobody {
            return Vec::new();
        }
        let may = |peer: &PeerKey| {
            let is_other = PeerId::from_bytes(&peer.0).is_ok_and(|peer| !backbones.contains(&peer));
            is_other && !gate.is_out(peer)
        };
        self.state().all(self.now(), members, may)
    }

    /// Where one that was told of says that it can be dialled; `None` of any other peer.
    ///
    /// # Errors
    /// It is kept out here, whoever proposed it.
    pub(super) fn addresses(&self, peer: PeerId) -> Result<Option<Vec<Vec<u8>>>, String> {
        let state = self.state();
        let bytes = peer.to_bytes();
        let linked = state.linked.get(&peer).map(|linked| &linked.reducer);
        let mut elsewhere = state.elsewhere.values().flatten();
        let Some(reducer) = linked.or_else(|| elsewhere.find(|reducer| reducer.peer == bytes)) else {
            return Ok(None);
        };
        if self.0.gate.is_out(&key(peer)) {
            return Err("this peer takes no part here".to_owned());
        }
        Ok(Some(reducer.addresses.clone()))
    }

    /// Tells those that offered themselves here of an averaging that they have a part in.
    pub(super) fn ask(&self, proposal: &Proposal, group: &Group, round: &[u8]) {
        let state = self.state();
        for reducer in &proposal.reducers {
            let peer = PeerId::from_bytes(&reducer.peer).ok();
            if let Some(linked) = peer.and_then(|peer| state.linked.get(&peer)) {
                // One that does not keep up costs a retry of its part.
                let _ = linked.rounds.try_send(self.round(group, round));
            }
        }
    }

    fn round(&self, group: &Group, name: &[u8]) -> Round {
        let millis = |duration: Duration| u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
        let member = |member: &barnraise_swarm::averaging::Member| reduce::Member {
            peer: member.peer.0.clone(),
            n_samples: member.n_samples,
            receives: member.receives,
            n_reduced: member.n_reduced,
        };
        Round {
            name: name.to_vec(),
            members: group.members().iter().map(member).collect(),
            n_values: group.n_values() as u64,
            codec: group.codec(),
            patience_ms: millis(self.0.config.patience),
            reducer_timeout_ms: millis(self.0.config.reducer_timeout),
            deadline_ms: millis(self.0.config.deadline),
        }
    }

    /// What came of an averaging: the parts that somebody else had to average, or why it does not count.
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
                    state.trust.on_right(&member.peer);
                    if let Some(peer) = peer.filter(|peer| state.linked.contains_key(peer)) {
                        let n_bytes = group.codec().encoded_len(group.part(part).len()) * n_senders;
                        self.0.work.reducers.averaged(peer, n_bytes as u64);
                    }
                    "averaged"
                }
                Ok(_) => {
                    state.trust.on_trouble(now, &member.peer);
                    "replaced"
                }
                Err(_) if liars.contains(&member.peer) => {
                    state.trust.on_lie(&member.peer);
                    tracing::warn!(
                        ?peer,
                        "a native peer sent something else than the mean; it is not asked again"
                    );
                    "wrong"
                }
                // It may be another one's fault, which is known where that lied.
                Err(_) if !liars.is_empty() => "failed",
                Err(_) => {
                    state.trust.on_trouble(now, &member.peer);
                    "failed"
                }
            };
            self.0.metrics.on_reduced(outcome);
        }
        for linked in liars.iter().filter_map(|liar| PeerId::from_bytes(&liar.0).ok()) {
            state.linked.remove(&linked);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        self.0.origin.elapsed()
    }
}

impl State {
    /// All that are known here or at `members` and may be asked, each of them once.
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

/// A conversation with a reducer, which is forgotten when this is dropped.
struct Link {
    reducers: Reducers,
    peer: PeerId,
    number: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut state = self.reducers.state();
        if state.linked.get(&self.peer).is_some_and(|linked| linked.number == self.number) {
            state.linked.remove(&self.peer);
        }
    }
}

impl ReducerError {
    /// What it says of the other side.
    fn misdeed(&self) -> Option<Misdeed> {
        match self {
            Self::Conversation(error) => misdeeds::of_conversation(error),
            Self::Frame(error) => Misdeed::of_frame(error),
            Self::Unexpected => Some(Misdeed::UnexpectedMessage),
            Self::Stalled | Self::AccessEnded(_) | Self::Replaced => None,
        }
    }
}

/// Tells a reducer of averagings as they come.
async fn ask(
    writer: &mut (impl futures::AsyncWrite + Unpin),
    mut asked: mpsc::Receiver<Round>,
) -> Result<(), ReducerError> {
    loop {
        let message = tokio::select! {
            round = asked.recv() => BackboneToReducer::Round(round.ok_or(ReducerError::Replaced)?),
            () = tokio::time::sleep(STILL) => BackboneToReducer::Still,
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
        let mut state = State::default();
        for (number, peer) in [here, both].into_iter().enumerate() {
            let (rounds, _) = mpsc::channel(1);
            let linked = Linked { number: number as u64, reducer: reducer(peer), rounds };
            state.linked.insert(peer, linked);
        }
        state.elsewhere.insert(member, [there, both, out, liar].map(reducer).into());
        state.elsewhere.insert(other, vec![reducer(stranger)]);
        state.trust.on_lie(&key(liar));
        let asked = state.all(Moment::ZERO, &[key(member)], |peer| *peer != key(out));
        let asked: BTreeSet<Vec<u8>> = asked.into_iter().map(|reducer| reducer.peer).collect();
        let wanted: BTreeSet<Vec<u8>> = [here, there, both].iter().map(|peer| peer.to_bytes()).collect();
        assert_eq!(asked, wanted);
    }
}
