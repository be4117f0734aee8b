//! `barnraise join --reduce`: this machine is a reducer, which averages parts for the run's backbones. It offers itself
//! to its backbone, receives averaging rounds, and accepts the streams of their members.
//!
//! It receives the mean gradients of backbones and returns their mean; it decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use barnraise_averaging::{AverageError, AveragingConfig, PartError, PartOutcome, RoundRegistry};
use barnraise_protocol::ConversationError;
use barnraise_protocol::average;
use barnraise_protocol::framing;
use barnraise_protocol::matchmaking::{
    MEMBERS_MAX, REDUCER_ADDRESS_BYTES_MAX, REDUCER_ADDRESSES_MAX, Reducer,
};
use barnraise_protocol::reduce::{
    self, BackboneToReducer, MESSAGE_BYTES_MAX, Offer, OfferRefusal, PROTOCOL, ReducerRound,
};
use barnraise_protocol::run::RunDescription;
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Group, GroupError, GroupMember};
use futures::future::Abortable;
use futures::{AsyncWriteExt, StreamExt};
use libp2p::{PeerId, Stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::display::Display;
use crate::config::LinkSpeed;
use crate::net::announced::{is_circuit, to_announce};
use crate::net::platform::NodePlatform;
use crate::net::speed::{SpeedMeter, Speeds};
use crate::net::transfer_slots::TransferSlots;

/// Most rounds at a time: one is often unfinished when the next one begins.
const ROUNDS_MAX: usize = 3;
/// Streams of members, for those rounds.
const STREAMS_MAX: usize = ROUNDS_MAX * MEMBERS_MAX;
/// Most streams of one member: one for each round, and a broken one.
const STREAMS_PER_PEER: usize = ROUNDS_MAX + 1;
/// Longest deadline of a round.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);
/// A backbone that is silent for longer is gone: it sends keep-alives more often.
const SILENCE: Duration = Duration::from_secs(30);
/// Timeout of one message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Delay until the next offer: the least, and the most, which also follows a refusal.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Interval at which this machine's own addresses are checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for unfinished rounds when this machine leaves.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the session with the backbone ended.
#[derive(Debug, thiserror::Error)]
enum ReducingError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("the backbone says nothing")]
    Silent,
    #[error(transparent)]
    Refused(#[from] OfferRefusal),
}

/// Why a round failed or is refused.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Average(#[from] AverageError),
    #[error("a vector of {got} values, the run's model has {want}")]
    Length { want: u64, got: u64 },
    #[error("a round of {0:?}")]
    Deadline(Duration),
    #[error("this machine is to give more than it offered")]
    Role,
    #[error("its part was not averaged: {0}")]
    NotAveraged(PartError),
    #[error("it has no part")]
    NoPart,
}

/// The reducer of this machine. Cheap to clone.
#[derive(Clone)]
pub(super) struct Reducing {
    shared: Arc<ReducerShared>,
}

struct ReducerShared {
    speed: SpeedMeter,
    display: Display,
    run: watch::Sender<Option<ReducedRun>>,
    n_parts: AtomicU64,
    n_bytes: AtomicU64,
}

/// The run that this machine averages for.
#[derive(Debug, Clone)]
struct ReducedRun {
    run_id: String,
    n_parameters: u64,
}

/// The reducer on one node, connected to one backbone. It ends when this is dropped.
pub(super) struct ReducerSession {
    stop: CancellationToken,
    offering: AbortOnDropHandle<()>,
    _accepting: AbortOnDropHandle<()>,
}

