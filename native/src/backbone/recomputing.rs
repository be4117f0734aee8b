//! Contributions of this backbone that are computed once more before they count, beside training.
//!
//! Nothing that was chosen is let pass: it waits for its turn, or is refused and may be offered again. The device rests
//! as long as it computed, so that recomputing takes half of its time at most. Nobody is convicted on somebody's word:
//! what other backbones have is computed once more here, too.

pub(super) mod exchange;
mod work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use barnraise_learning::ComputeDevice;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::account::{self, Account, SampleId};
use barnraise_protocol::evidence::{Evidence, EvidenceHeader};
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::recomputation::{FairQueue, Lasting, Reason, Selection, Usual};
use barnraise_swarm::robust::norm;
use barnraise_swarm::round::AddressGroup;
use barnraise_swarm::{Moment, PeerKey};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::states::{KeptState, States};
use crate::access::Access;
use crate::config::RecomputationSection;
use crate::contributions::Store;
use crate::data::shards::ShardStore;
use crate::recomputation::{EvidenceStore, Recomputer, Standings};

/// Contributions that may wait for the device, and the bytes of their gradients.
const JOBS_MAX: u64 = 32;
const JOBS_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// Evidence of others that may wait until no contribution does.
const THEIRS_MAX: usize = 1;

/// What takes it.
pub(super) struct World {
    /// The run.
    pub description: Arc<RunDescription>,
    /// Its data.
    pub shards: Arc<ShardStore>,
    /// Its parameters.
    pub states: States,
    /// Keeps the convicted out.
    pub access: Access,
    /// Keeps them off the leaderboard.
    pub store: Store,
    /// Where evidence is kept.
    pub evidence: EvidenceStore,
    /// Where it is kept who passed its probation, and who is suspected.
    pub standings: Standings,
    /// Counts.
    pub metrics: Metrics,
}

/// Chooses contributions, and hands them to the device. Cheap to clone.
#[derive(Clone)]
pub(super) struct Recomputing {
    description: Arc<RunDescription>,
    run: Sha256Hash,
    started: Instant,
    selection: Arc<Mutex<Selection>>,
    usual: Arc<Mutex<Usual>>,
    states: States,
    queue: Arc<Queue>,
    theirs: mpsc::Sender<Box<Evidence>>,
    standings: Standings,
    metrics: Metrics,
}

/// Waits for the device.
struct Queue {
    jobs: Mutex<FairQueue<Job>>,
    came: Notify,
}

/// A contribution of this backbone that waits to be computed once more.
struct Job {
    header: EvidenceHeader,
    list: Vec<u8>,
    gradient: Vec<u8>,
    state: KeptState,
    verdict: oneshot::Sender<Verdict>,
}

/// What came of a contribution that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// It is what its peer said.
    Right,
    /// It is something else: its peer takes no more part.
    Wrong,
    /// Nothing can be said of it, with the reason.
    Unknown(String),
}

/// A contribution whose account was believed so far.
pub(super) struct Accounted {
    peer: PublicKey,
    account: Account,
    state: KeptState,
    /// Of which it is.
    pub samples: Vec<SampleId>,
}

impl Accounted {
    /// The hash of the parameters that it is by.
    pub(super) fn parameters(&self) -> Sha256Hash {
        self.account.parameters
    }
}

impl Recomputing {
    /// Starts to compute on `device` what is chosen, until `shutdown`.
    ///
    /// # Errors
    /// A model that the device does not have, no random bytes, or what was kept of keys and addresses cannot be read.
    pub(super) async fn start(
        section: RecomputationSection,
        world: World,
        device: ComputeDevice,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
        let (theirs, of_others) = mpsc::channel(THEIRS_MAX);
        let description = world.description.clone();
        let n_bytes = description.gradient_codec.encoded_len(description.n_parameters as usize).max(1) as u64;
        let jobs_max = (JOBS_BYTES_MAX / n_bytes).clamp(2, JOBS_MAX) as usize;
        let queue = Queue { jobs: Mutex::new(FairQueue::new(jobs_max)), came: Notify::new() };
        let (mut selection, mut usual) = (Selection::new(section.share, secret), Usual::default());
        world.standings.read().await?.restore(Moment::ZERO, &mut selection, &mut usual);
        let recomputing = Self {
            run: account::hash_of(&description)?,
            description,
            started: Instant::now(),
            selection: Arc::new(Mutex::new(selection)),
            usual: Arc::new(Mutex::new(usual)),
            states: world.states.clone(),
            queue: Arc::new(queue),
            theirs,
            standings: world.standings.clone(),
            metrics: world.metrics.clone(),
        };
        recomputing.metrics.on_share(section.share, section.share);
        let recomputer = Recomputer::new(&world.description, device.clone(), section.tolerance)?;
        let anew = move |run: &RunDescription| Recomputer::new(run, device.clone(), section.tolerance);
        let working = work::work(recomputing.clone(), world, recomputer, anew, of_others);
        tokio::spawn(async move { shutdown.run_until_cancelled(working).await });
        Ok(recomputing)
    }

