//! The commitment to a contribution: the contributor signs which samples and which parameters its gradient is of. A
//! backbone that has the samples can recompute the gradient, and prove a wrong one to other peers
//! ([`crate::evidence`]).
//!
//! ```text
//! signed   = "barnraise account 3\0" | postcard of (run, offer, parameters, parameters' epoch, samples, n_samples)
//! run      = SHA-256 of the postcard of the run's description
//! samples  = the position of each sample in the order of computation, little-endian
//! position = samples of the shards before its own, plus its index; in as few whole bytes as the last of all takes
//! of a stream: shard, u32 | index, u32 | the first 16 bytes of the shard's SHA-256
//! ```
//!
//! The list comes with every offer, so that repeated samples are noticed: two bytes a sample for a data set of up to
//! 65,536. Nothing is recomputed here.

use serde::{Deserialize, Serialize};

use crate::access::{KeyPair, PublicKey, Signature};
use crate::contribution::Offer;
use crate::dataset::{DataStream, Manifest};
use crate::hash::Sha256Hash;
use crate::run::RunDescription;
use crate::streamed::StreamWindow;

/// Domain separator: the signed bytes of every commitment begin with it, and nothing else that the same key signs.
const DOMAIN: &[u8] = b"barnraise account 3\0";
/// Most bytes of a sample's position in the list.
const POSITION_BYTES_MAX: usize = size_of::<u64>();
/// Bytes of a shard's hash in the list of a stream: as many as nobody finds another shard for.
const STREAMED_HASH_BYTES: usize = 16;
/// Bytes of a sample in the list of a stream.
const STREAMED_BYTES: usize = 8 + STREAMED_HASH_BYTES;
/// Largest staleness, in epochs, at which a contribution of local steps still counts; see [`discounted_samples`].
pub const STALENESS_EPOCHS_MAX: u64 = 2;

/// A sample of the training data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleId {
    /// Index into the manifest's shards; of a stream the absolute number of the shard.
    pub shard: u32,
    /// Index into the shard's samples.
    pub index: u32,
}

/// A contributor's signed statement which samples and parameters a contribution is the gradient of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commitment {
    /// SHA-256 of the encoded parameters, as in the `state` conversation.
    pub parameters: Sha256Hash,
    /// Their epoch.
    pub parameters_epoch: u64,
    /// SHA-256 of the encoded list of samples.
    pub samples: Sha256Hash,
    /// Samples in the list. The offer of a stale contribution has fewer ([`discounted_samples`]).
    pub n_samples: u32,
    /// The contributor's signature.
    pub signature: Signature,
}

/// Why a commitment is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitmentError {
    /// Signed by another peer, or for another contribution or run.
    #[error("the commitment is not signed by {peer}, or for another contribution or run")]
    Signature {
        /// The contributor.
        peer: PublicKey,
    },
    /// It cannot be encoded; does not happen.
    #[error("the commitment cannot be encoded: {0}")]
    Encode(#[from] postcard::Error),
    /// Another list than the one that was signed.
    #[error("the list of samples is not the one of the commitment")]
    Samples,
    /// A list that is too long or too short.
    #[error("the list of {n_samples} samples has {got} bytes, {want} are wanted")]
    Length {
        /// Samples of the commitment.
        n_samples: u32,
        /// Bytes of a list of that many samples.
        want: u64,
        /// Bytes that came.
        got: u64,
    },
    /// A sample that the data set does not have.
    #[error("the list names sample {place}, the data set has {n_samples}")]
    NoSample {
        /// Position in the list.
        place: u64,
        /// Samples of the data set.
        n_samples: u64,
    },
    /// A sample that a shard of the stream does not have.
    #[error("the list names sample {index} of a shard, each of which has {shard_samples}")]
    NoIndex {
        /// What came.
        index: u32,
        /// From the manifest.
        shard_samples: u32,
    },
    /// A shard that the backbone does not keep, or another one under its number.
    #[error(
        "the list names shard {shard} of the stream with another hash, or it left the window: it is {oldest} and later that count"
    )]
    NotInWindow {
        /// Its number.
        shard: u32,
        /// The oldest that is kept.
        oldest: u32,
    },
}

/// Seed of the rounding of a gradient of these parameters and samples, by their hashes. It follows from the commitment, so
/// that a recomputed gradient is rounded in the same way, and stays where a late contribution is offered again.
pub fn rounding_seed(parameters: Sha256Hash, samples: Sha256Hash) -> u64 {
    Sha256Hash::of(&[parameters.0, samples.0].concat()).number()
}

