//! Lets the worker's event loop run between two batches.
//!
//! A message to oneself is a task of the event loop like any other, so messages of the page and of the
//! network that came before it are handled before it. A timer would do too, but timers that follow each
//! other are held back by 4 ms each.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use futures::channel::oneshot;
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::MessagePort;

use super::message_channel::MessageChannel;

type Waiting = Rc<RefCell<VecDeque<oneshot::Sender<()>>>>;

/// Both ends of a channel to oneself.
pub(super) struct Yielder {
    sender: MessagePort,
    receiver: MessagePort,
    waiting: Waiting,
    _listener: Closure<dyn Fn()>,
}

impl Yielder {
    pub(super) fn new() -> Self {
        let channel = MessageChannel::new();
        let (sender, receiver) = (channel.port1(), channel.port2());
        let waiting = Waiting::default();
        let woken = Rc::clone(&waiting);
        let listener = Closure::<dyn Fn()>::new(move || {
            let next = woken.borrow_mut().pop_front();
            if let Some(next) = next {
                // Whoever no longer waits needs no waking.
                let _ = next.send(());
            }
        });
        receiver.set_onmessage(Some(listener.as_ref().unchecked_ref()));
        Self { sender, receiver, waiting, _listener: listener }
    }

    /// Completes in a later turn of the event loop.
    pub(super) async fn yield_now(&self) {
        let (sender, woken) = oneshot::channel();
        self.waiting.borrow_mut().push_back(sender);
        // Refused only for what cannot be cloned.
        let _ = self.sender.post_message(&JsValue::NULL);
        // The queue keeps the sender until it is its turn.
        let _ = woken.await;
    }
}

impl Drop for Yielder {
    fn drop(&mut self) {
        self.receiver.set_onmessage(None);
    }
}
