//! Streams that members open for a part of a round.

use std::time::Duration;

use barnraise_protocol::average::{Join, JoinRefusal, MESSAGE_BYTES_MAX, ReducerToMember};
use barnraise_protocol::framing;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::MemberInput;
use futures::channel::oneshot;
use futures::io::AsyncWriteExt;

use crate::platform::{Platform, within};

/// Longest time in which a refusal is written.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(30);

/// A member that has opened a stream for a part.
#[derive(Debug)]
pub(crate) struct JoiningMember<S> {
    pub(crate) member: usize,
    /// Its input, checked against the group.
    pub(crate) input: MemberInput,
    pub(crate) stream: S,
    /// As in [`IncomingStream`].
    pub(crate) back: oneshot::Sender<S>,
}

/// An incoming stream with its first message.
#[derive(Debug)]
pub(crate) struct IncomingStream<S> {
    pub(crate) peer: PeerKey,
    pub(crate) join: Join,
    pub(crate) stream: S,
    /// Returns the stream where its part is averaged already: it is served when the round is over.
    pub(crate) back: oneshot::Sender<S>,
}

/// Answers a stream with a refusal.
pub(crate) async fn refuse<P: Platform>(platform: &P, mut stream: P::Stream, refusal: JoinRefusal) {
    let answering = async {
        framing::write(&mut stream, &ReducerToMember::Refused(refusal), MESSAGE_BYTES_MAX).await?;
        Ok::<(), framing::FrameError>(stream.close().await?)
    };
    // A peer that does not read it loses nothing.
    let _ = within(platform, REFUSAL_TIME_MAX, answering).await;
}
