//! Finds the backbone of a run through any peer of the DHT.
//!
//! Anybody may say there that they are a backbone of a run: who is believed, [`super::claim`] decides.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use barnraise_contributor::race;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::backbone::{self, Backbone};
use barnraise_protocol::dht::progress::{self, BackboneProgress};
use barnraise_protocol::dht::{self, DhtError, Freshness, Key, PROTOCOL, Record, UnixMillis};
use barnraise_protocol::run;
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::dht::StorageLimits;
use futures::future::join_all;
use libp2p::{Multiaddr, PeerId};

use super::address;
use super::choice;
use super::claim::{self, Claim, ClaimError};
use crate::cli::RunName;

/// The whole search: the asked peer has requests of its own to wait for.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);
/// One place, from the first dial to its description.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most places that are asked what they serve.
const PLACES_MAX: usize = 16;
/// How long an address may take before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(500);

/// Why no backbone was found.
#[derive(Debug, thiserror::Error)]
pub(super) enum FindError {
    /// The peer that was given cannot be asked.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// It does not answer as a peer of the DHT does.
    #[error("{peer} was asked for the run `{run_id}`: {source}")]
    Ask { peer: PeerId, run_id: String, source: DhtError },
    /// It does not answer at all.
    #[error("{peer} was asked for the run `{run_id}` and did not answer within {SEARCH_TIMEOUT:?}")]
    Timeout { peer: PeerId, run_id: String },
    /// Nobody says that they are a backbone of the run, or none listens in a way that can be dialled.
    #[error("nobody is known as a backbone of the run `{run_id}`")]
    Nobody { run_id: String },
    /// Some say so, and the one that is wanted is not among them.
    #[error(
        "the authority {authority} of the run `{run_id}` is not known; {n_others} others say that they serve it"
    )]
    NotTheAuthority { run_id: String, authority: PublicKey, n_others: usize },
    /// None of them can be reached, or none serves the run.
    #[error("no backbone of the run `{run_id}` answers: {reasons}")]
    NoneAnswers { run_id: String, reasons: String },
    /// They are not of one run.
    #[error(transparent)]
    Claims(#[from] ClaimError),
}

impl FindError {
    /// Whether somebody has to say which run is meant. Whoever is not there now may be there later.
    pub(super) fn is_mistake(&self) -> bool {
        matches!(self, Self::Claims(_))
    }
}

/// A peer that says it is a backbone of the run, and signed that with its key.
struct Place {
    key: PublicKey,
    peer: PeerId,
    addresses: Vec<Multiaddr>,
}

/// Connects `node` with a backbone of the run, as `asked`, which it is connected with, finds them. Returns the
/// backbone and what it says of itself.
///
/// - `run.authority`: where it is known, nobody is dialled but the authority and those that it names: that somebody
///   else follows it is nothing that they could prove
/// - `before`: the backbone of the last time, the only one that will do as long as the DHT knows where it is. What was
///   offered to it and not answered may be in its journal, and another one would count that once more; by the time that
///   it is forgotten, minutes later, such an offer is of an epoch that is over
pub(super) async fn backbone(
    node: &Node,
    asked: PeerId,
    run: &RunName,
    before: Option<PeerId>,
) -> Result<(PeerId, Claim), FindError> {
    let run_id = || run.id.clone();
    let Known { mut places, said } = known(node, asked, &run.id).await?;
    if places.is_empty() {
        return Err(FindError::Nobody { run_id: run_id() });
    }
    // With an authority that is known the last one was proven to be named by it, which may be away by now.
    let was_named = |place: &Place| run.authority.is_some() && before == Some(place.peer);
    let is_named = |place: &Place, authority: PublicKey| {
        let names = |said: &BackboneProgress| said.peer == authority && said.aggregators.contains(&place.key);
        was_named(place) || said.iter().any(names)
    };
    if let Some(authority) = run.authority {
        let n_places = places.len();
        places.retain(|place| place.key == authority || is_named(place, authority));
        let n_others = n_places - places.len();
        if places.is_empty() {
            return Err(FindError::NotTheAuthority { run_id: run_id(), authority, n_others });
        }
        if n_others > 0 {
            tracing::warn!(n_others, %authority, "places of the run that are not the authority's are skipped");
        }
    }
    if before.is_some_and(|before| places.iter().any(|place| place.peer == before)) {
        places.retain(|place| Some(place.peer) == before);
    }
    places.truncate(PLACES_MAX);
    let (mut claims, mut reasons) = (Vec::new(), Vec::new());
    for (place, described) in places.iter().zip(join_all(places.iter().map(|it| describe(node, it))).await) {
        match described {
            Ok(described) if described.run_id == run.id => {
                let authority = described.access.authority;
                claims.push(Claim { peer: place.key, authority, is_named: is_named(place, authority) });
            }
            Ok(described) => reasons.push(format!("{} serves the run `{}`", place.peer, described.run_id)),
            Err(reason) => reasons.push(format!("{}: {reason}", place.peer)),
        }
    }
    if claims.is_empty() {
        return Err(FindError::NoneAnswers { run_id: run_id(), reasons: reasons.join("; ") });
    }
    prefer(&mut claims, &said, &node.peer_id().to_bytes());
    let believed = claim::believed(&run.id, run.authority, &claims)?;
    let chosen = places.iter().find(|place| place.key == believed.peer);
    let chosen = chosen.ok_or_else(|| FindError::Nobody { run_id: run_id() })?;
    if let Some(said) = said.iter().find(|said| said.peer == believed.peer) {
        let (epoch, n_contributors) = (said.progress.epoch, said.progress.n_contributors);
        tracing::info!(peer = %chosen.peer, epoch, n_contributors, "this backbone was chosen");
    }
    Ok((chosen.peer, believed))
}

