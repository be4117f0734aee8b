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

type WaiterQueue = Rc<RefCell<VecDeque<oneshot::Sender<()>>>>;

/// Both ends of a message channel of the worker to itself.
pub(super) struct Yielder {
    sender: MessagePort,
    receiver: MessagePort,
    waiting: WaiterQueue,
    _listener: Closure<dyn Fn()>,
}

impl Yielder {
    pub(super) fn new() -> Self {
        let channel = MessageChannel::new();
        let (sender, receiver) = (channel.port1(), channel.port2());
        let waiting = WaiterQueue::default();
        let woken = Rc::clone(&waiting);
        let listener = Closure::<dyn Fn()>::new(move || {
            let next = woken.borrow_mut().pop_front();
            if let Some(next) = next {
                // A waiter that was dropped needs no waking.
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

#[cfg(feature = "tests")]
mod tests {
    use futures::future::{join_all, poll_immediate};
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    #[wasm_bindgen_test]
    async fn a_turn_of_the_event_loop_lies_between() {
        let yielder = Yielder::new();
        assert!(poll_immediate(std::pin::pin!(yielder.yield_now())).await.is_none(), "not in this turn");
        let turns = RefCell::new(Vec::new());
        let other = MessageChannel::new();
        let happened = Rc::new(RefCell::new(false));
        let noted = Rc::clone(&happened);
        let listener = Closure::<dyn Fn()>::new(move || *noted.borrow_mut() = true);
        other.port2().set_onmessage(Some(listener.as_ref().unchecked_ref()));
        other.port1().post_message(&JsValue::NULL).unwrap();
        // What came before is handled before, though one that no longer waits stands in between.
        join_all((0..3).map(|number| {
            let (yielder, turns) = (&yielder, &turns);
            async move {
                yielder.yield_now().await;
                turns.borrow_mut().push(number);
            }
        }))
        .await;
        assert_eq!(turns.into_inner(), [0, 1, 2]);
        assert!(*happened.borrow());
    }
}
