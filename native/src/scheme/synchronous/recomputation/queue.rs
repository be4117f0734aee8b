//! Recomputation of contributions to this backbone, beside training.
//!
//! A suspicious contribution is never accepted unverified: it waits for its turn, or is refused and may be offered again.
//! One that was drawn at random counts at once and is verified afterwards. The device rests as long as it computed, so
//! that recomputation takes half of its time at most. No peer is convicted by the claim of another backbone: its evidence
//! is recomputed here, too.

mod work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use barnraise_learning::{ComputeDevice, ParameterLayout};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::commitment::{self, Commitment, CommitmentError, SampleId};
use barnraise_protocol::evidence::{ContributionEvidence, EvidenceHeader};
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::run::{RunDescription, run_hash};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::recomputation::{
    FairQueue, PersistentRecomputation, Reason, Selection, TypicalContributions,
};
use barnraise_swarm::{Moment, PeerKey};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::super::metrics::Metrics;
use super::{Recomputer, Standings};
use crate::config::RecomputationSection;
use crate::data::shards::ShardStore;
use crate::host::access::Access;
use crate::host::contributions::Store;
use crate::host::evidence::EvidenceStore;
use crate::host::states::{KeptState, States};
use crate::storage::journal::CommittedSamples;

/// Contributions that may wait for the device, and the bytes of their gradients.
const JOBS_MAX: u64 = 32;
const JOBS_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// Pieces of evidence from other backbones that may wait until no contribution does.
const THEIRS_MAX: usize = 1;

/// Dependencies of the recomputation task.
pub(in super::super) struct RecomputationContext {
    /// The run.
    pub description: Arc<RunDescription>,
    /// Its data.
    pub shards: Arc<ShardStore>,
    /// Its parameters.
    pub states: States,
    /// Refuses convicted peers.
    pub access: Access,
    /// Keeps them off the leaderboard.
    pub store: Store,
    /// Stores evidence.
    pub evidence: EvidenceStore,
    /// Stores which peers passed probation, and which addresses are suspected.
    pub standings: Standings,
    /// Counts.
    pub metrics: Metrics,
}

/// Selects contributions, and queues them for the device. Cheap to clone.
#[derive(Clone)]
pub(in super::super) struct Recomputing {
    pub(super) description: Arc<RunDescription>,
    /// Of its model.
    pub(super) n_parameters: usize,
    run: Sha256Hash,
    started: Instant,
    selection: Arc<Mutex<Selection>>,
    usual: Arc<Mutex<TypicalContributions>>,
    states: States,
    pub(super) shards: Arc<ShardStore>,
    queue: Arc<RecomputationQueue>,
    pub(super) theirs: mpsc::Sender<Box<ContributionEvidence>>,
    standings: Standings,
    metrics: Metrics,
}

/// Contributions that wait for the device.
struct RecomputationQueue {
    jobs: Mutex<FairQueue<Job>>,
    came: Notify,
}

/// A contribution of this backbone that waits to be recomputed.
struct Job {
    header: EvidenceHeader,
    list: Vec<u8>,
    gradient: Vec<u8>,
    state: KeptState,
    /// `None`: it counts already.
    verdict: Option<oneshot::Sender<RecomputationVerdict>>,
}

/// Result of a recomputation.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) enum RecomputationVerdict {
    /// The contribution is the gradient of its samples.
    Right,
    /// It is not: its peer is convicted.
    Wrong,
    /// It could not be verified, with the reason.
    Unknown(String),
}

/// Why a contribution cannot be recomputed, and so does not count.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum CheckError {
    #[error("in this run each contribution comes with a signed commitment to its samples; none came")]
    NoCommitment,
    #[error("a peer with an Ed25519 key is wanted")]
    KeyKind,
    #[error(transparent)]
    Commitment(#[from] CommitmentError),
    #[error(
        "the commitment is to {n_committed} samples and the parameters of epoch {parameters_epoch}: {n_offered} do not \
         count for that in epoch {epoch}"
    )]
    Samples { n_committed: u32, parameters_epoch: u64, n_offered: u32, epoch: u64 },
    #[error("the commitment is to parameters that epoch {epoch} did not have")]
    Parameters { epoch: u64 },
}

/// A contribution whose commitment was verified; it may be recomputed.
pub(in super::super) struct CommittedContribution {
    peer: PublicKey,
    commitment: Commitment,
    state: KeptState,
    /// The samples of its gradient.
    pub samples: Vec<SampleId>,
}

