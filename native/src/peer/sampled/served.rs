//! What others get of a participant: the description of the run, its newest model, and the shards that it keeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use barnraise_protocol::run::{self, SignedRun};
use barnraise_protocol::sampled;
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state::{self, StateHeader};
use barnraise_protocol::{self as protocol, ConversationError, Refusal, TensorCodec};
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_relay::{Node, NodeError, Paced};
use barnraise_swarm::guard::PaceLimits;
use futures::future::Abortable;
use futures::{FutureExt, StreamExt, stream};
use libp2p::{PeerId, Stream};
use tokio_util::task::AbortOnDropHandle;

use super::handed_out::{HandedModel, HandedOut};
use crate::host::access::{Gate, Pass};
use crate::net::transfer_slots::TransferSlots;
use crate::net::violations;
use crate::peer::cache::ShardCache;
use crate::peer::sharing::Sharing;
use crate::peer::tokens::take_tokens;
use crate::scheme::sampled::driver::SampledDriver;

/// Streams of other participants at a time.
const STREAMS_MAX: usize = 256;
/// Of one of them: a ping, a view, a model for each task, and those of a broken connection.
const STREAMS_PER_PEER: usize = 8;
/// Of a peer that asks for the description or for shards.
const SERVE_PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    message: Duration::from_secs(10),
    stall: Duration::from_secs(15),
    bytes_per_second_min: 1024,
};

/// Answers other participants until the handle is dropped.
pub(super) fn answer(node: &Node, served: &Arc<Served>) -> Result<AbortOnDropHandle<()>, NodeError> {
    let (mut of_run, mut asked) = (node.accept(sampled::PROTOCOL)?, node.accept(run::PROTOCOL)?);
    let mut of_access = node.accept(protocol::access::PROTOCOL)?;
    let shared = |protocol| match served.sharing.serves() {
        true => Ok(node.accept(protocol)?.left_stream()),
        false => Ok::<_, NodeError>(stream::empty::<(PeerId, Stream)>().right_stream()),
    };
    let (mut of_data, mut of_state) = (shared(shard::PROTOCOL)?, shared(state::PROTOCOL)?);
    let slots = Arc::new(TransferSlots::new(STREAMS_MAX, STREAMS_PER_PEER));
    let (node, served) = (node.clone(), served.clone());
    Ok(tasks::spawn("answering participants", async move {
        let answering = TaskSet::default();
        loop {
            let (peer, stream, protocol) = tokio::select! {
                Some((peer, stream)) = of_run.next() => (peer, stream, sampled::PROTOCOL),
                Some((peer, stream)) = asked.next() => (peer, stream, run::PROTOCOL),
                Some((peer, stream)) = of_access.next() => (peer, stream, protocol::access::PROTOCOL),
                Some((peer, stream)) = of_state.next() => (peer, stream, state::PROTOCOL),
                Some((peer, stream)) = of_data.next() => (peer, stream, shard::PROTOCOL),
                else => return,
            };
            let Some((slot, registration)) = TransferSlots::take(&slots, peer) else {
                tracing::debug!(%peer, "no free stream slot for a participant");
                continue;
            };
            let (node, served) = (node.clone(), served.clone());
            let conversation = async move {
                let ended = match protocol {
                    sampled::PROTOCOL => served.driver.answer(peer, stream).await,
                    run::PROTOCOL => served.describe(stream).await,
                    state::PROTOCOL => served.send_model(peer, stream).await,
                    shard::PROTOCOL => served.send_shards(peer, stream).await,
                    _ => served.let_in((&node, peer), stream).await,
                };
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "a conversation of the run ended");
                    if let Some(violation) = violations::of_conversation(&error) {
                        node.report(peer, violation);
                    }
                }
                drop(slot);
            };
            answering.spawn("answering a participant", Abortable::new(conversation, registration).map(drop));
        }
    }))
}

/// What others get of this participant.
pub(super) struct Served {
    pub(super) driver: SampledDriver,
    /// As it was described here, with the word of its authority where that was shown.
    pub(super) described: SignedRun,
    pub(super) n_parameters: usize,
    pub(super) codec: TensorCodec,
    /// At first the model of another peer, where visitors may try it.
    pub(super) handed_out: HandedOut,
    pub(super) gate: Gate,
    pub(super) cache: ShardCache,
    /// How data of one's own become samples, where that was asked for here.
    pub(super) preprocessing: Option<Arc<[u8]>>,
    pub(super) sharing: Sharing,
}

