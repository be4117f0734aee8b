//! The worker's end of the port of one connection: unread bytes, and the tasks that wait for more.
//!
//! Everything in it is bounded by the credits of [`barnraise_messages::rtc`]; the page keeps them.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use barnraise_messages::rtc::{
    ChannelNumber, HANDSHAKE_CHANNEL, MESSAGE_BYTES_MAX, RtcEvent, RtcFailure, RtcRequest, SEND_BYTES_MAX,
    TAKEN_BYTES,
};
use js_sys::{Array, ArrayBuffer, Uint8Array};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::{MessageEvent, MessagePort};

use super::RtcError;
use crate::page;

/// Numbers of channels that the worker opens: even, after that of the handshake.
const FIRST_OPENED: ChannelNumber = HANDSHAKE_CHANNEL + 2;

/// One WebRTC connection.
pub(super) struct RtcLink {
    port: MessagePort,
    state: Rc<RefCell<LinkState>>,
    _listener: Closure<dyn Fn(MessageEvent)>,
}

#[derive(Default)]
struct LinkState {
    channels: HashMap<ChannelNumber, Channel>,
    accepted: VecDeque<ChannelNumber>,
    fingerprint: Option<Vec<u8>>,
    next_opened: ChannelNumber,
    failure: Option<RtcFailure>,
    /// Tasks that wait for the connection itself: its dial, its muxer.
    waiting: Vec<Waker>,
}

#[derive(Default)]
struct Channel {
    incoming: VecDeque<Vec<u8>>,
    /// Bytes of the first buffer that were read.
    n_read: usize,
    /// Bytes that were read and not yet reported to the page.
    unreported: u32,
    credit: u32,
    is_open: bool,
    end: Option<Result<(), RtcFailure>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Why reading or writing on a channel ended.
pub(super) enum ChannelEnd {
    /// It was closed.
    Closed,
    /// It failed; the reason.
    Failed(RtcFailure),
}

impl RtcLink {
    pub(super) fn new(port: MessagePort) -> Self {
        let mut state = LinkState { next_opened: FIRST_OPENED, ..LinkState::default() };
        state.channels.insert(HANDSHAKE_CHANNEL, Channel::new(false));
        let state = Rc::new(RefCell::new(state));
        let received = Rc::clone(&state);
        let listener = Closure::<dyn Fn(MessageEvent)>::new(move |event: MessageEvent| {
            let woken = received.borrow_mut().on_message(&event.data());
            woken.into_iter().for_each(Waker::wake);
        });
        port.set_onmessage(Some(listener.as_ref().unchecked_ref()));
        Self { port, state, _listener: listener }
    }

    /// SHA-256 of the page's certificate, once the page sent it.
    pub(super) fn poll_fingerprint(&self, cx: &Context<'_>) -> Poll<Result<Vec<u8>, RtcError>> {
        let mut state = self.state.borrow_mut();
        state.check()?;
        match state.fingerprint.take() {
            Some(fingerprint) => Poll::Ready(Ok(fingerprint)),
            None => state.wait(cx),
        }
    }

    /// Asks for a channel.
    pub(super) fn open(&self) -> ChannelNumber {
        let mut state = self.state.borrow_mut();
        let number = state.next_opened;
        state.next_opened = number.wrapping_add(2);
        state.channels.insert(number, Channel::new(false));
        drop(state);
        self.ask(&RtcRequest::Open { channel: number });
        number
    }

    /// Whether a channel that was asked for can be used.
    pub(super) fn poll_opened(&self, number: ChannelNumber, cx: &Context<'_>) -> Poll<Result<(), RtcError>> {
        let mut state = self.state.borrow_mut();
        state.check()?;
        let closed = || RtcError::Channel(RtcFailure::Closed);
        let channel = state.channels.get(&number).ok_or_else(closed)?;
        match &channel.end {
            Some(Err(reason)) => Poll::Ready(Err(RtcError::Channel(reason.clone()))),
            Some(Ok(())) => Poll::Ready(Err(closed())),
            None if channel.is_open => Poll::Ready(Ok(())),
            None => state.wait(cx),
        }
    }

