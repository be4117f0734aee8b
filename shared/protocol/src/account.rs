//! The account of a contribution: of which samples it is the gradient, and by which parameters, signed by its peer
//! before anybody asks. So whoever has the samples can compute it once more, and what is found out can be shown to
//! others.
//!
//! ```text
//! signed  = "barnraise account 2\0" | postcard of (run, offer, parameters, parameters' epoch, samples, how many)
//! run     = SHA-256 of the postcard of the run's description
//! samples = (shard, index) of each sample in the order of computation, as little-endian u32
//! ```
//!
//! Which samples they are is pulled only where a contribution is recomputed. Nothing is recomputed here.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::access::{KeyPair, PublicKey, Signature};
use crate::bulk::Transfer;
use crate::gradient::Offer;
use crate::hash::Sha256Hash;
use crate::run::RunDescription;

/// What every signature of an account begins with: nothing else that the same key signs does.
const DOMAIN: &[u8] = b"barnraise account 2\0";
/// Bytes of a sample in the list.
pub const SAMPLE_BYTES: usize = 8;
/// How many epochs later than it should the work of local steps may count, see [`n_counting`].
pub const LATE_EPOCHS_MAX: u64 = 2;
/// A contribution may have a sample as often as passes over the data fit into it and into the shuffle buffers before
/// and after it, and this many times more: passes begin and end within.
const REPEATS_MORE: usize = 4;

/// A sample of the training data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleId {
    /// Index into the manifest's shards.
    pub shard: u32,
    /// Index into the shard's samples.
    pub index: u32,
}

/// What a peer says that a contribution is the gradient of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Of the encoded parameters, as the `state` conversation names them.
    pub parameters: Sha256Hash,
    /// Their epoch.
    pub parameters_epoch: u64,
    /// Of the list of samples.
    pub samples: Sha256Hash,
    /// How many they are. Of work that comes late fewer are offered ([`n_counting`]).
    pub n_samples: u32,
    /// Of the peer.
    pub signature: Signature,
}

/// Why an account is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// Not of that peer, or for something else.
    #[error("the account is not signed by {peer}, or for another contribution or run")]
    Signature {
        /// Whose contribution it is.
        peer: PublicKey,
    },
    /// It cannot be encoded; does not happen.
    #[error("the account cannot be encoded: {0}")]
    Encode(#[from] postcard::Error),
    /// Another list than the one that was signed for.
    #[error("the list of samples is not the one of the account")]
    Samples,
    /// Too many or too few.
    #[error("{got} bytes name the samples, {want} are those of {n_samples}")]
    Length {
        /// Of the contribution.
        n_samples: u32,
        /// For so many.
        want: u64,
        /// What came.
        got: u64,
    },
    /// There is no such sample.
    #[error("sample {} of shard {} is none of the data set", sample.index, sample.shard)]
    NoSample {
        /// As named.
        sample: SampleId,
    },
    /// No honest contributor computes the same all the time.
    #[error("sample {} of shard {} is there more than {max} times", sample.index, sample.shard)]
    Repeated {
        /// As named.
        sample: SampleId,
        /// More than that is too much.
        max: usize,
    },
}

/// Hash of what a run is, down to its data: accounts are for one of them.
///
/// # Errors
/// Does not happen.
pub fn hash_of(run: &RunDescription) -> Result<Sha256Hash, postcard::Error> {
    Ok(Sha256Hash::of(&postcard::to_allocvec(run)?))
}

