//! The `state` conversation: a contributor pulls the parameters of an epoch (DeDLOC §3.1).
//!
//! A stream carries any number of requests, one after the other, so that a new epoch costs one round
//! trip and no negotiation.

use std::ops::Range;

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, BulkError, ChunkSource, Partial, Transfer};
use crate::codec::{CodecError, INT8_BLOCK_VALUES, TensorCodec};
use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;
use crate::pieces::Pieces;
use crate::refusal::Refusal;
use crate::serving;

/// libp2p protocol name.
pub const PROTOCOL: &str = "/barnraise/state/3";

/// Largest message of this conversation.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Contributor to backbone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContributorToBackbone {
    /// Send me the parameters of the newest epoch.
    GetLatest,
    /// Send me the parameters of this epoch, to resume a transfer that was cut.
    GetEpoch(u64),
}

/// Backbone to contributor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackboneToContributor {
    /// The parameters are here; their bytes can be pulled.
    Found(StateHeader),
    /// Not served.
    Refused(Refusal),
}

/// Describes the bytes that can be pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHeader {
    /// Optimizer steps that led to these parameters.
    pub epoch: u64,
    /// Values after decoding.
    pub n_values: u64,
    /// How the values are encoded.
    pub codec: TensorCodec,
    /// Length and hash of the encoded bytes.
    pub transfer: Transfer,
}

/// Values that are decoded at once: whole blocks of any codec that carries parameters.
const BLOCK_VALUES: usize = 64 * INT8_BLOCK_VALUES;

/// The parameters of an epoch, as they were sent. They are decoded where they are needed, a part after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedState {
    /// Optimizer steps that led to them.
    pub epoch: u64,
    /// Hash of the encoded bytes.
    pub sha256: Sha256Hash,
    codec: TensorCodec,
    n_values: usize,
    /// All values are finite.
    bytes: Pieces,
}

impl EncodedState {
    /// Takes `bytes`, and looks at all of the `n_values` values in them.
    ///
    /// # Errors
    /// They are of another length, or a value is not finite.
    pub fn new(
        (epoch, sha256): (u64, Sha256Hash),
        codec: TensorCodec,
        n_values: usize,
        bytes: Pieces,
    ) -> Result<Self, CodecError> {
        let (want, got) = (codec.encoded_len(n_values), bytes.len());
        if want != got {
            return Err(CodecError::Length { n_values, min: want, max: want, got });
        }
        let parameters = Self { epoch, sha256, codec, n_values, bytes };
        for block in 0..n_values.div_ceil(BLOCK_VALUES) {
            parameters.block(block).map_err(|error| match error {
                CodecError::NotFinite { index } => {
                    CodecError::NotFinite { index: index + block * BLOCK_VALUES }
                }
                error => error,
            })?;
        }
        Ok(parameters)
    }

    /// How many there are.
    pub fn n_values(&self) -> usize {
        self.n_values
    }

    /// All values, `[n_values]`.
    pub fn values(&self) -> Vec<f32> {
        self.range(0..self.n_values)
    }

    /// The values of a range; fewer where there are not so many.
    pub fn range(&self, range: Range<usize>) -> Vec<f32> {
        let end = range.end.min(self.n_values);
        let mut values = Vec::with_capacity(end.saturating_sub(range.start));
        for block in range.start / BLOCK_VALUES..end.div_ceil(BLOCK_VALUES) {
            let decoded = self.block(block);
            debug_assert!(decoded.is_ok(), "decoded when they came");
            let (decoded, first) = (decoded.unwrap_or_default(), block * BLOCK_VALUES);
            let from = range.start.saturating_sub(first).min(decoded.len());
            let to = (end - first).min(decoded.len());
            values.extend_from_slice(decoded.get(from..to).unwrap_or_default());
        }
        values
    }

    /// All values as f32, little endian, in pieces.
    pub fn to_le_bytes(&self) -> impl Iterator<Item = Vec<u8>> {
        let blocks = (0..self.n_values).step_by(BLOCK_VALUES);
        blocks.map(|first| {
            let values = self.range(first..first + BLOCK_VALUES);
            values.into_iter().flat_map(f32::to_le_bytes).collect()
        })
    }

    /// The values of a block.
    fn block(&self, block: usize) -> Result<Vec<f32>, CodecError> {
        let first = block * BLOCK_VALUES;
        let n_values = BLOCK_VALUES.min(self.n_values - first);
        let mut bytes = vec![0; self.codec.encoded_len(n_values)];
        let is_there = self.bytes.read(self.codec.encoded_len(first), &mut bytes);
        if is_there.is_none() {
            bytes.clear();
        }
        self.codec.decode(&bytes, n_values)
    }
}

/// A transfer of parameters that was cut and can be resumed.
#[derive(Debug, Clone)]
pub struct PartialState {
    header: StateHeader,
    partial: Partial<Pieces>,
}

