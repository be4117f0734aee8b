//! Work that was contributed to this backbone lately, shared by all its streams: the same work counts once.
//!
//! After a restart it is the same as before: the journal has the gradients of the newest epochs, and their samples.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::commitment::SampleId;
use barnraise_protocol::dataset::Manifest;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};

use barnraise_swarm::AddressGroup;
use barnraise_swarm::PeerKey;
use barnraise_swarm::recomputation::{
    ContributionName, EPOCHS_MAX, Ledger, RepeatError, SampleClaim, values_hash,
};

use crate::computing::compute;
use crate::storage::journal::{CommittedSamples, Journal, JournalError};

/// The ledger of all streams. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct SharedLedger(Arc<Mutex<Ledger>>);

/// The claimed work of a contribution in progress. On drop it may be contributed again, unless it
/// [was kept](Self::keep).
#[derive(Debug)]
pub(super) struct Reservation {
    ledger: SharedLedger,
    name: ContributionName,
    epoch: u64,
    list: Option<SampleClaim>,
    gradient: Option<Sha256Hash>,
}

impl SharedLedger {
    /// The ledger of a data set, for a run at `epoch`.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) async fn restore(
        manifest: &Manifest,
        journal: &Journal,
        epoch: u64,
    ) -> Result<Self, JournalError> {
        let mut ledger = Ledger::new(manifest.n_samples());
        for epoch in (epoch + 1).saturating_sub(EPOCHS_MAX as u64)..=epoch {
            let mut entries = journal.entries(epoch).await?;
            while let Some((_, entry)) = entries.next().await? {
                let n_values = usize::try_from(entry.offer.n_values).unwrap_or(usize::MAX);
                let (codec, payload) = (entry.offer.codec, entry.payload.clone());
                let hash = move || codec.decode(&payload, n_values).map(|values| values_hash(&values));
                let Ok(hash) = compute(n_values.saturating_mul(4), hash).await else { continue };
                let contribution_id = entry.offer.contribution_id;
                let name = ContributionName { peer: PeerKey(entry.peer), contribution_id };
                // Work that counted twice before there was a ledger stays as it is.
                let _ = ledger.claim_gradient(&name, epoch, hash);
                let Some(CommittedSamples { commitment, list }) = entry.samples else { continue };
                // The manifest is that of the run's folder: the list was checked before it was written.
                if let Ok(samples) = commitment.samples(&list, manifest) {
                    let _ = ledger.claim(&name, entry.group, commitment.parameters, &samples);
                }
            }
        }
        Ok(Self(Arc::new(Mutex::new(ledger))))
    }

    /// Claims the work of a contribution. `list`: parameters and samples, known where it has a commitment.
    ///
    /// # Errors
    /// It was contributed before, or is being contributed.
    pub(super) fn claim(
        &self,
        peer: &PeerKey,
        group: AddressGroup,
        offer: &Offer,
        list: Option<(Sha256Hash, &[SampleId])>,
    ) -> Result<Reservation, ContributionRefusal> {
        let name = ContributionName { peer: peer.clone(), contribution_id: offer.contribution_id };
        let claimed = list.map(|(parameters, list)| self.lock().claim(&name, group, parameters, list));
        let list = claimed.transpose().map_err(refusal)?;
        Ok(Reservation { ledger: self.clone(), name, epoch: offer.epoch, list, gradient: None })
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Claims the received values, too, by their hash.
    ///
    /// # Errors
    /// They were contributed before, or belong to another contribution in progress.
    pub(super) fn claim_gradient(&mut self, hash: Sha256Hash) -> Result<(), ContributionRefusal> {
        self.ledger.lock().claim_gradient(&self.name, self.epoch, hash).map_err(refusal)?;
        self.gradient = Some(hash);
        Ok(())
    }

    /// The contribution counts.
    pub(super) fn keep(mut self) {
        (self.list, self.gradient) = (None, None);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut ledger = self.ledger.lock();
        if let Some(list) = &self.list {
            ledger.give_back(list);
        }
        if let Some(gradient) = &self.gradient {
            ledger.give_back_gradient(self.epoch, gradient);
        }
    }
}