impl Served {
    async fn describe(&self, stream: Stream) -> Result<(), ConversationError> {
        run::answer(&mut Paced::new(stream, SERVE_PACE), &self.described).await
    }

    /// Who shows its access may fetch shards.
    async fn let_in(&self, from: (&Node, PeerId), stream: Stream) -> Result<(), ConversationError> {
        Ok(take_tokens(|| Some(self.gate.clone()), from, &mut Paced::new(stream, SERVE_PACE)).await?)
    }

    /// The newest average that came here, or was made here, for those with access.
    async fn send_model(&self, peer: PeerId, stream: Stream) -> Result<(), ConversationError> {
        let (refusal, mut pass) = self.checked(peer);
        let stream = Paced::new(stream, SERVE_PACE);
        let (pace, refusal) = (&stream.pace(), &refusal);
        let mut stream = self.sharing.throttled(stream);
        let lookup = |wanted: Option<u64>| async move {
            if let Some(refusal) = refusal {
                return Err(refusal.clone());
            }
            let model = match wanted.and_then(|epoch| self.handed_out.of(epoch)) {
                Some(model) => model,
                None => self.newest_model().await?,
            };
            let HandedModel { epoch, transfer, .. } = model;
            if let Some(wanted) = wanted.filter(|wanted| *wanted != epoch) {
                return Err(Refusal::Stale { epoch: wanted, newest: epoch });
            }
            let header =
                StateHeader { epoch, n_values: self.n_parameters as u64, codec: self.codec, transfer };
            Ok((header, model))
        };
        tokio::select! {
            served = state::serve(&mut stream, lookup, || pace.wait()) => served,
            _ = pass.ended() => Ok(()),
        }
    }

    async fn newest_model(&self) -> Result<HandedModel, Refusal> {
        let now = Instant::now();
        if let Some(model) = self.handed_out.fresh(now) {
            return Ok(model);
        }
        match self.driver.newest_encoded().await {
            Some((round, encoded)) => Ok(self.handed_out.add(now, round, encoded)),
            // That of another peer, until one has come here.
            None => {
                self.handed_out.newest().ok_or_else(|| Refusal::unavailable("no model has come here yet"))
            }
        }
    }

    /// Why a peer gets nothing, or how long it does.
    fn checked(&self, peer: PeerId) -> (Option<Refusal>, Pass) {
        match self.gate.check(peer) {
            Ok(pass) => (None, pass),
            Err(exclusion) => (Some(Refusal::from(&exclusion)), Pass::always()),
        }
    }

    /// Shards of the run's data that are on this machine's disk, for those with access. Data of its own is no shard.
    async fn send_shards(&self, peer: PeerId, stream: Stream) -> Result<(), ConversationError> {
        let (refusal, mut pass) = self.checked(peer);
        let stream = Paced::new(stream, SERVE_PACE);
        let pace = &stream.pace();
        let mut stream = self.sharing.throttled(stream);
        let refusal = &refusal;
        let lookup = |id: ShardId| async move {
            if let Some(refusal) = refusal {
                return Err(refusal.clone());
            }
            let transfer = id.transfer(&self.described.run.data.manifest).ok_or(Refusal::NoShard)?;
            if id == ShardId::Preprocessing {
                // In memory once for all who ask.
                let bytes = self.preprocessing.clone();
                pace.answer();
                let bytes = bytes.ok_or_else(|| Refusal::unavailable("that is not kept here"))?;
                return Ok((transfer, bytes));
            }
            let cache = self.cache.clone();
            let bytes = tokio::task::spawn_blocking(move || cache.get(transfer.sha256)).await.ok().flatten();
            let bytes = bytes.ok_or_else(|| Refusal::unavailable("that shard is not kept here"))?;
            pace.answer();
            Ok((transfer, Arc::from(bytes)))
        };
        tokio::select! {
            served = shard::serve(&mut stream, lookup, || pace.wait()) => served,
            _ = pass.ended() => Ok(()),
        }
    }
}