impl CommittedContribution {
    /// The hash of the parameters that it was computed with.
    pub(in super::super) fn parameters(&self) -> Sha256Hash {
        self.commitment.parameters
    }

    /// For the journal; `list` is the encoded list.
    pub(in super::super) fn committed_samples(&self, list: &[u8]) -> CommittedSamples {
        CommittedSamples { commitment: self.commitment.clone(), list: list.to_vec().into() }
    }
}

impl Recomputing {
    /// Returns it with the task that recomputes selected contributions on `device`, until `shutdown`.
    ///
    /// # Errors
    /// A model that the device does not have, no random bytes, or stored standings that cannot be read.
    pub(in super::super) async fn start(
        section: RecomputationSection,
        world: RecomputationContext,
        device: ComputeDevice,
        shutdown: CancellationToken,
    ) -> anyhow::Result<(Self, impl Future<Output = ()> + Send)> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
        let (theirs, of_others) = mpsc::channel(THEIRS_MAX);
        let description = world.description.clone();
        let n_parameters = ParameterLayout::of_run(&description)?.n_parameters();
        let encoding = description.scheme.gradient_codec().encoding();
        let n_bytes = encoding.encoded_len(n_parameters).max(1) as u64;
        let jobs_max = (JOBS_BYTES_MAX / n_bytes).clamp(2, JOBS_MAX) as usize;
        let queue = RecomputationQueue { jobs: Mutex::new(FairQueue::new(jobs_max)), came: Notify::new() };
        let (mut selection, mut usual) =
            (Selection::new(section.share, secret), TypicalContributions::default());
        world.standings.read().await?.restore(Moment::ZERO, &mut selection, &mut usual);
        let recomputing = Self {
            run: run_hash(&description)?,
            description,
            n_parameters,
            started: Instant::now(),
            selection: Arc::new(Mutex::new(selection)),
            usual: Arc::new(Mutex::new(usual)),
            states: world.states.clone(),
            shards: world.shards.clone(),
            queue: Arc::new(queue),
            theirs,
            standings: world.standings.clone(),
            metrics: world.metrics.clone(),
        };
        recomputing.metrics.on_share(section.share, section.share);
        let frozen = world.shards.frozen(&world.description).await.context("the frozen weights")?;
        let anew = move |run: &RunDescription| {
            Recomputer::new(run, frozen.as_ref(), device.clone(), section.tolerance)
        };
        let recomputer = anew(&world.description)?;
        let working = work::work(recomputing.clone(), world, recomputer, anew, of_others);
        let until_shutdown = async move {
            let _ = Box::pin(shutdown.run_until_cancelled_owned(working)).await;
        };
        Ok((recomputing, until_shutdown))
    }

    /// Checks that an offer has a commitment that its peer signed, to parameters that the run had, and its sample list.
    ///
    /// # Errors
    /// What is wrong, for the peer.
    pub(in super::super) fn check(
        &self,
        peer: &PeerKey,
        offer: &Offer,
        (commitment, list): (Option<Commitment>, &[u8]),
    ) -> Result<CommittedContribution, CheckError> {
        let commitment = commitment.ok_or(CheckError::NoCommitment)?;
        let peer = PublicKey::of_peer_id(&peer.0).ok_or(CheckError::KeyKind)?;
        commitment.verify(peer, self.run, offer)?;
        let parameters_epoch = commitment.parameters_epoch;
        if !commitment.allows(&self.description, offer) {
            let (n_committed, n_offered) = (commitment.n_samples, offer.n_samples);
            return Err(CheckError::Samples { n_committed, parameters_epoch, n_offered, epoch: offer.epoch });
        }
        let samples = commitment.samples(list, &self.description.data.manifest)?;
        if let Some(window) = self.shards.window() {
            commitment::check_streamed(list, &window)?;
        }
        let state = self.states.find(parameters_epoch, commitment.parameters);
        let state = state.ok_or(CheckError::Parameters { epoch: parameters_epoch })?;
        Ok(CommittedContribution { peer, commitment, state, samples })
    }

    /// Whether a contribution that is certain to be recomputed finds the queue full: its gradient is not pulled then.
    pub(in super::super) fn is_full_for(&self, peer: &PeerKey, group: AddressGroup, offer: &Offer) -> bool {
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

    /// Why a received contribution is to be recomputed before it counts; `None` where it is not.
    pub(in super::super) fn choose(
        &self,
        peer: &PeerKey,
        group: AddressGroup,
        offer: &Offer,
        norm: f64,
    ) -> Option<Reason> {
        let mut selection = self.selection();
        let chosen = selection.choose(self.started.elapsed(), peer, group, offer);
        let is_usual = || self.usual().is_typical(peer, offer.n_samples, norm);
        // One that was verified is not recomputed again.
        chosen.or_else(|| (!selection.was_verified(peer, offer) && !is_usual()).then_some(Reason::Unusual))
    }

    fn usual(&self) -> MutexGuard<'_, TypicalContributions> {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a contribution that counts only once it was verified. The sender is dropped without a verdict where the queue
    /// has no slot for it.
    pub(in super::super) fn recompute(
        &self,
        group: AddressGroup,
        offer: &Offer,
        accounted: CommittedContribution,
        bytes: (Vec<u8>, Vec<u8>),
    ) -> oneshot::Receiver<RecomputationVerdict> {
        let (verdict, found) = oneshot::channel();
        self.push(group, self.job(offer, accounted, bytes, Some(verdict)));
        found
    }

    /// Queues a contribution that counts meanwhile. Returns whether there was a slot for it.
    pub(in super::super) fn recompute_afterwards(
        &self,
        group: AddressGroup,
        offer: &Offer,
        accounted: CommittedContribution,
        bytes: (Vec<u8>, Vec<u8>),
    ) -> bool {
        self.push(group, self.job(offer, accounted, bytes, None))
    }

    fn job(
        &self,
        offer: &Offer,
        accounted: CommittedContribution,
        (list, gradient): (Vec<u8>, Vec<u8>),
        verdict: Option<oneshot::Sender<RecomputationVerdict>>,
    ) -> Job {
        let CommittedContribution { peer, commitment, state, .. } = accounted;
        let run = RunDescription::clone(&self.description);
        let header = EvidenceHeader { peer, run, offer: offer.clone(), commitment };
        Job { header, list, gradient, state, verdict }
    }

    /// Returns whether the job is queued. One that makes way for it is dropped without a verdict: its contribution is
    /// refused or, where it counts already, its key is on probation again.
    fn push(&self, group: AddressGroup, job: Job) -> bool {
        let (has_room, gave_way, n_waiting) = {
            let mut jobs = self.queue.jobs();
            let has_room = jobs.has_room(group);
            let gave_way = if has_room { jobs.push(group, job) } else { None };
            (has_room, gave_way, jobs.len())
        };
        if let Some(Job { verdict: None, header, .. }) = &gave_way {
            self.selection().on_unverified(&PeerKey(header.peer.to_peer_id()));
        }
        if !has_room || gave_way.is_some() {
            self.metrics.on_recomputed("put_off");
        }
        self.metrics.on_waiting(n_waiting);
        if has_room {
            self.queue.came.notify_one();
        }
        has_room
    }

    /// Stores the standings of keys and addresses for the next start.
    pub(in super::super) async fn keep(&self) {
        let lasting = PersistentRecomputation::of(self.started.elapsed(), &self.selection(), &self.usual());
        if let Err(error) = self.standings.keep(&lasting).await {
            tracing::error!(%error, "the peers that passed probation or are suspected could not be stored");
        }
    }

    fn selection(&self) -> MutexGuard<'_, Selection> {
        self.selection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a verdict, and how long the recomputation took. Returns whether the evidence is kept for other backbones.
    fn on_verdict(
        &self,
        group: AddressGroup,
        header: &EvidenceHeader,
        took: Duration,
        (verdict, length): (&RecomputationVerdict, f64),
        is_counted: bool,
    ) -> bool {
        let now = self.started.elapsed();
        let mut selection = self.selection();
        let is_kept = match verdict {
            RecomputationVerdict::Right => {
                let peer = PeerKey(header.peer.to_peer_id());
                selection.on_verified(now, &peer, group, &header.offer, took);
                self.usual().on_verified(&peer, header.offer.n_samples, length);
                false
            }
            RecomputationVerdict::Wrong => selection.on_convicted(now, group),
            RecomputationVerdict::Unknown(_) => {
                if is_counted {
                    selection.on_unverified(&PeerKey(header.peer.to_peer_id()));
                }
                false
            }
        };
        let (share, wanted) = (selection.share_of_all(now), selection.share());
        drop(selection);
        self.metrics.on_share(share, wanted);
        is_kept
    }
}

impl RecomputationQueue {
    fn jobs(&self) -> MutexGuard<'_, FairQueue<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job.
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
