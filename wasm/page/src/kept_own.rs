//! What the visitor chose to train on, kept in this browser where they want that: one choice for each run.

use std::cell::Cell;
use std::rc::Rc;

use barnraise_messages::ByteBuf;
use js_sys::{Array, Uint8Array};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::spawn_local;
use web_sys::IdbTransactionMode;

use crate::app::App;
use crate::base::of_run;
use crate::database::{BrowserDatabase, committed, settled};
use crate::state::{FoundOwn, OwnChoice, PageEvent};

const DATABASE: &str = "barnraise-own";
const STORE: &str = "choices";
/// A store that does not answer for so long holds up no visitor. A phone reads 64 MiB in less.
const LOOK_MAX_MS: u32 = 20_000;

/// The kept choices. Cheap to clone.
#[derive(Clone)]
pub(crate) struct KeptOwn {
    database: BrowserDatabase,
    /// Of the newest change.
    newest: Rc<Cell<u32>>,
}

impl Default for KeptOwn {
    fn default() -> Self {
        Self { database: BrowserDatabase::new(DATABASE, STORE), newest: Rc::default() }
    }
}

impl KeptOwn {
    /// Looks for the choice of this run, and reports it.
    pub(crate) fn find(&self, app: &Rc<App>, request: u32) {
        let (kept, app) = (self.clone(), Rc::clone(app));
        app.dispatch_in(LOOK_MAX_MS, PageEvent::OwnFound { request, found: FoundOwn::Unreadable });
        spawn_local(async move {
            let found = match kept.get().await {
                Ok(Some(choice)) => FoundOwn::Choice(Box::new(choice)),
                Ok(None) => FoundOwn::Nothing,
                Err(_) => FoundOwn::Unreadable,
            };
            app.dispatch(PageEvent::OwnFound { request, found });
        });
    }

    /// Keeps a choice in place of the last one, or none. Where there is no room for it the last one is gone, too.
    pub(crate) fn keep(&self, app: &Rc<App>, request: u32, choice: Option<Box<OwnChoice>>) {
        let (kept, app) = (self.clone(), Rc::clone(app));
        self.newest.set(request);
        spawn_local(async move {
            let is_stored = kept.put(choice.as_deref()).await.is_ok();
            if !is_stored && kept.newest.get() == request {
                // A browser without a store has nothing to delete either.
                let _ = kept.put(None).await;
            }
            app.dispatch(PageEvent::OwnStored { request, is_stored });
        });
    }

    async fn get(&self) -> Result<Option<OwnChoice>, JsValue> {
        let store = self.database.store(IdbTransactionMode::Readonly).await?;
        let found = settled(&store.get(&of_run(STORE).into())?).await?;
        match found.is_undefined() {
            true => Ok(None),
            false => from_value(&found).map(Some).ok_or(JsValue::NULL),
        }
    }

    async fn put(&self, choice: Option<&OwnChoice>) -> Result<(), JsValue> {
        let key = of_run(STORE).into();
        let value = choice.map(to_value).transpose().map_err(|error| JsValue::from(error.to_string()))?;
        let store = self.database.store(IdbTransactionMode::Readwrite).await?;
        match value {
            Some(value) => store.put_with_key(&value, &key)?,
            None => store.delete(&key)?,
        };
        committed(&store.transaction()).await
    }
}

/// The kind of samples in JSON, pixels, labels, what the files are called, and their contents. By hand: with a serializer for
/// browsers the page has 2 kB more.
fn to_value(choice: &OwnChoice) -> Result<JsValue, serde_json::Error> {
    let OwnChoice { samples, pixels, labels, name, files } = choice;
    let bytes = |bytes: &ByteBuf| Uint8Array::from(&bytes[..]);
    let files: Array = files.iter().map(bytes).collect();
    let samples = serde_json::to_string(samples)?;
    Ok(Array::of5(&samples.into(), &bytes(pixels), &bytes(labels), &name.as_str().into(), &files).into())
}

/// `None` where another build wrote something else.
fn from_value(value: &JsValue) -> Option<OwnChoice> {
    let parts: &Array = value.dyn_ref()?;
    let bytes = |part: JsValue| Some(ByteBuf::from(part.dyn_ref::<Uint8Array>()?.to_vec()));
    let files: Array = parts.get(4).dyn_into().ok()?;
    Some(OwnChoice {
        samples: serde_json::from_str(&parts.get(0).as_string()?).ok()?,
        pixels: bytes(parts.get(1))?,
        labels: bytes(parts.get(2))?,
        name: parts.get(3).as_string()?,
        files: files.iter().map(bytes).collect::<Option<_>>()?,
    })
}
