//! A worker that hosts experts of the run's model, beside the one that contributes: a peer of its own, with a new key each time.

use std::rc::Rc;

use barnraise_contributor::hosting::{HostConfig, HostError, host};
use barnraise_messages::{DeviceChoice, PageToPeer, PeerToPage, TransportKind};
use barnraise_protocol::access::KeyPair;
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use libp2p::identity::{Keypair, ed25519};
use wasm_bindgen_futures::spawn_local;

use crate::page::{self, EventSender};
use crate::peer::{StartError, open};
use crate::platform::{BrowserPlatform, TabNetwork};

/// Hosts until the page says stop.
pub(crate) async fn run(
    (origin, device, transport): (String, DeviceChoice, Option<TransportKind>),
    mut messages: mpsc::Receiver<PageToPeer>,
) {
    let (leave, leaving) = oneshot::channel();
    spawn_local(async move {
        while let Some(message) = messages.next().await {
            if message == PageToPeer::Stop {
                break;
            }
        }
        drop(leave);
    });
    let reason = match Box::pin(hosted(origin, device, transport, leaving)).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    page::post(&PeerToPage::NotHosting { reason });
}

async fn hosted(
    origin: String,
    device: DeviceChoice,
    transport: Option<TransportKind>,
    leaving: oneshot::Receiver<()>,
) -> Result<Result<(), HostError>, StartError> {
    let device = open(device).await?;
    let secret = ed25519::SecretKey::generate();
    let seed = secret.as_ref().first_chunk().copied().unwrap_or_default();
    let key = KeyPair::from_seed(&seed);
    let keypair = Keypair::ed25519_from_bytes(seed)?;
    let network = Rc::new(TabNetwork::start(origin.clone(), keypair, transport)?);
    let platform = BrowserPlatform::new(&origin, network, EventSender::default());
    let on_news = |work, problem| page::post(&PeerToPage::Hosting { work, problem });
    Ok(host(&platform, HostConfig { key, device }, leaving, on_news).await)
}
