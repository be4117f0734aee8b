//! Finds the backbone while its web server does not answer: at its last known addresses, or
//! through other peers of the DHT, which were remembered while it answered.
//!
//! It accepts only a record that the backbone's own key signed.

use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::backbone::{self, BackboneAnnouncement};
use barnraise_protocol::dht::{self, FindResponse, Freshness, PROTOCOL, PeerToNode, Record, UnixMillis};
use barnraise_swarm::dht::StorageLimits;
use futures::future::{Either, select};
use libp2p::{Multiaddr, PeerId, StreamProtocol};

use super::NetworkError;
use super::addresses::{PageOrigin, TransportAddresses, dialable};

/// Most DHT peers that are remembered.
const CONTACTS_MAX: usize = 4;
/// Timeout of one DHT request, the opening of its stream included.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer and the addresses to dial it at.
#[derive(Clone)]
pub(super) struct DialTarget {
    pub(super) peer: PeerId,
    pub(super) transports: TransportAddresses,
}

/// A run that the web server described since the tab was opened.
#[derive(Clone)]
pub(super) struct KnownRun {
    pub(super) run_id: String,
    pub(super) backbone: DialTarget,
    /// DHT peers that a browser can dial.
    pub(super) contacts: Vec<DialTarget>,
    /// Attempts without the web server since it answered last.
    n_attempts: usize,
}

/// The next attempt to find the backbone.
pub(super) enum DialAttempt {
    /// Dial the backbone at its last known addresses.
    Redial(DialTarget),
    /// Ask the DHT peer `contact` for the current addresses of `wanted`.
    AskDht { contact: DialTarget, wanted: PeerId },
}

impl KnownRun {
    /// The run as the web server describes it. DHT peers known `before` stay if it is the same run.
    pub(super) fn new(run_id: String, backbone: DialTarget, before: Option<Self>) -> Self {
        let before = before.filter(|before| before.run_id == run_id);
        let contacts = before.map_or_else(Vec::new, |before| before.contacts);
        Self { run_id, backbone, contacts, n_attempts: 0 }
    }

    /// The last known addresses and the DHT peers in turn, one per attempt.
    pub(super) fn next_attempt(&mut self) -> DialAttempt {
        let (turn, is_even) = (self.n_attempts / 2, self.n_attempts.is_multiple_of(2));
        self.n_attempts += 1;
        match self.contacts.get(turn % self.contacts.len().max(1)) {
            Some(contact) if !is_even => {
                DialAttempt::AskDht { contact: contact.clone(), wanted: self.backbone.peer }
            }
            _ => DialAttempt::Redial(self.backbone.clone()),
        }
    }
}

/// A DHT peer that a browser can dial, and all of its addresses.
pub(super) type Contact = (DialTarget, Vec<Multiaddr>);

/// Other DHT peers, named by the connected peer `asked`.
pub(super) async fn contacts(
    control: libp2p_stream::Control,
    asked: PeerId,
    run_id: &str,
    page: PageOrigin,
) -> Result<Vec<Contact>, NetworkError> {
    let keys = vec![backbone::key(run_id)];
    let asking = async {
        let mut stream = open(control, asked).await?;
        let answer = dht::ask(&mut stream, &PeerToNode::Find(keys.clone())).await;
        Ok(answer.and_then(|answer| answer.found(&keys))?)
    };
    let found: FindResponse = within(ASK_TIMEOUT, asking).await?;
    let targets = found.closest(0).filter_map(|contact| {
        let peer = PeerId::from_bytes(&contact.peer_id).ok().filter(|peer| *peer != asked)?;
        let known = known_addresses(peer, &contact.addresses, page);
        Some((target(peer, &contact.addresses, page)?, known))
    });
    Ok(targets.take(CONTACTS_MAX).collect())
}

/// The current addresses of `wanted`, found through the connected peer `asked`.
pub(super) async fn newest(
    control: libp2p_stream::Control,
    asked: PeerId,
    run_id: &str,
    wanted: PeerId,
    page: PageOrigin,
) -> Result<DialTarget, NetworkError> {
    let now = UnixMillis(js_sys::Date::now() as u64);
    let lifetime_max = StorageLimits::default().lifetime_max;
    let asking = async {
        let mut stream = open(control, asked).await?;
        let keys = vec![backbone::key(run_id)];
        Ok(dht::get(&mut stream, keys, Freshness::Newest, now, lifetime_max).await?)
    };
    let records: Vec<Record> = within(ASK_TIMEOUT, asking).await?.into_iter().flatten().collect();
    let target = signed_by(&records, wanted, page);
    target.ok_or(NetworkError::NotInDht { asked })
}

/// The record that `backbone` signed among `records`, whose signatures were checked.
fn signed_by(records: &[Record], backbone: PeerId, page: PageOrigin) -> Option<DialTarget> {
    let key = PublicKey::of_peer_id(&backbone.to_bytes())?;
    let signed = records.iter().filter_map(BackboneAnnouncement::read).find(|target| target.peer == key)?;
    target(backbone, &signed.addresses, page)
}

