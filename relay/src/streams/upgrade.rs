//! The negotiation of a stream: a name, and nothing more.

use std::convert::Infallible;
use std::future::{Ready, ready};

use libp2p::core::UpgradeInfo;
use libp2p::{InboundUpgrade, OutboundUpgrade, Stream, StreamProtocol};

/// Offers, or asks for, any of these protocols.
#[derive(Clone, Debug)]
pub(crate) struct AnyOf(pub(super) Vec<StreamProtocol>);

impl UpgradeInfo for AnyOf {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.0.clone().into_iter()
    }
}

impl InboundUpgrade<Stream> for AnyOf {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, protocol: StreamProtocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<Stream> for AnyOf {
    type Output = Stream;
    type Error = Infallible;
    type Future = Ready<Result<Stream, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, _: StreamProtocol) -> Self::Future {
        ready(Ok(stream))
    }
}
