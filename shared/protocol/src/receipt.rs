//! The receipt of an accepted contribution, in the words of the reducer that accepted it (DeDLOC appendix
//! I.2).
//!
//! ```text
//! signed receipt = receipt | signature of the reducer
//! receipt        = postcard of run id, peer, reducer, contribution id, epoch, samples, bytes, milliseconds,
//!                  time of issue
//! signed         = "barnraise receipt 1\0" | receipt
//! ```
//!
//! What is verified is what the receipt encodes to again, so that it has one encoding only. Whether a reducer
//! is one of the run is known to whoever knows the run, not to a receipt.

use serde::{Deserialize, Serialize};

use crate::access::{KeyPair, PublicKey, Signature, UnixTime};
use crate::gradient::{Accepted, MESSAGE_BYTES_MAX, Offer};

/// What every signature of a receipt begins with: nothing else that the same key signs does.
const DOMAIN: &[u8] = b"barnraise receipt 1\0";

/// Longest run id in a receipt, in bytes.
pub const RUN_ID_BYTES_MAX: usize = 128;

// Two keys and a signature, and seven numbers of ten bytes at most.
const _: () = assert!(RUN_ID_BYTES_MAX + 128 + 7 * 10 < MESSAGE_BYTES_MAX);

/// What was accepted, of whom and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The run.
    pub run_id: String,
    /// Who contributed.
    pub peer: PublicKey,
    /// Who accepted it, and signs.
    pub reducer: PublicKey,
    /// As the peer named it.
    pub contribution_id: u64,
    /// Epoch that it counted for.
    pub epoch: u64,
    /// Samples that it counted for.
    pub n_samples: u32,
    /// Encoded bytes of the gradient.
    pub n_bytes: u64,
    /// Since the peer's contribution before, or since it joined, by the reducer's clock.
    pub milliseconds: u32,
    /// When it was accepted, by the reducer's clock.
    pub issued_at: UnixTime,
}

/// A receipt that anybody can check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedReceipt {
    /// What was accepted.
    pub receipt: Receipt,
    /// Of the reducer.
    pub signature: Signature,
}

/// Why a receipt is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// Not signed by the reducer that it names, or changed since.
    #[error("the receipt is not signed by its reducer {reducer}")]
    Signature {
        /// In the receipt.
        reducer: PublicKey,
    },
    /// It cannot be encoded; does not happen.
    #[error("the receipt cannot be encoded: {0}")]
    Encode(#[from] postcard::Error),
    /// A name that no run has.
    #[error("the run id of the receipt has {got} bytes, at most {RUN_ID_BYTES_MAX} are allowed")]
    RunIdTooLong {
        /// In the receipt.
        got: usize,
    },
    /// For another run.
    #[error("the receipt is of run `{got}`, not of `{want}`")]
    Run {
        /// The one that was contributed to.
        want: String,
        /// In the receipt.
        got: String,
    },
    /// For somebody else.
    #[error("the receipt is for {got}, not for {want}")]
    Peer {
        /// Who contributed.
        want: PublicKey,
        /// In the receipt.
        got: PublicKey,
    },
    /// For something else than was offered.
    #[error("the receipt has {got} for {what}, the offer had {want}")]
    Offer {
        /// Which of the numbers.
        what: &'static str,
        /// In the offer.
        want: u64,
        /// In the receipt.
        got: u64,
    },
}

impl Receipt {
    /// Signs it.
    ///
    /// # Errors
    /// A run id of more than [`RUN_ID_BYTES_MAX`].
    pub fn sign(self, reducer: &KeyPair) -> Result<SignedReceipt, ReceiptError> {
        let signature = reducer.sign(&self.signed_bytes()?);
        Ok(SignedReceipt { receipt: self, signature })
    }

    fn signed_bytes(&self) -> Result<Vec<u8>, ReceiptError> {
        match self.run_id.len() {
            0..=RUN_ID_BYTES_MAX => Ok(postcard::to_extend(self, DOMAIN.to_vec())?),
            got => Err(ReceiptError::RunIdTooLong { got }),
        }
    }
}

impl SignedReceipt {
    /// Checks that the reducer that it names signed exactly this.
    ///
    /// # Errors
    /// It did not.
    pub fn verify(&self) -> Result<(), ReceiptError> {
        let bytes = self.receipt.signed_bytes()?;
        let reducer = self.receipt.reducer;
        match reducer.has_signed(&bytes, &self.signature) {
            true => Ok(()),
            false => Err(ReceiptError::Signature { reducer }),
        }
    }

    /// Checks what [`Self::verify`] does, and that it is the receipt for `offer` to the run `run_id`, by
    /// `peer` where that is known.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify_for(
        &self,
        run_id: &str,
        peer: Option<PublicKey>,
        offer: &Offer,
    ) -> Result<(), ReceiptError> {
        self.verify()?;
        let receipt = &self.receipt;
        if receipt.run_id != run_id {
            return Err(ReceiptError::Run { want: run_id.to_owned(), got: receipt.run_id.clone() });
        }
        if let Some(want) = peer.filter(|peer| receipt.peer != *peer) {
            return Err(ReceiptError::Peer { want, got: receipt.peer });
        }
        let numbers = [
            ("the contribution", offer.contribution_id, receipt.contribution_id),
            ("the epoch", offer.epoch, receipt.epoch),
            ("the samples", offer.n_samples.into(), receipt.n_samples.into()),
            ("the bytes", offer.transfer.n_bytes, receipt.n_bytes),
        ];
        match numbers.into_iter().find(|(_, want, got)| want != got) {
            Some((what, want, got)) => Err(ReceiptError::Offer { what, want, got }),
            None => Ok(()),
        }
    }

    /// What it says was accepted.
    pub fn accepted(&self) -> Accepted {
        let Receipt { contribution_id, epoch, n_samples, .. } = self.receipt;
        Accepted { contribution_id, epoch, n_samples }
    }
}
