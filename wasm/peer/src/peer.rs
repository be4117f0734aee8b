//! The worker's main loop: it opens a device, starts the contributor and handles the page's messages.

use std::cell::Cell;
use std::rc::Rc;

use barnraise_contributor::{
    COMMANDS_MAX, Config, ContributorCommand, ContributorEvent, Credentials, Platform,
};
use barnraise_learning::{ComputeDevice, DeviceError, conformance};
use barnraise_messages::{ByteBuf, DeviceChange, DeviceChoice, PageToPeer, PeerToPage, TransportKind};
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dataset::{LabelledImages, Samples};
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use gloo::timers::future::TimeoutFuture;
use libp2p::identity::{DecodingError, Keypair, ed25519};
use wasm_bindgen_futures::spawn_local;

use crate::device;
use crate::earlier::EarlierModel;
use crate::experts::TrialExperts;
use crate::hosting;
use crate::own::{self, OwnFilesError};
use crate::page::{self, EventSender};
use crate::platform::{BrowserPlatform, NetworkError, TabNetwork};
use crate::rows::RowModel;
use crate::text::{ContinuedToken, TextModels};

/// After the web server did not say how files of the visitor's own become samples.
const RETRY_MS: u32 = 3000;

/// Serves the page until its messages end, which they do with the worker.
pub(crate) async fn run(mut messages: mpsc::Receiver<PageToPeer>) {
    while let Some(message) = messages.next().await {
        let (origin, identity, device, invitation, transport) = match message {
            PageToPeer::Hello { origin, identity, device, invitation, transport } => {
                (origin, identity, device, invitation, transport)
            }
            PageToPeer::Host { origin, device, transport } => {
                return hosting::run((origin, device, transport), messages).await;
            }
            _ => {
                failed("say hello first".to_owned());
                continue;
            }
        };
        match start_peer(origin, identity, device, invitation, transport).await {
            Ok(peer) => return peer.serve(messages).await,
            Err(error) => failed(error.to_string()),
        }
    }
}

