//! Work that was contributed to this backbone lately, shared by all its streams: the same work counts once.
//!
//! After a restart the gradients of the newest epochs are known from the journal; the lists of their samples are not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::commitment::SampleId;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::PeerKey;
use barnraise_swarm::recomputation::{ContributionName, Ledger, RepeatError, SampleClaim, values_hash};

use crate::storage::journal::{Journal, JournalError};

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
    /// The ledger of a data set with `n_samples` samples, for a run at `epoch`.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) async fn restore(n_samples: u64, journal: &Journal, epoch: u64) -> Result<Self, JournalError> {
        let mut ledger = Ledger::new(n_samples);
        for epoch in epoch.saturating_sub(1)..=epoch {
            let mut entries = journal.entries(epoch).await?;
            while let Some((_, entry)) = entries.next().await? {
                let n_values = usize::try_from(entry.offer.n_values).unwrap_or(usize::MAX);
                let Ok(values) = entry.offer.codec.decode(&entry.payload, n_values) else { continue };
                let contribution_id = entry.offer.contribution_id;
                let name = ContributionName { peer: PeerKey(entry.peer), contribution_id };
                // Work that counted twice before there was a ledger stays as it is.
                let _ = ledger.claim_gradient(&name, epoch, values_hash(&values));
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
    /// Claims the received values, too.
    ///
    /// # Errors
    /// They were contributed before, or belong to another contribution in progress.
    pub(super) fn claim_gradient(&mut self, values: &[f32]) -> Result<(), ContributionRefusal> {
        let hash = values_hash(values);
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
