//! What the answer to an offer says of the samples behind it.

use barnraise_protocol::gradient::Refusal;

/// What became of a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is in the step of its epoch.
    Counted,
    /// It is in no step: its gradient goes into the next contribution.
    NotCounted,
    /// Nobody knows. It is taken for counted: to lose samples costs work, to count them twice makes a model that
    /// no single machine would have made.
    Unknown,
    /// Its numbers are refused, whenever they come: nothing of it is kept, nor of what was kept before.
    Rejected,
}

impl Fate {
    /// Of an offer that was answered so; `None` where it is to be offered again. `was_cut`: the same contribution
    /// was offered before, and no answer came.
    pub fn of<T>(answer: &Result<T, Refusal>, was_cut: bool) -> Option<Self> {
        let refusal = match answer {
            Ok(_) => return Some(Self::Counted),
            Err(refusal) => refusal,
        };
        match *refusal {
            Refusal::Busy | Refusal::Storage | Refusal::NotJoined => None,
            Refusal::Duplicate { .. } => Some(Self::Counted),
            Refusal::NotFinite { .. } | Refusal::Norm { .. } => Some(Self::Rejected),
            // The aggregator remembers what counted in this epoch and in the one before: of an older one it
            // would say the same, had the first offer counted or not.
            Refusal::Epoch { want, got } if was_cut && want > got.saturating_add(1) => Some(Self::Unknown),
            _ => Some(Self::NotCounted),
        }
    }
}
