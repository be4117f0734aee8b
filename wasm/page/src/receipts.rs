//! The receipts of this browser: stored in IndexedDB, and exported as the file that `barnraise receipts` checks.
//!
//! Each is a line of JSON, as `barnraise join --receipts` writes it. The browser may refuse storage, as in a
//! private window: then there are none, and nothing else changes.

use std::rc::Rc;

use barnraise_protocol::receipt::SignedReceipt;
use js_sys::Array;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::spawn_local;
use web_sys::{Blob, BlobPropertyBag, HtmlAnchorElement, IdbKeyRange, IdbTransactionMode, Url};

use crate::app::App;
use crate::database::{BrowserDatabase, settled};
use crate::dom::{create, document};
use crate::state::{PageEvent, RECEIPTS_MAX};

const DATABASE: &str = "barnraise-receipts";
const STORE: &str = "receipts";
/// Name of the file.
const FILE_NAME: &str = "barnraise-receipts.jsonl";
/// The URL of a downloaded file is revoked after this long.
const FILE_LASTS_MS: u32 = 60_000;

/// The database of receipts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Receipts(BrowserDatabase);

impl Default for Receipts {
    fn default() -> Self {
        Self(BrowserDatabase::new(DATABASE, STORE))
    }
}

impl Receipts {
    /// Reports the number of stored receipts.
    pub(crate) fn count(&self, app: &Rc<App>) {
        let (receipts, app) = (self.clone(), Rc::clone(app));
        spawn_local(async move { receipts.tell(&app).await });
    }

    /// Stores receipts; repetitions change nothing.
    pub(crate) fn keep(&self, app: &Rc<App>, more: &[SignedReceipt]) {
        let (receipts, app) = (self.clone(), Rc::clone(app));
        let line = |receipt: &SignedReceipt| Some((key(receipt), serde_json::to_string(receipt).ok()?));
        let lines: Vec<(String, String)> = more.iter().filter_map(line).collect();
        spawn_local(async move {
            // A failure shows in the number of receipts.
            let _ = receipts.put(&lines).await;
            receipts.tell(&app).await;
        });
    }

    /// Downloads all of them as a file.
    pub(crate) fn save(&self, app: &Rc<App>) {
        let (receipts, app) = (self.clone(), Rc::clone(app));
        spawn_local(async move {
            if let Ok(lines) = receipts.lines().await
                && let Ok(file) = text_file(&lines)
            {
                let _ = give(&file, FILE_NAME);
            }
            receipts.tell(&app).await;
        });
    }

    async fn tell(&self, app: &Rc<App>) {
        if let Ok(n) = self.n_kept().await {
            app.dispatch(PageEvent::ReceiptsCounted(n.into()));
        }
    }

    async fn put(&self, lines: &[(String, String)]) -> Result<(), JsValue> {
        let store = self.0.store(IdbTransactionMode::Readwrite).await?;
        let mut last = None;
        for (key, line) in lines {
            last = Some(store.put_with_key(&line.into(), &key.into())?);
        }
        let Some(last) = last else { return Ok(()) };
        // Requests complete in order.
        settled(&last).await?;
        let too_many = self.n_kept().await?.saturating_sub(RECEIPTS_MAX);
        if too_many > 0 {
            let store = self.0.store(IdbTransactionMode::Readwrite).await?;
            let oldest = store.get_all_keys_with_key_and_limit(&JsValue::UNDEFINED, too_many)?;
            let oldest: Array = settled(&oldest).await?.dyn_into()?;
            let store = self.0.store(IdbTransactionMode::Readwrite).await?;
            let up_to = IdbKeyRange::upper_bound(&oldest.get(oldest.length().saturating_sub(1)))?;
            settled(&store.delete(&up_to)?).await?;
        }
        Ok(())
    }

    async fn n_kept(&self) -> Result<u32, JsValue> {
        let store = self.0.store(IdbTransactionMode::Readonly).await?;
        let n = settled(&store.count()?).await?;
        n.as_f64().map(|n| n as u32).ok_or(JsValue::NULL)
    }

    /// Oldest first.
    async fn lines(&self) -> Result<Array, JsValue> {
        let store = self.0.store(IdbTransactionMode::Readonly).await?;
        settled(&store.get_all()?).await?.dyn_into()
    }
}

/// BrowserDatabase key: sorts receipts by contribution id, over all runs and peers.
fn key(signed: &SignedReceipt) -> String {
    let receipt = &signed.receipt;
    format!("{:020} {} {}", receipt.contribution_id, receipt.run_id, receipt.peer)
}

/// A file of lines.
fn text_file(lines: &Array) -> Result<Blob, JsValue> {
    let ended = Array::new();
    for line in lines.iter() {
        ended.push(&line);
        ended.push(&"\n".into());
    }
    let kind = BlobPropertyBag::new();
    kind.set_type("application/jsonl");
    Blob::new_with_str_sequence_and_options(&ended, &kind)
}

/// Starts the download of a file.
pub(crate) fn give(file: &Blob, name: &str) -> Result<(), JsValue> {
    let url = Url::create_object_url_with_blob(file)?;
    let link: HtmlAnchorElement = create("a")?;
    link.set_href(&url);
    link.set_download(name);
    // Some browsers follow only links that are in the document.
    let body = document().body().ok_or(JsValue::NULL)?;
    body.append_child(&link)?;
    link.click();
    link.remove();
    let let_go = move || drop(Url::revoke_object_url(&url));
    gloo::timers::callback::Timeout::new(FILE_LASTS_MS, let_go).forget();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under another key a browser would store the same receipt twice.
    #[test]
    fn golden_key() {
        let peer = "02".repeat(32);
        let golden = format!("00000000000000000300 garments {peer}");
        assert_eq!(key(&crate::fixture::receipt("garments", 300)), golden);
    }
}
