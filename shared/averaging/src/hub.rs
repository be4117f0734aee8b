//! Streams that others open: to the round they belong to, which may not have begun here, or may be over.
//!
//! It holds a bounded number of streams for rounds to come, and the results of the last rounds.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use barnraise_protocol::average::{self, Finished, Join, MESSAGE_BYTES_MAX, ReducerToMember, Refusal};
use barnraise_protocol::framing;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Brought, Group, GroupId, chunk, n_chunks};
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::platform::{Platform, until, within};
use crate::round::{AverageError, Averaged, Config, PartOutcome, average};

/// Most streams that wait for a round to begin.
pub const PARKED_MAX: usize = 512;
/// Results that are kept for members that missed a part: whoever has no values to give is not waited for, and may ask
/// when the next round has begun.
const RESULTS_MAX: usize = 2;
/// How long a stream waits for its round to begin, or to be over.
const PARK: Duration = Duration::from_secs(30);

/// A member that has opened a stream for a part.
#[derive(Debug)]
pub(crate) struct Joining<S> {
    pub(crate) member: usize,
    /// What it says that it brings, which fits the group.
    pub(crate) brought: Brought,
    pub(crate) stream: S,
    /// As in [`Opened`].
    pub(crate) back: oneshot::Sender<S>,
}

/// A stream with what its peer said first.
#[derive(Debug)]
pub(crate) struct Opened<S> {
    pub(crate) peer: PeerKey,
    pub(crate) join: Join,
    pub(crate) stream: S,
    /// Where the stream goes back to, if its part is averaged already: it is served when the round is over.
    pub(crate) back: oneshot::Sender<S>,
}

/// A round that is over.
#[derive(Debug)]
struct Over {
    group: Arc<Group>,
    me: usize,
    result: Arc<Averaged>,
}

#[derive(Debug)]
struct State<S> {
    rounds: HashMap<GroupId, mpsc::Sender<Opened<S>>>,
    parked: Vec<(GroupId, oneshot::Sender<()>)>,
    /// The newest first.
    over: VecDeque<Over>,
    /// Memory of a vector of the last round, for the next one.
    spare: Vec<f32>,
}

/// Where the streams of the conversation `average` arrive.
#[derive(Debug)]
pub struct Hub<S> {
    state: Mutex<State<S>>,
}

impl<S> Default for Hub<S> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                rounds: HashMap::new(),
                parked: Vec::new(),
                over: VecDeque::new(),
                spare: Vec::new(),
            }),
        }
    }
}

/// What becomes of a stream.
enum Way<S> {
    Round(mpsc::Sender<Opened<S>>),
    Over(Arc<Group>, usize, Arc<Averaged>),
    Park(oneshot::Receiver<()>),
    Busy,
}

impl<S> Hub<S> {
    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Hub<S> {
    /// Takes this peer through a round of `group`; see [`average`]. Its result is kept for members that missed
    /// a part, until the next round.
    ///
    /// # Errors
    /// As [`average`].
    pub async fn average<P: Platform<Stream = S>>(
        &self,
        platform: &P,
        config: &Config,
        group: &Arc<Group>,
        me: &PeerKey,
        values: Vec<f32>,
    ) -> Result<Arc<Averaged>, AverageError> {
        self.average_brought(platform, config, group, me, (values, None)).await
    }

    /// The same, with what is behind the values where that is not only this peer's own.
    pub(crate) async fn average_brought<P: Platform<Stream = S>>(
        &self,
        platform: &P,
        config: &Config,
        group: &Arc<Group>,
        me: &PeerKey,
        values: (Vec<f32>, Option<Brought>),
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
        // Whatever ends this, the next round may begin.
        let _registered = Registered { hub: self, id };
        let averaged = average(platform, config, group, me, values, &mut spare, &mut streams).await;
        self.state().keep_spare(spare);
        let result = Arc::new(averaged?);
        let me = group.position(me).ok_or(AverageError::NotAMember)?;
        let over = Over { group: Arc::clone(group), me, result: Arc::clone(&result) };
        self.state().keep(id, over);
        // Those that came when nobody was waiting for them any longer are served from the result.
        streams.close();
        while let Some(Opened { stream, back, .. }) = streams.next().await {
            let _ = back.send(stream);
        }
        Ok(result)
    }

    /// Takes a stream that `peer` opened to where it belongs; completes when nothing more is to be done here.
    pub async fn take<P: Platform<Stream = S>>(&self, platform: &P, peer: PeerKey, mut stream: S) {
        let parked_until = platform.now() + PARK;
        let reading = framing::read::<Join, _>(&mut stream, MESSAGE_BYTES_MAX);
        let Some(Ok(join)) = until(platform, parked_until, reading).await else { return };
        let mut is_back = false;
        loop {
            let refusal = match self.way(join.group, is_back) {
                Way::Round(mut round) => {
                    let (back, coming_back) = oneshot::channel();
                    let opened = Opened { peer: peer.clone(), join, stream, back };
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
                        Err(opened) => return refuse(platform, opened.stream, Refusal::Busy).await,
                    }
                    continue;
                }
                Way::Over(group, me, result) => {
                    return serve(platform, &group, me, &result, &peer, join, stream).await;
                }
                Way::Park(woken) => match until(platform, parked_until, woken).await {
                    Some(Ok(())) => continue,
                    _ => Refusal::UnknownGroup,
                },
                Way::Busy => Refusal::Busy,
            };
            return refuse(platform, stream, refusal).await;
        }
    }

