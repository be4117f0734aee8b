//! WebRTC for the worker, which has none: the page owns the connections and moves bytes.
//!
//! It never looks into them: handshake, streams and protocols are the worker's. What the two say is in
//! [`barnraise_messages::rtc`].

mod channel;
mod connection;
mod dial;
mod sdp;

use std::cell::RefCell;
use std::rc::Rc;

use web_sys::MessagePort;

use connection::Connection;
pub(crate) use sdp::with_credentials;

/// Connections at once; a worker has one, and another while it looks for a better way.
const CONNECTIONS_MAX: usize = 4;

/// The connections of one worker, which end with it.
#[derive(Default)]
pub(crate) struct Connections {
    all: RefCell<Vec<Rc<Connection>>>,
}

impl Connections {
    /// Begins to open a connection; what comes of it is told on `port`.
    pub(crate) fn dial(&self, ufrag: String, answer: String, port: &MessagePort) {
        let mut all = self.all.borrow_mut();
        all.retain(|connection| !connection.is_over());
        let connection = Connection::new(port);
        if all.len() >= CONNECTIONS_MAX {
            connection.fail("too many connections at once");
            return;
        }
        all.push(Rc::clone(&connection));
        drop(all);
        dial::begin(connection, ufrag, answer);
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        for connection in self.all.get_mut() {
            connection.end();
        }
    }
}
