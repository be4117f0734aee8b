//! wasm/peer
pub use burn; pub use libp2p; pub use libp2p_stream; pub use libp2p_webtransport_websys;
