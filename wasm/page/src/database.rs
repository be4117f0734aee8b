//! A store of this browser for more than a few words (IndexedDB). The browser may refuse it, as in a private window.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::Promise;
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{IdbDatabase, IdbObjectStore, IdbRequest, IdbTransaction, IdbTransactionMode};

use crate::dom::window;

/// A database with one store. Cheap to clone.
#[derive(Clone)]
pub(crate) struct BrowserDatabase {
    name: &'static str,
    store: &'static str,
    open: Rc<RefCell<Option<IdbDatabase>>>,
}

impl BrowserDatabase {
    /// It is opened when it is needed.
    pub(crate) fn new(name: &'static str, store: &'static str) -> Self {
        Self { name, store, open: Rc::default() }
    }

    /// The store, in a transaction of its own.
    pub(crate) async fn store(&self, mode: IdbTransactionMode) -> Result<IdbObjectStore, JsValue> {
        let open = self.open.borrow().clone();
        let database = match open {
            Some(database) => database,
            None => {
                let database = self.opened().await?;
                self.open.replace(Some(database.clone()));
                database
            }
        };
        let begun = database.transaction_with_str_and_mode(self.store, mode);
        if begun.is_err() {
            // The browser closed the database, as it does when its data is cleared: the next call opens it again.
            self.open.replace(None);
        }
        begun?.object_store(self.store)
    }

    async fn opened(&self) -> Result<IdbDatabase, JsValue> {
        let factory = window().indexed_db()?.ok_or(JsValue::NULL)?;
        let request = factory.open_with_u32(self.name, 1)?;
        let (opening, store) = (request.clone(), self.store);
        let make = Closure::once_into_js(move || {
            // A database that cannot be created fails to open.
            let database = opening.result().ok().and_then(|found| found.dyn_into::<IdbDatabase>().ok());
            if let Some(database) = database {
                let _ = database.create_object_store(store);
            }
        });
        request.set_onupgradeneeded(Some(make.unchecked_ref()));
        settled(&request).await?.dyn_into()
    }
}

/// Waits for the result of a request.
pub(crate) async fn settled(request: &IdbRequest) -> Result<JsValue, JsValue> {
    let done = Promise::new(&mut |resolve, reject| {
        request.set_onsuccess(Some(&resolve));
        request.set_onerror(Some(&reject));
    });
    JsFuture::from(done).await?;
    request.result()
}

/// Waits until a transaction is on disk: a request that succeeded may still be undone, where there is no room.
pub(crate) async fn committed(transaction: &IdbTransaction) -> Result<(), JsValue> {
    let done = Promise::new(&mut |resolve, reject| {
        transaction.set_oncomplete(Some(&resolve));
        transaction.set_onerror(Some(&reject));
        transaction.set_onabort(Some(&reject));
    });
    JsFuture::from(done).await.map(drop)
}
