//! WebRTC for the worker, which lacks the API: the page owns the connections and moves bytes.
//!
//! It never interprets the bytes: handshake, streams and protocols are the worker's. The messages between both are in
//! [`barnraise_messages::rtc`].

mod channel;
mod connection;
mod dial;
mod error;
mod sdp;

use std::cell::RefCell;
use std::rc::Rc;

use barnraise_messages::rtc::RtcFailure;
use web_sys::MessagePort;

use connection::RtcConnection;
pub(crate) use sdp::with_credentials;

/// Most open connections; a worker has one, and another one while it tries a better transport.
const CONNECTIONS_MAX: usize = 4;

/// The connections of one worker, which end with it.
#[derive(Default)]
pub(crate) struct RtcConnections {
    all: RefCell<Vec<Rc<RtcConnection>>>,
}

impl RtcConnections {
    /// Starts to open a connection, and reports its events on `port`.
    pub(crate) fn dial(&self, ufrag: String, answer: String, port: &MessagePort) {
        let mut all = self.all.borrow_mut();
        all.retain(|connection| !connection.is_over());
        let connection = RtcConnection::new(port);
        if all.len() >= CONNECTIONS_MAX {
            connection.fail(RtcFailure::TooMany);
            return;
        }
        all.push(Rc::clone(&connection));
        drop(all);
        dial::begin(connection, ufrag, answer);
    }
}

impl Drop for RtcConnections {
    fn drop(&mut self) {
        for connection in self.all.get_mut() {
            connection.end();
        }
    }
}
