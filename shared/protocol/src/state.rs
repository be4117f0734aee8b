//! The `state` conversation: a contributor pulls the parameters of an epoch (DeDLOC §3.1).
//!
//! A stream carries any number of requests, one after the other, so that a new epoch costs one round
//! trip and no negotiation.

use futures::io::{AsyncRead, AsyncWrite};
use serde::{Deserialize, Serialize};

use crate::bulk::{self, BulkError, ChunkSource, Partial, Transfer};
use crate::codec::TensorCodec;
use crate::error::ConversationError;
use crate::framing;
use crate::hash::Sha256Hash;
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

/// The parameters of an epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochParameters {
    /// Optimizer steps that led to them.
    pub epoch: u64,
    /// `[n_parameters]`, finite.
    pub parameters: Vec<f32>,
    /// Hash of the encoded bytes.
    pub sha256: Sha256Hash,
}

/// A transfer of parameters that was cut and can be resumed.
#[derive(Debug, Clone)]
pub struct PartialState {
    header: StateHeader,
    partial: Partial,
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
) -> Result<EpochParameters, ConversationError>
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
            let whole = Partial::new(header.transfer, header.transfer.n_bytes)?;
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
    Ok(EpochParameters { epoch, parameters: codec.decode(&bytes, n_parameters as usize)?, sha256 })
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
pub async fn serve<S, B>(
    stream: &mut S,
    lookup: impl Fn(Option<u64>) -> Result<(StateHeader, B), Refusal>,
    on_answered: impl FnMut(),
) -> Result<(), ConversationError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: ChunkSource,
{
    let answered = move |request: ContributorToBackbone| {
        let epoch = match request {
            ContributorToBackbone::GetLatest => None,
            ContributorToBackbone::GetEpoch(epoch) => Some(epoch),
        };
        std::future::ready(match lookup(epoch) {
            Ok((header, bytes)) => (BackboneToContributor::Found(header), Some(bytes)),
            Err(refusal) => (BackboneToContributor::Refused(refusal), None),
        })
    };
    serving::serve(stream, MESSAGE_BYTES_MAX, answered, on_answered).await
}
