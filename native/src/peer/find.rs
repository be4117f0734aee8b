//! Finds the backbone of a run through any peer of the DHT.
//!
//! Any peer may claim there to be a backbone of a run; [`super::claim`] decides which claim is accepted.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use barnraise_contributor::race;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::backbone::{self, BackboneAnnouncement};
use barnraise_protocol::dht::progress::{self, BackboneProgress};
use barnraise_protocol::dht::{self, DhtError, Freshness, PROTOCOL, Record, RecordKey, UnixMillis};
use barnraise_protocol::{ConversationError, run};
use barnraise_relay::{Node, NodeError};
use barnraise_swarm::dht::StorageLimits;
use futures::future::join_all;
use libp2p::{Multiaddr, PeerId};

use super::address;
use super::args::RunName;
use super::choice;
use super::claim::{self, ClaimError, RunClaim};

/// Timeout of the whole search: the DHT peer waits for requests of its own.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of one candidate, from the first dial to its run description.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Candidates that are asked for their run description, at most.
const CANDIDATES_MAX: usize = 16;
/// Delay before the next address is dialled as well.
const HEAD_START: Duration = Duration::from_millis(500);

/// Why no backbone was found.
#[derive(Debug, thiserror::Error)]
pub(super) enum FindError {
    /// The DHT peer cannot be reached.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// It does not answer as a DHT peer does.
    #[error("{peer} was asked for the run `{run_id}`: {source}")]
    Ask { peer: PeerId, run_id: String, source: DhtError },
    /// It does not answer at all.
    #[error("{peer} was asked for the run `{run_id}` and did not answer within {SEARCH_TIMEOUT:?}")]
    Timeout { peer: PeerId, run_id: String },
    /// The DHT has no backbone of the run with an address that a native peer can dial.
    #[error(
        "no backbone of the run `{run_id}` is known to {asked} and the peers of its DHT: check the run's id, and that \
         its backbone is up and has a peer of this DHT in its `network.dht_peers`"
    )]
    Nobody { run_id: String, asked: PeerId },
    /// The DHT has backbones of the run, but not the wanted authority.
    #[error(
        "the authority {authority} of the run `{run_id}` is not known; {n_others} others say that they serve it"
    )]
    NotTheAuthority { run_id: String, authority: PublicKey, n_others: usize },
    /// None of them can be reached, or none serves the run.
    #[error("no backbone of the run `{run_id}` answers: {}", joined(failures))]
    NoneAnswers { run_id: String, failures: Vec<CandidateFailure> },
    /// Their claims contradict each other, or the wanted authority.
    #[error(transparent)]
    Claims(#[from] ClaimError),
}

/// A backbone that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{peer}: {source}")]
pub(super) struct CandidateFailure {
    peer: PeerId,
    source: CandidateError,
}

/// Why a backbone cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CandidateError {
    /// It cannot be dialled.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// There is no stream.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// It does not describe its run.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// It does not answer.
    #[error("no answer within {DESCRIBE_TIMEOUT:?}")]
    Timeout,
    /// It serves another run.
    #[error("it serves the run `{run_id}`")]
    OtherRun { run_id: String },
}

/// None of the addresses can be dialled; the error of each.
#[derive(Debug, thiserror::Error)]
#[error("{}", joined(.0))]
pub(super) struct DialError(Vec<NodeError>);

