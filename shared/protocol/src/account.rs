//! The account of a contribution: of which samples it is the gradient, and by which parameters, signed by its peer
//! before anybody asks. So whoever has the samples can compute it once more, and what is found out can be shown to
//! others.
//!
//! ```text
//! signed  = "barnraise account 3\0" | postcard of (run, offer, parameters, parameters' epoch, samples, how many)
//! run     = SHA-256 of the postcard of the run's description
//! samples = the place of each sample in the order of computation, little-endian
//! place   = samples of the shards before its own, and its index; in as few whole bytes as the last of all takes
//! ```
//!
//! The list comes with every offer, so that what was contributed is known by what it is of: two bytes a sample for a
//! data set of up to 65,536. Nothing is recomputed here.

use serde::{Deserialize, Serialize};

use crate::access::{KeyPair, PublicKey, Signature};
use crate::dataset::Manifest;
use crate::gradient::Offer;
use crate::hash::Sha256Hash;
use crate::run::RunDescription;

/// What every signature of an account begins with: nothing else that the same key signs does.
const DOMAIN: &[u8] = b"barnraise account 3\0";
/// Most bytes of a sample in the list.
const PLACE_BYTES_MAX: usize = size_of::<u64>();
/// How many epochs later than it should the work of local steps may count, see [`n_counting`].
pub const LATE_EPOCHS_MAX: u64 = 2;

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
    #[error("the list names sample {place}, the data set has {n_samples}")]
    NoSample {
        /// As named.
        place: u64,
        /// Of the data set.
        n_samples: u64,
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
    /// Says, once for all, that `offer` to the run with the hash `run` is of these parameters and of so many samples,
    /// encoded by [`encode_samples`].
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        run: Sha256Hash,
        offer: &Offer,
        (parameters, parameters_epoch): (Sha256Hash, u64),
        (n_samples, samples): (u32, &[u8]),
    ) -> Result<Self, AccountError> {
        let signature = Signature::from([0; 64]);
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

    /// Bytes of its list.
    pub fn list_bytes(&self, manifest: &Manifest) -> u64 {
        list_bytes(self.n_samples, manifest)
    }

    /// Reads the list, and checks that it is the one of this account.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn samples(&self, bytes: &[u8], manifest: &Manifest) -> Result<Vec<SampleId>, AccountError> {
        let n_samples = self.n_samples;
        let (want, got) = (self.list_bytes(manifest), bytes.len() as u64);
        if want != got {
            return Err(AccountError::Length { n_samples, want, got });
        }
        if Sha256Hash::of(bytes) != self.samples {
            return Err(AccountError::Samples);
        }
        let starts = starts(manifest);
        let places = bytes.chunks_exact(place_bytes(manifest));
        places
            .map(|bytes| {
                let place = read_place(bytes);
                // Shards without samples begin where the next one does.
                let after = starts.partition_point(|&start| start <= place);
                let start = after.checked_sub(1).and_then(|shard| Some((shard, *starts.get(shard)?)));
                let entry =
                    start.and_then(|(shard, start)| Some((shard, start, manifest.shards.get(shard)?)));
                match entry {
                    Some((shard, start, entry)) if place - start < u64::from(entry.n_samples) => {
                        Ok(SampleId { shard: shard as u32, index: (place - start) as u32 })
                    }
                    _ => Err(AccountError::NoSample { place, n_samples: manifest.n_samples() }),
                }
            })
            .collect()
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

/// The list of samples, as it travels. One that is none of the manifest's data is left out: the list is too short then
/// and refused, where any place would be that of another sample, which its signer would have to answer for.
pub fn encode_samples(samples: &[SampleId], manifest: &Manifest) -> Vec<u8> {
    let (starts, width) = (starts(manifest), place_bytes(manifest));
    let place = |sample: &SampleId| {
        let shard = sample.shard as usize;
        let is_there = sample.index < manifest.shards.get(shard)?.n_samples;
        is_there.then_some((starts.get(shard)? + u64::from(sample.index)).to_le_bytes())
    };
    samples.iter().filter_map(place).flat_map(|bytes| bytes.into_iter().take(width)).collect()
}

/// Bytes of the list of so many samples.
pub fn list_bytes(n_samples: u32, manifest: &Manifest) -> u64 {
    u64::from(n_samples) * place_bytes(manifest) as u64
}

/// Samples before each shard.
fn starts(manifest: &Manifest) -> Vec<u64> {
    let before = manifest.shards.iter().scan(0u64, |n_before, entry| {
        let start = *n_before;
        *n_before += u64::from(entry.n_samples);
        Some(start)
    });
    before.collect()
}

/// What the place of the last sample takes.
fn place_bytes(manifest: &Manifest) -> usize {
    let last = manifest.n_samples().saturating_sub(1);
    (PLACE_BYTES_MAX - last.leading_zeros() as usize / 8).max(1)
}

fn read_place(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |place, &byte| place << 8 | u64::from(byte))
}