    fn way(&self, group: GroupId, is_back: bool) -> Way<S> {
        let mut state = self.state();
        if let Some(round) = state.rounds.get(&group).filter(|_| !is_back) {
            return Way::Round(round.clone());
        }
        if let Some(over) = state.over.iter().find(|over| over.group.id() == group) {
            return Way::Over(Arc::clone(&over.group), over.me, Arc::clone(&over.result));
        }
        state.parked.retain(|(_, parked)| !parked.is_canceled());
        if state.parked.len() >= PARKED_MAX {
            return Way::Busy;
        }
        let (wake, woken) = oneshot::channel();
        state.parked.push((group, wake));
        Way::Park(woken)
    }
}

impl<S> State<S> {
    fn keep(&mut self, id: GroupId, over: Over) {
        self.over.truncate(RESULTS_MAX - 1);
        self.over.push_front(over);
        self.wake(id);
    }

    /// Memory for so many values, if it is not far too much for them.
    fn take_spare(&mut self, n_values: usize) -> Vec<f32> {
        let fits = (n_values..=2 * n_values).contains(&self.spare.capacity());
        if fits { std::mem::take(&mut self.spare) } else { Vec::new() }
    }

    /// Of two vectors the larger one is kept: rounds of a few values come between those of a model.
    fn keep_spare(&mut self, spare: Vec<f32>) {
        if spare.capacity() > self.spare.capacity() {
            self.spare = spare;
        }
    }

    fn wake(&mut self, group: GroupId) {
        for (_, parked) in self.parked.extract_if(.., |(waits_for, _)| *waits_for == group) {
            // One that gave up has been refused.
            let _ = parked.send(());
        }
    }
}

/// A round that is going on.
struct Registered<'h, S> {
    hub: &'h Hub<S>,
    id: GroupId,
}

impl<S> Drop for Registered<'_, S> {
    fn drop(&mut self) {
        self.hub.state().rounds.remove(&self.id);
    }
}

/// Says why a stream is not taken.
pub(crate) async fn refuse<P: Platform>(platform: &P, mut stream: P::Stream, refusal: Refusal) {
    let answering = async {
        framing::write(&mut stream, &ReducerToMember::Refused(refusal), MESSAGE_BYTES_MAX).await?;
        Ok::<(), framing::FrameError>(stream.close().await?)
    };
    // Whoever does not listen to it need not.
    let _ = within(platform, PARK, answering).await;
}

/// Gives a member the average of a part of a round that is over, whatever it sends meanwhile.
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
        None => Some(Refusal::NotAMember),
        Some(_) if group.reducer(part, join.attempt) != Some(me) => {
            Some(Refusal::NotReducer { part: join.part, attempt: join.attempt })
        }
        Some(_) => None,
    };
    if let Some(refusal) = refusal {
        return refuse(platform, stream, refusal).await;
    }
    let Some(PartOutcome::Averaged { finished, .. }) = result.parts.get(part) else {
        return refuse(platform, stream, Refusal::UnknownGroup).await;
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

/// Whoever takes nothing for [`PARK`] gets no more.
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
        // These values have come out of the codec before, so they go in again.
        let of_chunk = &values[chunk(values.len(), index)];
        average::pack_chunk(index, of_chunk, group.codec(), &mut packed).ok()?;
        within(platform, PARK, average::write_chunk(writer, &packed)).await?.ok()?;
    }
    let finished = ReducerToMember::Finished(finished);
    within(platform, PARK, framing::write(writer, &finished, MESSAGE_BYTES_MAX)).await?.ok()?;
    within(platform, PARK, writer.close()).await?.ok()
}
