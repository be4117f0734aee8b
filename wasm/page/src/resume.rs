//! Resumes contributing after the browser discarded or reloaded the tab; a paused tab stays paused. Only a few times in
//! a while: a page that crashes its tab each time is not resumed.

use js_sys::Reflect;
use serde::{Deserialize, Serialize};
use wasm_bindgen::{JsCast, JsValue};
use web_sys::PerformanceEntry;

use crate::base::of_run;
use crate::dom::{document, window};
use crate::kept::BrowserStorage;

/// Key in the session storage, which lasts as long as the tab.
const KEY: &str = "barnraise.contributing";
/// Most resumptions within [`WITHIN_MS`].
const RESUMED_MAX: u32 = 5;
const WITHIN_MS: f64 = 600_000.0;

/// Stored state of a contributing tab.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Contributing {
    /// Resumptions since `since_ms`.
    n_resumed: u32,
    /// Wall-clock time.
    since_ms: f64,
    /// Its visitor has paused it.
    #[serde(default)]
    is_paused: bool,
}

impl Contributing {
    /// The state after another resumption; `None` if there were too many.
    fn resumed(self, now_ms: f64) -> Option<Self> {
        // A clock that was set back starts a new interval as well.
        if !(0.0..=WITHIN_MS).contains(&(now_ms - self.since_ms)) {
            return Some(Self { n_resumed: 1, since_ms: now_ms, ..self });
        }
        (self.n_resumed < RESUMED_MAX).then_some(Self { n_resumed: self.n_resumed + 1, ..self })
    }
}

/// State of this tab before it was discarded or reloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// It did not contribute, or this is a new visit.
    Rested,
    /// It contributed, or its visitor had paused it.
    Contributed { is_paused: bool },
    /// It contributed, and was resumed too often.
    BrokeOff,
}

/// Stores whether the tab contributes, and whether its visitor has paused it.
pub(crate) fn note(is_contributing: bool, is_paused: bool) {
    if !is_contributing {
        return BrowserStorage::Session.delete(&of_run(KEY));
    }
    let first = Contributing { n_resumed: 0, since_ms: js_sys::Date::now(), is_paused };
    let before = BrowserStorage::Session.get::<Contributing>(&of_run(KEY)).unwrap_or(first);
    keep(Contributing { is_paused, ..before });
}

/// Reads the state before the reload, and counts the resumption.
pub(crate) fn before() -> Before {
    let kept = BrowserStorage::Session.get::<Contributing>(&of_run(KEY)).filter(|_| is_same_visit());
    let again = kept.and_then(|before| before.resumed(js_sys::Date::now()));
    match again {
        Some(again) => keep(again),
        None => BrowserStorage::Session.delete(&of_run(KEY)),
    }
    match (kept, again) {
        (None, _) => Before::Rested,
        (Some(_), None) => Before::BrokeOff,
        (Some(_), Some(again)) => Before::Contributed { is_paused: again.is_paused },
    }
}

fn keep(contributing: Contributing) {
    // Private windows may refuse: then the visitor presses the button again.
    BrowserStorage::Session.set(&of_run(KEY), &contributing);
}

/// Whether the page was reloaded or discarded, not opened by a link or an address.
fn is_same_visit() -> bool {
    let flag = |object: &JsValue, name: &str| Reflect::get(object, &name.into()).unwrap_or_default();
    let was_discarded = flag(&document(), "wasDiscarded").is_truthy();
    let entries = window().performance().map(|performance| performance.get_entries_by_type("navigation"));
    let navigation = entries.and_then(|entries| entries.get(0).dyn_into::<PerformanceEntry>().ok());
    let is_reload =
        navigation.is_some_and(|entry| flag(&entry, "type").as_string().as_deref() == Some("reload"));
    was_discarded || is_reload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tab_goes_on_a_few_times_in_ten_minutes_and_no_more() {
        let first = Contributing { n_resumed: 0, since_ms: 1000.0, is_paused: true };
        let mut kept = first;
        for _ in 0..RESUMED_MAX {
            kept = kept.resumed(2000.0).unwrap_or(Contributing { n_resumed: u32::MAX, ..first });
        }
        assert_eq!(kept, Contributing { n_resumed: RESUMED_MAX, ..first });
        assert_eq!(kept.resumed(3000.0), None);
        let later = 1001.0 + WITHIN_MS;
        assert_eq!(
            kept.resumed(later),
            Some(Contributing { n_resumed: 1, since_ms: later, is_paused: true })
        );
        assert!(kept.resumed(500.0).is_some(), "a clock that was set back");
    }

    #[test]
    fn the_stored_state_of_an_older_page_is_not_paused() {
        let now = Contributing { n_resumed: 2, since_ms: 5.0, is_paused: true };
        let golden = r#"{"n_resumed":2,"since_ms":5.0,"is_paused":true}"#;
        assert_eq!(serde_json::to_string(&now).ok().as_deref(), Some(golden));
        assert_eq!(serde_json::from_str::<Contributing>(golden).ok(), Some(now));
        let noted = serde_json::from_str::<Contributing>(r#"{"n_resumed":2,"since_ms":5.0}"#);
        assert_eq!(noted.ok(), Some(Contributing { n_resumed: 2, since_ms: 5.0, is_paused: false }));
    }
}
