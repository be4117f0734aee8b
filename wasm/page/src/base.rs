//! The page's run, from its address: a backbone may serve several runs, each below `/run/<id>/`.

use crate::dom::window;

/// Prefix of the id of a run.
const RUN_PREFIX: &str = "/run/";
/// Prefix of the code of an invitation, in the fragment, which is not sent to the server.
const INVITATION: &str = "#invitation=";
/// Path of the list of runs.
pub(crate) const FRONT_PATH: &str = "/runs/";

/// The page at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageAddress {
    /// All runs.
    Front,
    /// One run, with the prefix of its requests: `/run/<id>`, or empty for a single run.
    Run(String),
}

impl PageAddress {
    /// The page at a path.
    pub(crate) fn of(path: &str) -> Self {
        if path == FRONT_PATH {
            return Self::Front;
        }
        Self::Run(id_of(path).map(page_of).unwrap_or_default())
    }
}

/// The id of the run in a path.
pub(crate) fn id_of(path: &str) -> Option<&str> {
    let id = path.strip_prefix(RUN_PREFIX).and_then(|rest| rest.split('/').next());
    id.filter(|id| !id.is_empty() && id.bytes().all(is_of_id))
}

/// Whether the backbone's configuration accepts this byte in an id.
fn is_of_id(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

/// Path of a run's page, without a slash at its end.
pub(crate) fn page_of(id: &str) -> String {
    format!("{RUN_PREFIX}{id}")
}

/// The code of the invitation link that opened this page.
pub(crate) fn invitation() -> Option<String> {
    let fragment = window().location().hash().ok()?;
    fragment.strip_prefix(INVITATION).map(str::to_owned)
}

/// Address of a run's page with an invitation.
pub(crate) fn invited_to(id: &str, code: &str) -> String {
    format!("{}/{INVITATION}{code}", page_of(id))
}

/// The current page.
pub(crate) fn here() -> PageAddress {
    PageAddress::of(&window().location().pathname().unwrap_or_default())
}

/// A path or a storage key, made specific to this page's run.
pub(crate) fn of_run(path: &str) -> String {
    match here() {
        PageAddress::Run(base) if path.starts_with('/') => format!("{base}{path}"),
        PageAddress::Run(base) => format!("{path}{base}"),
        PageAddress::Front => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_stays_behind_the_address() {
        assert_eq!(invited_to("a-run", "abc"), "/run/a-run/#invitation=abc");
    }

    #[test]
    fn the_address_says_which_run_it_is() {
        let run = |base: &str| PageAddress::Run(base.to_owned());
        for (path, want) in [
            ("/", run("")),
            ("/index.html", run("")),
            ("/run/a-run/", run("/run/a-run")),
            ("/run/a1/anything", run("/run/a1")),
            ("/run/", run("")),
            ("/run//evil.example/", run("")),
            ("/run/A%20b/", run("")),
            ("/runs/", PageAddress::Front),
        ] {
            assert_eq!(PageAddress::of(path), want, "{path}");
            let base = id_of(path).map(page_of).unwrap_or_default();
            assert!(want == PageAddress::Front || want == run(&base), "{path}");
        }
    }
}
