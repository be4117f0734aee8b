//! Commitments of a contributor: the samples and the parameters that each of its gradients was computed from.
//!
//! It mirrors the trainer: when the trainer drops a gradient, its samples are dropped here.

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::commitment::{self, Commitment, CommitmentError, SampleId};
use barnraise_protocol::dataset::Manifest;
use barnraise_protocol::gradient::{Offer, PreparedContribution};
use barnraise_protocol::run::{RunDescription, run_hash};
use barnraise_swarm::samples::DrawnSample;

/// Why there is no signer of commitments.
#[derive(Debug, thiserror::Error)]
pub(super) enum SignerError {
    /// The peer has a key of another kind, or none.
    #[error("this run takes signed contributions: a peer with an Ed25519 key is wanted")]
    NoKey,
    /// The run's description cannot be encoded; does not happen.
    #[error(transparent)]
    Commitment(#[from] CommitmentError),
}

/// Signs the commitments of one run's contributions.
#[derive(Debug)]
pub(super) struct CommitmentSigner {
    key: KeyPair,
    run: Sha256Hash,
    /// The run's data.
    manifest: Manifest,
    /// Hash and epoch of the parameters in the trainer.
    parameters: Option<(Sha256Hash, u64)>,
    /// Samples of the batch in progress.
    drawn: Vec<DrawnSample>,
    /// Samples of the gradient in the trainer.
    computed: Vec<DrawnSample>,
    /// Samples of the gradient that is being taken.
    taken: Vec<DrawnSample>,
    /// Hash and epoch of that gradient's parameters.
    taken_with: Option<(Sha256Hash, u64)>,
}

impl CommitmentSigner {
    /// A signer for contributions of `key` to `run`.
    ///
    /// # Errors
    /// A description that cannot be encoded.
    pub(super) fn new(key: KeyPair, run: &RunDescription) -> Result<Self, CommitmentError> {
        Ok(Self {
            key,
            run: run_hash(run)?,
            manifest: run.data.manifest.clone(),
            parameters: None,
            drawn: Vec::new(),
            computed: Vec::new(),
            taken: Vec::new(),
            taken_with: None,
        })
    }

    /// Takes a new description of the same run; computed samples stay.
    ///
    /// # Errors
    /// A description that cannot be encoded.
    pub(super) fn on_described(&mut self, run: &RunDescription) -> Result<(), CommitmentError> {
        self.run = run_hash(run)?;
        Ok(())
    }

    /// The trainer loaded these parameters, and has no gradient.
    pub(super) fn on_parameters(&mut self, sha256: Sha256Hash, epoch: u64) {
        self.parameters = Some((sha256, epoch));
        self.computed.clear();
    }

    /// The trainer was replaced.
    pub(super) fn on_trainer_lost(&mut self) {
        self.parameters = None;
        self.drawn.clear();
        self.computed.clear();
    }

    /// A batch of these samples is in progress.
    pub(super) fn on_drawn(&mut self, samples: Vec<DrawnSample>) {
        self.drawn = samples;
    }

    /// The encoded list of samples.
    fn encode(&self, samples: &[DrawnSample]) -> Vec<u8> {
        match self.manifest.stream {
            Some(_) => {
                let of_shard = |sample: &DrawnSample| Some((sample.id, **sample.streamed.as_ref()?));
                commitment::encode_streamed(samples.iter().filter_map(of_shard))
            }
            None => {
                let ids: Vec<SampleId> = samples.iter().map(|sample| sample.id).collect();
                commitment::encode_samples(&ids, &self.manifest)
            }
        }
    }

    /// The batch's gradient was added to the trainer's.
    pub(super) fn on_batch(&mut self) {
        self.computed.append(&mut self.drawn);
    }

    /// The gradient is being taken out of the trainer.
    pub(super) fn on_take(&mut self) {
        self.taken = std::mem::take(&mut self.computed);
        self.taken_with = self.parameters;
    }

    /// Seed of the rounding of the gradient that was taken.
    pub(super) fn rounding_seed(&self) -> u64 {
        let samples = self.encode(&self.taken);
        commitment::rounding_seed(self.taken_parameters().0, Sha256Hash::of(&samples))
    }

    /// Signs the commitment for the gradient that was taken; returns it with the encoded list of its samples.
    pub(super) fn sign(&mut self, offer: &Offer) -> Result<(Commitment, Vec<u8>), CommitmentError> {
        let taken = std::mem::take(&mut self.taken);
        let samples = self.encode(&taken);
        let parameters = self.taken_parameters();
        let list = (taken.len() as u32, &*samples);
        let commitment = Commitment::sign(&self.key, self.run, offer, parameters, list)?;
        Ok((commitment, samples))
    }

    /// Hash and epoch of the parameters of the gradient that was taken.
    fn taken_parameters(&self) -> (Sha256Hash, u64) {
        // Without parameters nothing was computed: the zero hash cannot match.
        self.taken_with.unwrap_or((Sha256Hash([0; 32]), 0))
    }

    /// Signs a late contribution for a later epoch, in which fewer of its samples count; `None` if none counts.
    pub(super) fn sign_late(
        &self,
        late: PreparedContribution,
        run: &RunDescription,
        (contribution_id, epoch): (u64, u64),
    ) -> Result<Option<PreparedContribution>, CommitmentError> {
        let Some(commitment) = &late.commitment else { return Ok(None) };
        let counting =
            commitment::discounted_samples(commitment.n_samples, commitment.parameters_epoch, epoch, run);
        let Some(n_samples) = counting else { return Ok(None) };
        let offer = Offer { contribution_id, epoch, n_samples, ..late.offer.clone() };
        self.sign_again(PreparedContribution { offer, ..late }).map(Some)
    }

    /// Signs a contribution again: its offer changed, or the run's description did.
    pub(super) fn sign_again(
        &self,
        prepared: PreparedContribution,
    ) -> Result<PreparedContribution, CommitmentError> {
        let Some(commitment) = &prepared.commitment else { return Ok(prepared) };
        let parameters = (commitment.parameters, commitment.parameters_epoch);
        let list = (commitment.n_samples, &*prepared.samples);
        let commitment = Commitment::sign(&self.key, self.run, &prepared.offer, parameters, list)?;
        Ok(PreparedContribution { commitment: Some(commitment), ..prepared })
    }
}
