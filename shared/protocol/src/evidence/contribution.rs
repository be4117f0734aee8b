//! Evidence of a contribution that is not the gradient of its samples.
//!
//! ```text
//! length of the header, u32 little-endian | header, postcard | samples | gradient | parameters
//! ```
//!
//! Everything in it is bound by the peer's signature ([`crate::commitment`]): the run's description with the hashes of the data, the
//! parameters, the samples, the gradient.

use serde::{Deserialize, Serialize};

use super::{EvidenceError, split_header, split_part, with_header};
use crate::access::PublicKey;
use crate::bulk::Transfer;
use crate::commitment::{Commitment, SampleId};
use crate::contribution::Offer;
use crate::hash::Sha256Hash;
use crate::run::{RunDescription, Synchronous, run_hash};

/// A contribution, the contributor's commitment, and the inputs to recompute it.
#[derive(Debug, Clone, PartialEq)]
pub struct ContributionEvidence {
    /// Run, contributor, offer and commitment.
    pub header: EvidenceHeader,
    /// The list of samples, encoded.
    pub samples: Vec<u8>,
    /// The gradient, encoded as it was received.
    pub gradient: Vec<u8>,
    /// The parameters, encoded as they were sent.
    pub parameters: Vec<u8>,
}

/// Header of a piece of evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvidenceHeader {
    /// The contributor.
    pub peer: PublicKey,
    /// The run.
    pub run: RunDescription,
    /// The offer of the contribution.
    pub offer: Offer,
    /// The contributor's commitment.
    pub commitment: Commitment,
}

/// The decoded and verified content of a piece of evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct EvidenceContents {
    /// The samples in the order of computation.
    pub samples: Vec<SampleId>,
    /// Their mean gradient, as the contributor claims it: `[n_parameters]`, finite.
    pub gradient: Vec<f32>,
    /// `[n_parameters]`, finite.
    pub parameters: Vec<f32>,
}

impl ContributionEvidence {
    /// Encodes it, for storage and transfer.
    ///
    /// # Errors
    /// Does not happen.
    pub fn encode(&self) -> Result<Vec<u8>, EvidenceError> {
        with_header(&self.header, &[&self.samples, &self.gradient, &self.parameters])
    }

    /// Decodes it; nothing is verified.
    ///
    /// # Errors
    /// Bytes that are no evidence.
    pub fn decode(bytes: &[u8]) -> Result<Self, EvidenceError> {
        let (header, rest): (EvidenceHeader, _) = split_header(bytes)?;
        let (samples, rest) = split_part(rest, header.commitment.list_bytes(&header.run.data.manifest))?;
        let (gradient, parameters) = split_part(rest, header.offer.transfer.n_bytes)?;
        let (samples, gradient, parameters) = (samples.to_vec(), gradient.to_vec(), parameters.to_vec());
        Ok(Self { header, samples, gradient, parameters })
    }

    /// Verifies that the contributor signed all of it, and decodes its values. The model of the header's run has
    /// `n_parameters`.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(&self, n_parameters: usize) -> Result<EvidenceContents, EvidenceError> {
        let EvidenceHeader { peer, run, offer, commitment } = &self.header;
        run.data.manifest.validate()?;
        let scheme = scheme(run)?;
        scheme.check_recomputable(&run.model.graph)?;
        let is_of_run = scheme.recomputed
            && scheme.takes(offer.codec)
            && offer.n_values == n_parameters as u64
            && scheme.state_codec.carries_state()
            && (1..=scheme.contribution_samples_max).contains(&offer.n_samples);
        if !is_of_run {
            return Err(EvidenceError::Malformed("an offer that its run does not take"));
        }
        commitment.verify(*peer, run_hash(run)?, offer)?;
        if !commitment.allows(run, offer) {
            return Err(EvidenceError::Malformed("parameters of another epoch, or more samples than count"));
        }
        if Transfer::of(&self.gradient) != offer.transfer {
            return Err(EvidenceError::Hash("gradient"));
        }
        if Sha256Hash::of(&self.parameters) != commitment.parameters {
            return Err(EvidenceError::Hash("state"));
        }
        let samples = commitment.samples(&self.samples, &run.data.manifest)?;
        let gradient = offer.codec.decode(&self.gradient, n_parameters);
        let gradient = gradient.map_err(|error| EvidenceError::Codec("gradient", error))?;
        let parameters = scheme.state_codec.decode(&self.parameters, n_parameters);
        let parameters = parameters.map_err(|error| EvidenceError::Codec("state", error))?;
        Ok(EvidenceContents { samples, gradient, parameters })
    }
}

/// The scheme of a run whose contributions there is evidence of.
///
/// # Errors
/// [`EvidenceError::Scheme`].
pub fn scheme(run: &RunDescription) -> Result<&Synchronous, EvidenceError> {
    run.synchronous().ok_or(EvidenceError::Scheme)
}
