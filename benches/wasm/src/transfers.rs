//! Bytes by the bulk protocol on the connections of a tab, as its training worker makes them.

use barnraise_protocol::bulk::{self, Partial, Transfer};
use futures::{AsyncWriteExt as _, StreamExt as _};
use libp2p::identity::Keypair;
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use libp2p_stream::Control;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;

use crate::{PULL, SERVE, noise};

/// A connection, and the bytes that are transferred over it repeatedly.
#[wasm_bindgen]
pub struct BulkConnection {
    control: Control,
    peer: PeerId,
    bytes: Vec<u8>,
    transfer: Transfer,
}

#[wasm_bindgen]
impl BulkConnection {
    /// Dials an address; the connection stays until the worker ends.
    pub async fn dial(address: String, n_bytes: usize) -> Result<BulkConnection, JsError> {
        let address: Multiaddr = address.parse()?;
        let mut swarm = barnraise_peer::swarm(Keypair::generate_ed25519())?;
        let control = swarm.behaviour().streams.new_control();
        swarm.dial(address)?;
        let peer = loop {
            match swarm.select_next_some().await {
                SwarmEvent::ConnectionEstablished { peer_id, .. } => break peer_id,
                SwarmEvent::OutgoingConnectionError { error, .. } => return Err(error.into()),
                _ => {}
            }
        };
        spawn_local(swarm.for_each(|_| std::future::ready(())));
        let bytes = noise(n_bytes);
        Ok(Self { control, peer, transfer: Transfer::of(&bytes), bytes })
    }

    /// Pulls the bytes, which are compared with their hash.
    pub async fn down(&mut self) -> Result<(), JsError> {
        let mut stream = self.control.open_stream(self.peer, StreamProtocol::new(PULL)).await?;
        let mut partial = Partial::new(self.transfer, self.transfer.n_bytes)?;
        bulk::pull(&mut stream, &mut partial, |_| {}).await?;
        Ok(stream.close().await?)
    }

    /// Has the bytes pulled; the remote says that it is done once the last one is there.
    pub async fn up(&mut self) -> Result<(), JsError> {
        let mut stream = self.control.open_stream(self.peer, StreamProtocol::new(SERVE)).await?;
        bulk::serve(&mut stream, &self.bytes, |_| {}).await?;
        Ok(stream.close().await?)
    }
}
