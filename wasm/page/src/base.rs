//! Which run this page is of, as its address says: a backbone may serve several, each below `/run/<id>/`.

use crate::dom::window;

/// Before the id of a run.
const RUN_PREFIX: &str = "/run/";
/// Before the code of an invitation: a part of an address that no server is told.
const INVITATION: &str = "#invitation=";
/// The list of runs.
pub(crate) const FRONT_PATH: &str = "/runs/";

/// What an address is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// All runs.
    Front,
    /// One run; what is asked of it is below this: `/run/<id>`, or nothing where the run is alone.
    Run(String),
}

impl Place {
    /// Of the path of an address.
    pub(crate) fn of(path: &str) -> Self {
        if path == FRONT_PATH {
            return Self::Front;
        }
        Self::Run(id_of(path).map(page_of).unwrap_or_default())
    }
}

/// The id of the run that a path is of, where it names one.
pub(crate) fn id_of(path: &str) -> Option<&str> {
    let id = path.strip_prefix(RUN_PREFIX).and_then(|rest| rest.split('/').next());
    id.filter(|id| !id.is_empty() && id.bytes().all(is_of_id))
}

/// As the backbone's configuration takes it.
fn is_of_id(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

/// Where the page of a run is, without a slash at its end.
pub(crate) fn page_of(id: &str) -> String {
    format!("{RUN_PREFIX}{id}")
}

/// The code of an invitation by whose link this page was opened.
pub(crate) fn invitation() -> Option<String> {
    let fragment = window().location().hash().ok()?;
    fragment.strip_prefix(INVITATION).map(str::to_owned)
}

/// Where the page of a run is that an invitation is to.
pub(crate) fn invited_to(id: &str, code: &str) -> String {
    format!("{}/{INVITATION}{code}", page_of(id))
}

/// What this page is of.
pub(crate) fn here() -> Place {
    Place::of(&window().location().pathname().unwrap_or_default())
}

/// The path, or the name of what is kept, as it is of this page's run: what belongs to another run has another one.
pub(crate) fn of_run(path: &str) -> String {
    match here() {
        Place::Run(base) if path.starts_with('/') => format!("{base}{path}"),
        Place::Run(base) => format!("{path}{base}"),
        Place::Front => path.to_owned(),
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
        let run = |base: &str| Place::Run(base.to_owned());
        for (path, want) in [
            ("/", run("")),
            ("/index.html", run("")),
            ("/run/a-run/", run("/run/a-run")),
            ("/run/a1/anything", run("/run/a1")),
            ("/run/", run("")),
            ("/run//evil.example/", run("")),
            ("/run/A%20b/", run("")),
            ("/runs/", Place::Front),
        ] {
            assert_eq!(Place::of(path), want, "{path}");
            let base = id_of(path).map(page_of).unwrap_or_default();
            assert!(want == Place::Front || want == run(&base), "{path}");
        }
    }
}