    /// A channel that the remote opened.
    pub(super) fn poll_accepted(&self, cx: &Context<'_>) -> Poll<Result<ChannelNumber, RtcError>> {
        let mut state = self.state.borrow_mut();
        state.check()?;
        match state.accepted.pop_front() {
            Some(number) => Poll::Ready(Ok(number)),
            None => state.wait(cx),
        }
    }

    /// Ready when the connection is lost.
    pub(super) fn poll_lost(&self, cx: &Context<'_>) -> Poll<RtcError> {
        let mut state = self.state.borrow_mut();
        match state.check() {
            Err(error) => Poll::Ready(error),
            Ok(()) => state.wait(cx),
        }
    }

    /// Reads what has arrived.
    pub(super) fn poll_read(
        &self,
        number: ChannelNumber,
        cx: &Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<usize, ChannelEnd>> {
        let mut state = self.state.borrow_mut();
        let Some(channel) = state.channels.get_mut(&number) else {
            return Poll::Ready(Err(ChannelEnd::Closed));
        };
        let n_read = channel.read(buffer);
        if n_read == 0 && !buffer.is_empty() {
            return match channel.end.clone() {
                Some(Ok(())) => Poll::Ready(Err(ChannelEnd::Closed)),
                Some(Err(reason)) => Poll::Ready(Err(ChannelEnd::Failed(reason))),
                None => {
                    channel.reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            };
        }
        let is_due = channel.unreported >= TAKEN_BYTES || channel.incoming.is_empty();
        let unreported = if is_due { std::mem::take(&mut channel.unreported) } else { 0 };
        drop(state);
        if unreported > 0 {
            self.ask(&RtcRequest::Taken { channel: number, bytes: unreported });
        }
        Poll::Ready(Ok(n_read))
    }

    /// Writes one message, as far as the credit allows.
    pub(super) fn poll_write(
        &self,
        number: ChannelNumber,
        cx: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, ChannelEnd>> {
        let mut state = self.state.borrow_mut();
        let Some(channel) = state.channels.get_mut(&number) else {
            return Poll::Ready(Err(ChannelEnd::Closed));
        };
        match channel.end.clone() {
            Some(Ok(())) => return Poll::Ready(Err(ChannelEnd::Closed)),
            Some(Err(reason)) => return Poll::Ready(Err(ChannelEnd::Failed(reason))),
            None => {}
        }
        let n_bytes = bytes.len().min(MESSAGE_BYTES_MAX as usize);
        // Whole messages only: the remote may read no smaller ones well.
        if (channel.credit as usize) < n_bytes {
            channel.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        channel.credit -= n_bytes as u32;
        drop(state);
        let buffer = Uint8Array::from(&bytes[..n_bytes]).buffer();
        let message = Array::of2(&number.into(), &buffer);
        // Refused only for what cannot be cloned.
        let _ = self.port.post_message_with_transferable(&message, &Array::of1(&buffer));
        Poll::Ready(Ok(n_bytes))
    }

    /// Leaves a channel: what was written is still sent.
    pub(super) fn leave(&self, number: ChannelNumber) {
        let left = self.state.borrow_mut().channels.remove(&number);
        if left.is_some_and(|channel| channel.end.is_none()) {
            self.ask(&RtcRequest::Leave { channel: number });
        }
    }

    /// Ends the connection and wakes all waiting tasks.
    pub(super) fn end(&self) {
        let (is_first, woken) = self.state.borrow_mut().fail(RtcFailure::Closed);
        if is_first {
            self.ask(&RtcRequest::End);
            self.port.close();
        }
        woken.into_iter().for_each(Waker::wake);
    }

    fn ask(&self, request: &RtcRequest) {
        // Refused only for what cannot be cloned.
        if let Ok(request) = serde_wasm_bindgen::to_value(request) {
            let _ = self.port.post_message(&request);
        }
    }
}

impl Drop for RtcLink {
    fn drop(&mut self) {
        self.end();
        self.port.set_onmessage(None);
    }
}

impl LinkState {
    fn check(&self) -> Result<(), RtcError> {
        match &self.failure {
            Some(reason) => Err(reason.clone().into()),
            None => Ok(()),
        }
    }

    fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Handles a message of the page; returns the tasks to wake.
    fn on_message(&mut self, data: &JsValue) -> Vec<Waker> {
        if let Some(message) = data.dyn_ref::<Array>() {
            let number = message.get(0).as_f64().map(|number| number as ChannelNumber);
            let channel = number.and_then(|number| self.channels.get_mut(&number));
            if let (Some(channel), Ok(bytes)) = (channel, message.get(1).dyn_into::<ArrayBuffer>()) {
                channel.incoming.push_back(Uint8Array::new(&bytes).to_vec());
                return channel.reader.take().into_iter().collect();
            }
            return Vec::new();
        }
        match serde_wasm_bindgen::from_value::<RtcEvent>(data.clone()) {
            Ok(event) => self.on_event(event),
            Err(error) => {
                gloo::console::error!(format!("the page sent what is no message: {error}"));
                Vec::new()
            }
        }
    }

    fn on_event(&mut self, event: RtcEvent) -> Vec<Waker> {
        match event {
            RtcEvent::Described { fingerprint } => self.fingerprint = Some(fingerprint),
            RtcEvent::Opened { channel } => {
                if let Some(channel) = self.channels.get_mut(&channel) {
                    channel.is_open = true;
                }
            }
            RtcEvent::Accepted { channel } => {
                self.channels.insert(channel, Channel::new(true));
                self.accepted.push_back(channel);
            }
            RtcEvent::Sent { channel, bytes } => {
                let Some(channel) = self.channels.get_mut(&channel) else { return Vec::new() };
                channel.credit = channel.credit.saturating_add(bytes);
                return channel.writer.take().into_iter().collect();
            }
            RtcEvent::Closed { channel, reason } => {
                let Some(channel) = self.channels.get_mut(&channel) else { return Vec::new() };
                let mut woken = channel.finish(reason.map_or(Ok(()), Err));
                woken.append(&mut self.waiting);
                return woken;
            }
            RtcEvent::Failed { reason } => return self.fail(reason).1,
        }
        std::mem::take(&mut self.waiting)
    }

    /// Ends all channels. Returns whether this was the first failure, and the tasks to wake.
    fn fail(&mut self, reason: RtcFailure) -> (bool, Vec<Waker>) {
        if self.failure.is_some() {
            return (false, Vec::new());
        }
        let mut woken = std::mem::take(&mut self.waiting);
        for channel in self.channels.values_mut() {
            woken.append(&mut channel.finish(Err(reason.clone())));
        }
        self.failure = Some(reason);
        (true, woken)
    }
}

impl Channel {
    fn new(is_open: bool) -> Self {
        Self { credit: SEND_BYTES_MAX, is_open, ..Self::default() }
    }

    fn read(&mut self, buffer: &mut [u8]) -> usize {
        let Some(first) = self.incoming.front() else { return 0 };
        let rest = &first[self.n_read..];
        let n_bytes = rest.len().min(buffer.len());
        buffer[..n_bytes].copy_from_slice(&rest[..n_bytes]);
        self.n_read += n_bytes;
        if self.n_read == first.len() {
            self.incoming.pop_front();
            self.n_read = 0;
        }
        self.unreported = self.unreported.saturating_add(n_bytes as u32);
        n_bytes
    }

    fn finish(&mut self, end: Result<(), RtcFailure>) -> Vec<Waker> {
        self.end.get_or_insert(end);
        self.reader.take().into_iter().chain(self.writer.take()).collect()
    }
}

/// Asks the page to dial; it gets the other end of `port`.
pub(super) fn ask_page(ufrag: String, answer: String, port: &MessagePort) -> Result<(), RtcError> {
    let message = barnraise_messages::PeerToPage::DialRtc { ufrag, answer };
    page::post_with_port(&message, port).map_err(|error| RtcError::Page(page::describe(&error)))
}
