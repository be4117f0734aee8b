//! The connection as a libp2p muxer: each channel is a stream.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use barnraise_messages::rtc::ChannelNumber;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p_webrtc_utils::{DropListener, Stream};
use send_wrapper::SendWrapper;

use super::RtcError;
use super::channel::RtcChannel;
use super::link::RtcLink;

/// An authenticated connection.
pub(crate) struct RtcMuxer {
    link: SendWrapper<Rc<RtcLink>>,
    /// Its number is kept from being used again: the listener would take a new channel for this one.
    _handshake: RtcChannel,
    opening: Option<ChannelNumber>,
    /// Tell the remote of streams that were dropped before their end.
    dropped: FuturesUnordered<DropListener<RtcChannel>>,
}

impl RtcMuxer {
    pub(super) fn new(link: Rc<RtcLink>, handshake: RtcChannel) -> Self {
        let link = SendWrapper::new(link);
        Self { link, _handshake: handshake, opening: None, dropped: FuturesUnordered::new() }
    }

    fn stream(&mut self, number: ChannelNumber) -> Stream<RtcChannel> {
        let (stream, dropped) = Stream::new(RtcChannel::new(Rc::clone(&self.link), number));
        self.dropped.push(dropped);
        stream
    }
}

impl StreamMuxer for RtcMuxer {
    type Substream = Stream<RtcChannel>;
    type Error = RtcError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, RtcError>> {
        let number = ready!(self.link.poll_accepted(cx))?;
        Poll::Ready(Ok(self.stream(number)))
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::Substream, RtcError>> {
        let number = self.opening.unwrap_or_else(|| self.link.open());
        self.opening = Some(number);
        let opened = ready!(self.link.poll_opened(number, cx));
        self.opening = None;
        Poll::Ready(opened.map(|()| self.stream(number)))
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, RtcError>> {
        if let Poll::Ready(error) = self.link.poll_lost(cx) {
            return Poll::Ready(Err(error));
        }
        // A failure says that the stream was over already.
        while let Poll::Ready(Some(_)) = self.dropped.poll_next_unpin(cx) {}
        Poll::Pending
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), RtcError>> {
        self.link.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for RtcMuxer {
    fn drop(&mut self) {
        // Open streams keep the link alive, not the connection.
        self.link.end();
    }
}
