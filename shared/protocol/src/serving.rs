//! The answering side of a conversation in which each question has one answer, with or without a transfer after it.

use futures::io::{AsyncRead, AsyncWrite};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bulk::{self, ChunkSource};
use crate::error::ConversationError;
use crate::framing::{self, FrameError};

/// Answers on `stream` until the other side closes it. `lookup` returns the answer and the bytes, if any, that the other
/// side pulls after it. `on_answered` is called after each answer.
pub(crate) async fn serve<S, Q, A, B, F>(
    stream: &mut S,
    message_bytes_max: usize,
    lookup: impl Fn(Q) -> F,
    mut on_answered: impl FnMut(),
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    Q: DeserializeOwned,
    A: Serialize,
    B: ChunkSource,
    F: Future<Output = (A, Option<B>)>,
{
    loop {
        let question: Q = match framing::read(stream, message_bytes_max).await {
            Err(FrameError::Closed) => return Ok(()),
            question => question?,
        };
        let (answer, bytes) = lookup(question).await;
        framing::write(stream, &answer, message_bytes_max).await?;
        if let Some(bytes) = bytes {
            bulk::serve_source(stream, &bytes).await?;
        }
        on_answered();
    }
}
