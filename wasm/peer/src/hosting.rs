//! A worker that hosts experts of the run's model, beside the one that contributes: a peer of its own, with a new key each time.

use std::rc::Rc;

use barnraise_contributor::hosting::{HostConfig, HostError, host};
use barnraise_learning::DeviceError;
use barnraise_messages::{DeviceChoice, PageToPeer, PeerToPage, TransportKind};
use barnraise_protocol::access::KeyPair;
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use libp2p::identity::{DecodingError, Keypair, ed25519};
use wasm_bindgen_futures::spawn_local;

use crate::device;
use crate::page::{self, EventSender};
use crate::platform::{BrowserPlatform, NetworkError, TabNetwork};

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
    let hosted = Box::pin(hosted(origin, device, transport, leaving)).await;
    page::post(&PeerToPage::NotHosting { reason: hosted.err().map(|error| error.to_string()) });
}

/// Why nothing is hosted, or no longer.
#[derive(Debug, thiserror::Error)]
enum HostingError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Key(#[from] DecodingError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Host(#[from] HostError),
}

async fn hosted(
    origin: String,
    device: DeviceChoice,
    transport: Option<TransportKind>,
    leaving: oneshot::Receiver<()>,
) -> Result<(), HostingError> {
    let device = device::open(device).await?;
    let secret = ed25519::SecretKey::generate();
    let seed = secret.as_ref().first_chunk().copied().unwrap_or_default();
    let key = KeyPair::from_seed(&seed);
    let keypair = Keypair::ed25519_from_bytes(seed)?;
    let network = Rc::new(TabNetwork::start(origin.clone(), keypair, transport)?);
    let platform = BrowserPlatform::new(&origin, network, EventSender::default());
    let on_news = |work, problem| page::post(&PeerToPage::Hosting { work, problem });
    Ok(host(&platform, HostConfig { key, device }, leaving, on_news).await?)
}
