//! One key of a machine: its connection, its sessions and what it offers.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use barnraise_native::access::signing_key;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::account::{Account, SampleId, encode_samples};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::gradient::{Offer, Prepared, Refusal};
use barnraise_protocol::state::State;
use libp2p::identity::Keypair;

use super::Shared;
use super::workshop::Work;
use crate::client::{Client, Speaker};

/// What a convicted peer reads.
const CONVICTED: &str = "is not the gradient of the samples that it named";

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It counts.
    Counted,
    /// It does not, and the next may.
    Refused,
    /// Nothing of this key ever will.
    Convicted,
}

pub(super) struct Key {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Client,
    pub(super) keypair: KeyPair,
    /// Of the machine's keys.
    pub(super) number: usize,
    next_id: u64,
}

impl Key {
    pub(super) async fn connect(shared: &Arc<Shared>, keypair: &Keypair, number: usize) -> Result<Self> {
        let client = Client::connect_as(keypair.clone(), shared.address.clone()).await?;
        let key = signing_key(keypair).context("an Ed25519 key")?;
        // Not used before, whenever it was connected before.
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let next_id = since_1970.as_micros() as u64 % (1 << 52);
        Ok(Self { shared: Arc::clone(shared), client, keypair: key, number, next_id })
    }

    /// Takes part; nothing that it is told is listened to.
    pub(super) async fn join(&self) -> Result<Speaker> {
        let mut session = self.client.join(&self.shared.run.run_id, "attacker").await?;
        match session.hear().await? {
            BackboneToContributor::Welcome(_) => Ok(session.listen_no_more()),
            BackboneToContributor::Refused(reason) => {
                self.note_conviction(&reason);
                bail!("{reason}")
            }
            other => bail!("{other:?}"),
        }
    }

    /// Most samples that one contribution may have.
    pub(super) fn n_samples_max(&self) -> u32 {
        self.shared.run.target_batch_size.min(self.shared.run.contribution_samples_max)
    }

    /// What is offered as the gradient of these samples by `state`, signed by `signer`.
    pub(super) fn prepare(
        &mut self,
        state: &State,
        samples: &[SampleId],
        values: &[f32],
        signer: &KeyPair,
    ) -> Result<Prepared> {
        let run = &self.shared.run;
        let bytes = run.gradient_codec.encode(values)?;
        self.next_id += 1;
        let n_samples = samples.len() as u32;
        let offer = Offer {
            contribution_id: self.next_id,
            epoch: state.epoch,
            n_samples,
            loss: 1.0,
            n_values: run.n_parameters,
            codec: run.gradient_codec,
            transfer: Transfer::of(&bytes),
        };
        let samples = encode_samples(samples, &run.manifest);
        let parameters = (state.sha256, state.epoch);
        let account = Account::sign(signer, self.shared.run_hash, &offer, parameters, (n_samples, &samples))?;
        Ok(Prepared { offer, account: Some(account), bytes, samples })
    }

    /// Offers what it signs for, and counts what becomes of it.
    pub(super) async fn offer(
        &mut self,
        state: &State,
        samples: &[SampleId],
        values: &[f32],
    ) -> Result<Answer> {
        let signer = self.keypair.clone();
        let prepared = self.prepare(state, samples, values, &signer)?;
        let answer = self.client.offer_prepared(&prepared).await?;
        Ok(match answer {
            Ok(receipt) => {
                let n_samples = u64::from(receipt.receipt.n_samples);
                let mut of_keys = self.shared.tally.of_keys();
                *of_keys.accepted.entry(self.client.peer_id()).or_default() += n_samples;
                Answer::Counted
            }
            Err(Refusal::NoAccess(reason)) => {
                self.note_conviction(&reason);
                Answer::Convicted
            }
            Err(_) => Answer::Refused,
        })
    }

    fn note_conviction(&self, reason: &str) {
        if reason.contains(CONVICTED) {
            self.shared.tally.of_keys().convicted.insert(self.client.peer_id());
        }
    }

    /// Computes a gradient as it should be; what it took is counted.
    pub(super) async fn work(&self, state: &Arc<State>, n_samples: u32) -> Result<Work> {
        let work = self.shared.workshop.work(Arc::clone(state), n_samples).await?;
        let n_worked = work.samples.len() as u64;
        self.shared.tally.n_worked.fetch_add(n_worked, std::sync::atomic::Ordering::Relaxed);
        Ok(work)
    }
}
