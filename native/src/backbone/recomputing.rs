//! Contributions of this backbone that are computed once more, beside training; and evidence, given to whoever asks and
//! looked for at the other backbones of the run.
//!
//! Nobody is convicted on somebody's word: what others have is computed once more here, too.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use barnraise_learning::{ComputeDevice, ModelError};
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::account::{self, Account, LATE_EPOCHS_MAX};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::evidence::{self, Answer, Evidence, EvidenceHeader, PROTOCOL, Request};
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::{ConversationError, Sha256Hash};
use barnraise_relay::{Node, NodeError, Paced};
use barnraise_swarm::PeerKey;
use barnraise_swarm::guard::PaceLimits;
use barnraise_swarm::recomputation::Selection;
use libp2p::{PeerId, Stream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::learner::PublishedState;
use super::metrics::Metrics;
use crate::access::Access;
use crate::access::store::Whose;
use crate::config::RecomputationSection;
use crate::contributions::Store;
use crate::data::shards::ShardStore;
use crate::recomputation::{EvidenceStore, EvidenceStoreError, Recomputer};

/// Contributions that may wait for the device; what is chosen while they do is let pass.
const JOBS_MAX: usize = 4;
/// Evidence of others that may wait until no contribution does.
const THEIRS_MAX: usize = 1;
/// Pieces of others' evidence that are remembered to have been looked at.
const SEEN_MAX: usize = 1024;
/// Parameters that contributions may be of: those of now, those of the epoch before where updates are delayed, and those
/// of the epochs before that where work may come late.
const STATES_MAX: usize = 2 + LATE_EPOCHS_MAX as usize;
/// How often the others are asked for evidence.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How slowly it may come.
const PACE: PaceLimits = PaceLimits {
    first_message: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    message: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    bytes_per_second_min: 1024,
};

/// What takes it.
pub(super) struct World {
    /// The run.
    pub description: Arc<RunDescription>,
    /// Its data.
    pub shards: Arc<ShardStore>,
    /// Its parameters.
    pub state: watch::Receiver<PublishedState>,
    /// Keeps the convicted out.
    pub access: Access,
    /// Keeps them off the leaderboard.
    pub store: Store,
    /// Where evidence is kept.
    pub evidence: EvidenceStore,
    /// Counts.
    pub metrics: Metrics,
}

/// Chooses contributions, and hands them to the device. Cheap to clone.
#[derive(Clone)]
pub(super) struct Recomputing {
    description: Arc<RunDescription>,
    run: Sha256Hash,
    selection: Arc<Mutex<Selection>>,
    states: Arc<Mutex<VecDeque<PublishedState>>>,
    state: watch::Receiver<PublishedState>,
    jobs: mpsc::Sender<Box<Evidence>>,
    theirs: mpsc::Sender<Box<Evidence>>,
}

/// A contribution whose account was believed so far.
pub(super) struct Accounted {
    peer: PublicKey,
    account: Account,
    state: PublishedState,
}

/// A contribution that will be computed once more, once its peer has said what it is of.
pub(super) struct Chosen(Accounted);

impl Recomputing {
    /// Starts to compute on `device` what is chosen, until `shutdown`.
    ///
    /// # Errors
    /// A model that the device does not have, no random bytes, or a store that cannot be read.
    pub(super) async fn start(
        section: RecomputationSection,
        world: World,
        device: ComputeDevice,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
        let (jobs, own) = mpsc::channel(JOBS_MAX);
        let (theirs, of_others) = mpsc::channel(THEIRS_MAX);
        let recomputing = Self {
            run: account::hash_of(&world.description)?,
            description: world.description.clone(),
            selection: Arc::new(Mutex::new(Selection::new(section.share, secret))),
            states: Arc::default(),
            state: world.state.clone(),
            jobs,
            theirs,
        };
        tokio::spawn({
            let (recomputing, mut state) = (recomputing.clone(), world.state.clone());
            async move {
                while state.changed().await.is_ok() {
                    recomputing.note_state();
                }
            }
        });
        recomputing.note_state();
        let recomputer = Recomputer::new(&world.description, device.clone(), section.tolerance)?;
        let anew = move |run: &RunDescription| Recomputer::new(run, device.clone(), section.tolerance);
        let working = work(world, recomputer, anew, own, of_others);
        tokio::spawn(async move { shutdown.run_until_cancelled(working).await });
        Ok(recomputing)
    }

    /// Before anything is offered for them, and as they change: what a slow contributor used must still be known.
    fn note_state(&self) {
        let newest = self.state.borrow().clone();
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let sha256 = newest.header.transfer.sha256;
        if states.back().is_none_or(|known| known.header.transfer.sha256 != sha256) {
            states.push_back(newest);
        }
        if states.len() > STATES_MAX {
            states.pop_front();
        }
    }

    /// Whether an offer comes with an account that its peer signed, of parameters that the run had.
    ///
    /// # Errors
    /// What is wrong, for the peer.
    pub(super) fn check(
        &self,
        peer: &PeerKey,
        offer: &Offer,
        account: Option<Account>,
    ) -> Result<Accounted, String> {
        self.note_state();
        if self.selection().is_evasive(peer) {
            return Err(
                "this peer was asked several times what its contributions are of, and did not say".into()
            );
        }
        let account =
            account.ok_or("in this run each contribution comes with a signed account of its samples")?;
        let peer = PublicKey::of_peer_id(&peer.0).ok_or("a peer with an Ed25519 key is wanted")?;
        account.verify(peer, self.run, offer).map_err(|error| error.to_string())?;
        if !account.allows(&self.description, offer) {
            return Err(format!(
                "the account is of {} samples and the parameters of epoch {}: {} do not count for that in epoch {}",
                account.n_samples, account.parameters_epoch, offer.n_samples, offer.epoch
            ));
        }
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.iter().rev().find(|state| {
            let header = &state.header;
            (header.epoch, header.transfer.sha256) == (account.parameters_epoch, account.parameters)
        });
        let state = state.cloned().ok_or_else(|| {
            format!("the account is of parameters that epoch {} did not have", account.parameters_epoch)
        })?;
        Ok(Accounted { peer, account, state })
    }

    /// Whether it is to be computed once more. All of the contribution is here by now.
    pub(super) fn choose(&self, peer: &PeerKey, offer: &Offer, accounted: Accounted) -> Option<Chosen> {
        self.selection().chooses(peer, offer).then_some(Chosen(accounted))
    }

    fn selection(&self) -> MutexGuard<'_, Selection> {
        self.selection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer was asked, and this is its list; or it gave none.
    ///
    /// # Errors
    /// What is wrong with the list, for the peer.
    pub(super) fn on_list(&self, peer: &PeerKey, chosen: &Chosen, list: Option<&[u8]>) -> Result<(), String> {
        let account = &chosen.0.account;
        let read = list.map(|list| account.samples(list, &self.description));
        let mut selection = self.selection();
        match read {
            Some(Ok(_)) => {
                selection.on_account(peer);
                Ok(())
            }
            Some(Err(error)) => {
                selection.on_no_account(peer);
                Err(error.to_string())
            }
            None => {
                selection.on_no_account(peer);
                Err("no list of samples came".to_owned())
            }
        }
    }

    /// The contribution counts: it is computed once more when the device has time.
    pub(super) fn recompute(&self, chosen: Chosen, offer: Offer, list: Vec<u8>, gradient: Vec<u8>) {
        let Chosen(Accounted { peer, account, state }) = chosen;
        let run = RunDescription::clone(&self.description);
        let header = EvidenceHeader { peer, run, offer, account };
        let parameters = state.bytes.to_vec();
        let evidence = Evidence { header, samples: list, gradient, parameters };
        if self.jobs.try_send(Box::new(evidence)).is_err() {
            tracing::debug!(%peer, "the device does not keep up: a contribution is not recomputed");
        }
    }
}

impl Chosen {
    /// The list that is to be pulled.
    pub(super) fn transfer(&self) -> Transfer {
        self.0.account.transfer()
    }
}

/// Computes one after the other, and keeps out whoever contributed something else than it said.
async fn work(
    world: World,
    mut recomputer: Recomputer,
    anew: impl Fn(&RunDescription) -> Result<Recomputer, ModelError>,
    mut own: mpsc::Receiver<Box<Evidence>>,
    mut theirs: mpsc::Receiver<Box<Evidence>>,
) {
    loop {
        // The senders live as long as the streams that fill them.
        let evidence = tokio::select! {
            biased;
            Some(evidence) = own.recv() => evidence,
            Some(evidence) = theirs.recv() => evidence,
            else => return,
        };
        let EvidenceHeader { peer, offer, .. } = &evidence.header;
        let (peer, epoch, id) = (*peer, offer.epoch, offer.contribution_id);
        if world.access.gate.is_convicted(peer) {
            continue;
        }
        let shards = world.shards.clone();
        let shard = async move |index| {
            let bytes = shards.get(ShardId::Train(index)).await;
            bytes.map(|bytes| bytes.to_vec()).map_err(|error| error.to_string())
        };
        // The device may block: on a CPU a pass holds its thread.
        let handle = tokio::runtime::Handle::current();
        let computing = tokio::task::spawn_blocking(move || {
            let difference = handle.block_on(recomputer.recompute(&evidence, shard));
            (recomputer, evidence, difference)
        });
        let (same, evidence, difference) = match computing.await {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%peer, epoch, id, %error, "the recomputation of a contribution failed");
                world.metrics.on_recomputed("unknown");
                match anew(&world.description) {
                    Ok(another) => recomputer = another,
                    Err(error) => {
                        tracing::error!(%error, "nothing is recomputed any more");
                        return;
                    }
                }
                continue;
            }
        };
        recomputer = same;
        match difference {
            Ok(difference) if difference.is_wrong() => {
                world.metrics.on_recomputed("wrong");
                tracing::warn!(
                    %peer, epoch, id, distance = difference.distance, allowed = difference.allowed,
                    "a contribution is not the gradient of its samples: its peer takes no more part"
                );
                if let Err(error) = convict(&world, &evidence).await {
                    tracing::error!(%peer, %error, "the evidence could not be kept");
                }
            }
            Ok(difference) => {
                world.metrics.on_recomputed("same");
                tracing::debug!(%peer, epoch, id, distance = difference.distance, "recomputed");
            }
            Err(error) => {
                world.metrics.on_recomputed("unknown");
                tracing::warn!(%peer, epoch, id, %error, "a contribution could not be recomputed");
            }
        }
    }
}

