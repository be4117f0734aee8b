//! Receipts: made from journal entries, and kept for contributors whose acknowledgement was lost.

use std::collections::BTreeMap;

use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::receipt::{Receipt, ReceiptError, SignedReceipt};
use barnraise_swarm::PeerKey;

use crate::storage::journal::{Journal, JournalEntry, JournalError};

/// A reducer of a run, which signs receipts with its identity. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Issuer {
    run_id: String,
    key: KeyPair,
}

impl Issuer {
    /// The reducer of `run_id` with this key.
    pub fn new(run_id: &str, key: KeyPair) -> Self {
        Self { run_id: run_id.to_owned(), key }
    }

    /// The unsigned receipt of a journal entry, always the same. `None` where the contributor has no Ed25519 key, without
    /// which it is not admitted to a run.
    pub fn receipt(&self, entry: &JournalEntry) -> Option<Receipt> {
        Some(Receipt {
            run_id: self.run_id.clone(),
            peer: PublicKey::of_peer_id(&entry.peer)?,
            reducer: self.key.public(),
            contribution_id: entry.offer.contribution_id,
            epoch: entry.offer.epoch,
            n_samples: entry.offer.n_samples,
            n_bytes: entry.offer.transfer.n_bytes,
            milliseconds: entry.milliseconds,
            issued_at: entry.accepted_at,
        })
    }

    /// Its key.
    pub fn reducer(&self) -> PublicKey {
        self.key.public()
    }

    /// Signs a receipt.
    ///
    /// # Errors
    /// A run id that is too long; configurations have none.
    pub fn sign(&self, receipt: Receipt) -> Result<SignedReceipt, ReceiptError> {
        receipt.sign(&self.key)
    }
}

/// The receipts of this epoch and of the one before: as far back as a repeated offer is told from a new one.
#[derive(Debug, Default)]
pub struct KnownReceipts {
    current: BTreeMap<(PeerKey, u64), Receipt>,
    before: BTreeMap<(PeerKey, u64), Receipt>,
}

impl KnownReceipts {
    /// The receipts of a run that continues at `epoch`.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn restore(journal: &Journal, epoch: u64, issuer: &Issuer) -> Result<Self, JournalError> {
        let mut known = Self::default();
        for epoch in epoch.saturating_sub(1)..=epoch {
            known.on_epoch();
            let mut entries = journal.entries(epoch).await?;
            while let Some((_, entry)) = entries.next().await? {
                if let Some(receipt) = issuer.receipt(&entry) {
                    known.insert(PeerKey(entry.peer), receipt);
                }
            }
        }
        Ok(known)
    }

    /// A contribution of the current epoch was accepted.
    pub fn insert(&mut self, peer: PeerKey, receipt: Receipt) {
        self.current.entry((peer, receipt.contribution_id)).or_insert(receipt);
    }

    /// Another epoch begins.
    pub fn on_epoch(&mut self) {
        self.before = std::mem::take(&mut self.current);
    }

    /// The receipt of a contribution that counted.
    pub fn find(&self, peer: &PeerKey, contribution_id: u64) -> Option<&Receipt> {
        let name = (peer.clone(), contribution_id);
        self.current.get(&name).or_else(|| self.before.get(&name))
    }
}
