//! All of an expert that lasts, as its host stores it and other peers keep it: parameters, optimizer, and the requests that it has
//! counted, all of one step.

use barnraise_learning::OptimizerState;
use barnraise_learning::hosted::{ExpertError, ExpertState, HostedLayer};
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::sealed::{self, ObjectKind, SealError};
use barnraise_swarm::experts::serving::{CountedState, CountedStateError};
use serde::{Deserialize, Serialize};

const KIND: ObjectKind = ObjectKind { name: *b"exps", what: "expert", version: 2 };

const _: () = assert!(cfg!(target_endian = "little"), "parameters are stored as they are in memory");

/// Why stored bytes are no state of an expert that a host can go on from.
#[derive(Debug, thiserror::Error)]
pub enum StoredExpertError {
    /// Damaged, or of another version.
    #[error(transparent)]
    Sealed(#[from] SealError),
    /// Of another expert.
    #[error(transparent)]
    State(#[from] ExpertError),
    /// What no host has counted.
    #[error(transparent)]
    Counted(#[from] CountedStateError),
    /// Not that of its checkpoint.
    #[error("it is another state than its holder has signed")]
    Version,
}

/// An expert with what it has counted.
#[derive(Debug, Clone)]
pub struct StoredExpert {
    /// Of the lease under which it has stepped.
    pub term: u64,
    /// What computes.
    pub state: ExpertState,
    /// The requests by which it has stepped.
    pub counted: CountedState,
}

/// Before the raw parameters.
#[derive(Serialize, Deserialize)]
struct ExpertHeader {
    term: u64,
    n_parameters: u64,
    optimizer: OptimizerState,
    counted: CountedState,
}

/// What another copy of an expert has learned.
#[derive(Debug)]
pub struct CopyState {
    /// Which copy.
    pub copy: u8,
    /// Which state of it.
    pub version: CheckpointVersion,
    /// `[n_parameters]`; none where what its host has signed is no state of the expert.
    pub parameters: Vec<f32>,
}

impl StoredExpert {
    /// Which state it is.
    pub fn version(&self) -> CheckpointVersion {
        CheckpointVersion { term: self.term, n_steps: self.state.optimizer.n_steps }
    }

    /// As it is stored.
    ///
    /// # Errors
    /// More than 4 GiB of optimizer state.
    pub fn seal(self) -> Result<Vec<u8>, SealError> {
        let Self { term, state: ExpertState { parameters, optimizer }, counted } = self;
        let header = ExpertHeader { term, n_parameters: parameters.len() as u64, optimizer, counted };
        sealed::seal_parts(KIND, &header, &[bytemuck::cast_slice(&parameters)])
    }

    /// From what was stored.
    ///
    /// # Errors
    /// Damage, another version, a parameter that is no number.
    pub fn open(bytes: &[u8]) -> Result<Self, SealError> {
        let (header, raw): (ExpertHeader, &[u8]) = sealed::open_parts(KIND, bytes)?;
        let (values, rest) = raw.as_chunks::<4>();
        if values.len() as u64 != header.n_parameters || !rest.is_empty() {
            return Err(SealError::Payload("its parameters are cut".into()));
        }
        let parameters: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
        if !parameters.iter().all(|value| value.is_finite()) {
            return Err(SealError::Payload("a parameter is not finite".into()));
        }
        let state = ExpertState { parameters, optimizer: header.optimizer };
        Ok(Self { term: header.term, state, counted: header.counted })
    }

    /// From what another peer kept of an expert of `layer`. The holder of its lease has made it, who may be anybody.
    ///
    /// # Errors
    /// A state that no expert of the layer can go on from, or another one than `version`.
    pub fn open_kept(
        bytes: &[u8],
        layer: &HostedLayer,
        version: CheckpointVersion,
    ) -> Result<Self, StoredExpertError> {
        let opened = Self::open(bytes)?;
        opened.check(layer)?;
        match opened.version() == version {
            true => Ok(opened),
            false => Err(StoredExpertError::Version),
        }
    }

    /// Checks that an expert of this layer can go on from it.
    ///
    /// # Errors
    /// As of [`Self::open_kept`].
    pub fn check(&self, layer: &HostedLayer) -> Result<(), StoredExpertError> {
        self.state.check(&layer.optimizer, layer.body.graph.layout())?;
        Ok(self.counted.check()?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_an_older_program_wrote_is_refused_by_name() {
        let older = ObjectKind { version: 1, ..KIND };
        assert!(StoredExpert::open(&sealed::seal(older, b"")).unwrap_err().is_version());
    }
}