/// The best choice first, of those who are proven to be of one run; others after them, as they came.
fn prefer(claims: &mut Vec<Claim>, said: &[BackboneProgress], asking: &[u8]) {
    let (proven, others): (Vec<Claim>, Vec<Claim>) = claims.iter().partition(|claim| claim.is_proven());
    let mut keys: Vec<PublicKey> = proven.iter().map(|claim| claim.peer).collect();
    choice::order(&mut keys, said, asking);
    let ordered = keys.iter().filter_map(|key| proven.iter().find(|claim| claim.peer == *key));
    *claims = ordered.copied().chain(others).collect();
}

/// What a place says that it serves; the connection stays.
async fn describe(node: &Node, place: &Place) -> Result<run::RunDescription, String> {
    let describing = async {
        dial_any(node, place.addresses.clone()).await?;
        let stream = node.open(place.peer, run::PROTOCOL).await;
        let mut stream = stream.map_err(|error| error.to_string())?;
        run::describe(&mut stream).await.map_err(|error| error.to_string())
    };
    let described = tokio::time::timeout(DESCRIBE_TIMEOUT, describing).await;
    described.unwrap_or_else(|_| Err(format!("no answer within {DESCRIBE_TIMEOUT:?}")))
}

/// What the DHT has of a run.
struct Known {
    /// Of backbones, each with addresses that can be dialled.
    places: Vec<Place>,
    /// How they stand, as they say.
    said: Vec<BackboneProgress>,
}

async fn known(node: &Node, peer: PeerId, run_id: &str) -> Result<Known, FindError> {
    let [places, said] = ask(node, peer, run_id, [backbone::key(run_id), progress::key(run_id)]).await?;
    Ok(Known {
        places: places.iter().filter_map(Backbone::read).filter_map(place).collect(),
        said: said.iter().filter_map(BackboneProgress::read).collect(),
    })
}

/// How the backbones of a run stand, as `asked`, which `node` is connected with, finds what they say of themselves.
pub(super) async fn progress_of(
    node: &Node,
    asked: PeerId,
    run_id: &str,
) -> Result<Vec<BackboneProgress>, FindError> {
    let [said] = ask(node, asked, run_id, [progress::key(run_id)]).await?;
    Ok(said.iter().filter_map(BackboneProgress::read).collect())
}

/// By the clock of this machine, which what expired is compared with.
pub(super) fn now() -> UnixMillis {
    UnixMillis(0).after(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// What is kept under each of these keys.
async fn ask<const N: usize>(
    node: &Node,
    peer: PeerId,
    run_id: &str,
    keys: [Key; N],
) -> Result<[Vec<Record>; N], FindError> {
    let run_id = run_id.to_owned();
    let mut stream = node.open(peer, PROTOCOL).await?;
    let lifetime_max = StorageLimits::default().lifetime_max;
    let asking = dht::get(&mut stream, keys.to_vec(), Freshness::Newest, now(), lifetime_max);
    let records = match tokio::time::timeout(SEARCH_TIMEOUT, asking).await {
        Ok(Ok(records)) => records,
        Ok(Err(source)) => return Err(FindError::Ask { peer, run_id, source }),
        Err(_) => return Err(FindError::Timeout { peer, run_id }),
    };
    // Of keys that did not fit into one answer nothing is known.
    let mut records = records.into_iter();
    Ok(std::array::from_fn(|_| records.next().unwrap_or_default()))
}

/// The addresses of a backbone that end with the id of the key that signed them.
fn place(backbone: Backbone) -> Option<Place> {
    let peer = PeerId::from_bytes(&backbone.peer.to_peer_id()).ok()?;
    let addresses = backbone.addresses.into_iter().filter_map(|bytes| Multiaddr::try_from(bytes).ok());
    let addresses = addresses.filter_map(|address| address.with_p2p(peer).ok());
    let listed: Vec<String> = addresses.map(|address| address.to_string()).collect();
    let addresses = address::to_dial(&listed);
    (!addresses.is_empty()).then_some(Place { key: backbone.peer, peer, addresses })
}

/// Whoever answers first at one of the addresses.
pub(super) async fn dial_any(node: &Node, addresses: Vec<Multiaddr>) -> Result<PeerId, String> {
    let dials = addresses.into_iter().map(|address| node.dial(address));
    match race(dials, || tokio::time::sleep(HEAD_START)).await {
        Ok((_, peer)) => Ok(peer),
        Err(failures) => {
            let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
            Err(failures.join("; "))
        }
    }
}
