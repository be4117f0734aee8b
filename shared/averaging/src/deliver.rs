//! A part that another member reduces: sends this member's values to the reducer and receives the average.

use std::ops::Range;
use std::time::Duration;

use barnraise_protocol::average::{self, Finished, Join, MESSAGE_BYTES_MAX, ReducerToMember};
use barnraise_protocol::framing;
use barnraise_swarm::averaging::{MemberInput, chunk, n_chunks};
use futures::channel::mpsc;
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures::{FutureExt, SinkExt, StreamExt};

use crate::context::RoundContext;
use crate::error::DeliverError;
use crate::platform::{self, Platform};

/// Sends this member's values of the part, where it has samples, and fills `mean` with the average.
pub(crate) async fn deliver<P: Platform>(
    round: &RoundContext<'_, P>,
    part: usize,
    attempt: u8,
    mean: &mut [f32],
) -> Result<Finished, DeliverError> {
    let reducer = round.group.reducer(part, attempt).ok_or(DeliverError::NoReducer)?;
    let peer = &round.group.members()[reducer].peer;
    let opened = round.within(round.config.reducer_timeout, round.platform.open(peer)).await?;
    let mut stream = opened.map_err(DeliverError::Unreachable)?;
    let MemberInput { n_samples, behind, is_whole } = round.input;
    let join = Join { group: round.group.id(), part: part as u16, attempt, n_samples, behind, is_whole };
    // The standby reducer takes over once its own attempt 0 has failed, so it is waited for until the round ends.
    let patience = if attempt == 0 { round.config.reducer_timeout } else { round.config.deadline };
    let window = round.within(patience, average::join(&mut stream, join)).await??;
    let (reader, writer) = stream.split();
    let (credits, granted) = mpsc::channel(n_chunks(mean.len()) as usize);
    let sending = send(round, writer, round.group.part(part), window, granted).fuse();
    let receiving = receive(round, reader, mean, credits).fuse();
    let (mut sending, mut receiving) = (std::pin::pin!(sending), std::pin::pin!(receiving));
    loop {
        futures::select_biased! {
            finished = receiving => return finished,
            // A reducer that takes no more values may still give the average.
            _ = sending => {}
        }
    }
}

async fn send<P: Platform, S: AsyncWrite + Unpin>(
    round: &RoundContext<'_, P>,
    mut writer: S,
    part: Range<usize>,
    window: u32,
    mut granted: mpsc::Receiver<()>,
) -> std::io::Result<()> {
    let values = &round.values[part];
    let n_chunks = if round.sends() { n_chunks(values.len()) } else { 0 };
    let mut packed = Vec::new();
    for index in 0..n_chunks {
        if index >= window && granted.next().await.is_none() {
            break;
        }
        let of_chunk = &values[chunk(values.len(), index)];
        average::pack_chunk(index, of_chunk, round.group.codec(), &mut packed)
            .map_err(std::io::Error::other)?;
        average::write_chunk(&mut writer, &packed).await?;
        round.count_sent(average::encoded(&packed).len());
    }
    writer.close().await
}

async fn receive<P: Platform, S: AsyncRead + Unpin + Send>(
    round: &RoundContext<'_, P>,
    mut reader: S,
    mean: &mut [f32],
    mut credits: mpsc::Sender<()>,
) -> Result<Finished, DeliverError> {
    let codec = round.group.codec();
    let mut bytes = Vec::new();
    for index in 0..n_chunks(mean.len()) {
        let range = chunk(mean.len(), index);
        let reading = average::read_chunk(&mut reader, index, &mut mean[range], codec, &mut bytes);
        round.within(round.config.reducer_timeout, reading).await??;
        round.count_received(bytes.len());
        // Never full; closed where nothing more is to be sent.
        let _ = credits.send(()).await;
    }
    let reading = framing::read(&mut reader, MESSAGE_BYTES_MAX);
    match round.within(round.config.reducer_timeout, reading).await?? {
        ReducerToMember::Finished(finished) => Ok(finished),
        _ => Err(DeliverError::Unexpected),
    }
}

impl<P: Platform> RoundContext<'_, P> {
    async fn within<F: Future + Send>(
        &self,
        patience: Duration,
        future: F,
    ) -> Result<F::Output, DeliverError> {
        platform::within(self.platform, patience, future).await.ok_or(DeliverError::Silent(patience))
    }
}
