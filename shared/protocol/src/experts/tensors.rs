//! Tensors of requests and answers, encoded and decoded. It takes milliseconds: drivers do it beside their async threads.

use super::checkpoints::CheckpointVersion;
use super::{AnswerSigner, ExpertPass, ExpertRefusal, ExpertRequest, SignedAnswer};
use crate::access::{PublicKey, Signature};
use crate::bulk::Transfer;
use crate::codec::CodecError;

/// A request with the bytes that follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedRequest {
    request: ExpertRequest,
    bytes: Vec<u8>,
}

/// The tensors of a request, decoded and finite.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertTensors {
    /// `[n_rows, input_values]`.
    pub inputs: Vec<f32>,
    /// Of the output, `[n_rows, output_values]`; of a backward pass only.
    pub gradients: Option<Vec<f32>>,
    /// [`ExpertRequest::n_steps`].
    pub n_steps: u64,
}

/// What an expert has computed, with the bytes that follow the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedRows {
    pub(super) version: CheckpointVersion,
    pub(super) transfer: Transfer,
    pub(super) signature: Signature,
    pub(super) bytes: Vec<u8>,
}

/// An expert's answer, still encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertRows {
    /// Of the parameters that computed the rows.
    pub version: CheckpointVersion,
    /// Of the host.
    pub signature: Signature,
    /// What was announced of the bytes.
    pub transfer: Transfer,
    /// Of the rows; [`PreparedRequest::decode`] reads them.
    pub bytes: Vec<u8>,
}

impl PreparedRequest {
    /// Encodes the tensors of `request`, whose pass and transfer follow from them.
    ///
    /// # Shapes
    /// - `inputs`: `[n_rows, input_values]`
    /// - `gradients`: `[n_rows, output_values]`, or `None` for a forward pass
    ///
    /// # Errors
    /// A value that is not finite, or another number of values than the rows have.
    pub fn new(
        mut request: ExpertRequest,
        inputs: &[f32],
        gradients: Option<&[f32]>,
    ) -> Result<Self, CodecError> {
        let mut bytes = request.encode_rows(inputs, request.input_values)?;
        request.pass = ExpertPass::Forward;
        if let Some(gradients) = gradients {
            request.pass = ExpertPass::Backward;
            bytes.extend(request.encode_rows(gradients, request.output_values)?);
        }
        request.transfer = Transfer::of(&bytes);
        Ok(Self { request, bytes })
    }

    /// The request.
    pub fn request(&self) -> &ExpertRequest {
        &self.request
    }

    /// The tensors, encoded.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The tensors alone, encoded.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// What a host with this key has signed by its answer.
    pub fn signed(&self, host: PublicKey, rows: &ExpertRows) -> SignedAnswer {
        let answer = (rows.version, rows.transfer, rows.signature);
        SignedAnswer::new(host, &self.request, answer)
    }

    /// Decodes the answer to this request: `[n_rows, output_values]` of a forward pass, `[n_rows, input_values]` of a backward
    /// pass.
    ///
    /// # Errors
    /// A value that is not finite, or another number of bytes than the rows take.
    pub fn decode(&self, rows: &ExpertRows) -> Result<Vec<f32>, CodecError> {
        self.request.codec.decode(&rows.bytes, self.request.n_values(self.request.answer_values()))
    }
}

impl ExpertRequest {
    /// Decodes the tensors that followed the request.
    ///
    /// # Errors
    /// What the trainer is to be told: a request that does not pass [`Self::check`], other bytes than it announced, or a
    /// value that is not finite.
    pub fn decode(&self, bytes: &[u8]) -> Result<ExpertTensors, ExpertRefusal> {
        self.check()?;
        let (want, got) = (self.transfer.n_bytes, bytes.len() as u64);
        let of_inputs = self.codec.encoded_len(self.n_values(self.input_values));
        let split = bytes.split_at_checked(of_inputs).filter(|_| want == got);
        let (inputs, gradients) = split.ok_or(ExpertRefusal::Bytes { want, got })?;
        let rows = |bytes: &[u8], row_values: u32| {
            // Of these lengths, only a value that is not finite is left to be wrong.
            self.codec.decode(bytes, self.n_values(row_values)).map_err(|_| ExpertRefusal::NotFinite)
        };
        let inputs = rows(inputs, self.input_values)?;
        let gradients = match self.pass {
            ExpertPass::Forward => None,
            ExpertPass::Backward => Some(rows(gradients, self.output_values)?),
        };
        Ok(ExpertTensors { inputs, gradients, n_steps: self.n_steps })
    }

    /// Encodes what the expert has computed for this request with the parameters of `version`: `[n_rows, output_values]` of a
    /// forward pass, `[n_rows, input_values]` of a backward pass. The host signs it.
    ///
    /// # Errors
    /// What the trainer is to be told: a value that is not finite, or another number of values than the rows have.
    pub fn answer(
        &self,
        signer: &AnswerSigner,
        version: CheckpointVersion,
        rows: &[f32],
    ) -> Result<PreparedRows, ExpertRefusal> {
        let encoded = self.encode_rows(rows, self.answer_values());
        let bytes = encoded.map_err(|error| match error {
            CodecError::NotFinite { .. } => ExpertRefusal::NotFinite,
            _ => ExpertRefusal::Failed,
        })?;
        let transfer = Transfer::of(&bytes);
        let signed =
            SignedAnswer::sign(signer, self, version, transfer).map_err(|_| ExpertRefusal::Failed)?;
        Ok(PreparedRows { version, transfer, signature: signed.signature, bytes })
    }

    fn encode_rows(&self, values: &[f32], row_values: u32) -> Result<Vec<u8>, CodecError> {
        let (n_values, got) = (self.n_values(row_values), values.len());
        if got != n_values {
            let (want, got) = (self.codec.encoded_len(n_values), self.codec.encoded_len(got));
            return Err(CodecError::Length { n_values, min: want, max: want, got });
        }
        self.codec.encode(values)
    }
}
