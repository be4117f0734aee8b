//! How the backbone is found while its web server does not answer: at the addresses that were good before, or
//! through other peers of the DHT, which were learned of while it was there.
//!
//! Nobody else is ever taken for it: what counts is the place that the backbone's own key has signed.

use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::backbone::{self, Backbone};
use barnraise_protocol::dht::{self, Found, Freshness, PROTOCOL, PeerToNode, Record, UnixMillis};
use barnraise_swarm::dht::StorageLimits;
use futures::future::{Either, select};
use libp2p::{Multiaddr, PeerId, StreamProtocol};

use super::addresses::{Ways, dialable};

/// Most peers of the DHT that are remembered.
const CONTACTS_MAX: usize = 4;
/// One question, with the opening of its stream.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Someone to dial.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) peer: PeerId,
    pub(super) ways: Ways,
}

/// What is remembered of a run for as long as the tab is open.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) run_id: String,
    pub(super) backbone: Place,
    /// Peers of the DHT that a browser can dial.
    pub(super) contacts: Vec<Place>,
    /// Attempts without the web server since it answered last.
    n_attempts: usize,
}

/// What to try next.
pub(super) enum Attempt {
    /// The backbone where it was.
    Again(Place),
    /// A peer that may know where the `wanted` one is now.
    Ask { contact: Place, wanted: PeerId },
}

impl Known {
    /// As the web server says; the peers that were known of the same run stay.
    pub(super) fn new(run_id: String, backbone: Place, before: Option<Self>) -> Self {
        let before = before.filter(|before| before.run_id == run_id);
        let contacts = before.map_or_else(Vec::new, |before| before.contacts);
        Self { run_id, backbone, contacts, n_attempts: 0 }
    }

    /// The old place and the peers of the DHT in turn, one with each attempt to connect.
    pub(super) fn next_attempt(&mut self) -> Attempt {
        let (turn, is_even) = (self.n_attempts / 2, self.n_attempts.is_multiple_of(2));
        self.n_attempts += 1;
        match self.contacts.get(turn % self.contacts.len().max(1)) {
            Some(contact) if !is_even => {
                Attempt::Ask { contact: contact.clone(), wanted: self.backbone.peer }
            }
            _ => Attempt::Again(self.backbone.clone()),
        }
    }
}

/// Other peers of the DHT, as the connected peer `asked` names them.
pub(super) async fn contacts(
    control: libp2p_stream::Control,
    asked: PeerId,
    run_id: &str,
    is_secure: bool,
) -> Result<Vec<Place>, String> {
    let keys = vec![backbone::key(run_id)];
    let asking = async {
        let mut stream = open(control, asked).await?;
        let answer = dht::ask(&mut stream, &PeerToNode::Find(keys.clone())).await;
        answer.and_then(|answer| answer.found(&keys)).map_err(|error| error.to_string())
    };
    let found: Found = within(ASK_TIMEOUT, asking).await?;
    let places = found.closest(0).filter_map(|contact| {
        let peer = PeerId::from_bytes(&contact.peer_id).ok().filter(|peer| *peer != asked)?;
        place(peer, &contact.addresses, is_secure)
    });
    Ok(places.take(CONTACTS_MAX).collect())
}

/// Where `wanted` says that it is now, as the connected peer `asked` finds it.
pub(super) async fn newest(
    control: libp2p_stream::Control,
    asked: PeerId,
    run_id: &str,
    wanted: PeerId,
    is_secure: bool,
) -> Result<Place, String> {
    let now = UnixMillis(js_sys::Date::now() as u64);
    let lifetime_max = StorageLimits::default().lifetime_max;
    let asking = async {
        let mut stream = open(control, asked).await?;
        let keys = vec![backbone::key(run_id)];
        let records = dht::get(&mut stream, keys, Freshness::Newest, now, lifetime_max).await;
        records.map_err(|error| error.to_string())
    };
    let records: Vec<Record> = within(ASK_TIMEOUT, asking).await?.into_iter().flatten().collect();
    let place = signed_by(&records, wanted, is_secure);
    place.ok_or_else(|| format!("{asked} does not know where the backbone is"))
}

