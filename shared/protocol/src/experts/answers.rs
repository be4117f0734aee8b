//! What a host signs with each answer: which rows its expert gave to which, at which step.

use serde::{Deserialize, Serialize};

use super::checkpoints::CheckpointVersion;
use super::place::ExpertPlace;
use super::{ExpertPass, ExpertRefusal, ExpertRequest};
use crate::access::{KeyPair, PublicKey, Signature};
use crate::bulk::Transfer;
use crate::codec::TensorCodec;
use crate::hash::Sha256Hash;
use crate::run::{ModelSpec, RunDescription};

/// Domain separator: nothing else that a host signs begins with it.
const DOMAIN: &[u8] = b"barnraise expert answer 1\0";

/// An answer without its tensors. It does not say who asked: any peer that has it can show that the host gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedAnswer {
    /// The host.
    pub host: PublicKey,
    /// The expert.
    pub place: ExpertPlace,
    /// What it did.
    pub pass: ExpertPass,
    /// Of the parameters that computed.
    pub version: CheckpointVersion,
    /// Rows.
    pub n_rows: u32,
    /// Values of a row of the input.
    pub input_values: u32,
    /// Values of a row of the output.
    pub output_values: u32,
    /// Of all tensors.
    pub codec: TensorCodec,
    /// Those of the request.
    pub inputs: Transfer,
    /// That of the answer.
    pub answer: Transfer,
    /// Of the host: of all of this, the run and its model.
    pub signature: Signature,
}

/// Which model experts are of: a host signs for that one alone.
///
/// # Errors
/// Does not happen.
pub fn model_hash(run: &RunDescription) -> Result<Sha256Hash, postcard::Error> {
    Ok(Sha256Hash::of(&postcard::to_allocvec(&(&run.model, &run.data.manifest.samples))?))
}

/// Whose parameters a stored expert has. A run goes on with them where its words, its access or how it learns change.
///
/// # Errors
/// Does not happen.
pub fn parameters_hash(run: &RunDescription) -> Result<Sha256Hash, postcard::Error> {
    let ModelSpec { graph, seed, weights, hosted: _ } = &run.model;
    let of = (&run.identity.run_id, graph, seed, weights, &run.data.manifest.samples);
    Ok(Sha256Hash::of(&postcard::to_allocvec(&of)?))
}

/// With what a host signs.
#[derive(Debug, Clone)]
pub struct AnswerSigner {
    /// Of the host.
    pub key: KeyPair,
    /// See [`model_hash`].
    pub model: Sha256Hash,
}

impl SignedAnswer {
    /// Signs what a host gives to a request.
    ///
    /// # Errors
    /// Does not happen.
    pub(super) fn sign(
        AnswerSigner { key, model }: &AnswerSigner,
        request: &ExpertRequest,
        version: CheckpointVersion,
        answer: Transfer,
    ) -> Result<Self, postcard::Error> {
        let unsigned = Self::new(key.public(), request, (version, answer, Signature::from([0; 64])));
        let signature = key.sign(&unsigned.signed_bytes(&request.run_id, *model)?);
        Ok(Self { signature, ..unsigned })
    }

    /// What a host has said to a request.
    pub(super) fn new(
        host: PublicKey,
        request: &ExpertRequest,
        (version, answer, signature): (CheckpointVersion, Transfer, Signature),
    ) -> Self {
        Self {
            host,
            place: (request.layer, request.uid),
            pass: request.pass,
            version,
            n_rows: request.n_rows,
            input_values: request.input_values,
            output_values: request.output_values,
            codec: request.codec,
            inputs: request.transfer,
            answer,
            signature,
        }
    }

    /// Whether the host that it names has signed it, for this run and its [model](model_hash).
    #[must_use]
    pub fn is_signed(&self, run_id: &str, model: Sha256Hash) -> bool {
        self.signed_bytes(run_id, model).is_ok_and(|bytes| self.host.has_signed(&bytes, &self.signature))
    }

    fn signed_bytes(&self, run_id: &str, model: Sha256Hash) -> Result<Vec<u8>, postcard::Error> {
        let Self { place, pass, version, n_rows, input_values, output_values, .. } = self;
        let sizes = (n_rows, input_values, output_values);
        let signed = (run_id, model, place, pass, version, sizes, self.codec, self.inputs, self.answer);
        postcard::to_extend(&signed, DOMAIN.to_vec())
    }

    /// Decodes the tensors of a forward pass: the inputs, `[n_rows, input_values]`, and the answer, `[n_rows, output_values]`.
    ///
    /// # Errors
    /// Tensors that no request has, or values that are not finite.
    pub fn decode(&self, inputs: &[u8], answer: &[u8]) -> Result<(Vec<f32>, Vec<f32>), ExpertRefusal> {
        let as_request = ExpertRequest {
            run_id: String::new(),
            request_id: 0,
            layer: self.place.0,
            uid: self.place.1,
            pass: self.pass,
            n_steps: 0,
            n_rows: self.n_rows,
            input_values: self.input_values,
            output_values: self.output_values,
            codec: self.codec,
            transfer: self.inputs,
        };
        let tensors = as_request.decode(inputs)?;
        let n_values = as_request.n_values(self.output_values);
        Ok((tensors.inputs, self.codec.decode(answer, n_values).map_err(|_| ExpertRefusal::NotFinite)?))
    }
}