impl Reducing {
    /// - `speed`: bandwidth that the backbones may plan with, in each direction
    pub(super) fn new(speed: LinkSpeed, display: Display) -> Self {
        let shared = ReducerShared {
            speed: SpeedMeter::new(speed, speed),
            display,
            run: watch::channel(None).0,
            n_parts: AtomicU64::new(0),
            n_bytes: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sets the run to average for, whose model has `n_parameters`.
    pub(super) fn on_run(&self, run: &RunDescription, n_parameters: u64) {
        let run = ReducedRun { run_id: run.identity.run_id.clone(), n_parameters };
        self.shared.run.send_replace(Some(run));
    }

    /// Number of averaged parts, and bytes of values received for them.
    pub(super) fn given(&self) -> (u64, u64) {
        self.shared.given()
    }

    /// Starts on a node that is connected to the backbone.
    ///
    /// # Errors
    /// The node accepts averaging streams already.
    pub(super) fn attach(&self, node: &Node, backbone: PeerId) -> Result<ReducerSession, NodeError> {
        let mut incoming = node.accept(average::PROTOCOL)?;
        let rounds = Arc::new(RoundRegistry::default());
        let platform = NodePlatform::new(node.clone()).measured_by(self.shared.speed.clone());
        let (taking, of_streams) = (rounds.clone(), platform.clone());
        let accepting = tasks::spawn("averaging streams", async move {
            let slots = Arc::new(TransferSlots::new(STREAMS_MAX, STREAMS_PER_PEER));
            let taken = TaskSet::default();
            while let Some((peer, stream)) = incoming.next().await {
                let Some((slot, registration)) = TransferSlots::take(&slots, peer) else { continue };
                let (rounds, platform) = (taking.clone(), of_streams.clone());
                taken.spawn("averaging stream", async move {
                    let taken = rounds.take(&platform, PeerKey(peer.to_bytes()), stream);
                    // A peer with too many streams loses its oldest.
                    let _ = Abortable::new(taken, registration).await;
                    drop(slot);
                });
            }
        });
        let stop = CancellationToken::new();
        let helping = ReducerConnection {
            shared: self.shared.clone(),
            node: node.clone(),
            backbone,
            rounds,
            platform,
            stop: stop.clone(),
        };
        Ok(ReducerSession {
            stop,
            offering: tasks::spawn("offer to average", helping.run()),
            _accepting: accepting,
        })
    }
}

impl ReducerSession {
    /// Withdraws the offer and finishes the rounds under way.
    pub(super) async fn farewell(self) {
        self.stop.cancel();
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, self.offering).await;
    }
}

impl ReducerShared {
    fn given(&self) -> (u64, u64) {
        (self.n_parts.load(Ordering::Relaxed), self.n_bytes.load(Ordering::Relaxed))
    }

    fn on_averaged(&self, n_bytes: u64) {
        self.n_parts.fetch_add(1, Ordering::Relaxed);
        self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        let (n_parts, n_bytes) = self.given();
        self.display.on_reduced(n_parts, n_bytes);
    }
}

/// Work on one connection.
struct ReducerConnection {
    shared: Arc<ReducerShared>,
    node: Node,
    backbone: PeerId,
    rounds: Arc<RoundRegistry<Stream>>,
    platform: NodePlatform,
    stop: CancellationToken,
}

impl ReducerConnection {
    /// Offers this machine again and again, until it is to stop; then finishes the rounds under way.
    async fn run(self) {
        let helping = Arc::new(self);
        let mut rounds = Vec::new();
        let mut wait = RETRY.0;
        let mut said = None;
        while !helping.stop.is_cancelled() {
            let mut was_asked = false;
            let ended = helping.offer(&mut rounds, &mut was_asked).await;
            wait = if was_asked { RETRY.0 } else { (wait * 2).min(RETRY.1) };
            match ended {
                Ok(()) => {}
                Err(ReducingError::Refused(refusal)) => {
                    wait = RETRY.1;
                    let sentence = format!("This machine is not asked to average: {refusal}.");
                    if said.as_ref() != Some(&refusal) {
                        helping.shared.display.say(&sentence);
                        said = Some(refusal);
                    }
                }
                Err(error) => tracing::debug!(%error, "this machine is not asked to average for now"),
            }
            let _ = helping.stop.run_until_cancelled(tokio::time::sleep(wait)).await;
        }
        for round in rounds {
            // An error here is a panic, which was printed.
            let _ = round.await;
        }
    }

