//! Outcome of a contribution, from the answer to its offer.

use barnraise_protocol::gradient::ContributionRefusal;

/// Outcome of a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContributionOutcome {
    /// It is in the step of its epoch.
    Counted,
    /// It is in no step: its gradient goes into the next contribution.
    NotCounted,
    /// Not known. It is taken for counted: lost samples cost work, samples that count twice make a model that no
    /// single machine would have made.
    Unknown,
    /// Its values are invalid in every epoch: neither it nor the residual is kept.
    Rejected,
}

impl ContributionOutcome {
    /// Outcome of an offer with this answer; `None` where it is to be offered again. `was_cut`: the same contribution
    /// was offered before, and no answer came.
    pub fn of<T>(answer: &Result<T, ContributionRefusal>, was_cut: bool) -> Option<Self> {
        let refusal = match answer {
            Ok(_) => return Some(Self::Counted),
            Err(refusal) => refusal,
        };
        match *refusal {
            ContributionRefusal::Busy | ContributionRefusal::Storage | ContributionRefusal::NotJoined => None,
            ContributionRefusal::Duplicate { .. } => Some(Self::Counted),
            ContributionRefusal::NotFinite { .. } | ContributionRefusal::Norm { .. } => Some(Self::Rejected),
            // The aggregator remembers contributions of this epoch and of the one before. For an older one its answer
            // is the same whether the first offer counted or not.
            ContributionRefusal::Epoch { want, got } if was_cut && want > got.saturating_add(1) => {
                Some(Self::Unknown)
            }
            _ => Some(Self::NotCounted),
        }
    }
}
