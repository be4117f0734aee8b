//! What this browser keeps of the page from one visit to the next. A browser may refuse to keep anything, as in a private
//! window or by a setting: then nothing is kept, and the page goes on.

use barnraise_messages::{DisplayName, TransportKind};
use barnraise_protocol::api::RunStatus;
use barnraise_protocol::run::RunDescription;
use js_sys::Reflect;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;
use web_sys::Storage;

use crate::base::{id_of, of_run};
use crate::browser_totals::BrowserTotals;
use crate::dom::{network_information, window};

/// Key of the seed of this browser's identity.
const IDENTITY_KEY: &str = "barnraise.identity";
/// Key of the totals of accepted contributions.
const TOTALS_KEY: &str = "barnraise.totals";
/// Key of the visitor's name.
const NAME_KEY: &str = "barnraise.name";
/// Key of the transport that reached the backbone, and of the kind of network.
const TRANSPORT_KEY: &str = "barnraise.transport";
/// Key of the run's description, for visits without a backbone.
const RUN_KEY: &str = "barnraise.run";

/// What is kept of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptRun {
    /// Its description.
    pub(crate) run: RunDescription,
    /// Length of the flat parameter vector, which the page cannot derive.
    pub(crate) n_parameters: u64,
}

/// One of the two stores that a browser has for a page. Values are JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrowserStorage {
    /// Lasts over visits.
    Local,
    /// Lasts as long as the tab.
    Session,
}

impl BrowserStorage {
    fn open(self) -> Option<Storage> {
        let found = match self {
            Self::Local => window().local_storage(),
            Self::Session => window().session_storage(),
        };
        // A blocked store throws.
        found.ok().flatten()
    }

    /// Whether the browser lets the page use it.
    pub(crate) fn is_there(self) -> bool {
        self.open().is_some()
    }

    /// The value of a key; `None` where there is none, or an invalid one.
    pub(crate) fn get<T: DeserializeOwned>(self, key: &str) -> Option<T> {
        let text = self.open()?.get_item(key).ok().flatten()?;
        serde_json::from_str(&text).ok()
    }

    /// Sets a value; returns whether the browser took it.
    pub(crate) fn set(self, key: &str, value: &impl Serialize) -> bool {
        let written = || self.open()?.set_item(key, &serde_json::to_string(value).ok()?).ok();
        written().is_some()
    }

    /// Deletes a value.
    pub(crate) fn delete(self, key: &str) {
        if let Some(storage) = self.open() {
            // Refused only where nothing can be kept.
            let _ = storage.remove_item(key);
        }
    }
}

/// The identity, if it is valid.
pub(crate) fn identity() -> Option<Vec<u8>> {
    BrowserStorage::Local.get::<Vec<u8>>(IDENTITY_KEY).filter(|seed| seed.len() == 32)
}

/// Keeps the seed of the identity. Where the browser refuses, it lasts as long as the tab.
pub(crate) fn keep_identity(seed: &[u8]) {
    BrowserStorage::Local.set(IDENTITY_KEY, &seed);
}

/// The totals of this browser's contributions.
pub(crate) fn totals() -> Option<BrowserTotals> {
    BrowserStorage::Local.get(TOTALS_KEY)
}

/// Keeps the totals.
pub(crate) fn keep_totals(totals: &BrowserTotals) {
    BrowserStorage::Local.set(TOTALS_KEY, totals);
}

/// The name of the visitor, if it is valid.
pub(crate) fn name() -> Option<DisplayName> {
    BrowserStorage::Local.get::<Option<DisplayName>>(NAME_KEY).flatten()
}

/// Keeps the name of the visitor, or that there is none.
pub(crate) fn keep_name(name: Option<&DisplayName>) {
    BrowserStorage::Local.set(NAME_KEY, &name);
}

/// The run at the last visit.
pub(crate) fn run() -> Option<KeptRun> {
    BrowserStorage::Local.get(&of_run(RUN_KEY))
}

/// This origin's runs, each with its id, where there are several.
pub(crate) fn runs() -> Vec<(String, KeptRun)> {
    let Some(storage) = BrowserStorage::Local.open() else { return Vec::new() };
    let keys = (0..storage.length().unwrap_or(0)).filter_map(|idx| storage.key(idx).ok().flatten());
    let mut kept: Vec<(String, KeptRun)> = keys
        .filter_map(|key| {
            let id = id_of(key.strip_prefix(RUN_KEY)?)?.to_owned();
            Some((id, BrowserStorage::Local.get(&key)?))
        })
        .collect();
    kept.sort_by(|one, other| one.0.cmp(&other.0));
    kept
}

/// Keeps the run, if it changed. Where there is no room, the next visit needs the backbone.
pub(crate) fn keep_run(status: &RunStatus) {
    let kept = KeptRun { run: status.run.clone(), n_parameters: status.n_parameters };
    if run().as_ref() != Some(&kept) {
        BrowserStorage::Local.set(&of_run(RUN_KEY), &kept);
    }
}

/// The transport that reached the backbone the last time, on a network of this kind.
pub(crate) fn transport() -> Option<TransportKind> {
    let (kind, transport) = BrowserStorage::Local.get::<(String, TransportKind)>(&of_run(TRANSPORT_KEY))?;
    (kind == network_kind()).then_some(transport)
}

/// Keeps the transport that reached the backbone.
pub(crate) fn keep_transport(transport: TransportKind) {
    BrowserStorage::Local.set(&of_run(TRANSPORT_KEY), &(network_kind(), transport));
}

/// `wifi`, `cellular` and the like, where the browser tells; a page cannot learn which network it is on.
fn network_kind() -> String {
    let connection = network_information().map_or(JsValue::UNDEFINED, JsValue::from);
    let kind = Reflect::get(&connection, &"type".into());
    kind.ok().and_then(|kind| kind.as_string()).unwrap_or_default()
}
