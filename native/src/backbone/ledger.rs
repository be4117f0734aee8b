//! What was contributed to this backbone lately, for all its streams: the same work counts once.
//!
//! Of a run that goes on after a restart the gradients of the newest epochs are known from the journal, the lists of
//! their samples are not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::account::SampleId;
use barnraise_protocol::gradient::{Offer, Refusal};
use barnraise_swarm::PeerKey;
use barnraise_swarm::recomputation::{Claim, Ledger, Name, Repeat, values_hash};
use barnraise_swarm::round::AddressGroup;

use crate::storage::journal::{Journal, JournalError};

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct SharedLedger(Arc<Mutex<Ledger>>);

/// The work of a contribution that is under way. Dropped, it may be contributed again, unless it [was kept](Self::keep).
#[derive(Debug)]
pub(super) struct Reservation {
    ledger: SharedLedger,
    name: Name,
    epoch: u64,
    list: Option<Claim>,
    gradient: Option<Sha256Hash>,
}

impl SharedLedger {
    /// Of a data set with so many samples, and a run at `epoch`.
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
                let name = Name { peer: PeerKey(entry.peer), contribution_id };
                // What counted twice before this was asked stays as it is.
                let _ = ledger.claim_gradient(&name, epoch, values_hash(&values));
            }
        }
        Ok(Self(Arc::new(Mutex::new(ledger))))
    }

    /// Takes the work of a contribution; by which parameters it is of which samples is known where it has an account.
    ///
    /// # Errors
    /// It was contributed before, or is on its way.
    pub(super) fn claim(
        &self,
        peer: &PeerKey,
        group: AddressGroup,
        offer: &Offer,
        list: Option<(Sha256Hash, &[SampleId])>,
    ) -> Result<Reservation, Refusal> {
        let name = Name { peer: peer.clone(), contribution_id: offer.contribution_id };
        let claimed = list.map(|(parameters, list)| self.lock().claim(&name, group, parameters, list));
        let list = claimed.transpose().map_err(refusal)?;
        Ok(Reservation { ledger: self.clone(), name, epoch: offer.epoch, list, gradient: None })
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Takes the values, too, which are here by now.
    ///
    /// # Errors
    /// They were contributed before, or are here for another contribution.
    pub(super) fn claim_gradient(&mut self, values: &[f32]) -> Result<(), Refusal> {
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

fn refusal(repeat: Repeat) -> Refusal {
    match repeat {
        Repeat::UnderWay => Refusal::Busy,
        repeat => Refusal::Repeated(repeat.to_string()),
    }
}
