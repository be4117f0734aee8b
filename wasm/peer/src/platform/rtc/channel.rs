//! A channel as bytes to read and to write, which is what libp2p's framing wants.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use barnraise_messages::rtc::ChannelNumber;
use futures::{AsyncRead, AsyncWrite};
use send_wrapper::SendWrapper;

use super::link::{ChannelEnd, RtcLink};

/// A clonable channel; dropping the last clone leaves it.
#[derive(Clone)]
pub(crate) struct RtcChannel(SendWrapper<Rc<ChannelHandle>>);

struct ChannelHandle {
    link: Rc<RtcLink>,
    number: ChannelNumber,
}

impl RtcChannel {
    pub(super) fn new(link: Rc<RtcLink>, number: ChannelNumber) -> Self {
        Self(SendWrapper::new(Rc::new(ChannelHandle { link, number })))
    }
}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        self.link.leave(self.number);
    }
}

impl AsyncRead for RtcChannel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.link.poll_read(self.0.number, cx, buffer).map(|read| match read {
            Ok(n_bytes) => Ok(n_bytes),
            Err(ChannelEnd::Closed) => Ok(0),
            Err(ChannelEnd::Failed(reason)) => Err(io::Error::new(io::ErrorKind::ConnectionReset, reason)),
        })
    }
}

impl AsyncWrite for RtcChannel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.link.poll_write(self.0.number, cx, bytes).map(|written| match written {
            Ok(n_bytes) => Ok(n_bytes),
            Err(ChannelEnd::Closed) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(ChannelEnd::Failed(reason)) => Err(io::Error::new(io::ErrorKind::ConnectionReset, reason)),
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The page sends what it gets.
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The last handle leaves it; the end of writing is a flag in libp2p's framing.
        Poll::Ready(Ok(()))
    }
}
