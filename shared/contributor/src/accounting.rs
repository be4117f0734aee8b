//! What a contributor's gradient is of: which samples, and which parameters.
//!
//! It follows the trainer: what the trainer forgets is forgotten here.

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::account::{self, Account, AccountError, SampleId};
use barnraise_protocol::dataset::Manifest;
use barnraise_protocol::gradient::{Offer, Prepared};
use barnraise_protocol::run::RunDescription;

/// Signs accounts for one run.
#[derive(Debug)]
pub(crate) struct Accountant {
    key: KeyPair,
    run: Sha256Hash,
    /// Of the run's data.
    manifest: Manifest,
    /// Of the parameters in the trainer, and their epoch.
    parameters: Option<(Sha256Hash, u64)>,
    /// Of the batch that is being computed.
    drawn: Vec<SampleId>,
    /// Behind the gradient in the trainer.
    computed: Vec<SampleId>,
    /// Behind the gradient that is being taken, and its parameters.
    taken: Vec<SampleId>,
    taken_with: Option<(Sha256Hash, u64)>,
}

impl Accountant {
    /// For contributions of `key` to `run`.
    ///
    /// # Errors
    /// Does not happen.
    pub(crate) fn new(key: KeyPair, run: &RunDescription) -> Result<Self, AccountError> {
        Ok(Self {
            key,
            run: account::hash_of(run)?,
            manifest: run.manifest.clone(),
            parameters: None,
            drawn: Vec::new(),
            computed: Vec::new(),
            taken: Vec::new(),
            taken_with: None,
        })
    }

    /// The run is described so from now on, and is the same: what was computed stays.
    ///
    /// # Errors
    /// Does not happen.
    pub(crate) fn on_described(&mut self, run: &RunDescription) -> Result<(), AccountError> {
        self.run = account::hash_of(run)?;
        Ok(())
    }

    /// The trainer has these parameters and no gradient.
    pub(crate) fn on_parameters(&mut self, sha256: Sha256Hash, epoch: u64) {
        self.parameters = Some((sha256, epoch));
        self.computed.clear();
    }

    /// The trainer is another one.
    pub(crate) fn on_trainer_lost(&mut self) {
        self.parameters = None;
        self.drawn.clear();
        self.computed.clear();
    }

    /// A batch of these is being computed.
    pub(crate) fn on_drawn(&mut self, samples: Vec<SampleId>) {
        self.drawn = samples;
    }

    /// Its gradient is in the trainer.
    pub(crate) fn on_batch(&mut self) {
        self.computed.append(&mut self.drawn);
    }

    /// The gradient is being taken out of the trainer.
    pub(crate) fn on_take(&mut self) {
        self.taken = std::mem::take(&mut self.computed);
        self.taken_with = self.parameters;
    }

    /// What the gradient that was taken is of, and the list of its samples.
    pub(crate) fn sign(&mut self, offer: &Offer) -> Result<(Account, Vec<u8>), AccountError> {
        let taken = std::mem::take(&mut self.taken);
        let samples = account::encode_samples(&taken, &self.manifest);
        // Without parameters nothing was computed, and nobody can be fooled by their absence.
        let parameters = self.taken_with.unwrap_or((Sha256Hash([0; 32]), 0));
        let list = (taken.len() as u32, &*samples);
        let account = Account::sign(&self.key, self.run, offer, parameters, list)?;
        Ok((account, samples))
    }

    /// The same for another epoch, in which fewer of its samples count; `None` where none does.
    pub(crate) fn sign_late(
        &self,
        late: Prepared,
        run: &RunDescription,
        (contribution_id, epoch): (u64, u64),
    ) -> Result<Option<Prepared>, AccountError> {
        let Some(account) = &late.account else { return Ok(None) };
        let counting = account::n_counting(account.n_samples, account.parameters_epoch, epoch, run);
        let Some(n_samples) = counting else { return Ok(None) };
        let offer = Offer { contribution_id, epoch, n_samples, ..late.offer.clone() };
        self.sign_again(Prepared { offer, ..late }).map(Some)
    }

    /// What was signed for another offer of the same, or for another description of the run.
    pub(crate) fn sign_again(&self, prepared: Prepared) -> Result<Prepared, AccountError> {
        let Some(account) = &prepared.account else { return Ok(prepared) };
        let parameters = (account.parameters, account.parameters_epoch);
        let list = (account.n_samples, &*prepared.samples);
        let account = Account::sign(&self.key, self.run, &prepared.offer, parameters, list)?;
        Ok(Prepared { account: Some(account), ..prepared })
    }
}
