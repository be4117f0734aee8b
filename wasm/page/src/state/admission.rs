//! Whether this tab may take part in the run, as far as it can know before it asks.

use barnraise_protocol::access::AccessMode;

use super::PageState;

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
}

impl PageState {
    /// What this tab has to get into the run; as into an open one while the run is unknown.
    pub(crate) fn admission(&self) -> Admission {
        let Some(run) = &self.run else { return Admission::Free };
        match run.access.mode {
            _ if self.given().is_some() => Admission::Free,
            AccessMode::Open => Admission::Free,
            AccessMode::Allowlist => Admission::SignIn,
            AccessMode::Invitation if self.invitation.is_some() => Admission::Invited,
            AccessMode::Invitation => Admission::Uninvited { has_key: self.identity.is_some() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::browser_totals::BrowserTotals;
    use crate::fixture;

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
        uninvited.identity = Some(vec![7; 32]);
        assert_eq!(uninvited.admission(), Admission::Uninvited { has_key: true });
        let invited = page(AccessMode::Invitation).invited_by(Some("code".into()));
        assert_eq!(invited.admission(), Admission::Invited);
        let mut kept = BrowserTotals::default();
        kept.add(fixture::receipt("garments", 1));
        assert_eq!(page(AccessMode::Invitation).remembering(kept).admission(), Admission::Free);
    }
}