impl Commitment {
    /// Seed of the rounding of its gradient ([`rounding_seed`]).
    pub fn rounding_seed(&self) -> u64 {
        rounding_seed(self.parameters, self.samples)
    }

    /// Signs that `offer` to the run with the hash `run` is of these parameters (hash, epoch) and samples (number,
    /// list encoded by [`encode_samples`]).
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        run: Sha256Hash,
        offer: &Offer,
        (parameters, parameters_epoch): (Sha256Hash, u64),
        (n_samples, samples): (u32, &[u8]),
    ) -> Result<Self, CommitmentError> {
        let signature = Signature::from([0; 64]);
        let samples = Sha256Hash::of(samples);
        let unsigned = Self { parameters, parameters_epoch, samples, n_samples, signature };
        let signature = key.sign(&unsigned.signed_bytes(run, offer)?);
        Ok(Self { signature, ..unsigned })
    }

    /// Checks that `peer` signed it, for `offer` to the run with the hash `run`.
    ///
    /// # Errors
    /// [`CommitmentError::Signature`].
    pub fn verify(&self, peer: PublicKey, run: Sha256Hash, offer: &Offer) -> Result<(), CommitmentError> {
        match peer.has_signed(&self.signed_bytes(run, offer)?, &self.signature) {
            true => Ok(()),
            false => Err(CommitmentError::Signature { peer }),
        }
    }

    /// Whether these samples and parameters justify the number of samples that `offer` claims for its epoch.
    pub fn allows(&self, run: &RunDescription, offer: &Offer) -> bool {
        let counting = discounted_samples(self.n_samples, self.parameters_epoch, offer.epoch, run);
        (1..=run.scheme.contribution_samples_max()).contains(&self.n_samples)
            && counting == Some(offer.n_samples)
    }

    /// Bytes of its encoded list.
    pub fn list_bytes(&self, manifest: &Manifest) -> u64 {
        list_bytes(self.n_samples, manifest)
    }

    /// Decodes the list and checks that it is the one of this commitment.
    ///
    /// # Errors
    /// Another length or hash, or a sample that the manifest does not have.
    pub fn samples(&self, bytes: &[u8], manifest: &Manifest) -> Result<Vec<SampleId>, CommitmentError> {
        let n_samples = self.n_samples;
        let (want, got) = (self.list_bytes(manifest), bytes.len() as u64);
        if want != got {
            return Err(CommitmentError::Length { n_samples, want, got });
        }
        if Sha256Hash::of(bytes) != self.samples {
            return Err(CommitmentError::Samples);
        }
        if let Some(stream) = &manifest.stream {
            return bytes.chunks_exact(STREAMED_BYTES).map(|bytes| sample_of(bytes, stream)).collect();
        }
        let starts = shard_offsets(manifest);
        let places = bytes.chunks_exact(position_bytes(manifest));
        places
            .map(|bytes| {
                let place = read_position(bytes);
                // Shards without samples begin where the next one does.
                let after = starts.partition_point(|&start| start <= place);
                let start = after.checked_sub(1).and_then(|shard| Some((shard, *starts.get(shard)?)));
                let entry =
                    start.and_then(|(shard, start)| Some((shard, start, manifest.shards.get(shard)?)));
                match entry {
                    Some((shard, start, entry)) if place - start < u64::from(entry.n_samples) => {
                        Ok(SampleId { shard: shard as u32, index: (place - start) as u32 })
                    }
                    _ => Err(CommitmentError::NoSample { place, n_samples: manifest.n_samples() }),
                }
            })
            .collect()
    }

    fn signed_bytes(&self, run: Sha256Hash, offer: &Offer) -> Result<Vec<u8>, postcard::Error> {
        let what = (run, offer, self.parameters, self.parameters_epoch, self.samples, self.n_samples);
        postcard::to_extend(&what, DOMAIN.to_vec())
    }
}