/// Why the worker cannot begin.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The device that was asked for is not there.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A new key is none.
    #[error(transparent)]
    Key(#[from] DecodingError),
    /// libp2p does not take the key.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// A peer whose contributor runs.
struct RunningPeer {
    /// Of the page: `https://host:port`.
    origin: String,
    device: ComputeDevice,
    commands: mpsc::Sender<ContributorCommand>,
    earlier: EarlierModel,
    texts: TextModels,
    rows: RowModel,
    /// Request of the newest text that is to be gone on with.
    newest_text: Rc<Cell<u32>>,
    /// Counts what the visitor chose to train on.
    newest_choice: Rc<Cell<u32>>,
    is_checking: Rc<Cell<bool>>,
    event_sender: EventSender,
}

async fn start_peer(
    origin: String,
    identity: Option<Vec<u8>>,
    device: DeviceChoice,
    invitation: Option<String>,
    transport: Option<TransportKind>,
) -> Result<RunningPeer, StartError> {
    let is_device_free = device == DeviceChoice::Auto;
    let device = device::open(device).await?;
    let (keypair, seed) = identify(identity)?;
    let credentials = credentials(&seed, invitation);
    let peer_id = keypair.public().to_peer_id().to_string();
    let network = Rc::new(TabNetwork::start(origin.clone(), keypair, transport)?);
    let experts = TrialExperts::new(Rc::clone(&network));
    let earlier = EarlierModel::new(origin.clone());
    let texts = TextModels::new(origin.clone(), experts.clone());
    let rows = RowModel::new(origin.clone(), experts);
    let event_sender = EventSender::default();
    let platform = BrowserPlatform::new(&origin, network, event_sender.clone());
    page::post(&PeerToPage::Ready {
        identity: seed,
        peer_id,
        device: platform.device_kind(device.choice()),
        device_name: device.name().to_owned(),
    });
    let (sender, commands) = mpsc::channel(COMMANDS_MAX);
    let config = Config {
        device: device.clone(),
        is_device_free,
        first_contribution_id: first_contribution_id(),
        seed: (js_sys::Math::random() * (1_u64 << 53) as f64) as u64,
        credentials,
    };
    let sender_of_events = event_sender.clone();
    spawn_local(async move {
        let on_event = |event| forward(&sender_of_events, event);
        let contribute = barnraise_contributor::contribute(&platform, config, commands, on_event);
        Box::pin(contribute).await;
    });
    Ok(RunningPeer {
        origin,
        device,
        commands: sender,
        earlier,
        texts,
        rows,
        newest_text: Rc::default(),
        newest_choice: Rc::default(),
        is_checking: Rc::default(),
        event_sender,
    })
}

/// First contribution id of this worker, at random: the clock may be set back between two visits.
/// The randomness is that of a throw-away key.
fn first_contribution_id() -> u64 {
    let drawn = ed25519::SecretKey::generate();
    let bytes = drawn.as_ref().first_chunk().copied().unwrap_or_default();
    // JavaScript has whole numbers up to 2^53: half of them leaves room to count.
    u64::from_le_bytes(bytes) >> 12
}

/// The key pair of the seed that the page kept, or a new one, and its seed.
fn identify(seed: Option<Vec<u8>>) -> Result<(Keypair, Vec<u8>), DecodingError> {
    let kept = seed.and_then(|seed| Some((Keypair::ed25519_from_bytes(seed.clone()).ok()?, seed)));
    if let Some(kept) = kept {
        return Ok(kept);
    }
    let seed = ed25519::SecretKey::generate().as_ref().to_vec();
    let keypair = Keypair::ed25519_from_bytes(seed.clone())?;
    Ok((keypair, seed))
}

/// Credentials of this tab for runs that are not open.
fn credentials(seed: &[u8], invitation: Option<String>) -> Credentials {
    let key = seed.try_into().ok().map(|seed: [u8; 32]| KeyPair::from_seed(&seed));
    Credentials { key, invitation }
}

impl RunningPeer {
    async fn serve(mut self, mut messages: mpsc::Receiver<PageToPeer>) {
        while let Some(message) = messages.next().await {
            match message {
                PageToPeer::Hello { .. } | PageToPeer::Host { .. } => {
                    failed("hello was said before".to_owned());
                }
                PageToPeer::Start => self.command(ContributorCommand::Start).await,
                PageToPeer::Stop => self.command(ContributorCommand::Stop).await,
                PageToPeer::Pacing(pacing) => self.command(ContributorCommand::Pacing(pacing)).await,
                PageToPeer::OwnPictures { pixels, labels } => {
                    self.next_choice();
                    let pictures = LabelledImages { images: pixels, labels };
                    let own = (pictures.n_samples() > 0).then_some(Samples::Images(pictures));
                    self.command(ContributorCommand::OwnData(own)).await;
                }
                PageToPeer::OwnFiles { request, files } => self.take_files(request, files),
                PageToPeer::Predict { request, pixels } => {
                    self.command(ContributorCommand::Predict { request, pixels }).await;
                }
                PageToPeer::PredictEarlier { request, epoch, pixels } => {
                    self.predict_earlier(request, epoch, pixels);
                }
                PageToPeer::Fill { request, text } => self.fill(request, text),
                PageToPeer::Continue { request, epoch, text } => self.go_on(request, epoch, text),
                PageToPeer::Tell { request, values } => self.tell(request, values),
                PageToPeer::Recommend { request, rated } => self.recommend(request, rated),
                PageToPeer::Name { name } => self.command(ContributorCommand::Name(name)).await,
                PageToPeer::LoadGallery => self.command(ContributorCommand::LoadGallery).await,
                PageToPeer::SelfCheck => self.check(),
                PageToPeer::Woke => self.command(ContributorCommand::Woke).await,
                PageToPeer::Acknowledged => self.event_sender.on_acknowledged(),
            }
        }
    }

    /// Waits for room in the contributor's queue, which it takes from between all that it does: data of the visitor's own
    /// is not to be lost.
    async fn command(&mut self, command: ContributorCommand) {
        if self.commands.send(command).await.is_err() {
            ended();
        }
    }

    /// Makes samples of files of the visitor's own, beside the contributor. The page starts it when it has the answer.
    fn take_files(&self, request: u32, files: Vec<ByteBuf>) {
        let (origin, texts, mut commands) = (self.origin.clone(), self.texts.clone(), self.commands.clone());
        let (choice, newest) = (self.next_choice(), Rc::clone(&self.newest_choice));
        spawn_local(async move {
            let wanted = || newest.get() == choice;
            let mut read = own::samples_of(&origin, &texts, &files, wanted).await;
            while wanted() && read.as_ref().is_err_and(OwnFilesError::is_temporary) {
                // The page says that the web server is away. A tab whose visitor wants it to train goes on when that is back.
                TimeoutFuture::new(RETRY_MS).await;
                read = own::samples_of(&origin, &texts, &files, wanted).await;
            }
            if newest.get() != choice {
                // The visitor has chosen something else meanwhile, or taken it back.
                return;
            }
            let (samples, answer) = match read {
                Ok((samples, broken)) => {
                    let answer = PeerToPage::OwnFilesRead {
                        request,
                        n_samples: samples.n_samples() as u32,
                        n_broken: broken.n() as u32,
                        first_broken: broken.first().map(|(place, reason)| format!("{place}: {reason}")),
                    };
                    (Some(samples), answer)
                }
                Err(error) => (None, PeerToPage::NoOwnFiles { request, reason: error.to_string() }),
            };
            match commands.send(ContributorCommand::OwnData(samples)).await {
                Ok(()) => page::post(&answer),
                Err(_) => ended(),
            }
        });
    }

    /// What the visitor chose before is not to be trained on any longer.
    fn next_choice(&self) -> u32 {
        let choice = self.newest_choice.get().wrapping_add(1);
        self.newest_choice.set(choice);
        choice
    }

    /// Runs beside the contributor, with a model of its own.
    fn predict_earlier(&self, request: u32, epoch: u64, pixels: Vec<u8>) {
        let earlier = self.earlier.clone();
        spawn_local(async move {
            page::post(&match earlier.predict(epoch, &pixels).await {
                Ok(probabilities) => PeerToPage::PredictedEarlier { request, epoch, probabilities },
                Err(error) => PeerToPage::NoEarlier { request, reason: error.to_string() },
            });
        });
    }

    /// Runs beside the contributor, with a model of its own.
    fn fill(&self, request: u32, text: String) {
        let texts = self.texts.clone();
        spawn_local(async move {
            page::post(&match texts.fill(&text).await {
                Ok((epoch, blanks)) => PeerToPage::Filled { request, epoch, blanks },
                Err(error) => PeerToPage::NotFilled { request, reason: error.to_string() },
            });
        });
    }

    /// Runs beside the contributor, with a model of its own, until another text is asked for.
    fn go_on(&self, request: u32, epoch: Option<u64>, text: String) {
        let (texts, newest) = (self.texts.clone(), Rc::clone(&self.newest_text));
        newest.set(request);
        spawn_local(async move {
            let wanted = || newest.get() == request;
            let post = |token: ContinuedToken| {
                let ContinuedToken { epoch, text, n_tokens, seconds, is_end } = token;
                page::post(&PeerToPage::Continued { request, epoch, text, n_tokens, seconds, is_end });
            };
            if let Err(error) = texts.go_on(epoch, &text, wanted, post).await {
                page::post(&PeerToPage::NotFilled { request, reason: error.to_string() });
            }
        });
    }

    /// Runs beside the contributor, with a model of its own.
    fn tell(&self, request: u32, values: Vec<f32>) {
        let rows = self.rows.clone();
        spawn_local(async move {
            page::post(&match rows.tell(&values).await {
                Ok((epoch, told)) => PeerToPage::Told { request, epoch, told },
                Err(error) => PeerToPage::NotTold { request, reason: error.to_string() },
            });
        });
    }

    /// Runs beside the contributor, with a model of its own.
    fn recommend(&self, request: u32, rated: Vec<(u32, f32)>) {
        let rows = self.rows.clone();
        spawn_local(async move {
            page::post(&match rows.recommend(&rated).await {
                Ok((epoch, items)) => PeerToPage::Recommended { request, epoch, items },
                Err(error) => PeerToPage::NotTold { request, reason: error.to_string() },
            });
        });
    }

    /// Runs beside the contributor, which may be training: the device takes turns.
    fn check(&self) {
        if self.is_checking.replace(true) {
            failed("the device is being checked already".to_owned());
            return;
        }
        let device = self.device.clone();
        let is_checking = Rc::clone(&self.is_checking);
        spawn_local(async move {
            match conformance::run(&device).await {
                Ok(checks) => page::post(&PeerToPage::SelfCheck {
                    device: BrowserPlatform::kind(device.choice()),
                    checks,
                }),
                Err(error) => failed(format!("the device could not be checked: {error}")),
            }
            is_checking.set(false);
        });
    }
}

fn ended() {
    failed("the training program has ended: reload this page".to_owned());
}

fn failed(message: String) {
    page::post(&PeerToPage::Failed { message });
}

fn forward(event_sender: &EventSender, event: ContributorEvent) {
    match &event {
        // The page fetches the description from the web server.
        ContributorEvent::Described(_) => return,
        ContributorEvent::DeviceChanged { reason: DeviceChange::Lost { detail }, .. } => {
            gloo::console::warn!(format!("The graphics processor was lost: {detail}"));
        }
        _ => {}
    }
    event_sender.send(event);
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    #[wasm_bindgen_test]
    fn a_kept_seed_is_the_same_peer_and_a_damaged_one_is_a_new_peer() {
        let (first, seed) = identify(None).unwrap();
        let (again, kept) = identify(Some(seed.clone())).unwrap();
        assert_eq!((first.public(), &seed), (again.public(), &kept));
        for damaged in [vec![], seed[1..].to_vec(), vec![0; 64]] {
            let (other, new) = identify(Some(damaged)).unwrap();
            assert_ne!(other.public(), first.public());
            assert_eq!(new.len(), 32);
        }
        let key = credentials(&seed, None).key.unwrap().public();
        let shown =
            barnraise_protocol::access::PublicKey::of_peer_id(&first.public().to_peer_id().to_bytes());
        assert_eq!(Some(key), shown, "it proves who it is to the run with the key that it dials with");
        assert!(credentials(&[0; 5], None).key.is_none());
    }

    #[wasm_bindgen_test]
    fn contributions_are_counted_from_anywhere_that_javascript_can_count_on_from() {
        let ids: Vec<u64> = (0..32).map(|_| first_contribution_id()).collect();
        assert!(ids.iter().all(|&id| id < 1 << 52), "{ids:?}");
        assert!(ids.iter().any(|&id| id != ids[0]), "{ids:?}");
    }
}