    /// One session: until it ends, or the addresses or the speed of this machine change.
    async fn offer(
        self: &Arc<Self>,
        rounds: &mut Vec<AbortOnDropHandle<()>>,
        was_asked: &mut bool,
    ) -> Result<(), ReducingError> {
        let Some((run, reducer)) = self.stop.run_until_cancelled(self.to_offer()).await else {
            return Ok(());
        };
        let offer = Offer { run_id: run.run_id.clone(), reducer: reducer.clone() };
        let mut stream = self.node.open(self.backbone, PROTOCOL).await?;
        let offered = tokio::time::timeout(PATIENCE, reduce::offer(&mut stream, &offer)).await;
        match offered.map_err(|_| ReducingError::Silent)? {
            Err(ConversationError::Offer(refusal)) => return Err(refusal.into()),
            offered => offered?,
        }
        *was_asked = true;
        tracing::info!("offers to average parts for the backbones");
        // A change is offered anew.
        while self.reducer() == reducer {
            let reading = framing::read(&mut stream, MESSAGE_BYTES_MAX);
            let reading = tokio::time::timeout(SILENCE, reading);
            let Some(message) = self.stop.run_until_cancelled(reading).await else { break };
            let message = message.map_err(|_| ReducingError::Silent)?.map_err(ConversationError::from)?;
            match message {
                BackboneToReducer::Round(round) => self.begin(&run, round, rounds),
                BackboneToReducer::KeepAlive | BackboneToReducer::Welcome => {}
                BackboneToReducer::Refused(refusal) => return Err(refusal.into()),
            }
        }
        // The backbone may have disconnected.
        let _ = tokio::time::timeout(PATIENCE, stream.close()).await;
        Ok(())
    }

