//! What belongs to this visitor: a name if one is wanted, the receipts, a place among all, a card to share.

use barnraise_messages::{DisplayName, PageToPeer};

use super::{Action, Event, Page, Peer, Role};
use crate::card::Card;

/// What the page knows of it.
#[derive(Debug, Default)]
pub(crate) struct Giving {
    /// How the visitor wants to be called.
    pub(crate) name: Option<DisplayName>,
    /// What became of the name that was typed.
    pub(crate) name_note: Option<String>,
    /// Receipts in this browser; `None` where it keeps none.
    pub(crate) n_receipts: Option<u64>,
    /// What became of the card.
    pub(crate) card: Option<Result<u64, String>>,
}

/// A place on the leaderboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank {
    /// From 1.
    pub(crate) place: u64,
    /// Of so many.
    pub(crate) n_contributors: u64,
}

impl Page {
    /// The same page, in a browser whose visitor wants to be called so.
    pub(crate) fn called(mut self, name: Option<DisplayName>) -> Self {
        self.giving.name = name;
        self
    }

    /// The place of this tab's peer, once it has one.
    pub(crate) fn rank(&self) -> Option<Rank> {
        let leaders = self.leaders.as_ref()?;
        let own = leaders.peer.as_ref().filter(|own| Some(&own.peer) == self.peer_id.as_ref())?;
        let place = leaders.rank.filter(|_| own.given.n_samples > 0)?;
        Some(Rank { place, n_contributors: leaders.n_contributors.max(place) })
    }

    pub(super) fn on_giving(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::NameTyped(text) => self.on_name(&text),
            Event::ReceiptsCounted(n) => {
                self.giving.n_receipts = Some(n);
                Vec::new()
            }
            Event::ReceiptsWanted => vec![Action::SaveReceipts],
            Event::CardWanted => {
                self.giving.card = None;
                Card::of(self).map(|card| Action::MakeCard(Box::new(card))).into_iter().collect()
            }
            Event::CardMade(outcome) => {
                self.giving.card = Some(outcome);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn on_name(&mut self, text: &str) -> Vec<Action> {
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
        let mut actions = vec![Action::KeepName(self.giving.name.clone())];
        // The leader of the tabs has to know it before it has a worker.
        if matches!(self.peer, Peer::Ready { .. }) || self.role() == Role::Following {
            actions.push(self.post_name());
        }
        actions
    }

    pub(super) fn post_name(&self) -> Action {
        Action::Post(PageToPeer::Name { name: self.giving.name.clone() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_messages::PeerToPage;
    use barnraise_protocol::api::{Contributions, ContributorTotals, Given};
    use barnraise_protocol::contribute::DeviceKind;

    use super::*;
    use crate::fixture;

    fn name(text: &str) -> Option<DisplayName> {
        Some(DisplayName::new(text).unwrap())
    }

    fn ready() -> Event {
        Event::FromPeer(PeerToPage::Ready {
            identity: vec![7; 32],
            peer_id: "12D3".into(),
            device: DeviceKind::BrowserCpu,
            device_name: String::new(),
        })
    }

    #[test]
    fn a_name_is_kept_and_told_to_the_worker_now_and_at_each_start() {
        let mut page = fixture::page();
        let typed = |text: &str| Event::NameTyped(text.into());
        assert_eq!(page.on_event(0.0, typed(" Ada  ")), [Action::KeepName(name("Ada"))]);
        page.on_event(1.0, Event::Toggle);
        let actions = page.on_event(2.0, ready());
        let told = Action::Post(PageToPeer::Name { name: name("Ada") });
        assert_eq!(actions[1..3], [told, Action::Post(PageToPeer::Start)], "before it joins");
        let told = Action::Post(PageToPeer::Name { name: None });
        assert_eq!(page.on_event(3.0, typed("  ")), [Action::KeepName(None), told]);
    }

    #[test]
    fn what_is_no_name_changes_nothing_and_is_explained() {
        let mut page = fixture::page().called(name("Ada"));
        assert_eq!(page.on_event(0.0, Event::NameTyped("a\u{202e}b".into())), []);
        assert_eq!(page.giving.name, name("Ada"));
        let note = page.giving.name_note.unwrap();
        assert!(note.contains("U+202E"), "{note}");
    }

    #[test]
    fn the_rank_is_of_this_peer_and_no_other() {
        let mut page = fixture::page();
        let given = Given { n_contributions: 1, n_samples: 5, n_bytes: 1, seconds: 1 };
        let own = ContributorTotals { peer: "12D3".into(), name: None, given, last_epoch: 1 };
        let leaders =
            Contributions { n_contributors: 9, peer: Some(own), rank: Some(3), ..Contributions::default() };
        page.on_event(0.0, Event::LeadersKnown(Box::new(leaders)));
        assert_eq!(page.rank(), None);
        page.peer_id = Some("12D3".into());
        assert_eq!(page.rank(), Some(Rank { place: 3, n_contributors: 9 }));
        page.peer_id = Some("another".into());
        assert_eq!(page.rank(), None);
    }
}