    /// Whether an offer comes with an account that its peer signed, of parameters that the run had, and with its list.
    ///
    /// # Errors
    /// What is wrong, for the peer.
    pub(super) fn check(
        &self,
        peer: &PeerKey,
        offer: &Offer,
        (account, list): (Option<Account>, &[u8]),
    ) -> Result<Accounted, String> {
        let account = account
            .ok_or("in this run each contribution comes with a signed account of its samples; none came")?;
        let peer = PublicKey::of_peer_id(&peer.0).ok_or("a peer with an Ed25519 key is wanted")?;
        account.verify(peer, self.run, offer).map_err(|error| error.to_string())?;
        if !account.allows(&self.description, offer) {
            return Err(format!(
                "the account is of {} samples and the parameters of epoch {}: {} do not count for that in epoch {}",
                account.n_samples, account.parameters_epoch, offer.n_samples, offer.epoch
            ));
        }
        let samples = account.samples(list, &self.description.manifest).map_err(|error| error.to_string())?;
        let state = self.states.find(account.parameters_epoch, account.parameters).ok_or_else(|| {
            format!("the account is of parameters that epoch {} did not have", account.parameters_epoch)
        })?;
        Ok(Accounted { peer, account, state, samples })
    }

    /// Whether a contribution that would be recomputed in any case has no place to wait for that: nothing of it is pulled
    /// then.
    pub(super) fn is_full_for(&self, peer: &PeerKey, group: AddressGroup, offer: &Offer) -> bool {
        let now = self.started.elapsed();
        let mut selection = self.selection();
        let is_chosen = selection.n_left(peer) > 0 || selection.is_suspected(now, group);
        let is_full = is_chosen
            && selection.choose(now, peer, group, offer).is_some()
            && (!self.queue.jobs().has_room(group) || !selection.may_try(now, group));
        drop(selection);
        if is_full {
            self.metrics.on_recomputed("put_off");
        }
        is_full
    }

    /// Whether it is to be computed once more before it counts. All of the contribution is here by now.
    pub(super) fn choose(
        &self,
        peer: &PeerKey,
        group: AddressGroup,
        offer: &Offer,
        values: &[f32],
    ) -> Option<Reason> {
        let mut selection = self.selection();
        let chosen = selection.choose(self.started.elapsed(), peer, group, offer);
        let is_usual = || self.usual().is_usual(peer, offer.n_samples, norm(values));
        // One that was found right is not looked at again.
        chosen.or_else(|| (!selection.was_right(peer, offer) && !is_usual()).then_some(Reason::Unusual))
    }

    fn usual(&self) -> MutexGuard<'_, Usual> {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a contribution computed once more. Where it has no place to wait, nothing comes of it.
    pub(super) fn recompute(
        &self,
        group: AddressGroup,
        offer: &Offer,
        accounted: Accounted,
        (list, gradient): (Vec<u8>, Vec<u8>),
    ) -> oneshot::Receiver<Verdict> {
        let Accounted { peer, account, state, .. } = accounted;
        let run = RunDescription::clone(&self.description);
        let header = EvidenceHeader { peer, run, offer: offer.clone(), account };
        let (verdict, found) = oneshot::channel();
        let job = Job { header, list, gradient, state, verdict };
        // Whose job gives way finds that nothing comes of it, and is refused.
        let gave_way = self.queue.jobs().push(group, job);
        if gave_way.is_some() {
            self.metrics.on_recomputed("put_off");
        }
        drop(gave_way);
        self.metrics.on_waiting(self.queue.jobs().len());
        self.queue.came.notify_one();
        found
    }

    /// Keeps what was found out about keys and addresses for the next start.
    pub(super) async fn keep(&self) {
        let lasting = Lasting::of(self.started.elapsed(), &self.selection(), &self.usual());
        if let Err(error) = self.standings.keep(&lasting).await {
            tracing::error!(%error, "who passed its probation, and who is suspected, could not be kept");
        }
    }

    fn selection(&self) -> MutexGuard<'_, Selection> {
        self.selection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A contribution was computed once more, which took so long. Whether the evidence, if it is any, is kept for others.
    fn on_verdict(
        &self,
        group: AddressGroup,
        header: &EvidenceHeader,
        took: Duration,
        (verdict, length): (&Verdict, f64),
    ) -> bool {
        let now = self.started.elapsed();
        let mut selection = self.selection();
        let is_kept = match verdict {
            Verdict::Right => {
                let peer = PeerKey(header.peer.to_peer_id());
                selection.on_right(now, &peer, group, &header.offer, took);
                self.usual().on_right(&peer, header.offer.n_samples, length);
                false
            }
            Verdict::Wrong => selection.on_wrong(now, group),
            Verdict::Unknown(_) => false,
        };
        let (share, wanted) = (selection.share_of_all(now), selection.share());
        drop(selection);
        self.metrics.on_share(share, wanted);
        is_kept
    }
}

impl Queue {
    fn jobs(&self) -> MutexGuard<'_, FairQueue<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one, as soon as there is one.
    async fn next(&self) -> (AddressGroup, Job) {
        loop {
            let next = self.jobs().pop();
            if let Some(next) = next {
                return next;
            }
            self.came.notified().await;
        }
    }
}
