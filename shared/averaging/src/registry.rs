//! Passes incoming streams to their rounds, which may not have begun here or may be over.
//!
//! It holds a bounded number of streams for rounds to come, and the results of the last rounds.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use barnraise_protocol::average::{self, Finished, Join, JoinRefusal, MESSAGE_BYTES_MAX, ReducerToMember};
use barnraise_protocol::framing;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Group, GroupId, MemberInput, chunk, n_chunks};
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::AveragingConfig;
use crate::incoming::{IncomingStream, refuse};
use crate::outcome::{Averaged, PartOutcome};
use crate::platform::{Platform, until, within};
use crate::round::{AverageError, average};

/// Most streams that wait for a round to begin.
pub const PARKED_MAX: usize = 512;
/// Results that are kept for members that missed a part. A member without values is not waited for, so it may ask when the
/// next round has begun.
const RESULTS_MAX: usize = 2;
/// How long a stream waits for its round to begin, or to be over.
const PARK: Duration = Duration::from_secs(30);

/// A round that is over.
#[derive(Debug)]
struct FinishedRound {
    group: Arc<Group>,
    me: usize,
    result: Arc<Averaged>,
}

#[derive(Debug)]
struct RegistryState<S> {
    rounds: HashMap<GroupId, mpsc::Sender<IncomingStream<S>>>,
    parked: Vec<(GroupId, oneshot::Sender<()>)>,
    /// The newest first.
    finished: VecDeque<FinishedRound>,
    /// A vector of the last round, whose memory the next one uses.
    spare: Vec<f32>,
}

/// The rounds of this peer, and the incoming streams of the conversation `average`.
#[derive(Debug)]
pub struct RoundRegistry<S> {
    state: Mutex<RegistryState<S>>,
}

impl<S> Default for RoundRegistry<S> {
    fn default() -> Self {
        Self {
            state: Mutex::new(RegistryState {
                rounds: HashMap::new(),
                parked: Vec::new(),
                finished: VecDeque::new(),
                spare: Vec::new(),
            }),
        }
    }
}

/// Where a stream goes.
enum StreamRoute<S> {
    Round(mpsc::Sender<IncomingStream<S>>),
    Finished(Arc<Group>, usize, Arc<Averaged>),
    Park(oneshot::Receiver<()>),
    Busy,
}

impl<S> RoundRegistry<S> {
    fn state(&self) -> MutexGuard<'_, RegistryState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> RoundRegistry<S> {
    /// Runs this peer's round of `group`; see [`average`]. The result is kept for members that missed a part.
    ///
    /// # Errors
    /// As [`average`].
    pub async fn average<P: Platform<Stream = S>>(
        &self,
        platform: &P,
        config: &AveragingConfig,
        group: &Arc<Group>,
        me: &PeerKey,
        values: Vec<f32>,
    ) -> Result<Arc<Averaged>, AverageError> {
        self.average_input(platform, config, group, me, (values, None)).await
    }

    /// The same, with the input's weight and members where the values are not only this peer's own.
    pub(crate) async fn average_input<P: Platform<Stream = S>>(
        &self,
        platform: &P,
        config: &AveragingConfig,
        group: &Arc<Group>,
        me: &PeerKey,
        values: (Vec<f32>, Option<MemberInput>),
    ) -> Result<Arc<Averaged>, AverageError> {
        let id = group.id();
        let (opened, mut streams) = mpsc::channel(2 * group.members().len());
        let mut spare = {
            let mut state = self.state();
            if state.rounds.contains_key(&id) {
                return Err(AverageError::Twice);
            }
            state.rounds.insert(id, opened);
            state.wake(id);
            state.take_spare(group.n_values())
        };
        // Ends the registration in any case, so that the next round may begin.
        let _registered = Registered { registry: self, id };
        let averaged = average(platform, config, group, me, values, &mut spare, &mut streams).await;
        self.state().keep_spare(spare);
        let result = Arc::new(averaged?);
        let me = group.position(me).ok_or(AverageError::NotAMember)?;
        let over = FinishedRound { group: Arc::clone(group), me, result: Arc::clone(&result) };
        self.state().keep(id, over);
        // Streams that came after their part was averaged are served from the result.
        streams.close();
        while let Some(IncomingStream { stream, back, .. }) = streams.next().await {
            let _ = back.send(stream);
        }
        Ok(result)
    }

    /// Passes a stream that `peer` opened to its round, serves it a result, or refuses it. Completes when the stream is
    /// done with here.
    pub async fn take<P: Platform<Stream = S>>(&self, platform: &P, peer: PeerKey, mut stream: S) {
        let parked_until = platform.now() + PARK;
        let reading = framing::read::<Join, _>(&mut stream, MESSAGE_BYTES_MAX);
        let Some(Ok(join)) = until(platform, parked_until, reading).await else { return };
        let mut is_back = false;
        loop {
            let refusal = match self.way(join.group, is_back) {
                StreamRoute::Round(mut round) => {
                    let (back, coming_back) = oneshot::channel();
                    let opened = IncomingStream { peer: peer.clone(), join, stream, back };
                    let sent = round.try_send(opened);
                    let is_closed = sent.as_ref().is_err_and(mpsc::TrySendError::is_disconnected);
                    match sent.map_err(mpsc::TrySendError::into_inner) {
                        Ok(()) => match coming_back.await {
                            Ok(came_back) => (stream, is_back) = (came_back, true),
                            // The round has it.
                            Err(oneshot::Canceled) => return,
                        },
                        // It has just ended.
                        Err(over) if is_closed => (stream, is_back) = (over.stream, true),
                        Err(opened) => return refuse(platform, opened.stream, JoinRefusal::Busy).await,
                    }
                    continue;
                }
                StreamRoute::Finished(group, me, result) => {
                    return serve(platform, &group, me, &result, &peer, join, stream).await;
                }
                StreamRoute::Park(woken) => match until(platform, parked_until, woken).await {
                    Some(Ok(())) => continue,
                    _ => JoinRefusal::UnknownGroup,
                },
                StreamRoute::Busy => JoinRefusal::Busy,
            };
            return refuse(platform, stream, refusal).await;
        }
    }

