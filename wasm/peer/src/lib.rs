//! The browser peer: trains in a dedicated worker and speaks libp2p.
//!
//! `worker.js` calls [`start`] once; from then on page and worker exchange `barnraise-messages`. The
//! contributor is the same as the native peer's; this crate adds the browser's clock, its
//! shard cache and its transports. It never touches the document, which is the page's. Other workers of
//! the tab run [`replicate`] instead, and compute parts of its passes.
#![cfg(target_arch = "wasm32")]
#![cfg_attr(feature = "tests", allow(clippy::unwrap_used, clippy::panic))]

mod device;
mod earlier;
mod experts;
mod hosting;
mod own;
mod page;
mod peer;
mod platform;
mod replica;
mod rows;
mod text;
mod web;

#[cfg(feature = "tests")]
wasm_bindgen_test::wasm_bindgen_test_configure!(run_in_dedicated_worker);

/// The swarm of a tab and its other threads, for benchmarks.
pub use platform::{Behaviour, NetworkError, start_replicas, swarm};
pub use replica::replicate;

use std::cell::RefCell;

use barnraise_messages::{Activity, ContributorEvent, Interruption, PageToPeer, PeerToPage};
use futures::channel::mpsc;
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue, wasm_bindgen};
use web_sys::MessageEvent;

/// Capacity of the channel of messages from the page.
const MESSAGES_MAX: usize = 64;

/// Takes over the worker: listens to the page until the worker is closed.
///
/// # Errors
/// Outside of a dedicated worker.
#[wasm_bindgen]
pub fn start() -> Result<(), JsValue> {
    std::panic::set_hook(Box::new(|panic| {
        console_error_panic_hook::hook(panic);
        let reason = Interruption::Panicked { detail: panic.to_string() };
        let message = reason.to_string();
        page::post(&PeerToPage::Event(ContributorEvent::Activity(Activity::Broken { reason })));
        page::post(&PeerToPage::Failed { message });
    }));
    let scope = page::scope().ok_or_else(|| JsValue::from_str("this is no dedicated worker"))?;
    let (sender, messages) = mpsc::channel(MESSAGES_MAX);
    let sender = RefCell::new(sender);
    let listener = Closure::<dyn Fn(MessageEvent)>::new(move |event: MessageEvent| {
        receive(event.data(), &sender);
    });
    scope.set_onmessage(Some(listener.as_ref().unchecked_ref()));
    // It listens for as long as the worker lives.
    listener.forget();
    wasm_bindgen_futures::spawn_local(peer::run(messages));
    Ok(())
}

fn receive(data: JsValue, sender: &RefCell<mpsc::Sender<PageToPeer>>) {
    let failed = |message| page::post(&PeerToPage::Failed { message });
    match serde_wasm_bindgen::from_value::<PageToPeer>(data) {
        Ok(message) => {
            if sender.borrow_mut().try_send(message).is_err() {
                failed("the training program is too busy for more requests".to_owned());
            }
        }
        Err(error) => failed(format!("the page sent what is no message: {error}")),
    }
}
