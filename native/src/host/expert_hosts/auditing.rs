//! A backbone computes answers of experts once more: those that trainers show it, from the checkpoints that other hosts keep.
//!
//! Which answer is looked at, and what comes of it, is in [`barnraise_swarm::experts::audits`]. One is computed after the other, and the
//! device rests as long as it computed. What is fetched from keepers has a pace, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::{HostedLayer, layer_of};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::bulk::Partial;
use barnraise_protocol::evidence::{AnswerEvidence, AnswerHeader, Evidence};
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::audits::{
    self, AuditError, AuditOffer, AuditRefusal, AuditReply, KeptAnswer,
};
use barnraise_protocol::experts::checkpoints::{self, CheckpointVersion, ExpertCheckpoint};
use barnraise_protocol::experts::leases::{CopyHolder, KnownHost};
use barnraise_protocol::run::RunDescription;
use barnraise_relay::tasks::TaskSet;
use barnraise_relay::{Node, Paced};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::experts::audits::{AnswerDrift, chosen};
use barnraise_swarm::guard::RateLimiter;
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::recomputation::{Difference, rest_after};
use futures::executor::block_on;
use libp2p::{PeerId, Stream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::answers::{JudgeError, opened, recomputed};
use super::keeper::CheckpointKeeper;
use super::leases::LeaseService;
use crate::computing::compute;
use crate::host::access::Access;
use crate::host::evidence::{EvidenceFetchError, EvidenceStore, SeenEvidence, fetch_next, is_same};
use crate::host::metrics::RunMetrics;
use crate::host::peer_id;
use crate::net::address_slots::{AddressSlot, AddressSlots};
use crate::net::announced::open_announced;

/// Answers that are looked at, or wait for the next checkpoint of their expert.
const AUDITS_MAX: usize = 16;
/// Offers of a trainer, which makes about two.
const OFFERS_PER_MINUTE: u32 = 6;
/// An address counts as so many trainers.
const GROUP_TRAINERS: u32 = 8;
/// Most trainers, and addresses, whose rate is remembered.
const RATE_KEYS_MAX: usize = 8192;
/// Experts of an offer that are looked for.
const PLACES_TRIED: usize = 3;
/// Timeout of a question to a keeper, the dial included.
const ASK_TIMEOUT: Duration = Duration::from_secs(8);
/// Checkpoints are made about once a minute: so often, and so many times, is the next one looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(15);
const LOOKS_MAX: u32 = 12;
/// Pace at which checkpoints are fetched from keepers, over time.
const BYTES_PER_SECOND: u64 = 1024 * 1024;
/// A keeper that takes longer than this, and so many times that pace, is not waited for.
const FETCH_GRACE: Duration = Duration::from_secs(20);
const FETCH_SLACK: u32 = 8;
/// Checkpoints that are fetched at a time.
const FETCHES_MAX: usize = 2;
/// Answers of a trainer that are looked at, or wait.
const AUDITS_PER_PEER: u32 = 2;
/// Interval at which the other backbones are asked for evidence.
const ASK_EVERY: Duration = Duration::from_secs(15);

/// What an auditor is made of.
pub(super) struct AuditorParts {
    pub(super) run: Arc<RunDescription>,
    /// [`barnraise_protocol::experts::model_hash`]
    pub(super) model: Sha256Hash,
    pub(super) layers: Vec<HostedLayer>,
    pub(super) node: Node,
    pub(super) leases: Arc<LeaseService>,
    pub(super) keeper: Arc<CheckpointKeeper>,
    pub(super) access: Access,
    pub(super) evidence: EvidenceStore,
    pub(super) metrics: RunMetrics,
    /// Decides which answers are looked at: nobody is to know it.
    pub(super) seed: u64,
}

/// See the module.
pub(super) struct Auditor {
    parts: AuditorParts,
    draws: Mutex<Draws>,
    /// Of answers; an address has half of them at most.
    slots: Arc<AddressSlots>,
    /// For the link.
    link: Semaphore,
    /// For the processor.
    turn: Semaphore,
    started: Instant,
    audits: TaskSet,
}

struct Draws {
    of_peer: RateLimiter<PublicKey>,
    of_group: RateLimiter<AddressGroup>,
    random: SplitMix64,
    /// Of each trainer.
    open: BTreeMap<PublicKey, u32>,
}

/// An answer that is looked at.
struct AuditSlot {
    auditor: Arc<Auditor>,
    peer: PublicKey,
    _of_address: AddressSlot,
}

impl Drop for AuditSlot {
    fn drop(&mut self) {
        self.auditor.draws(|draws, _| {
            let n_left = draws.open.get(&self.peer).map_or(0, |n_open| n_open.saturating_sub(1));
            match n_left {
                0 => drop(draws.open.remove(&self.peer)),
                n_left => drop(draws.open.insert(self.peer, n_left)),
            }
        });
    }
}

/// What came of an audit.
#[derive(Debug, Clone, Copy, PartialEq)]
enum AuditOutcome {
    /// The checkpoint is of the very step.
    Exact(Difference),
    /// Checkpoints are before and after it; the later one is of this version.
    Between(AnswerDrift, CheckpointVersion),
}

/// A checkpoint that somebody has.
struct FoundCheckpoint {
    checkpoint: ExpertCheckpoint,
    is_here: bool,
    /// Who has it.
    keepers: Vec<KnownHost>,
}

impl Auditor {
    pub(super) fn new(parts: AuditorParts) -> Self {
        let draws = Draws {
            of_peer: RateLimiter::new(OFFERS_PER_MINUTE, RATE_KEYS_MAX),
            of_group: RateLimiter::new(OFFERS_PER_MINUTE * GROUP_TRAINERS, RATE_KEYS_MAX),
            random: SplitMix64::new(parts.seed),
            open: BTreeMap::new(),
        };
        Self {
            parts,
            draws: Mutex::new(draws),
            slots: Arc::new(AddressSlots::new(AUDITS_MAX)),
            link: Semaphore::new(FETCHES_MAX),
            turn: Semaphore::new(1),
            started: Instant::now(),
            audits: TaskSet::default(),
        }
    }

    fn draws<T>(&self, f: impl FnOnce(&mut Draws, Duration) -> T) -> T {
        let now = self.started.elapsed();
        f(&mut self.draws.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    /// Hears one offer of a trainer.
    pub(super) async fn serve(
        self: Arc<Self>,
        (peer, group): (PublicKey, AddressGroup),
        stream: &mut Paced<Stream>,
    ) -> Result<(), AuditError> {
        let pace = stream.pace();
        let offer = audits::receive(stream).await?;
        pace.answer();
        if offer.run_id != self.parts.run.identity.run_id {
            return audits::refuse(stream, AuditRefusal::Unknown).await;
        }
        let may_offer =
            self.draws(|draws, now| draws.of_peer.take(now, &peer) && draws.of_group.take(now, &group));
        let slot = if may_offer { self.slot(peer, group) } else { None };
        let Some(slot) = slot else { return audits::refuse(stream, AuditRefusal::Busy).await };
        let Some((index, before)) = self.choose(&offer).await else {
            self.parts.metrics.on_audited("nothing");
            return audits::reply(stream, AuditReply::Nothing).await;
        };
        pace.answer();
        let answer = match audits::take(stream, (&offer, self.parts.model), index).await {
            Err(AuditError::Refused(refusal)) => return audits::refuse(stream, refusal).await,
            answer => answer?,
        };
        audits::reply(stream, AuditReply::Taken).await?;
        let auditor = Arc::clone(&self);
        self.audits.spawn("an audit of an expert", async move { auditor.audit(slot, answer, before).await });
        Ok(())
    }

    fn slot(self: &Arc<Self>, peer: PublicKey, group: AddressGroup) -> Option<AuditSlot> {
        let of_address = AddressSlots::take(&self.slots, group)?;
        let has_room = self.draws(|draws, _| {
            let n_open = draws.open.entry(peer).or_default();
            let has_room = *n_open < AUDITS_PER_PEER;
            *n_open += u32::from(has_room);
            has_room
        });
        has_room.then(|| AuditSlot { auditor: Arc::clone(self), peer, _of_address: of_address })
    }

    /// Which of the offered answers can be checked, with the newest checkpoint of its expert.
    async fn choose(&self, offer: &AuditOffer) -> Option<(usize, FoundCheckpoint)> {
        for _ in 0..PLACES_TRIED {
            let at = self.draws(|draws, _| draws.random.below(offer.answers.len()));
            let drawn = offer.answers.get(at)?;
            // Anybody may name keys; a host is one by its lease.
            let holders = self.parts.leases.holders(&[drawn.place]).ok()?;
            let is_host = |copies: &Vec<CopyHolder>| copies.iter().any(|held| held.holder == drawn.host);
            if !holders.first().is_some_and(is_host) {
                continue;
            }
            let Some(newest) = self.newest(drawn.place, drawn.host).await else { continue };
            let of_expert = offer.answers.iter().enumerate();
            let of_expert: Vec<(usize, CheckpointVersion)> = of_expert
                .filter(|(_, answer)| (answer.place, answer.host) == (drawn.place, drawn.host))
                .map(|(index, answer)| (index, answer.version))
                .collect();
            let versions: Vec<CheckpointVersion> = of_expert.iter().map(|(_, version)| *version).collect();
            if let Some(index) = chosen(newest.checkpoint.version(), &versions) {
                return Some((of_expert.get(index)?.0, newest));
            }
            if of_expert.len() == offer.answers.len() {
                return None;
            }
        }
        None
    }

    /// The newest checkpoint that a host has given of an expert, by this backbone and the keepers.
    async fn newest(&self, place: ExpertPlace, host: PublicKey) -> Option<FoundCheckpoint> {
        let AuditorParts { run, layers, node, leases, keeper, .. } = &self.parts;
        let layer = layer_of(layers, place)?;
        let run_id = &run.identity.run_id;
        let is_believed = |checkpoint: &ExpertCheckpoint| {
            checkpoint.lease.holder == host
                && layer.is_checkpoint_size(checkpoint.transfer.n_bytes)
                && checkpoint.is_valid(run_id, leases.grantors())
        };
        let newest_of = |kept: Vec<ExpertCheckpoint>| {
            kept.into_iter().filter(is_believed).max_by_key(ExpertCheckpoint::version)
        };
        let here = newest_of(keeper.kept(place));
        let found = |checkpoint| FoundCheckpoint { checkpoint, is_here: true, keepers: Vec::new() };
        let mut newest = here.map(found);
        // The host may keep what it likes for itself.
        for known in leases.keepers(place).into_iter().filter(|known| known.peer != host) {
            let Some(peer) = peer_id(known.peer) else { continue };
            let asking = async {
                let opening = open_announced(node, peer, &known.addresses, checkpoints::PROTOCOL);
                let mut stream = opening.await.ok()?;
                checkpoints::newest(&mut stream, run_id, place).await.ok()
            };
            let Ok(Some(kept)) = tokio::time::timeout(ASK_TIMEOUT, asking).await else { continue };
            let Some(checkpoint) = newest_of(kept) else { continue };
            match &mut newest {
                Some(found) if found.checkpoint == checkpoint => found.keepers.push(known),
                Some(found) if found.checkpoint.version() >= checkpoint.version() => {}
                newest => {
                    *newest = Some(FoundCheckpoint { checkpoint, is_here: false, keepers: vec![known] });
                }
            }
        }
        newest
    }

    async fn fetch(&self, found: &FoundCheckpoint) -> Result<Vec<u8>, JudgeError> {
        let FoundCheckpoint { checkpoint, is_here, keepers } = found;
        let (place, transfer) = (checkpoint.lease.place, checkpoint.transfer);
        if *is_here && let Some(bytes) = self.parts.keeper.read(place, transfer.sha256).await {
            return Ok(bytes);
        }
        let _link = self.link.acquire().await;
        let pace = Duration::from_secs(transfer.n_bytes / BYTES_PER_SECOND);
        for keeper in keepers {
            let began = Instant::now();
            let limit = FETCH_GRACE + FETCH_SLACK * pace;
            let fetched = tokio::time::timeout(limit, self.fetch_from(keeper, checkpoint)).await;
            tokio::time::sleep(pace.saturating_sub(began.elapsed())).await;
            if let Ok(Some(bytes)) = fetched {
                return Ok(bytes);
            }
        }
        Err(JudgeError::Gone)
    }

    async fn fetch_from(&self, keeper: &KnownHost, checkpoint: &ExpertCheckpoint) -> Option<Vec<u8>> {
        let AuditorParts { run, node, .. } = &self.parts;
        let (place, transfer) = (checkpoint.lease.place, checkpoint.transfer);
        let opening = open_announced(node, peer_id(keeper.peer)?, &keeper.addresses, checkpoints::PROTOCOL);
        let mut stream = opening.await.ok()?;
        let mut partial = Partial::new(transfer, transfer.n_bytes).ok()?;
        checkpoints::fetch(&mut stream, &run.identity.run_id, place, &mut partial).await.ok()
    }

    async fn audit(&self, slot: AuditSlot, answer: KeptAnswer, before: FoundCheckpoint) {
        let (host, place) = (answer.signed.host, answer.signed.place);
        let (layer, uid) = (place.0.0, place.1);
        let outcome = self.judge_kept(answer, before).await;
        drop(slot);
        let AuditorParts { metrics, leases, .. } = &self.parts;
        match outcome {
            Ok(AuditOutcome::Exact(difference)) => {
                let Difference { distance, allowed } = difference;
                metrics.on_audited(if difference.is_wrong() { "wrong" } else { "same" });
                tracing::debug!(%host, layer, %uid, distance, allowed, "an answer was computed once more");
            }
            Ok(AuditOutcome::Between(drift, until)) => {
                let AnswerDrift { distance, allowed } = drift;
                metrics.on_audited(if drift.is_far() { "far" } else { "near" });
                tracing::debug!(%host, layer, %uid, distance, allowed, "an answer lies between checkpoints");
                if leases.on_between(host, (place, until), drift.is_far()) {
                    tracing::warn!(
                        %host,
                        "answers of this host are far from what its experts' checkpoints give: it gets no places for a day"
                    );
                }
            }
            Err(error) => {
                metrics.on_audited("unknown");
                tracing::debug!(%host, layer, %uid, %error, "an answer could not be computed once more");
            }
        }
    }

    async fn judge_kept(
        &self,
        answer: KeptAnswer,
        before: FoundCheckpoint,
    ) -> Result<AuditOutcome, JudgeError> {
        let signed = answer.signed.clone();
        let (inputs, claimed) = signed.decode(&answer.inputs, &answer.answer)?;
        let inputs: Arc<[f32]> = inputs.into();
        if before.checkpoint.version() == signed.version {
            return self.judge_exactly(answer, before).await.map(AuditOutcome::Exact);
        }
        self.check_alone(signed.place)?;
        let given_before = self.given_by(&before, inputs.clone()).await?;
        for _ in 0..LOOKS_MAX {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let Some(after) = self.newest(signed.place, signed.host).await else { continue };
            let version = after.checkpoint.version();
            if version < signed.version {
                continue;
            }
            if version == signed.version {
                return self.judge_exactly(answer, after).await.map(AuditOutcome::Exact);
            }
            if version.term != signed.version.term {
                break;
            }
            self.check_alone(signed.place)?;
            let given_after = self.given_by(&after, inputs).await?;
            let drift = AnswerDrift::of(&claimed, (&given_before, &given_after), signed.codec);
            let between = |drift| AuditOutcome::Between(drift, version);
            return drift.map(between).ok_or(JudgeError::Nothing);
        }
        Err(JudgeError::NoneAfter)
    }

    /// An expert that is averaged with its copies goes a way between two checkpoints on which neither may lie.
    fn check_alone(&self, place: ExpertPlace) -> Result<(), JudgeError> {
        if self.parts.leases.has_copies(place) { Err(JudgeError::Averaged) } else { Ok(()) }
    }

    /// What a checkpoint gives to some inputs.
    async fn given_by(&self, found: &FoundCheckpoint, inputs: Arc<[f32]>) -> Result<Vec<f32>, JudgeError> {
        let bytes = self.fetch(found).await?;
        let _turn = self.turn.acquire().await;
        self.given(found.checkpoint.clone(), bytes, inputs).await
    }

    /// An answer, and a checkpoint of the very step. Its host is convicted where both cannot be.
    async fn judge_exactly(
        &self,
        answer: KeptAnswer,
        found: FoundCheckpoint,
    ) -> Result<Difference, JudgeError> {
        let checkpoint = self.fetch(&found).await?;
        let _turn = self.turn.acquire().await;
        let run = RunDescription::clone(&self.parts.run);
        let header = AnswerHeader { run, answer: answer.signed, checkpoint: found.checkpoint };
        let evidence = AnswerEvidence { header, inputs: answer.inputs, answer: answer.answer, checkpoint };
        self.judge(Box::new(evidence)).await
    }

    /// Computes an answer once more, and convicts its host where another one comes out.
    async fn judge(&self, evidence: Box<AnswerEvidence>) -> Result<Difference, JudgeError> {
        let began = Instant::now();
        let computing = move || {
            let difference = block_on(recomputed(&evidence, &ComputeDevice::cpu()));
            (evidence, difference)
        };
        let (evidence, difference) = compute(usize::MAX, computing).await;
        tokio::time::sleep(rest_after(began.elapsed())).await;
        let difference = difference?;
        if difference.is_wrong() {
            self.convict(evidence, difference).await;
        }
        Ok(difference)
    }

    async fn convict(&self, evidence: Box<AnswerEvidence>, difference: Difference) {
        let evidence = Evidence::Answer(evidence);
        let (host, AuditorParts { access, evidence: store, .. }) = (evidence.peer(), &self.parts);
        tracing::warn!(
            %host, distance = difference.distance, allowed = difference.allowed,
            "an expert's answer is not what its checkpoint of the same step gives: its host is convicted"
        );
        access.convict(host, evidence.work()).await;
        if let Err(error) = store.convict(&evidence, true).await {
            tracing::error!(%host, %error, "the evidence could not be kept");
        }
    }

    /// What the expert of a checkpoint gives.
    async fn given(
        &self,
        checkpoint: ExpertCheckpoint,
        bytes: Vec<u8>,
        inputs: Arc<[f32]>,
    ) -> Result<Vec<f32>, JudgeError> {
        let layer = layer_of(&self.parts.layers, checkpoint.lease.place).ok_or(JudgeError::Place)?.clone();
        let model = self.parts.run.model.clone();
        let began = Instant::now();
        let n_bytes = bytes.len().max(size_of_val(&inputs[..]));
        let computing = move || {
            let expert = opened(&model, &layer, (&checkpoint, &bytes), &ComputeDevice::cpu())?;
            drop(bytes);
            Ok(block_on(expert.forward(&inputs))?)
        };
        let given = compute(n_bytes, computing).await;
        tokio::time::sleep(rest_after(began.elapsed())).await;
        given
    }

    /// Asks the other backbones for evidence against hosts, which is computed here, too.
    pub(super) async fn poll_other_backbones(
        self: Arc<Self>,
        others: Vec<PeerId>,
        shutdown: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(ASK_EVERY);
        let mut seen = SeenEvidence::default();
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            for &peer in &others {
                match shutdown.run_until_cancelled(self.ask(peer, &mut seen)).await {
                    Some(Ok(())) => {}
                    // The aggregators reconnect a link that is down.
                    Some(Err(error)) => tracing::debug!(%peer, %error, "no evidence from a backbone"),
                    None => return,
                }
            }
        }
    }

    async fn ask(&self, peer: PeerId, seen: &mut SeenEvidence) -> Result<(), EvidenceFetchError> {
        let AuditorParts { run, layers, node, access, leases, .. } = &self.parts;
        let largest = layers.iter().map(HostedLayer::checkpoint_bytes_max).max().unwrap_or_default();
        let bytes_max = largest.saturating_add(EVIDENCE_OTHER_BYTES_MAX);
        match fetch_next((node, &access.gate), peer, bytes_max, seen).await? {
            Some(Evidence::Answer(evidence)) if is_same(&evidence.header.run, run) => {
                // A key that never had a place is no host.
                let AnswerHeader { checkpoint, .. } = &evidence.header;
                if !checkpoint.is_valid(&run.identity.run_id, leases.grantors()) {
                    return Err(EvidenceFetchError::OtherRun);
                }
                let _turn = self.turn.acquire().await;
                if let Err(error) = self.judge(evidence).await {
                    tracing::debug!(%peer, %error, "evidence of another backbone says nothing");
                }
                Ok(())
            }
            Some(Evidence::Answer(_)) => Err(EvidenceFetchError::OtherRun),
            Some(Evidence::Contribution(_)) | None => Ok(()),
        }
    }
}

/// Of evidence, beside the checkpoint: the run's description, and two tensors.
const EVIDENCE_OTHER_BYTES_MAX: u64 = 8 * 1024 * 1024;
