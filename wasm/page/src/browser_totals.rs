//! Accepted contributions of this browser over all visits: totals and the last receipt of each run. Pure.

use std::collections::BTreeMap;

use barnraise_protocol::receipt::SignedReceipt;
use serde::{Deserialize, Serialize};

/// Most runs that are stored.
const RUNS_MAX: usize = 16;

/// Totals by run id.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BrowserTotals(BTreeMap<String, RunTotals>);

/// Totals of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunTotals {
    /// Samples that were accepted.
    pub(crate) n_samples: u64,
    /// Updates that were accepted.
    pub(crate) n_contributions: u64,
    /// Encoded bytes of their gradients.
    #[serde(default)]
    pub(crate) n_bytes: u64,
    /// Time of computing, by the reducer's clock.
    #[serde(default)]
    milliseconds: u64,
    /// Receipt of the last one.
    last: SignedReceipt,
}

impl RunTotals {
    /// Seconds of computing.
    pub(crate) fn seconds(&self) -> u64 {
        self.milliseconds / 1000
    }
}

impl BrowserTotals {
    /// Adds a receipt, unless it is the same as the last one.
    pub(crate) fn add(&mut self, last: SignedReceipt) {
        let n_samples = u64::from(last.receipt.n_samples);
        let (n_bytes, milliseconds) = (last.receipt.n_bytes, u64::from(last.receipt.milliseconds));
        match self.0.get_mut(&last.receipt.run_id) {
            Some(given) if given.last == last => {}
            Some(given) => {
                given.n_samples = given.n_samples.saturating_add(n_samples);
                given.n_contributions = given.n_contributions.saturating_add(1);
                given.n_bytes = given.n_bytes.saturating_add(n_bytes);
                given.milliseconds = given.milliseconds.saturating_add(milliseconds);
                given.last = last;
            }
            None => {
                if self.0.len() >= RUNS_MAX {
                    self.forget_oldest();
                }
                let given = RunTotals { n_samples, n_contributions: 1, n_bytes, milliseconds, last };
                self.0.insert(given.last.receipt.run_id.clone(), given);
            }
        }
    }

    /// The totals of a run.
    pub(crate) fn of(&self, run_id: &str) -> Option<&RunTotals> {
        self.0.get(run_id)
    }

    fn forget_oldest(&mut self) {
        let oldest = self.0.iter().min_by_key(|(_, given)| given.last.receipt.issued_at);
        if let Some(run_id) = oldest.map(|(run_id, _)| run_id.clone()) {
            self.0.remove(&run_id);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::fixture::receipt;

    #[test]
    fn receipts_add_up_and_the_same_one_counts_once() {
        let mut kept = BrowserTotals::default();
        assert_eq!(kept.of("garments"), None);
        for id in [1, 2, 2, 3] {
            kept.add(receipt("garments", id));
        }
        kept.add(receipt("shed", 3));
        let given = kept.of("garments").unwrap();
        assert_eq!((given.n_samples, given.n_contributions), (3 * 64, 3));
        let one = receipt("garments", 1).receipt;
        assert_eq!(given.n_bytes, 3 * one.n_bytes);
        assert_eq!(given.seconds(), 3 * u64::from(one.milliseconds) / 1000);
        let text = serde_json::to_string(&kept).unwrap();
        assert_eq!(serde_json::from_str::<BrowserTotals>(&text).unwrap(), kept);
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_run_goes() {
        let mut kept = BrowserTotals::default();
        for id in 0..=RUNS_MAX as u64 {
            kept.add(receipt(&format!("run-{id}"), id));
        }
        assert_eq!(kept.0.len(), RUNS_MAX);
        assert!(kept.of("run-0").is_none() && kept.of("run-1").is_some());
    }
}
