//! One connection: its channels by number, and the worker's port.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use barnraise_messages::rtc::{
    ChannelNumber, HANDSHAKE_CHANNEL, REMOTE_CHANNELS_MAX, RtcEvent, RtcFailure, RtcRequest,
};
use gloo::timers::callback::Timeout;
use js_sys::{Array, ArrayBuffer};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{JsValue, wasm_bindgen};
use web_sys::{
    MessageEvent, MessagePort, RtcDataChannel, RtcDataChannelEvent, RtcPeerConnection, RtcPeerConnectionState,
};

use super::channel::{Channel, ChannelOwner};
use super::error::describe;
use crate::dom::DomListener;

// Declared here because web-sys does not know that it may throw, as it does when the numbers are used up.
#[wasm_bindgen]
extern "C" {
    type ChannelOpener;

    #[wasm_bindgen(catch, method, js_name = createDataChannel)]
    fn create_data_channel(this: &ChannelOpener, label: &str) -> Result<RtcDataChannel, JsValue>;
}

/// Numbers of channels that the remote opens: odd.
const FIRST_ACCEPTED: ChannelNumber = 1;

/// A WebRTC connection of the worker.
pub(super) struct RtcConnection {
    port: MessagePort,
    peer: RefCell<Option<RtcPeerConnection>>,
    channels: RefCell<HashMap<ChannelNumber, Rc<Channel>>>,
    next_accepted: Cell<ChannelNumber>,
    is_over: Cell<bool>,
    listeners: RefCell<Vec<DomListener>>,
}

impl RtcConnection {
    pub(super) fn new(port: &MessagePort) -> Rc<Self> {
        let connection = Rc::new(Self {
            port: port.clone(),
            peer: RefCell::default(),
            channels: RefCell::default(),
            next_accepted: Cell::new(FIRST_ACCEPTED),
            is_over: Cell::default(),
            listeners: RefCell::default(),
        });
        connection.listen(port, "message", |connection, event| {
            connection.on_message(&event.unchecked_into::<MessageEvent>());
        });
        // A port that is listened to in this manner holds its messages back until it is started.
        port.start();
        connection
    }

    /// Watches the browser's connection.
    pub(super) fn watch(self: &Rc<Self>, peer: RtcPeerConnection) {
        self.listen(&peer, "connectionstatechange", |connection, _| {
            let state = connection.peer.borrow().as_ref().map(RtcPeerConnection::connection_state);
            if let Some(RtcPeerConnectionState::Failed | RtcPeerConnectionState::Closed) = state {
                connection.fail(RtcFailure::Lost);
            }
        });
        self.listen(&peer, "datachannel", |connection, event| {
            connection.accept(event.unchecked_into::<RtcDataChannelEvent>().channel());
        });
        self.peer.replace(Some(peer));
        if self.is_over() {
            self.close_peer();
        }
    }

    fn listen(
        self: &Rc<Self>,
        target: &web_sys::EventTarget,
        name: &'static str,
        act: impl Fn(&Rc<Self>, web_sys::Event) + 'static,
    ) {
        let connection = Rc::downgrade(self);
        let listener = DomListener::new(target, name, move |event| {
            if let Some(connection) = connection.upgrade().filter(|connection| !connection.is_over()) {
                act(&connection, event);
            }
        });
        self.listeners.borrow_mut().push(listener);
    }

    /// Whether the connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Adds a channel that exists in the browser.
    pub(super) fn add(self: &Rc<Self>, number: ChannelNumber, channel: RtcDataChannel) {
        let owner: Rc<dyn ChannelOwner> = Rc::<Self>::clone(self);
        let channel = Channel::new(number, channel, Rc::downgrade(&owner));
        self.channels.borrow_mut().insert(number, channel);
    }

    fn accept(self: &Rc<Self>, channel: RtcDataChannel) {
        let n_remote = self.channels.borrow().keys().filter(|number| *number % 2 == 1).count();
        if n_remote >= REMOTE_CHANNELS_MAX {
            channel.close();
            return;
        }
        let number = self.next_accepted.get();
        self.next_accepted.set(number.wrapping_add(2));
        self.tell(&RtcEvent::Accepted { channel: number });
        self.add(number, channel);
    }

    fn on_message(self: &Rc<Self>, event: &MessageEvent) {
        let data = event.data();
        if let Some(message) = data.dyn_ref::<Array>() {
            let number = message.get(0).as_f64().map(|number| number as ChannelNumber);
            if let (Some(number), Ok(bytes)) = (number, message.get(1).dyn_into::<ArrayBuffer>()) {
                self.with_channel(number, |channel| channel.send(bytes));
            }
            return;
        }
        match serde_wasm_bindgen::from_value::<RtcRequest>(data) {
            Ok(RtcRequest::Open { channel }) => self.open(channel),
            Ok(RtcRequest::Taken { channel, bytes }) => self.with_channel(channel, |it| it.on_taken(bytes)),
            Ok(RtcRequest::Leave { channel }) => self.with_channel(channel, Channel::leave),
            Ok(RtcRequest::End) => self.end(),
            Err(error) => self.fail(RtcFailure::Unreadable { detail: error.to_string() }),
        }
    }

    fn open(self: &Rc<Self>, number: ChannelNumber) {
        let peer = self.peer.borrow().clone();
        let opened = match peer.filter(|_| number != HANDSHAKE_CHANNEL) {
            Some(peer) => peer
                .unchecked_ref::<ChannelOpener>()
                .create_data_channel("")
                .map_err(|error| RtcFailure::NoChannel { detail: describe(&error) }),
            None => Err(RtcFailure::NotConnected),
        };
        match opened {
            Ok(channel) => self.add(number, channel),
            Err(reason) => self.tell(&RtcEvent::Closed { channel: number, reason: Some(reason) }),
        }
    }

    fn with_channel(&self, number: ChannelNumber, act: impl FnOnce(&Rc<Channel>)) {
        // The worker was told of an ended channel.
        let found = self.channels.borrow().get(&number).cloned();
        if let Some(channel) = found {
            act(&channel);
        }
    }

    /// Ends the connection with an error.
    pub(super) fn fail(&self, reason: RtcFailure) {
        self.tell(&RtcEvent::Failed { reason });
        self.end();
    }

    /// Ends the connection.
    pub(super) fn end(&self) {
        if self.is_over.replace(true) {
            return;
        }
        self.close_peer();
        self.port.close();
        // This may run inside one of the listeners: they are dropped a turn later.
        let ended = (self.listeners.take(), self.channels.take());
        Timeout::new(0, move || drop(ended)).forget();
    }

    fn close_peer(&self) {
        if let Some(peer) = self.peer.borrow_mut().take() {
            peer.close();
        }
    }
}

impl ChannelOwner for RtcConnection {
    fn tell(&self, event: &RtcEvent) {
        if self.is_over() {
            return;
        }
        // A message that cannot be posted would be a bug; the worker's timeouts handle it.
        if let Ok(event) = serde_wasm_bindgen::to_value(event) {
            let _ = self.port.post_message(&event);
        }
    }

    fn deliver(&self, channel: ChannelNumber, bytes: &ArrayBuffer) {
        if !self.is_over() {
            let message = Array::of2(&channel.into(), bytes);
            let _ = self.port.post_message_with_transferable(&message, &Array::of1(bytes));
        }
    }

    fn forget(&self, number: ChannelNumber) {
        // Dropped a turn later, as this may run inside one of the channel's own listeners.
        let forgotten = self.channels.borrow_mut().remove(&number);
        Timeout::new(0, move || drop(forgotten)).forget();
    }
}
