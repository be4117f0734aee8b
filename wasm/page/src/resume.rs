//! A tab that was contributing goes on after the browser discarded it, or after it was loaded anew, and stays paused
//! where its visitor had paused it. Not for ever: a page that takes its tab down each time is left alone.

use gloo::storage::{SessionStorage, Storage};
use js_sys::Reflect;
use serde::{Deserialize, Serialize};
use wasm_bindgen::{JsCast, JsValue};
use web_sys::PerformanceEntry;

use crate::base::of_run;
use crate::dom::{document, window};

/// Where a tab keeps that it contributes. It lasts as long as the tab.
const KEY: &str = "barnraise.contributing";
/// Most resumptions within [`WITHIN_MS`].
const RESUMED_MAX: u32 = 5;
const WITHIN_MS: f64 = 600_000.0;

/// A tab that contributes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Contributing {
    /// How often it went on by itself since.
    n_resumed: u32,
    /// By the wall clock.
    since_ms: f64,
    /// Its visitor has paused it.
    #[serde(default)]
    is_paused: bool,
}

impl Contributing {
    /// Once more, or `None` where that was too often.
    fn resumed(self, now_ms: f64) -> Option<Self> {
        // A clock that was set back begins anew as well.
        if !(0.0..=WITHIN_MS).contains(&(now_ms - self.since_ms)) {
            return Some(Self { n_resumed: 1, since_ms: now_ms, ..self });
        }
        (self.n_resumed < RESUMED_MAX).then_some(Self { n_resumed: self.n_resumed + 1, ..self })
    }
}

/// What this tab did before it was discarded or loaded anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing that goes on: it rested, or this is another visit.
    Rested,
    /// It contributed, or its visitor had paused it.
    Contributed { is_paused: bool },
    /// It contributed, and was cut off too often for that.
    BrokeOff,
}

/// Notes that the tab contributes or no longer does, and whether its visitor has paused it.
pub(crate) fn note(is_contributing: bool, is_paused: bool) {
    if !is_contributing {
        return SessionStorage::delete(of_run(KEY));
    }
    let first = Contributing { n_resumed: 0, since_ms: js_sys::Date::now(), is_paused };
    let before = SessionStorage::get::<Contributing>(of_run(KEY)).unwrap_or(first);
    keep(Contributing { is_paused, ..before });
}

/// What this tab did before.
pub(crate) fn before() -> Before {
    let kept = SessionStorage::get::<Contributing>(of_run(KEY)).ok().filter(|_| is_same_visit());
    let again = kept.and_then(|before| before.resumed(js_sys::Date::now()));
    match again {
        Some(again) => keep(again),
        None => SessionStorage::delete(of_run(KEY)),
    }
    match (kept, again) {
        (None, _) => Before::Rested,
        (Some(_), None) => Before::BrokeOff,
        (Some(_), Some(again)) => Before::Contributed { is_paused: again.is_paused },
    }
}

fn keep(contributing: Contributing) {
    // Private windows may refuse: the visitor then presses the button again.
    let _ = SessionStorage::set(of_run(KEY), contributing);
}

/// Neither a link nor an address led here.
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
    fn what_an_older_page_noted_was_not_paused() {
        let now = Contributing { n_resumed: 2, since_ms: 5.0, is_paused: true };
        let golden = r#"{"n_resumed":2,"since_ms":5.0,"is_paused":true}"#;
        assert_eq!(serde_json::to_string(&now).ok().as_deref(), Some(golden));
        assert_eq!(serde_json::from_str::<Contributing>(golden).ok(), Some(now));
        let noted = serde_json::from_str::<Contributing>(r#"{"n_resumed":2,"since_ms":5.0}"#);
        assert_eq!(noted.ok(), Some(Contributing { n_resumed: 2, since_ms: 5.0, is_paused: false }));
    }
}