/// The place among `records`, whose signatures were checked, that `backbone` signed.
fn signed_by(records: &[Record], backbone: PeerId, is_secure: bool) -> Option<Place> {
    let key = PublicKey::of_peer_id(&backbone.to_bytes())?;
    let signed = records.iter().filter_map(Backbone::read).find(|place| place.peer == key)?;
    place(backbone, &signed.addresses, is_secure)
}

/// A peer at those of its addresses that a browser can dial.
fn place(peer: PeerId, addresses: &[Vec<u8>], is_secure: bool) -> Option<Place> {
    let addresses = addresses.iter().filter_map(|bytes| Multiaddr::try_from(bytes.clone()).ok());
    let addresses = addresses.filter_map(|address| address.with_p2p(peer).ok());
    let listed: Vec<String> = addresses.map(|address| address.to_string()).collect();
    let (peer, ways) = dialable(&listed, is_secure).ok()?;
    Some(Place { peer, ways })
}

async fn open(mut control: libp2p_stream::Control, peer: PeerId) -> Result<libp2p::Stream, String> {
    control.open_stream(peer, StreamProtocol::new(PROTOCOL)).await.map_err(|error| error.to_string())
}

/// Gives up after a while.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let timer = std::pin::pin!(gloo::timers::future::sleep(limit));
    match select(std::pin::pin!(work), timer).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err(format!("no answer within {limit:?}")),
    }
}

#[cfg(feature = "tests")]
mod tests {
    use libp2p::identity::Keypair;
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    fn somebody() -> Place {
        let peer = Keypair::generate_ed25519().public().to_peer_id();
        place(peer, &[websocket()], false).unwrap()
    }

    fn websocket() -> Vec<u8> {
        "/ip4/192.0.2.1/tcp/4001/ws".parse::<Multiaddr>().unwrap().to_vec()
    }

    #[wasm_bindgen_test]
    fn the_old_place_and_each_peer_of_the_dht_are_tried_in_turn() {
        let (backbone, contacts) = (somebody(), [somebody(), somebody()]);
        let mut known = Known::new("run".into(), backbone.clone(), None);
        for _ in 0..3 {
            assert!(matches!(known.next_attempt(), Attempt::Again(place) if place.peer == backbone.peer));
        }
        known = Known::new("run".into(), backbone.clone(), None);
        known.contacts = contacts.to_vec();
        let mut asked = Vec::new();
        for _ in 0..4 {
            assert!(matches!(known.next_attempt(), Attempt::Again(_)));
            let Attempt::Ask { contact, wanted } = known.next_attempt() else { panic!("nobody is asked") };
            assert_eq!(wanted, backbone.peer);
            asked.push(contact.peer);
        }
        let [one, two] = contacts.map(|contact| contact.peer);
        assert_eq!(asked, [one, two, one, two]);
    }

    #[wasm_bindgen_test]
    fn peers_of_another_run_are_forgotten() {
        let mut known = Known::new("run".into(), somebody(), None);
        known.contacts = vec![somebody()];
        known.next_attempt();
        let same = Known::new("run".into(), somebody(), Some(known.clone()));
        assert_eq!((same.contacts.len(), same.n_attempts), (1, 0));
        assert!(Known::new("other".into(), somebody(), Some(known)).contacts.is_empty());
    }

    #[wasm_bindgen_test]
    fn a_peer_without_an_address_for_browsers_is_no_place() {
        let peer = PeerId::random();
        let native = "/ip4/192.0.2.1/tcp/4001".parse::<Multiaddr>().unwrap().to_vec();
        assert!(place(peer, &[native.clone(), vec![255]], false).is_none());
        assert_eq!(place(peer, &[native, websocket()], false).unwrap().peer, peer);
        // An address that names somebody else is not theirs.
        let theirs = Multiaddr::try_from(websocket()).unwrap().with_p2p(PeerId::random()).unwrap();
        assert!(place(peer, &[theirs.to_vec()], false).is_none());
        assert!(place(peer, &[websocket()], true).is_none(), "a page that came encrypted");
    }

    #[wasm_bindgen_test]
    async fn waiting_ends() {
        let never = std::future::pending::<Result<(), String>>();
        let ended = within(Duration::from_millis(20), never).await.unwrap_err();
        assert!(ended.starts_with("no answer within"), "{ended}");
        assert_eq!(within(Duration::from_secs(60), async { Ok(1) }).await, Ok(1));
    }
}