fn joined<T: ToString>(errors: &[T]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl FindError {
    /// Whether the user has to name the run more precisely. Backbones that are missing now may be up later.
    pub(super) fn is_mistake(&self) -> bool {
        matches!(self, Self::Claims(_))
    }
}

/// A peer with a signed record that it is a backbone of the run.
struct BackboneCandidate {
    key: PublicKey,
    peer: PeerId,
    addresses: Vec<Multiaddr>,
}

/// Searches the backbones of a run through `asked`, a DHT peer that `node` is connected to, and connects `node` to one of
/// them. Returns the backbone and its claim.
///
/// - `run.authority`: if given, only the authority, the aggregators that it names, and in a run without a server the
///   participants that have the description that it signed are taken
/// - `before`: the previous backbone, the only candidate while the DHT has its record. Its journal may have a contribution
///   whose answer was lost, and another backbone would count that contribution again. Records expire after minutes, and
///   by then the epoch of such a contribution is over
pub(super) async fn backbone(
    node: &Node,
    asked: PeerId,
    run: &RunName,
    before: Option<PeerId>,
) -> Result<(PeerId, RunClaim), FindError> {
    let run_id = || run.id.clone();
    let DhtRunRecords { mut candidates, said } = known(node, asked, &run.id).await?;
    if candidates.is_empty() {
        return Err(FindError::Nobody { run_id: run_id(), asked });
    }
    // The previous backbone was proven to be named by a known authority, which may be down by now.
    let was_named = |candidate: &BackboneCandidate| run.authority.is_some() && before == Some(candidate.peer);
    let is_named = |candidate: &BackboneCandidate, authority: PublicKey| {
        let names =
            |said: &BackboneProgress| said.peer == authority && said.aggregators.contains(&candidate.key);
        was_named(candidate) || said.iter().any(names)
    };
    let is_of = |candidate: &BackboneCandidate, authority: PublicKey| {
        candidate.key == authority || is_named(candidate, authority)
    };
    let (mut named, mut others): (Vec<BackboneCandidate>, Vec<BackboneCandidate>) = match run.authority {
        Some(authority) => candidates.drain(..).partition(|candidate| is_of(candidate, authority)),
        None => (candidates, Vec::new()),
    };
    if before.is_some_and(|before| named.iter().any(|candidate| candidate.peer == before)) {
        named.retain(|candidate| Some(candidate.peer) == before);
        others.clear();
    }
    let mut claims = Claims::default();
    claims.ask(node, &run.id, (&named, &is_named)).await;
    // Participants of a run without a server are as good, once none of those answers. They are seen when they have described it.
    let n_others = others.len();
    if let Some(authority) = run.authority.filter(|_| claims.made.is_empty()) {
        claims.ask(node, &run.id, (&others, &is_named)).await;
        let is_wanted = |claim: &RunClaim| claim.is_proven() && claim.authority == authority;
        claims.made.retain(is_wanted);
        if claims.made.is_empty() && named.is_empty() {
            return Err(FindError::NotTheAuthority { run_id: run_id(), authority, n_others });
        }
    } else if let Some(authority) = run.authority.filter(|_| n_others > 0) {
        tracing::warn!(n_others, %authority, "backbones that the run's authority does not name are skipped");
    }
    let Claims { made: mut claims, failures } = claims;
    if claims.is_empty() {
        return Err(FindError::NoneAnswers { run_id: run_id(), failures });
    }
    prefer(&mut claims, &said, &node.peer_id().to_bytes());
    let believed = claim::believed(&run.id, run.authority, &claims)?;
    let chosen = named.iter().chain(&others).find(|candidate| candidate.key == believed.peer);
    let chosen = chosen.ok_or_else(|| FindError::Nobody { run_id: run_id(), asked })?;
    if let Some(said) = said.iter().find(|said| said.peer == believed.peer) {
        let (epoch, n_contributors) = (said.progress.epoch, said.progress.n_contributors);
        tracing::info!(peer = %chosen.peer, epoch, n_contributors, "this backbone was chosen");
    }
    Ok((chosen.peer, believed))
}

/// What candidates claim.
#[derive(Default)]
struct Claims {
    made: Vec<RunClaim>,
    failures: Vec<CandidateFailure>,
}

impl Claims {
    /// Has some candidates describe their run.
    async fn ask(
        &mut self,
        node: &Node,
        run_id: &str,
        (candidates, is_named): (&[BackboneCandidate], &impl Fn(&BackboneCandidate, PublicKey) -> bool),
    ) {
        let candidates = &candidates[..candidates.len().min(CANDIDATES_MAX)];
        let described = join_all(candidates.iter().map(|candidate| describe(node, candidate))).await;
        for (candidate, described) in candidates.iter().zip(described) {
            let source = match described {
                Ok(described) if described.run.identity.run_id == run_id => {
                    let authority = described.run.access.authority;
                    self.made.push(RunClaim {
                        peer: candidate.key,
                        authority,
                        is_named: is_named(candidate, authority),
                        is_signed: described.run.sampled().is_some() && described.is_signed(),
                    });
                    continue;
                }
                Ok(described) => CandidateError::OtherRun { run_id: described.run.identity.run_id },
                Err(source) => source,
            };
            self.failures.push(CandidateFailure { peer: candidate.peer, source });
        }
    }
}

/// Orders the claims of backbones by preference; those of participants follow in their order, and then other claims. What participants
/// say of their progress counts for nothing: anybody may be one.
fn prefer(claims: &mut Vec<RunClaim>, said: &[BackboneProgress], asking: &[u8]) {
    let (backbones, mut others): (Vec<RunClaim>, Vec<RunClaim>) =
        claims.iter().partition(|claim| claim.is_of_backbone());
    others.sort_by_key(|claim| !claim.is_proven());
    let mut keys: Vec<PublicKey> = backbones.iter().map(|claim| claim.peer).collect();
    choice::order(&mut keys, said, asking);
    let ordered = keys.iter().filter_map(|key| backbones.iter().find(|claim| claim.peer == *key));
    *claims = ordered.copied().chain(others).collect();
}

/// Whether what a peer describes is the wanted run: one that was found by its name may describe another one the next time.
pub(super) fn is_wanted(wanted: &RunName, peer: PeerId, described: &run::SignedRun) -> bool {
    let is_authority = PublicKey::of_peer_id(&peer.to_bytes()) == Some(described.run.access.authority);
    wanted.is_of(&described.run) && (wanted.authority.is_none() || is_authority || described.is_signed())
}

/// Connects to a candidate and fetches its run description; the connection stays.
async fn describe(node: &Node, candidate: &BackboneCandidate) -> Result<run::SignedRun, CandidateError> {
    let describing = async {
        dial_any(node, candidate.addresses.clone()).await?;
        let mut stream = node.open(candidate.peer, run::PROTOCOL).await?;
        Ok(run::describe_signed(&mut stream).await?)
    };
    let described = tokio::time::timeout(DESCRIBE_TIMEOUT, describing).await;
    described.unwrap_or(Err(CandidateError::Timeout))
}

/// The records of a run in the DHT.
struct DhtRunRecords {
    /// Backbones with addresses that a native peer can dial.
    candidates: Vec<BackboneCandidate>,
    /// Their progress records.
    said: Vec<BackboneProgress>,
}

async fn known(node: &Node, peer: PeerId, run_id: &str) -> Result<DhtRunRecords, FindError> {
    let [candidates, said] = ask(node, peer, run_id, [backbone::key(run_id), progress::key(run_id)]).await?;
    Ok(DhtRunRecords {
        candidates: candidates.iter().filter_map(BackboneAnnouncement::read).filter_map(candidate).collect(),
        said: said.iter().filter_map(BackboneProgress::read).collect(),
    })
}

/// The progress records of a run, searched through `asked`, a DHT peer that `node` is connected to.
pub(super) async fn progress_of(
    node: &Node,
    asked: PeerId,
    run_id: &str,
) -> Result<Vec<BackboneProgress>, FindError> {
    let [said] = ask(node, asked, run_id, [progress::key(run_id)]).await?;
    Ok(said.iter().filter_map(BackboneProgress::read).collect())
}

/// The time of this machine's clock, which expiry times are compared with.
pub(super) fn now() -> UnixMillis {
    UnixMillis(0).after(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The newest records under each of these keys.
async fn ask<const N: usize>(
    node: &Node,
    peer: PeerId,
    run_id: &str,
    keys: [RecordKey; N],
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
    // Keys that did not fit into the answer have no records here.
    let mut records = records.into_iter();
    Ok(std::array::from_fn(|_| records.next().unwrap_or_default()))
}

/// The addresses of a backbone that end with the id of the key that signed them.
fn candidate(backbone: BackboneAnnouncement) -> Option<BackboneCandidate> {
    let peer = PeerId::from_bytes(&backbone.peer.to_peer_id()).ok()?;
    let addresses = backbone.addresses.into_iter().filter_map(|bytes| Multiaddr::try_from(bytes).ok());
    let addresses = addresses.filter_map(|address| address.with_p2p(peer).ok());
    let listed: Vec<String> = addresses.map(|address| address.to_string()).collect();
    let addresses = address::to_dial(&listed);
    (!addresses.is_empty()).then_some(BackboneCandidate { key: backbone.peer, peer, addresses })
}

/// Dials the addresses in turn, each with a head start, and returns the first peer that answers.
pub(super) async fn dial_any(node: &Node, addresses: Vec<Multiaddr>) -> Result<PeerId, DialError> {
    let dials = addresses.into_iter().map(|address| node.dial(address));
    match race(dials, || tokio::time::sleep(HEAD_START)).await {
        Ok((_, peer)) => Ok(peer),
        Err(failures) => Err(DialError(failures)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::KeyPair;
    use libp2p::identity::Keypair;

    use super::*;
    use crate::fixture;

    #[test]
    fn what_a_peer_describes_has_to_be_the_wanted_run_each_time() {
        let (authority, other) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
        let participant = Keypair::generate_ed25519().public().to_peer_id();
        let of = |key: &KeyPair| PeerId::from_bytes(&key.public().to_peer_id()).unwrap();
        let mut run = fixture::run();
        run.access.authority = authority.public();
        let named = |authority| RunName { id: run.identity.run_id.clone(), authority };
        let wanted = named(Some(authority.public()));
        let signed = run::SignedRun::by(&authority, run.clone()).unwrap();
        let unsigned = run::SignedRun { run: run.clone(), signature: None };

        assert!(is_wanted(&wanted, participant, &signed));
        assert!(is_wanted(&wanted, of(&authority), &unsigned), "its key proves it");
        assert!(!is_wanted(&wanted, participant, &unsigned));
        assert!(is_wanted(&named(None), participant, &unsigned), "nobody was named");
        let mut changed = signed.clone();
        changed.run.data.manifest.name.push('!');
        assert!(!is_wanted(&wanted, participant, &changed));
        assert!(!is_wanted(&named(Some(other.public())), participant, &signed));
        // A run of one's own under the same id.
        let mut own = run.clone();
        own.access.authority = other.public();
        let own = run::SignedRun::by(&other, own).unwrap();
        assert!(own.is_signed() && !is_wanted(&wanted, of(&other), &own));
        let another = RunName { id: "another".into(), ..wanted };
        assert!(!is_wanted(&another, participant, &signed));
    }
}
