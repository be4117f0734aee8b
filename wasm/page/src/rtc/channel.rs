//! One data channel and its credit in both directions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use barnraise_messages::rtc::{ChannelNumber, RECEIVE_BYTES_MAX, RtcEvent, RtcFailure};
use gloo::timers::callback::Timeout;
use js_sys::ArrayBuffer;
use wasm_bindgen::JsCast;
use web_sys::{MessageEvent, RtcDataChannel, RtcDataChannelState, RtcDataChannelType};

use crate::dom::DomListener;

/// The browser is given more only while it holds less than this.
const BUFFERED_BYTES_MAX: u32 = 256 * 1024;
/// It says so once it holds less than this again.
const BUFFERED_BYTES_LOW: u32 = 128 * 1024;
/// How long a channel that the worker left stays open after its last byte: closing resets it, and the remote loses
/// the bytes that it has not read by then.
const LINGER_MS: u32 = 5_000;

/// What a channel asks of its connection.
pub(super) trait ChannelOwner {
    /// Sends an event to the worker.
    fn tell(&self, event: &RtcEvent);

    /// Hands bytes to the worker.
    fn deliver(&self, channel: ChannelNumber, bytes: &ArrayBuffer);

    /// Removes a channel that has ended.
    fn forget(&self, channel: ChannelNumber);
}

/// A channel of a connection.
pub(super) struct Channel {
    number: ChannelNumber,
    channel: RtcDataChannel,
    connection: Weak<dyn ChannelOwner>,
    /// Bytes from the worker that wait, at most its credit.
    unsent: RefCell<VecDeque<ArrayBuffer>>,
    /// Bytes that the worker has not read.
    unread: Cell<u32>,
    is_left: Cell<bool>,
    listeners: RefCell<Vec<DomListener>>,
}

impl Channel {
    pub(super) fn new(
        number: ChannelNumber,
        channel: RtcDataChannel,
        connection: Weak<dyn ChannelOwner>,
    ) -> Rc<Self> {
        channel.set_binary_type(RtcDataChannelType::Arraybuffer);
        channel.set_buffered_amount_low_threshold(BUFFERED_BYTES_LOW);
        let is_open = channel.ready_state() == RtcDataChannelState::Open;
        let this = Rc::new(Self {
            number,
            channel,
            connection,
            unsent: RefCell::default(),
            unread: Cell::default(),
            is_left: Cell::default(),
            listeners: RefCell::default(),
        });
        if !is_open {
            this.listen("open", |this, _| {
                this.tell(&RtcEvent::Opened { channel: this.number });
                this.send_on();
            });
        }
        this.listen("message", |this, event| this.on_message(&event.unchecked_into()));
        this.listen("bufferedamountlow", |this, _| this.send_on());
        this.listen("close", |this, _| this.end(None));
        this
    }

    fn listen(self: &Rc<Self>, name: &'static str, act: impl Fn(&Rc<Self>, web_sys::Event) + 'static) {
        let this = Rc::downgrade(self);
        let listener = DomListener::new(&self.channel, name, move |event| {
            if let Some(this) = this.upgrade() {
                act(&this, event);
            }
        });
        self.listeners.borrow_mut().push(listener);
    }

    fn tell(&self, event: &RtcEvent) {
        if let Some(connection) = self.connection.upgrade().filter(|_| !self.is_left.get()) {
            connection.tell(event);
        }
    }

    /// Sends bytes of the worker, now or when the buffer has room.
    pub(super) fn send(self: &Rc<Self>, bytes: ArrayBuffer) {
        self.unsent.borrow_mut().push_back(bytes);
        self.send_on();
    }

    fn send_on(self: &Rc<Self>) {
        while self.channel.ready_state() == RtcDataChannelState::Open
            && self.channel.buffered_amount() < BUFFERED_BYTES_MAX
        {
            let next = self.unsent.borrow_mut().pop_front();
            let Some(next) = next else { break };
            let bytes = next.byte_length();
            if self.channel.send_with_array_buffer(&next).is_err() {
                return self.end(Some(RtcFailure::NotSent));
            }
            self.tell(&RtcEvent::Sent { channel: self.number, bytes });
        }
    }

    fn on_message(self: &Rc<Self>, event: &MessageEvent) {
        if self.is_left.get() {
            return;
        }
        let Ok(bytes) = event.data().dyn_into::<ArrayBuffer>() else {
            return self.end(Some(RtcFailure::Text));
        };
        let unread = self.unread.get().saturating_add(bytes.byte_length());
        if unread > RECEIVE_BYTES_MAX {
            return self.end(Some(RtcFailure::TooMuch));
        }
        self.unread.set(unread);
        if let Some(connection) = self.connection.upgrade() {
            connection.deliver(self.number, &bytes);
        }
    }

    /// The worker has read more bytes.
    pub(super) fn on_taken(self: &Rc<Self>, bytes: u32) {
        self.unread.set(self.unread.get().saturating_sub(bytes));
    }

    /// The worker has left the channel.
    pub(super) fn leave(self: &Rc<Self>) {
        if !self.is_left.replace(true) {
            self.linger();
        }
    }

    fn linger(self: &Rc<Self>) {
        let this = Rc::downgrade(self);
        let look = move || {
            // Dropped with its connection.
            let Some(this) = this.upgrade() else { return };
            let is_open = this.channel.ready_state() == RtcDataChannelState::Open;
            let is_sent = this.unsent.borrow().is_empty() && this.channel.buffered_amount() == 0;
            if is_open && !is_sent { this.linger() } else { this.end(None) }
        };
        Timeout::new(LINGER_MS, look).forget();
    }

    fn end(&self, reason: Option<RtcFailure>) {
        self.channel.close();
        self.tell(&RtcEvent::Closed { channel: self.number, reason });
        if let Some(connection) = self.connection.upgrade() {
            connection.forget(self.number);
        }
    }
}