async fn convict(world: &World, evidence: &Evidence) -> Result<(), EvidenceStoreError> {
    let peer = evidence.header.peer;
    // First what must not wait for a disk.
    world.access.gate.convict(peer, evidence.header.offer.epoch);
    if let Some(authority) = &world.access.authority {
        let revoked = authority.store().revoke(&Whose::Peer(peer), false, authority.now()).await;
        if let Err(error) = revoked {
            tracing::error!(%peer, %error, "the token of a convicted peer could not be revoked");
        }
    }
    if let Err(error) = world.store.convict(peer, evidence.header.offer.epoch).await {
        tracing::error!(%peer, %error, "a convicted peer stays on the leaderboard");
    }
    world.evidence.convict(evidence).await.map(|_| ())
}

/// Gives evidence to whoever asks.
pub(super) async fn give(store: &EvidenceStore, stream: &mut Paced<Stream>) -> Result<(), ConversationError> {
    let pace = stream.pace();
    let lookup = |request: Request| async move {
        match request {
            Request::List => (Answer::Listed(store.listed().await), Vec::new()),
            Request::Get(peer) => match store.get(peer).await {
                Ok(Some((transfer, bytes))) => (Answer::Found(transfer), bytes),
                Ok(None) => (Answer::Refused(format!("there is no evidence against {peer}")), Vec::new()),
                Err(error) => (Answer::Refused(error.to_string()), Vec::new()),
            },
        }
    };
    evidence::serve(stream, lookup, || pace.wait()).await
}

