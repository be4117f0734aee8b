//! Whether this tab may take part in the run, as far as it can know before it asks.

use barnraise_messages::Activity;
use barnraise_protocol::access::AccessMode;

use super::{PageAction, PageState};

/// What this tab has to get into the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Nothing is asked for, or it was let in before.
    Free,
    /// The visitor will have to sign in.
    SignIn,
    /// An invitation, which is handed in at the start.
    Invited,
    /// No invitation. A key of an earlier visit may be let in all the same.
    Uninvited { has_key: bool },
    /// It asked, and was not let in.
    Refused,
}

impl PageState {
    /// What this tab has to get into the run; as into an open one while the run is unknown.
    pub(crate) fn admission(&self) -> Admission {
        let Some(run) = &self.run else { return Admission::Free };
        // Who has its pictures was let in, perhaps through another tab.
        let was_let_in = self.given().is_some() || self.is_in_touch() || self.gallery.is_some();
        match run.access.mode {
            _ if matches!(self.activity, Activity::NotAdmitted { .. }) => Admission::Refused,
            _ if was_let_in => Admission::Free,
            AccessMode::Open => Admission::Free,
            AccessMode::Allowlist => Admission::SignIn,
            AccessMode::Invitation if self.invitation.is_some() => Admission::Invited,
            AccessMode::Invitation => Admission::Uninvited { has_key: self.had_identity },
        }
    }

    /// Whether the tab can only watch, for want of an invitation.
    pub(crate) fn lacks_invitation(&self) -> bool {
        match self.admission() {
            Admission::Uninvited { has_key } => !has_key,
            Admission::Refused => self.is_by_invitation() && self.invitation.is_none(),
            Admission::Free | Admission::SignIn | Admission::Invited => false,
        }
    }

    /// Whether the model may be had in this tab. In a run that is not open it is for those who take part.
    pub(crate) fn may_try(&self) -> bool {
        let is_shut_out = self.lacks_invitation() || self.admission() == Admission::Refused;
        !self.has_nothing_to_try() && !is_shut_out
    }

    /// Whether a code may help this tab in, and a run here takes codes.
    pub(crate) fn may_enter_code(&self) -> bool {
        let helps = match self.admission() {
            Admission::Uninvited { .. } => true,
            Admission::Refused => self.is_by_invitation(),
            Admission::Free | Admission::SignIn | Admission::Invited => false,
        };
        helps && self.takes_codes == Some(true)
    }

    /// A run by invitation may have codes, and its page then leads to the field for them.
    pub(super) fn ask_for_codes(&self) -> Option<PageAction> {
        (self.is_by_invitation() && self.takes_codes.is_none()).then_some(PageAction::AskForCodes)
    }

    /// URL where the visitor has to sign in. Only `http` and `https`: it comes from the backbone and becomes a link.
    pub(crate) fn sign_in_url(&self) -> Option<&str> {
        match &self.activity {
            Activity::SigningIn { url } if url.starts_with("https://") || url.starts_with("http://") => {
                Some(url)
            }
            _ => None,
        }
    }

    fn is_by_invitation(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.access.mode == AccessMode::Invitation)
    }
}

#[cfg(test)]
mod tests {
    use barnraise_messages::Interruption;
    use barnraise_messages::{ContributorEvent, PageToPeer, PeerToPage};
    use barnraise_protocol::contribute::DeviceKind;

    use super::super::{PageEvent, WorkerState};
    use super::*;
    use crate::browser_totals::BrowserTotals;
    use crate::fixture;
    use crate::sentence::{invitation_line, sentence};

    fn page(mode: AccessMode) -> PageState {
        let mut page = fixture::page();
        if let Some(run) = &mut page.run {
            run.access.mode = mode;
        }
        page
    }

    #[test]
    fn an_invitation_is_known_before_it_is_handed_in() {
        assert_eq!(page(AccessMode::Open).admission(), Admission::Free);
        assert_eq!(page(AccessMode::Allowlist).admission(), Admission::SignIn);
        let mut uninvited = page(AccessMode::Invitation);
        assert_eq!(uninvited.admission(), Admission::Uninvited { has_key: false });
        uninvited.had_identity = true;
        assert_eq!(uninvited.admission(), Admission::Uninvited { has_key: true });
        let invited = page(AccessMode::Invitation).invited_by(Some("code".into()));
        assert_eq!(invited.admission(), Admission::Invited);
        let mut kept = BrowserTotals::default();
        kept.add(fixture::receipt("garments", 1));
        assert_eq!(page(AccessMode::Invitation).remembering(kept).admission(), Admission::Free);
    }

    fn refused(page: &mut PageState, reason: &str) {
        page.peer = WorkerState::Ready { device: DeviceKind::BrowserCpu, device_name: String::new() };
        let refused = Activity::NotAdmitted { reason: Interruption::other(reason) };
        page.on_event(1.0, PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Activity(refused))));
    }

    #[test]
    fn an_uninvited_tab_is_told_once_and_asks_for_nothing() {
        let mut page = page(AccessMode::Invitation);
        assert!(page.lacks_invitation() && !page.may_try());
        page.on_event(0.0, PageEvent::Toggle);
        let actions = page.on_event(0.0, fixture::ready());
        assert!(!actions.contains(&PageAction::Post(PageToPeer::LoadGallery)), "{actions:?}");
        refused(&mut page, "this run is by invitation");
        assert_eq!((page.admission(), page.contributing, &page.notice), (Admission::Refused, false, &None));
        assert!(page.lacks_invitation() && !page.may_try());
        let (said, line) = (sentence(&page).text, invitation_line(&page).unwrap_or_default());
        assert!(said.contains("by invitation") && !line.contains("by invitation"), "{said} {line}");
        assert!(line.contains("open the link"), "{line}");
    }

    #[test]
    fn who_is_refused_reads_why_and_what_helps() {
        let mut page = page(AccessMode::Invitation).invited_by(Some("code".into()));
        refused(&mut page, "the invitation was used as often as it may be");
        assert!(sentence(&page).text.contains("as often as it may"));
        assert!(!page.lacks_invitation(), "Start may be tried again");
        assert!(invitation_line(&page).is_some_and(|line| line.contains("another invitation")));
        let mut page = self::page(AccessMode::Allowlist);
        refused(&mut page, "alice is not on the list of this run");
        assert!(sentence(&page).text.contains("alice is not on the list"));
        assert!(invitation_line(&page).is_some_and(|line| line.contains("put you on the list")));
    }

    #[test]
    fn the_field_for_codes_is_shown_where_codes_are_taken() {
        let mut page = page(AccessMode::Invitation);
        assert_eq!((page.ask_for_codes(), page.may_enter_code()), (Some(PageAction::AskForCodes), false));
        page.on_event(0.0, PageEvent::CodesKnown(false));
        assert_eq!((page.ask_for_codes(), page.may_enter_code()), (None, false));
        page.on_event(0.0, PageEvent::CodesKnown(true));
        assert!(page.may_enter_code());
        assert_eq!(self::page(AccessMode::Open).ask_for_codes(), None);
    }
}
