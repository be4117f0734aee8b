//! The receipt of an accepted contribution, signed by the reducer that accepted it (DeDLOC appendix I.2).
//!
//! ```text
//! signed receipt = receipt | signature of the reducer
//! receipt        = postcard of run id, peer, reducer, contribution id, epoch, samples, bytes, milliseconds,
//!                  time of issue
//! signed         = "barnraise receipt 1\0" | receipt
//! ```
//!
//! The receipt is encoded again to verify it, so that it has only one encoding. A receipt does not prove that
//! its reducer belongs to the run: the reader checks that.

use serde::{Deserialize, Serialize};

use crate::access::{KeyPair, PublicKey, Signature, UnixTime};
use crate::contribution::{Accepted, Offer};

/// Domain separator: the signed bytes of every receipt begin with it, and nothing else that the same key signs.
const DOMAIN: &[u8] = b"barnraise receipt 1\0";

/// Longest run id in a receipt, in bytes.
pub const RUN_ID_BYTES_MAX: usize = 128;

/// An accepted contribution, its contributor and its reducer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The run.
    pub run_id: String,
    /// The contributor.
    pub peer: PublicKey,
    /// The reducer that accepted it, and signs.
    pub reducer: PublicKey,
    /// The offer's number.
    pub contribution_id: u64,
    /// Epoch that it counted for.
    pub epoch: u64,
    /// Samples that it counted for.
    pub n_samples: u32,
    /// Encoded bytes of the gradient.
    pub n_bytes: u64,
    /// Milliseconds since the peer's previous contribution, or since it joined, by the reducer's clock.
    pub milliseconds: u32,
    /// When it was accepted, by the reducer's clock.
    pub issued_at: UnixTime,
}

/// A receipt with its signature: any peer can verify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedReceipt {
    /// What was accepted.
    pub receipt: Receipt,
    /// The reducer's signature.
    pub signature: Signature,
}

/// Why a receipt is invalid.
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
    /// A run id over the limit.
    #[error("the run id of the receipt has {got} bytes, at most {RUN_ID_BYTES_MAX} are allowed")]
    RunIdTooLong {
        /// In the receipt.
        got: usize,
    },
    /// For another run.
    #[error("the receipt is of run `{got}`, not of `{want}`")]
    Run {
        /// The run of the contribution.
        want: String,
        /// In the receipt.
        got: String,
    },
    /// For another contributor.
    #[error("the receipt is for {got}, not for {want}")]
    Peer {
        /// The contributor.
        want: PublicKey,
        /// In the receipt.
        got: PublicKey,
    },
    /// For another offer.
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
    /// Checks that its reducer signed exactly this receipt.
    ///
    /// # Errors
    /// [`ReceiptError::Signature`].
    pub fn verify(&self) -> Result<(), ReceiptError> {
        let bytes = self.receipt.signed_bytes()?;
        let reducer = self.receipt.reducer;
        match reducer.has_signed(&bytes, &self.signature) {
            true => Ok(()),
            false => Err(ReceiptError::Signature { reducer }),
        }
    }

    /// Checks what [`Self::verify`] does, and that it is the receipt for `offer` to the run `run_id`, by the
    /// contributor `peer` where that is given.
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

    /// The accepted contribution.
    pub fn accepted(&self) -> Accepted {
        let Receipt { contribution_id, epoch, n_samples, .. } = self.receipt;
        Accepted { contribution_id, epoch, n_samples }
    }
}
