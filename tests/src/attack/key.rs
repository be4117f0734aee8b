//! One key of a machine: its connection, its sessions and what it offers.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use barnraise_native::host::access::signing_key;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::commitment::{Commitment, SampleId, encode_samples};
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::gradient::{ContributionRefusal, Offer, PreparedContribution};
use libp2p::identity::Keypair;

use super::AttackContext;
use super::gradient_worker::ComputedGradient;
use crate::client::{DrainedSession, EpochParameters, TestClient, n_parameters};

/// What a convicted peer reads.
const CONVICTED: &str = "is not the gradient of the samples that it named";

/// Outcome of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfferOutcome {
    /// The contribution counts.
    Counted,
    /// It does not count; the next one may.
    Refused,
    /// The key is convicted: no contribution of it counts any more.
    Convicted,
}

pub(super) struct AttackKey {
    pub(super) shared: Arc<AttackContext>,
    pub(super) client: TestClient,
    pub(super) keypair: KeyPair,
    /// Of the machine's keys.
    pub(super) number: usize,
    next_id: u64,
}

impl AttackKey {
    pub(super) async fn connect(
        shared: &Arc<AttackContext>,
        keypair: &Keypair,
        number: usize,
    ) -> Result<Self> {
        let client = TestClient::connect_as(keypair.clone(), shared.address.clone()).await?;
        let key = signing_key(keypair).context("an Ed25519 key")?;
        // Not used before, whenever it was connected before.
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let next_id = since_1970.as_micros() as u64 % (1 << 52);
        Ok(Self { shared: Arc::clone(shared), client, keypair: key, number, next_id })
    }

    /// Takes part; nothing that it is told is listened to.
    pub(super) async fn join(&self) -> Result<DrainedSession> {
        let mut session = self.client.join(&self.shared.run.identity.run_id, "attacker").await?;
        match session.receive().await? {
            BackboneToContributor::Welcome(_) => Ok(session.discard_inbound()),
            BackboneToContributor::Refused(reason) => {
                self.note_conviction(&reason.to_string());
                bail!("{reason}")
            }
            other => bail!("{other:?}"),
        }
    }

    /// Most samples that one contribution may have.
    pub(super) fn n_samples_max(&self) -> u32 {
        let scheme = &self.shared.run.scheme;
        scheme.step_samples().min(scheme.contribution_samples_max())
    }

    /// What is offered as the gradient of these samples by `state`, signed by `signer`.
    pub(super) fn prepare(
        &mut self,
        state: &EpochParameters,
        samples: &[SampleId],
        values: &[f32],
        signer: &KeyPair,
    ) -> Result<PreparedContribution> {
        let run = &self.shared.run;
        let codec = run.scheme.gradient_codec().encoding();
        let bytes = codec.encode(values)?;
        self.next_id += 1;
        let n_samples = samples.len() as u32;
        let offer = Offer {
            contribution_id: self.next_id,
            epoch: state.epoch,
            n_samples,
            loss: 1.0,
            n_values: n_parameters(run)?,
            codec,
            transfer: Transfer::of(&bytes),
        };
        let samples = encode_samples(samples, &run.data.manifest);
        let parameters = (state.sha256, state.epoch);
        let commitment =
            Commitment::sign(signer, self.shared.run_hash, &offer, parameters, (n_samples, &samples))?;
        Ok(PreparedContribution { offer, commitment: Some(commitment), bytes, samples })
    }

    /// Offers what it signs for, and counts what becomes of it.
    pub(super) async fn offer(
        &mut self,
        state: &EpochParameters,
        samples: &[SampleId],
        values: &[f32],
    ) -> Result<OfferOutcome> {
        let signer = self.keypair.clone();
        let prepared = self.prepare(state, samples, values, &signer)?;
        let answer = self.client.offer_prepared(&prepared).await?;
        Ok(match answer {
            Ok(receipt) => {
                let n_samples = u64::from(receipt.receipt.n_samples);
                let mut of_keys = self.shared.counters.of_keys();
                *of_keys.accepted.entry(self.client.peer_id()).or_default() += n_samples;
                OfferOutcome::Counted
            }
            Err(ContributionRefusal::NoAccess(reason)) => {
                self.note_conviction(&reason.to_string());
                OfferOutcome::Convicted
            }
            Err(_) => OfferOutcome::Refused,
        })
    }

    fn note_conviction(&self, reason: &str) {
        if reason.contains(CONVICTED) {
            self.shared.counters.of_keys().convicted.insert(self.client.peer_id());
        }
    }

    /// Computes a gradient as it should be; what it took is counted.
    pub(super) async fn work(
        &self,
        state: &Arc<EpochParameters>,
        n_samples: u32,
    ) -> Result<ComputedGradient> {
        let work = self.shared.gradient_worker.work(Arc::clone(state), n_samples).await?;
        let n_worked = work.samples.len() as u64;
        self.shared.counters.n_worked.fetch_add(n_worked, std::sync::atomic::Ordering::Relaxed);
        Ok(work)
    }
}