fn refusal(repeat: RepeatError) -> ContributionRefusal {
    match repeat {
        RepeatError::UnderWay => ContributionRefusal::Busy,
        repeat => ContributionRefusal::Repeated(repeat.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::TensorCodec;
    use barnraise_protocol::access::{KeyPair, UnixTime};
    use barnraise_protocol::bulk::Transfer;
    use barnraise_protocol::commitment::{Commitment, encode_samples};
    use barnraise_protocol::dataset::{SampleKind, ShardEntry, TokenShape};

    use super::*;
    use crate::fixture;
    use crate::storage::Storage;
    use crate::storage::journal::JournalEntry;

    const PARAMETERS: Sha256Hash = Sha256Hash([1; 32]);

    fn manifest() -> Manifest {
        let shard = ShardEntry { n_samples: 100_000, n_bytes: 1, sha256: Sha256Hash([0; 32]) };
        let samples = SampleKind::Tokens(TokenShape { length: 8, vocabulary: 9, mask: Some(1) });
        fixture::manifest(samples, shard)
    }

    /// A contribution of `samples` and its entry; the peer's key is made of `seed`.
    fn contribution(
        seed: u8,
        id: u64,
        epoch: u64,
        samples: &[SampleId],
        values: [f32; 2],
    ) -> (Offer, JournalEntry) {
        let key = KeyPair::from_seed(&[seed; 32]);
        let payload = TensorCodec::F32.encode(&values).unwrap();
        let offer = Offer {
            contribution_id: id,
            epoch,
            n_samples: samples.len() as u32,
            loss: 1.0,
            n_values: 2,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&payload),
        };
        let list = encode_samples(samples, &manifest());
        let of = (samples.len() as u32, &*list);
        let commitment = Commitment::sign(&key, PARAMETERS, &offer, (PARAMETERS, epoch), of).unwrap();
        let entry = JournalEntry {
            peer: key.public().to_peer_id(),
            group: AddressGroup(1),
            offer: offer.clone(),
            milliseconds: 0,
            accepted_at: UnixTime(0),
            payload: payload.into(),
            samples: Some(CommittedSamples { commitment, list: list.into() }),
        };
        (offer, entry)
    }

    #[tokio::test]
    async fn after_a_restart_the_same_samples_count_once_under_any_key_and_in_any_order() {
        let journal = Journal::new(Storage::in_memory());
        let samples: Vec<SampleId> = (0..64).map(|index| SampleId { shard: 0, index }).collect();
        let (_, counted) = contribution(1, 7, 20, &samples, [1.0, 2.0]);
        journal.append(20, 0, &counted).await.unwrap();
        let turned: Vec<SampleId> = samples.iter().rev().copied().collect();
        let others: Vec<SampleId> = (64..128).map(|index| SampleId { shard: 0, index }).collect();
        // The newest epoch, and the oldest that late work may be of.
        for epoch in [20, 19 + EPOCHS_MAX as u64] {
            let ledger = SharedLedger::restore(&manifest(), &journal, epoch).await.unwrap();
            let peer = PeerKey(KeyPair::from_seed(&[2; 32]).public().to_peer_id());
            let claim = |samples: &[SampleId], values| {
                let (offer, _) = contribution(2, 9, 20, samples, values);
                let mut reservation =
                    ledger.claim(&peer, AddressGroup(2), &offer, Some((PARAMETERS, samples)))?;
                reservation.claim_gradient(values_hash(&values))
            };
            let repeated = |claimed| matches!(claimed, Err(ContributionRefusal::Repeated(_)));
            assert!(repeated(claim(&turned, [3.0, 4.0])), "the samples, at epoch {epoch}");
            assert!(repeated(claim(&others, [1.0, 2.0])), "the gradient, at epoch {epoch}");
            assert_eq!(claim(&others, [3.0, 4.0]), Ok(()));
        }
    }
}
