//! The visitor's name, receipts, rank and card.

use barnraise_messages::{DisplayName, PageToPeer};

use super::card::{CardError, ShareCard};
use super::{PageAction, PageEvent, PageState, TabRole, WorkerState};

/// Most stored receipts; the oldest are deleted. About five megabytes.
pub(crate) const RECEIPTS_MAX: u32 = 10_000;

/// Name, receipts and card of the visitor.
#[derive(Debug, Default)]
pub(crate) struct Giving {
    /// Name on the leaderboard.
    pub(crate) name: Option<DisplayName>,
    /// Answer to the typed name.
    pub(crate) name_note: Option<String>,
    /// Stored receipts; `None` if the browser stores none.
    pub(crate) n_receipts: Option<u64>,
    /// Outcome of sharing the card.
    pub(crate) card: Option<Result<u64, CardError>>,
}

/// A rank on the leaderboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank {
    /// From 1.
    pub(crate) place: u64,
    /// Number of contributors.
    pub(crate) n_contributors: u64,
}

impl PageState {
    /// Sets the visitor's name.
    pub(crate) fn called(mut self, name: Option<DisplayName>) -> Self {
        self.giving.name = name;
        self
    }

    /// The rank of this tab's peer.
    pub(crate) fn rank(&self) -> Option<Rank> {
        let leaders = self.leaders.as_ref()?;
        let own = leaders.peer.as_ref().filter(|own| Some(&own.peer) == self.peer_id.as_ref())?;
        let place = leaders.rank.filter(|_| own.totals.n_samples > 0)?;
        Some(Rank { place, n_contributors: leaders.n_contributors.max(place) })
    }

    pub(super) fn on_giving(&mut self, event: PageEvent) -> Vec<PageAction> {
        match event {
            PageEvent::NameTyped(text) => self.on_name(&text),
            PageEvent::ReceiptsCounted(n) => {
                self.giving.n_receipts = Some(n);
                Vec::new()
            }
            PageEvent::ReceiptsWanted => vec![PageAction::SaveReceipts],
            PageEvent::CardWanted => {
                self.giving.card = None;
                ShareCard::of(self).map(|card| PageAction::MakeCard(Box::new(card))).into_iter().collect()
            }
            PageEvent::CardMade(outcome) => {
                self.giving.card = Some(outcome);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn on_name(&mut self, text: &str) -> Vec<PageAction> {
        let name = match text.trim().is_empty() {
            true => None,
            false => match DisplayName::new(text) {
                Ok(name) => Some(name),
                Err(error) => {
                    self.giving.name_note = Some(format!("That does not work: {error}."));
                    return Vec::new();
                }
            },
        };
        self.giving.name_note = Some(match &name {
            Some(name) => format!("The leaderboard will say {name}, after your next update."),
            None => "The leaderboard will not name you.".into(),
        });
        self.giving.name = name;
        let mut actions = vec![PageAction::KeepName(self.giving.name.clone())];
        // The leading tab must know the name before its worker starts.
        if matches!(self.peer, WorkerState::Ready { .. }) || self.role() == TabRole::Following {
            actions.push(self.post_name());
        }
        actions
    }

    pub(super) fn post_name(&self) -> PageAction {
        PageAction::Post(PageToPeer::Name { name: self.giving.name.clone() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::api::{AcceptedTotals, Contributions, ContributorTotals};

    use super::*;
    use crate::fixture;

    fn name(text: &str) -> Option<DisplayName> {
        Some(DisplayName::new(text).unwrap())
    }

    #[test]
    fn a_name_is_stored_and_sent_to_the_worker_now_and_at_each_start() {
        let mut page = fixture::page();
        let typed = |text: &str| PageEvent::NameTyped(text.into());
        assert_eq!(page.on_event(0.0, typed(" Ada  ")), [PageAction::KeepName(name("Ada"))]);
        page.on_event(1.0, PageEvent::Toggle);
        let actions = page.on_event(2.0, fixture::ready());
        let told = PageAction::Post(PageToPeer::Name { name: name("Ada") });
        assert_eq!(actions[1..3], [told, PageAction::Post(PageToPeer::Start)], "before it joins");
        let told = PageAction::Post(PageToPeer::Name { name: None });
        assert_eq!(page.on_event(3.0, typed("  ")), [PageAction::KeepName(None), told]);
    }

    #[test]
    fn what_is_no_name_changes_nothing_and_is_explained() {
        let mut page = fixture::page().called(name("Ada"));
        assert_eq!(page.on_event(0.0, PageEvent::NameTyped("a\u{202e}b".into())), []);
        assert_eq!(page.giving.name, name("Ada"));
        let note = page.giving.name_note.unwrap();
        assert!(note.contains("U+202E"), "{note}");
    }

    #[test]
    fn the_rank_is_of_this_peer_and_no_other() {
        let mut page = fixture::page();
        let given = AcceptedTotals { n_contributions: 1, n_samples: 5, n_bytes: 1, seconds: 1 };
        let own = ContributorTotals { peer: "12D3".into(), name: None, totals: given, last_epoch: 1 };
        let leaders =
            Contributions { n_contributors: 9, peer: Some(own), rank: Some(3), ..Contributions::default() };
        page.on_event(0.0, PageEvent::LeadersKnown(Box::new(leaders)));
        assert_eq!(page.rank(), None);
        page.peer_id = Some("12D3".into());
        assert_eq!(page.rank(), Some(Rank { place: 3, n_contributors: 9 }));
        page.peer_id = Some("another".into());
        assert_eq!(page.rank(), None);
    }
}