    fn way(&self, group: GroupId, is_back: bool) -> StreamRoute<S> {
        let mut state = self.state();
        if let Some(round) = state.rounds.get(&group).filter(|_| !is_back) {
            return StreamRoute::Round(round.clone());
        }
        if let Some(over) = state.finished.iter().find(|over| over.group.id() == group) {
            return StreamRoute::Finished(Arc::clone(&over.group), over.me, Arc::clone(&over.result));
        }
        state.parked.retain(|(_, parked)| !parked.is_canceled());
        if state.parked.len() >= PARKED_MAX {
            return StreamRoute::Busy;
        }
        let (wake, woken) = oneshot::channel();
        state.parked.push((group, wake));
        StreamRoute::Park(woken)
    }
}

impl<S> RegistryState<S> {
    fn keep(&mut self, id: GroupId, over: FinishedRound) {
        self.finished.truncate(RESULTS_MAX - 1);
        self.finished.push_front(over);
        self.wake(id);
    }

    /// A spare vector for `n_values`, or a new one where the spare is too small or far too large.
    fn take_spare(&mut self, n_values: usize) -> Vec<f32> {
        let fits = (n_values..=2 * n_values).contains(&self.spare.capacity());
        if fits { std::mem::take(&mut self.spare) } else { Vec::new() }
    }

    /// Keeps the larger of two vectors: rounds of a few values come between those of a model.
    fn keep_spare(&mut self, spare: Vec<f32>) {
        if spare.capacity() > self.spare.capacity() {
            self.spare = spare;
        }
    }

    fn wake(&mut self, group: GroupId) {
        for (_, parked) in self.parked.extract_if(.., |(waits_for, _)| *waits_for == group) {
            // A stream that timed out has been refused.
            let _ = parked.send(());
        }
    }
}

/// A round under way; dropping it ends the registration.
struct Registered<'h, S> {
    registry: &'h RoundRegistry<S>,
    id: GroupId,
}

impl<S> Drop for Registered<'_, S> {
    fn drop(&mut self) {
        self.registry.state().rounds.remove(&self.id);
    }
}

/// Sends a member the average of a part of a finished round, and ignores its values.
async fn serve<P: Platform>(
    platform: &P,
    group: &Group,
    me: usize,
    result: &Averaged,
    peer: &PeerKey,
    join: Join,
    stream: P::Stream,
) {
    let part = usize::from(join.part);
    let refusal = match group.position(peer) {
        None => Some(JoinRefusal::NotAMember),
        Some(_) if group.reducer(part, join.attempt) != Some(me) => {
            Some(JoinRefusal::NotReducer { part: join.part, attempt: join.attempt })
        }
        Some(_) => None,
    };
    if let Some(refusal) = refusal {
        return refuse(platform, stream, refusal).await;
    }
    let Some(PartOutcome::Averaged { finished, .. }) = result.parts.get(part) else {
        return refuse(platform, stream, JoinRefusal::UnknownGroup).await;
    };
    let (mut reader, mut writer) = stream.split();
    let values = &result.values[group.part(part)];
    let giving = std::pin::pin!(give(platform, &mut writer, group, values, *finished));
    let mut ignored = [0; 4096];
    let ignoring = async { while reader.read(&mut ignored).await.is_ok_and(|n_bytes| n_bytes > 0) {} };
    let ignoring = std::pin::pin!(ignoring);
    if let futures::future::Either::Right((_, giving)) = futures::future::select(giving, ignoring).await {
        giving.await;
    }
}

/// Writes a part of a finished round. A member that reads nothing for [`PARK`] gets no more.
async fn give<P: Platform, W: AsyncWrite + Unpin + Send>(
    platform: &P,
    writer: &mut W,
    group: &Group,
    values: &[f32],
    finished: Finished,
) -> Option<()> {
    let granted = ReducerToMember::Granted { window_chunks: 1 };
    within(platform, PARK, framing::write(writer, &granted, MESSAGE_BYTES_MAX)).await?.ok()?;
    let mut packed = Vec::new();
    for index in 0..n_chunks(values.len()) {
        // These values are decoded ones, so encoding them again is exact.
        let of_chunk = &values[chunk(values.len(), index)];
        average::pack_chunk(index, of_chunk, group.codec(), &mut packed).ok()?;
        within(platform, PARK, average::write_chunk(writer, &packed)).await?.ok()?;
    }
    let finished = ReducerToMember::Finished(finished);
    within(platform, PARK, framing::write(writer, &finished, MESSAGE_BYTES_MAX)).await?.ok()?;
    within(platform, PARK, writer.close()).await?.ok()
}