    /// The run and the offer, once there is a run and this machine has an address.
    async fn to_offer(&self) -> (ReducedRun, Reducer) {
        let mut run = self.shared.run.subscribe();
        loop {
            let known = run.wait_for(Option::is_some).await.ok().and_then(|run| run.clone());
            let reducer = self.reducer();
            match known.filter(|_| !reducer.addresses.is_empty()) {
                Some(run) => return (run, reducer),
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// This machine's present addresses and speeds.
    fn reducer(&self) -> Reducer {
        let Speeds { download, upload } = self.shared.speed.speeds();
        Reducer {
            peer: self.node.peer_id().to_bytes(),
            download_bytes_per_s: download as f32,
            upload_bytes_per_s: upload as f32,
            addresses: self.addresses(),
        }
    }

    /// Addresses at which others can dial this machine, without relays: they should not carry the traffic.
    fn addresses(&self) -> Vec<Vec<u8>> {
        let direct = self.node.addresses().into_iter();
        let direct = direct.filter(|address| !is_circuit(address)).collect();
        let mut addresses = to_announce(direct, self.node.reachability());
        addresses.retain(|address| address.len() <= REDUCER_ADDRESS_BYTES_MAX);
        addresses.truncate(REDUCER_ADDRESSES_MAX);
        addresses
    }

    fn begin(
        self: &Arc<Self>,
        run: &ReducedRun,
        round: ReducerRound,
        rounds: &mut Vec<AbortOnDropHandle<()>>,
    ) {
        rounds.retain(|round| !round.is_finished());
        if rounds.len() >= ROUNDS_MAX {
            // Its members may have aborted it, of which there is no message: it would wait for them until its deadline.
            tracing::debug!("too many averagings at a time; the oldest one is given up");
            drop(rounds.remove(0));
        }
        let (helping, n_parameters) = (self.clone(), run.n_parameters);
        rounds.push(tasks::spawn("averaging", async move {
            match helping.average(n_parameters, round).await {
                Ok(n_bytes) => helping.shared.on_averaged(n_bytes),
                Err(error) => tracing::warn!(%error, "an averaging for the backbones came to nothing"),
            }
        }));
    }

    /// Averages this machine's part. Returns the bytes of values received for it.
    async fn average(&self, n_parameters: u64, round: ReducerRound) -> Result<u64, RoundError> {
        let me = PeerKey(self.node.peer_id().to_bytes());
        let (group, config) = checked(&me, n_parameters, round)?;
        let part = group.position(&me).ok_or(RoundError::Role)?;
        // A reducer contributes no values of its own.
        let values = vec![0.0; group.n_values()];
        let measuring = self.shared.speed.begin(&config, [&group], &me);
        let averaged = self.rounds.average(&self.platform, &config, &Arc::new(group), &me, values).await?;
        measuring.end(matches!(averaged.parts.get(part), Some(PartOutcome::Averaged { .. })));
        match averaged.parts.get(part) {
            Some(PartOutcome::Averaged { finished, .. }) => {
                let n_samples = finished.n_samples;
                tracing::info!(n_samples, n_bytes = averaged.n_bytes_received, "averaged a part");
                Ok(averaged.n_bytes_received)
            }
            Some(PartOutcome::NotAveraged { error }) => Err(RoundError::NotAveraged(error.clone())),
            Some(PartOutcome::None) | None => Err(RoundError::NoPart),
        }
    }
}

/// The group of a round, if it asks this machine for no more than it offered.
fn checked(
    me: &PeerKey,
    n_parameters: u64,
    round: ReducerRound,
) -> Result<(Group, AveragingConfig), RoundError> {
    // This and the number of members bound all allocations.
    if round.n_values != n_parameters {
        return Err(RoundError::Length { want: n_parameters, got: round.n_values });
    }
    let millis = |millis: u32| Duration::from_millis(millis.into());
    let deadline = millis(round.deadline_ms);
    if deadline > DEADLINE_MAX {
        return Err(RoundError::Deadline(deadline));
    }
    let member = |member: reduce::RoundMember| GroupMember {
        peer: PeerKey(member.peer),
        n_samples: member.n_samples,
        receives: member.receives,
        n_reduced: member.n_reduced,
    };
    let n_values = usize::try_from(n_parameters).unwrap_or(usize::MAX);
    let members = round.members.into_iter().map(member).collect();
    let group = Group::new(&round.name, members, n_values, round.codec)?;
    let own = group.position(me).and_then(|position| group.members().get(position));
    if !own.is_some_and(|own| own.n_samples == 0 && !own.receives && own.n_reduced > 0) {
        return Err(RoundError::Role);
    }
    let config = AveragingConfig {
        patience: millis(round.patience_ms),
        reducer_timeout: millis(round.reducer_timeout_ms),
        deadline,
        ..AveragingConfig::default()
    };
    Ok((group, config))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::TensorCodec;

    use super::*;

    fn round() -> ReducerRound {
        let member = |number: u8| reduce::RoundMember {
            peer: vec![number],
            n_samples: u64::from(number),
            receives: number > 0,
            n_reduced: 100,
        };
        ReducerRound {
            name: b"round".to_vec(),
            members: (0..3).map(member).collect(),
            n_values: 300,
            codec: TensorCodec::F32,
            patience_ms: 1000,
            reducer_timeout_ms: 2000,
            deadline_ms: 3000,
        }
    }

    /// A change of a round, and a part of the error that it causes.
    type RoundEdit = (fn(&mut ReducerRound), &'static str);

    fn me() -> PeerKey {
        PeerKey(vec![0])
    }

    #[test]
    fn a_round_of_the_run_is_taken_part_in() {
        let (group, config) = checked(&me(), 300, round()).unwrap();
        assert_eq!(group.parts_of_helpers().collect::<Vec<_>>(), [0]);
        config.check().unwrap();
    }

    #[test]
    fn nothing_else_is() {
        let changed = |change: fn(&mut ReducerRound)| {
            let mut round = round();
            change(&mut round);
            checked(&me(), 300, round).map(|_| ()).unwrap_err().to_string()
        };
        let changes: [RoundEdit; 8] = [
            (|round| round.n_values = u64::MAX, "values"),
            (|round| round.members[1].n_reduced = 200, "parts have 400 values"),
            (|round| round.members[0].n_samples = 5, "receives the average"),
            (|round| round.members[0].receives = true, "more than it offered"),
            (|round| drop(round.members.remove(0)), "parts have 200 values"),
            (|round| round.members[0].peer = vec![9], "more than it offered"),
            (|round| round.deadline_ms = u32::MAX, "a round of"),
            (|round| round.codec = TensorCodec::Int4, "Int4"),
        ];
        for (change, part) in changes {
            let error = changed(change);
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
}
