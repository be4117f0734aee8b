//! Tokio for QUIC, with a count of its tasks: a UDP port is free only once the last of them has ended.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use tokio_util::task::TaskTracker;
use wtransport::quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

#[derive(Debug)]
pub(super) struct TrackedRuntime {
    tasks: TaskTracker,
}

impl TrackedRuntime {
    pub(super) fn new(tasks: TaskTracker) -> Self {
        Self { tasks }
    }
}

impl Runtime for TrackedRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(deadline)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.tasks.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
