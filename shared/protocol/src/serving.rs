//! The answering side of a conversation in which each question has one answer, with bytes behind it or not.

use futures::io::{AsyncRead, AsyncWrite};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bulk::{self, Held};
use crate::error::ConversationError;
use crate::framing::{self, FrameError};

/// Answers on `stream` until the other side closes it. `lookup` gives the answer, and the bytes that the other side
/// pulls after it, if any; `on_answered` is told when the next question is waited for.
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
    B: Held,
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
            bulk::serve_held(stream, &bytes).await?;
        }
        on_answered();
    }
}