/// Pulls the newest parameters, or the rest of `partial` while the backbone still has its epoch.
///
/// `n_parameters` and `codec` come from the run's description. `on_progress` gets the bytes that arrived so
/// far and the bytes in total. On an error `partial` keeps what arrived, unless the backbone no longer has it.
pub async fn fetch<S>(
    stream: &mut S,
    n_parameters: u64,
    codec: TensorCodec,
    partial: &mut Option<PartialState>,
    mut on_progress: impl FnMut(u64, u64),
) -> Result<EncodedState, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(cut) = partial.as_ref() {
        let request = ContributorToBackbone::GetEpoch(cut.header.epoch);
        match ask(stream, &request).await {
            Ok(header) if header == cut.header => {}
            // Another state, or gone: start over below. `Found` is declined, because it was not pulled.
            Ok(_) => {
                *partial = None;
                bulk::decline(stream).await?;
            }
            Err(ConversationError::Refused(_)) => *partial = None,
            Err(error) => return Err(error),
        }
    }
    let cut = match partial {
        Some(cut) => cut,
        None => {
            let header = ask(stream, &ContributorToBackbone::GetLatest).await?;
            check_header(&header, n_parameters, codec)?;
            let whole = Partial::in_pieces(header.transfer, header.transfer.n_bytes)?;
            partial.insert(PartialState { header, partial: whole })
        }
    };
    let StateHeader { epoch, transfer: Transfer { n_bytes, sha256 }, .. } = cut.header;
    on_progress(cut.partial.n_bytes(), n_bytes);
    let pulled = bulk::pull(stream, &mut cut.partial, |here| on_progress(here, n_bytes)).await;
    if let Err(BulkError::Withdrawn(_)) = &pulled {
        *partial = None;
    }
    let bytes = pulled?;
    *partial = None;
    Ok(EncodedState::new((epoch, sha256), codec, n_parameters as usize, bytes)?)
}

/// Asks which parameters are the newest, and pulls none of them.
///
/// # Errors
/// There are none, or the stream broke.
pub async fn newest<S>(stream: &mut S) -> Result<StateHeader, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    ask(stream, &ContributorToBackbone::GetLatest).await
}

async fn ask<S>(stream: &mut S, request: &ContributorToBackbone) -> Result<StateHeader, ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    framing::write(stream, request, MESSAGE_BYTES_MAX).await?;
    match framing::read(stream, MESSAGE_BYTES_MAX).await? {
        BackboneToContributor::Found(header) => Ok(header),
        BackboneToContributor::Refused(refusal) => Err(refusal.into()),
    }
}

fn check_header(
    header: &StateHeader,
    n_parameters: u64,
    codec: TensorCodec,
) -> Result<(), ConversationError> {
    let mismatch = |what, want, got| Err(ConversationError::Mismatch { what, want, got });
    if header.n_values != n_parameters {
        return mismatch("parameters", n_parameters, header.n_values);
    }
    let n_bytes = codec.encoded_len(n_parameters as usize) as u64;
    if header.codec != codec || header.transfer.n_bytes != n_bytes {
        return mismatch("bytes of parameters, or another codec,", n_bytes, header.transfer.n_bytes);
    }
    Ok(())
}

/// Serves parameters on `stream` until the contributor closes it. `lookup` takes an epoch, or `None` for the
/// newest, and returns the encoded parameters or why there are none. `on_answered` is called
/// after each answer.
pub async fn serve<S, B, F>(
    stream: &mut S,
    lookup: impl Fn(Option<u64>) -> F,
    on_answered: impl FnMut(),
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: ChunkSource,
    F: Future<Output = Result<(StateHeader, B), Refusal>>,
{
    let answered = move |request: ContributorToBackbone| {
        let epoch = match request {
            ContributorToBackbone::GetLatest => None,
            ContributorToBackbone::GetEpoch(epoch) => Some(epoch),
        };
        let found = lookup(epoch);
        async move {
            match found.await {
                Ok((header, bytes)) => (BackboneToContributor::Found(header), Some(bytes)),
                Err(refusal) => (BackboneToContributor::Refused(refusal), None),
            }
        }
    };
    serving::serve(stream, MESSAGE_BYTES_MAX, answered, on_answered).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const N_VALUES: usize = 3 * BLOCK_VALUES + 77;

    fn state_of(codec: TensorCodec, bytes: &[u8]) -> Result<EncodedState, CodecError> {
        EncodedState::new((3, Sha256Hash([1; 32])), codec, N_VALUES, bytes.into())
    }

    #[test]
    fn any_part_of_a_state_is_decoded_as_the_whole_is() {
        let values: Vec<f32> = (0..N_VALUES).map(|at| (at * 37 % 1001) as f32 - 500.0).collect();
        for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
            let bytes = codec.encode(&values).unwrap();
            let want = codec.decode(&bytes, N_VALUES).unwrap();
            let state = state_of(codec, &bytes).unwrap();
            assert!((state.n_values(), state.values()) == (N_VALUES, want.clone()), "{codec:?}");
            for range in [0..1, BLOCK_VALUES - 2..2 * BLOCK_VALUES + 3, N_VALUES - 80..N_VALUES, 7..7] {
                assert!(state.range(range.clone()) == want[range.clone()], "{codec:?} {range:?}");
            }
            assert!(state.range(N_VALUES - 2..usize::MAX) == want[N_VALUES - 2..], "no more than there are");
            assert_eq!(state.range(N_VALUES + 5..N_VALUES + 9), []);
            let as_f32: Vec<u8> = state.to_le_bytes().flatten().collect();
            assert!(as_f32 == TensorCodec::F32.encode(&want).unwrap(), "{codec:?}");
        }
    }

    #[test]
    fn a_state_of_another_length_or_with_a_value_that_is_no_number_is_refused() {
        let mut bytes = vec![0; 4 * N_VALUES];
        assert!(state_of(TensorCodec::F32, &bytes).is_ok());
        for n_bytes in [0, 4 * N_VALUES - 1] {
            let error = state_of(TensorCodec::F32, &bytes[..n_bytes]).unwrap_err();
            assert!(matches!(error, CodecError::Length { got, .. } if got == n_bytes), "{error}");
        }
        let index = 2 * BLOCK_VALUES + 5;
        bytes[4 * index..4 * index + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(state_of(TensorCodec::F32, &bytes), Err(CodecError::NotFinite { index }));
    }
}