impl Account {
    /// Says, once for all, that `offer` to the run with the hash `run` is of `samples`, encoded, and of these
    /// parameters.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        run: Sha256Hash,
        offer: &Offer,
        (parameters, parameters_epoch): (Sha256Hash, u64),
        samples: &[u8],
    ) -> Result<Self, AccountError> {
        let signature = Signature::from([0; 64]);
        let n_samples = (samples.len() / SAMPLE_BYTES) as u32;
        let samples = Sha256Hash::of(samples);
        let unsigned = Self { parameters, parameters_epoch, samples, n_samples, signature };
        let signature = key.sign(&unsigned.signed_bytes(run, offer)?);
        Ok(Self { signature, ..unsigned })
    }

    /// Checks that `peer` signed it, for `offer` to that run.
    ///
    /// # Errors
    /// It did not.
    pub fn verify(&self, peer: PublicKey, run: Sha256Hash, offer: &Offer) -> Result<(), AccountError> {
        match peer.has_signed(&self.signed_bytes(run, offer)?, &self.signature) {
            true => Ok(()),
            false => Err(AccountError::Signature { peer }),
        }
    }

    /// Whether a contribution of these samples and parameters may count as much as `offer` says, in its epoch.
    pub fn allows(&self, run: &RunDescription, offer: &Offer) -> bool {
        let counting = n_counting(self.n_samples, self.parameters_epoch, offer.epoch, run);
        (1..=run.contribution_samples_max).contains(&self.n_samples) && counting == Some(offer.n_samples)
    }

    /// The list, as it is pulled.
    pub fn transfer(&self) -> Transfer {
        Transfer { n_bytes: list_bytes(self.n_samples), sha256: self.samples }
    }

    /// Reads the list, and checks that it is the one of this account and that an honest peer may have it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn samples(&self, bytes: &[u8], run: &RunDescription) -> Result<Vec<SampleId>, AccountError> {
        let n_samples = self.n_samples;
        let (want, got) = (list_bytes(n_samples), bytes.len() as u64);
        if want != got {
            return Err(AccountError::Length { n_samples, want, got });
        }
        if Sha256Hash::of(bytes) != self.samples {
            return Err(AccountError::Samples);
        }
        let manifest = &run.manifest;
        let n_drawn = n_samples as usize + 2 * run.shuffle_buffer_samples as usize;
        let max = n_drawn / (manifest.n_samples() as usize).max(1) + REPEATS_MORE;
        let mut times: HashMap<SampleId, usize> = HashMap::new();
        let mut samples = Vec::with_capacity(n_samples as usize);
        for sample in decode(bytes) {
            let shard = manifest.shards.get(sample.shard as usize);
            if shard.is_none_or(|shard| sample.index >= shard.n_samples) {
                return Err(AccountError::NoSample { sample });
            }
            let times = times.entry(sample).or_default();
            *times += 1;
            if *times > max {
                return Err(AccountError::Repeated { sample, max });
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    fn signed_bytes(&self, run: Sha256Hash, offer: &Offer) -> Result<Vec<u8>, postcard::Error> {
        let what = (run, offer, self.parameters, self.parameters_epoch, self.samples, self.n_samples);
        postcard::to_extend(&what, DOMAIN.to_vec())
    }
}

/// How many of `n_samples`, whose gradient is of the parameters of one epoch, count in another: all of them in the same
/// one, or the one after it where updates are delayed. The work of local steps counts later, too, `1 / (1 + epochs by
/// which it is late)` of its samples (FedAsync, Xie et al. 2019, section 5.2, polynomial with a = 1), at least one.
/// `None` where it does not.
pub fn n_counting(n_samples: u32, parameters_epoch: u64, epoch: u64, run: &RunDescription) -> Option<u32> {
    let late = epoch.checked_sub(parameters_epoch)?.saturating_sub(u64::from(run.delayed_updates));
    let late_max = if run.local_steps.is_some() { LATE_EPOCHS_MAX } else { 0 };
    (late <= late_max).then(|| (n_samples / (1 + late as u32)).max(1))
}

/// The list of samples as it travels.
pub fn encode_samples(samples: &[SampleId]) -> Vec<u8> {
    samples.iter().flat_map(|sample| [sample.shard, sample.index]).flat_map(u32::to_le_bytes).collect()
}

fn decode(bytes: &[u8]) -> impl Iterator<Item = SampleId> {
    let (samples, _) = bytes.as_chunks::<SAMPLE_BYTES>();
    samples.iter().map(|&[a, b, c, d, e, f, g, h]| SampleId {
        shard: u32::from_le_bytes([a, b, c, d]),
        index: u32::from_le_bytes([e, f, g, h]),
    })
}

fn list_bytes(n_samples: u32) -> u64 {
    u64::from(n_samples) * SAMPLE_BYTES as u64
}
