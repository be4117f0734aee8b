//! Evidence of an expert's answer that its checkpoint does not give.
//!
//! ```text
//! length of the header, u32 little-endian | header, postcard | inputs | answer | checkpoint
//! ```
//!
//! The host has signed that its expert, of this model, gave this answer to these inputs at a step, and that its parameters were these
//! at the same step. Both cannot be true where another answer follows from them.

use serde::{Deserialize, Serialize};

use super::{EvidenceError, split_header, split_part, with_header};
use crate::bulk::Transfer;
use crate::experts::checkpoints::ExpertCheckpoint;
use crate::experts::{ExpertPass, ExpertRefusal, SignedAnswer, model_hash};
use crate::run::RunDescription;

/// An answer, the checkpoint of the same step, and what both are about.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerEvidence {
    /// Run, answer and checkpoint.
    pub header: AnswerHeader,
    /// The inputs of the request, encoded as the host received them.
    pub inputs: Vec<u8>,
    /// The answer, encoded as the host sent it.
    pub answer: Vec<u8>,
    /// The checkpoint, as the host gave it to its keepers.
    pub checkpoint: Vec<u8>,
}

/// Header of such evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerHeader {
    /// The run.
    pub run: RunDescription,
    /// What the host signed of the answer.
    pub answer: SignedAnswer,
    /// What it signed of its parameters.
    pub checkpoint: ExpertCheckpoint,
}

/// The decoded tensors of such evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerContents {
    /// `[n_rows, input_values]`, finite.
    pub inputs: Vec<f32>,
    /// As the host claims it, `[n_rows, output_values]`, finite.
    pub answer: Vec<f32>,
}

impl AnswerEvidence {
    /// Encodes it, for storage and transfer.
    ///
    /// # Errors
    /// Does not happen.
    pub fn encode(&self) -> Result<Vec<u8>, EvidenceError> {
        with_header(&self.header, &[&self.inputs, &self.answer, &self.checkpoint])
    }

    /// Decodes it; nothing is verified.
    ///
    /// # Errors
    /// Bytes that are no such evidence.
    pub fn decode(bytes: &[u8]) -> Result<Self, EvidenceError> {
        let (header, rest): (AnswerHeader, _) = split_header(bytes)?;
        let (inputs, rest) = split_part(rest, header.answer.inputs.n_bytes)?;
        let (answer, checkpoint) = split_part(rest, header.answer.answer.n_bytes)?;
        let (inputs, answer, checkpoint) = (inputs.to_vec(), answer.to_vec(), checkpoint.to_vec());
        Ok(Self { header, inputs, answer, checkpoint })
    }

    /// Verifies that one host signed all of it, and decodes the tensors.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(&self) -> Result<AnswerContents, EvidenceError> {
        let AnswerHeader { run, answer, checkpoint } = &self.header;
        let run_id = &run.identity.run_id;
        let is_signed = answer.pass == ExpertPass::Forward
            && answer.is_signed(run_id, model_hash(run)?)
            && checkpoint.is_signed(run_id)
            && checkpoint.lease.holder == answer.host
            && checkpoint.lease.place == answer.place
            && checkpoint.version() == answer.version;
        if !is_signed {
            return Err(EvidenceError::NotSigned);
        }
        for (what, bytes, transfer) in [
            ("request", &self.inputs, answer.inputs),
            ("answer", &self.answer, answer.answer),
            ("checkpoint", &self.checkpoint, checkpoint.transfer),
        ] {
            if Transfer::of(bytes) != transfer {
                return Err(EvidenceError::Hash(what));
            }
        }
        let none = |_: ExpertRefusal| EvidenceError::Malformed("tensors that no request has");
        let (inputs, answer) = answer.decode(&self.inputs, &self.answer).map_err(none)?;
        Ok(AnswerContents { inputs, answer })
    }
}