/// Samples that a gradient of `n_samples` counts for in `epoch`, given the epoch of its parameters. Without staleness
/// all of them count; where updates are delayed, staleness begins one epoch later. A stale gradient counts only in a
/// run of local steps: `1 / (1 + staleness)` of its samples, at least one (FedAsync, Xie et al. 2019, section 5.2,
/// polynomial with a = 1). `None` where the gradient does not count.
pub fn discounted_samples(
    n_samples: u32,
    parameters_epoch: u64,
    epoch: u64,
    run: &RunDescription,
) -> Option<u32> {
    let scheme = run.synchronous()?;
    let late = epoch.checked_sub(parameters_epoch)?.saturating_sub(u64::from(scheme.delayed_updates));
    let late_max = if scheme.local_steps.is_some() { STALENESS_EPOCHS_MAX } else { 0 };
    (late <= late_max).then(|| (n_samples / (1 + late as u32)).max(1))
}

/// Encodes the list of samples. A sample that the manifest does not have is left out: the list is too short then and
/// refused. Any position in its place would commit the signer to another sample.
pub fn encode_samples(samples: &[SampleId], manifest: &Manifest) -> Vec<u8> {
    let (starts, width) = (shard_offsets(manifest), position_bytes(manifest));
    let place = |sample: &SampleId| {
        let shard = sample.shard as usize;
        let is_there = sample.index < manifest.shards.get(shard)?.n_samples;
        is_there.then_some((starts.get(shard)? + u64::from(sample.index)).to_le_bytes())
    };
    samples.iter().filter_map(place).flat_map(|bytes| bytes.into_iter().take(width)).collect()
}

/// Encodes the list of samples of a stream, each with the hash of its shard.
pub fn encode_streamed(samples: impl IntoIterator<Item = (SampleId, Sha256Hash)>) -> Vec<u8> {
    let encoded = samples.into_iter().flat_map(|(SampleId { shard, index }, sha256)| {
        let hash = sha256.0.into_iter().take(STREAMED_HASH_BYTES);
        shard.to_le_bytes().into_iter().chain(index.to_le_bytes()).chain(hash)
    });
    encoded.collect()
}

/// Checks that each shard of an encoded list of a stream is one of `window`, bytes included.
///
/// # Errors
/// [`CommitmentError::NotInWindow`].
pub fn check_streamed(list: &[u8], window: &StreamWindow) -> Result<(), CommitmentError> {
    for bytes in list.chunks_exact(STREAMED_BYTES) {
        let (numbers, got) = bytes.split_at(STREAMED_BYTES - STREAMED_HASH_BYTES);
        let shard = numbers.first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
        if window.entry(shard).is_none_or(|entry| !entry.sha256.0.starts_with(got)) {
            return Err(CommitmentError::NotInWindow { shard, oldest: window.oldest() });
        }
    }
    Ok(())
}

/// Whether all samples of a shard in an encoded list of a stream are of the one with this hash.
pub fn names_streamed(list: &[u8], shard: u32, sha256: Sha256Hash) -> bool {
    let mut of_shard =
        list.chunks_exact(STREAMED_BYTES).filter(|bytes| bytes.starts_with(&shard.to_le_bytes()));
    of_shard.all(|bytes| bytes.ends_with(&sha256.0[..STREAMED_HASH_BYTES]))
}

fn sample_of(bytes: &[u8], stream: &DataStream) -> Result<SampleId, CommitmentError> {
    let (shard, rest) = bytes.split_at(size_of::<u32>());
    let [shard, index] = [shard, rest].map(|bytes| bytes.first_chunk().map_or(0, |n| u32::from_le_bytes(*n)));
    match index < stream.shard_samples {
        true => Ok(SampleId { shard, index }),
        false => Err(CommitmentError::NoIndex { index, shard_samples: stream.shard_samples }),
    }
}

/// Bytes of the encoded list of `n_samples`.
pub fn list_bytes(n_samples: u32, manifest: &Manifest) -> u64 {
    u64::from(n_samples) * position_bytes(manifest) as u64
}

/// Samples before each shard.
fn shard_offsets(manifest: &Manifest) -> Vec<u64> {
    let before = manifest.shards.iter().scan(0u64, |n_before, entry| {
        let start = *n_before;
        *n_before += u64::from(entry.n_samples);
        Some(start)
    });
    before.collect()
}

/// Bytes of a sample in the list: those of the last position; of a stream always the same.
fn position_bytes(manifest: &Manifest) -> usize {
    if manifest.stream.is_some() {
        return STREAMED_BYTES;
    }
    let last = manifest.n_samples().saturating_sub(1);
    (POSITION_BYTES_MAX - last.leading_zeros() as usize / 8).max(1)
}

fn read_position(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |place, &byte| place << 8 | u64::from(byte))
}