/// Why another backbone's evidence cannot be had.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    #[error("not evidence: {0}")]
    Evidence(#[from] evidence::EvidenceError),
    #[error("evidence of another run, or another model or data")]
    OtherRun,
}

/// Asks `others`, who back the same run, for evidence, time and again; it is computed once more here.
pub(super) async fn ask_others(
    recomputing: Recomputing,
    access: Access,
    node: Node,
    others: Vec<PeerId>,
    shutdown: CancellationToken,
) {
    let mut ticks = tokio::time::interval(ASK_EVERY);
    let mut seen = HashSet::new();
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        for &peer in &others {
            let asking = ask(&recomputing, &access, &node, peer, &mut seen);
            match shutdown.run_until_cancelled(asking).await {
                Some(Ok(())) => {}
                // A link that is down is the aggregators' to mend.
                Some(Err(error)) => tracing::debug!(%peer, %error, "no evidence from an aggregator"),
                None => return,
            }
        }
    }
}

async fn ask(
    recomputing: &Recomputing,
    access: &Access,
    node: &Node,
    peer: PeerId,
    seen: &mut HashSet<Sha256Hash>,
) -> Result<(), AskError> {
    let mut stream = Paced::duplex(node.open(peer, PROTOCOL).await?, PACE);
    let run = &recomputing.description;
    let n_values = run.n_parameters as usize;
    let bytes_max = run::MESSAGE_BYTES_MAX as u64
        + run.gradient_codec.encoded_len(n_values) as u64
        + run.state_codec.encoded_len(n_values) as u64
        + (account::SAMPLE_BYTES as u64 + 1) * u64::from(run.contribution_samples_max);
    for listed in evidence::list(&mut stream).await? {
        let is_known = access.gate.is_convicted(listed.peer) || seen.contains(&listed.transfer.sha256);
        if is_known || seen.len() >= SEEN_MAX {
            continue;
        }
        let bytes = evidence::fetch(&mut stream, listed, bytes_max).await?;
        seen.insert(listed.transfer.sha256);
        let evidence = Box::new(Evidence::decode(&bytes)?);
        if !is_same(&evidence.header.run, run) || evidence.header.peer != listed.peer {
            return Err(AskError::OtherRun);
        }
        if recomputing.theirs.send(evidence).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether a gradient for the one is a gradient for the other: backbones may differ in what they call it, and in who
/// lets others in.
fn is_same(theirs: &RunDescription, ours: &RunDescription) -> bool {
    let RunDescription { title, purpose, access, .. } = ours.clone();
    RunDescription { title, purpose, access, ..theirs.clone() } == *ours
}