/// The addresses of a peer, but for those of a private network that the page did not come from: it neither looks into that for
/// others, nor tells others of it.
fn known_addresses(peer: PeerId, addresses: &[Vec<u8>], page: PageOrigin) -> Vec<Multiaddr> {
    with_peer(peer, addresses).into_iter().filter(|address| page.dials(address)).collect()
}

/// A peer with those of its addresses that a browser can dial.
fn target(peer: PeerId, addresses: &[Vec<u8>], page: PageOrigin) -> Option<DialTarget> {
    let known = known_addresses(peer, addresses, page);
    let listed: Vec<String> = known.iter().map(Multiaddr::to_string).collect();
    let (peer, transports) = dialable(&listed, page.is_secure).ok()?;
    Some(DialTarget { peer, transports })
}

fn with_peer(peer: PeerId, addresses: &[Vec<u8>]) -> Vec<Multiaddr> {
    let addresses = addresses.iter().filter_map(|bytes| Multiaddr::try_from(bytes.clone()).ok());
    addresses.filter_map(|address| address.with_p2p(peer).ok()).collect()
}

async fn open(mut control: libp2p_stream::Control, peer: PeerId) -> Result<libp2p::Stream, NetworkError> {
    Ok(control.open_stream(peer, StreamProtocol::new(PROTOCOL)).await?)
}

/// Runs `work` with a time limit.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, NetworkError>>,
) -> Result<T, NetworkError> {
    let timer = std::pin::pin!(gloo::timers::future::sleep(limit));
    match select(std::pin::pin!(work), timer).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err(NetworkError::Timeout(limit)),
    }
}

#[cfg(feature = "tests")]
mod tests {
    use libp2p::identity::Keypair;
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    fn any_peer() -> DialTarget {
        let peer = Keypair::generate_ed25519().public().to_peer_id();
        target(peer, &[websocket()], plain()).unwrap()
    }

    fn plain() -> PageOrigin {
        PageOrigin::of("http://run.example.org")
    }

    fn websocket() -> Vec<u8> {
        "/ip4/192.0.2.1/tcp/4001/ws".parse::<Multiaddr>().unwrap().to_vec()
    }

    #[wasm_bindgen_test]
    fn the_old_addresses_and_each_peer_of_the_dht_are_tried_in_turn() {
        let (backbone, contacts) = (any_peer(), [any_peer(), any_peer()]);
        let mut known = KnownRun::new("run".into(), backbone.clone(), None);
        for _ in 0..3 {
            assert!(
                matches!(known.next_attempt(), DialAttempt::Redial(target) if target.peer == backbone.peer)
            );
        }
        known = KnownRun::new("run".into(), backbone.clone(), None);
        known.contacts = contacts.to_vec();
        let mut asked = Vec::new();
        for _ in 0..4 {
            assert!(matches!(known.next_attempt(), DialAttempt::Redial(_)));
            let DialAttempt::AskDht { contact, wanted } = known.next_attempt() else {
                panic!("nobody is asked")
            };
            assert_eq!(wanted, backbone.peer);
            asked.push(contact.peer);
        }
        let [one, two] = contacts.map(|contact| contact.peer);
        assert_eq!(asked, [one, two, one, two]);
    }

    #[wasm_bindgen_test]
    fn peers_of_another_run_are_forgotten() {
        let mut known = KnownRun::new("run".into(), any_peer(), None);
        known.contacts = vec![any_peer()];
        known.next_attempt();
        let same = KnownRun::new("run".into(), any_peer(), Some(known.clone()));
        assert_eq!((same.contacts.len(), same.n_attempts), (1, 0));
        assert!(KnownRun::new("other".into(), any_peer(), Some(known)).contacts.is_empty());
    }

    #[wasm_bindgen_test]
    fn a_peer_without_an_address_for_browsers_is_no_target() {
        let peer = PeerId::random();
        let native = "/ip4/192.0.2.1/tcp/4001".parse::<Multiaddr>().unwrap().to_vec();
        assert!(target(peer, &[native.clone(), vec![255]], plain()).is_none());
        assert_eq!(target(peer, &[native, websocket()], plain()).unwrap().peer, peer);
        // An address that names somebody else is not theirs.
        let theirs = Multiaddr::try_from(websocket()).unwrap().with_p2p(PeerId::random()).unwrap();
        assert!(target(peer, &[theirs.to_vec()], plain()).is_none());
        let encrypted = PageOrigin::of("https://run.example.org");
        assert!(target(peer, &[websocket()], encrypted).is_none(), "a page that came encrypted");
        // A page from the internet looks into no private network, and one from there does.
        let private = "/ip4/192.168.1.1/tcp/80/ws".parse::<Multiaddr>().unwrap().to_vec();
        assert!(target(peer, std::slice::from_ref(&private), plain()).is_none());
        assert!(target(peer, &[private], PageOrigin::of("http://192.168.1.7:8080")).is_some());
    }

    #[wasm_bindgen_test]
    async fn waiting_ends() {
        let never = std::future::pending::<Result<(), NetworkError>>();
        let ended = within(Duration::from_millis(20), never).await.unwrap_err();
        assert!(matches!(ended, NetworkError::Timeout(_)), "{ended}");
        assert_eq!(within(Duration::from_secs(60), async { Ok(1) }).await.unwrap(), 1);
    }
}
