//! Averagings with other aggregators. They are offline: the test proposes as one of them, and tells how an averaging
//! ended.

use std::time::Duration;

use barnraise_averaging::{
    AverageError, Averaged, GridError, PartError, PartOutcome, PartialMean, PartialMeanReason,
};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::average::{Finished, MemberSet};
use barnraise_protocol::contribute::Report;
use barnraise_protocol::matchmaking::{
    AggregatorStatus, MEMBERS_MAX, ModelVersion, Proposal, ProposedMember, Ready,
};
use barnraise_protocol::model::StepHeader;
use bytesize::ByteSize;
use prometheus_client::encoding::text;

use super::super::coordination::Coordination;
use super::following::{Here, among_others, ask, connect, entry, model_of_others, take, tell};
use super::*;
use crate::config::LinkSpeed;
use crate::net::speed::SpeedMeter;
use crate::scheme::synchronous::aggregators::{AdoptError, AggregatorEvent, AveragingError, FollowError};
use crate::storage::simulated::SimulatedDisk;

/// Of the averagings that the test proposes.
const NONCE: u64 = 5;
/// Contributions that are enough for a step with [`OTHERS`].
const N_HERE: u64 = PER_STEP - 1;
/// The other aggregators of an averaging in one group, and their samples.
const ONE: &[(u8, u64)] = &[(7, 64)];
/// Those of one in a grid of groups of two.
const THREE: &[(u8, u64)] = &[(7, 64), (8, 1), (9, 1)];
/// No averaging ends by itself.
const FOREVER: Duration = Duration::from_secs(300);

/// A backbone among others, which are offline.
struct Among {
    world: CrashHarness,
    store: Store,
    _folder: tempfile::TempDir,
    disk: SimulatedDisk,
    alive: Alive,
    metrics: Metrics,
    /// What it tells the others of itself.
    standing: watch::Receiver<Option<AggregatorStatus>>,
}

impl Among {
    async fn new(run_id: &str) -> Self {
        let mut world = among_others(run_id);
        world.config.aggregators.patience = FOREVER;
        Self::with(world).await
    }

    async fn with(world: CrashHarness) -> Self {
        let (disk, folder) = (SimulatedDisk::new(1), folder());
        let store = world.store(folder.path()).await;
        let mut kept = None;
        let (slot, of) = (&mut kept, &world);
        let others = move |here: Here| async move {
            let metrics = here.metrics.clone();
            let speed =
                SpeedMeter::new(LinkSpeed::Fixed(ByteSize::kib(64)), LinkSpeed::Fixed(ByteSize::mib(3)));
            let others = connect(of, here, speed).await;
            *slot = others.as_ref().map(|others| (metrics, others.standing()));
            others
        };
        let storage = Storage::on(Arc::new(disk.clone()));
        let alive = world.start_among(storage, &store, others).await.unwrap();
        let (metrics, standing) = kept.unwrap();
        Self { world, store, _folder: folder, disk, alive, metrics, standing }
    }

    async fn stop(self) {
        self.alive.stop().await;
        self.store.close().await;
    }

    fn storage(&self) -> Storage {
        Storage::on(Arc::new(self.disk.clone()))
    }

    fn journal(&self) -> Journal {
        Journal::new(self.storage())
    }

    /// The model, once all that was told before is done.
    async fn model(&self) -> ModelVersion {
        ask(&self.alive, AggregatorEvent::WantModel).await
    }

    /// What it has told the others of itself, once all that was told before is done.
    async fn standing(&self) -> AggregatorStatus {
        self.model().await;
        let standing = *self.standing.borrow();
        standing.expect("nothing was told")
    }

    async fn contribute(&mut self, ids: std::ops::Range<u64>) {
        for id in ids {
            self.alive.contribute(&self.world, id).await.unwrap().unwrap();
        }
    }

    /// All have enough samples together, and this one has collected its own.
    async fn collect(&mut self, others: &[(u8, u64)]) {
        let model = self.model().await;
        for &(number, n_samples) in others {
            let standing = AggregatorStatus { n_samples, n_contributors: 1, ..AggregatorStatus::new(model) };
            tell(&self.alive, number, AggregatorEvent::Standing(standing)).await;
        }
        self.model().await;
        self.contribute(0..N_HERE).await;
        let is_ready = |own: &Option<AggregatorStatus>| own.is_some_and(|own| own.ready.is_some());
        let ready = tokio::time::timeout(HANG, self.standing.wait_for(is_ready)).await;
        assert!(ready.is_ok_and(|ready| ready.is_ok()), "nothing is collected");
    }

    /// Its peer id.
    fn me(&self) -> Vec<u8> {
        peer_id(self.world.key.public()).unwrap().to_bytes()
    }

    /// This aggregator is the first member.
    fn proposal(&self, model: ModelVersion, others: &[(u8, u64)]) -> Proposal {
        let is_grid = others.len() > 1;
        // In a grid they are weights.
        let (all, none) = if is_grid { (1, 1) } else { (self.world.layout.n_parameters() as u64, 0) };
        let n_samples = N_HERE * u64::from(SAMPLES);
        let me = ProposedMember { peer: self.me(), n_samples, n_reduced: all };
        let others = others.iter().map(|&(number, n_samples)| ProposedMember {
            peer: vec![number],
            n_samples,
            n_reduced: none,
        });
        Proposal {
            model,
            nonce: NONCE,
            group_size: if is_grid { 2 } else { MEMBERS_MAX as u16 },
            members: std::iter::once(me).chain(others).collect(),
            reducers: Vec::new(),
            check_seed: 0,
            loss: 1.0,
        }
    }

    /// Begins to average with `others`.
    async fn average(&mut self, others: &[(u8, u64)]) -> Proposal {
        self.collect(others).await;
        let proposal = self.proposal(self.model().await, others);
        tell(&self.alive, 7, AggregatorEvent::Proposal(proposal.clone())).await;
        assert!(self.standing().await.is_busy, "it does not average");
        proposal
    }

    /// The value of a counter, without the prefix of its name.
    fn count(&self, name: &str) -> u64 {
        let mut said = String::new();
        text::encode(&mut said, &self.metrics.registry()).unwrap();
        let lines = said.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.filter_map(|line| line.rsplit_once(' '));
        let mut values = lines.filter(|(of, _)| of.ends_with(name)).map(|(_, value)| value);
        values.next().map_or(0, |value| value.parse().unwrap())
    }

    /// Averagings that were averaged, incomplete and failed.
    fn outcomes(&self) -> [u64; 3] {
        let outcomes = ["averaged", "incomplete", "failed"];
        outcomes.map(|outcome| self.count(&format!("averagings_total{{outcome=\"{outcome}\"}}")))
    }

    /// A step of the model that another aggregator made with these members.
    fn step(&self, model: ModelVersion, nonce: u64, members: Vec<Vec<u8>>) -> (StepHeader, Vec<u8>) {
        let mean = TensorCodec::F32.encode(&vec![0.25; self.world.layout.n_parameters()]).unwrap();
        let ModelVersion { epoch, hash: before, .. } = model;
        let transfer = Transfer::of(&mean);
        (StepHeader { epoch, before, nonce, n_samples: 256, loss: 1.0, members, transfer }, mean)
    }
}

/// A mean of the members at these positions.
fn averaged(positions: &[usize], n_values: usize) -> Averaged {
    let behind: MemberSet = positions.iter().copied().collect();
    let finished = Finished { members: behind, n_samples: 1, behind, is_whole: true };
    Averaged {
        values: vec![0.25; n_values],
        parts: vec![PartOutcome::Averaged { finished, attempt: 0 }],
        faults: Vec::new(),
        n_bytes_sent: 10,
        n_bytes_received: 20,
    }
}

#[tokio::test]
async fn a_mean_is_the_step_of_those_who_are_in_it_and_the_others_count_later() {
    // With the members in it: samples of the step, those left here, and rounds in groups.
    let cases = [
        (ONE, vec![0, 1], 256, 0, 0),
        // By half, for their age.
        (ONE, vec![1], 64, N_HERE * u64::from(SAMPLES) / 2, 0),
        (THREE, vec![0, 1, 2, 3], 258, 0, 2),
    ];
    for (case, (others, positions, n_samples, n_left, n_rounds)) in cases.into_iter().enumerate() {
        let mut among = Among::new(&format!("mean-{case}")).await;
        let proposal = among.average(others).await;
        let n_values = among.world.layout.n_parameters();
        let mean = || Ok(Arc::new(averaged(&positions, n_values)));
        // It was given up before.
        let stale = Proposal { nonce: NONCE + 1, ..proposal.clone() };
        tell(&among.alive, 7, AggregatorEvent::Averaged(stale, mean())).await;
        assert_eq!((among.model().await, among.outcomes()), (proposal.model, [0, 0, 0]), "case {case}");
        tell(&among.alive, 7, AggregatorEvent::Averaged(proposal.clone(), mean())).await;
        let model = among.model().await;
        assert_eq!((model.epoch, model.n_samples_total), (1, n_samples), "case {case}");
        assert_eq!(among.standing().await.n_samples, n_left, "case {case}");
        assert_eq!(among.outcomes(), [1, 0, 0], "case {case}");
        assert_eq!(among.count("averaging_group_rounds_total"), n_rounds, "case {case}");
        for (direction, n_bytes) in [("sent", 10), ("received", 20)] {
            let name = format!("averaging_bytes_total{{direction=\"{direction}\"}}");
            assert_eq!(among.count(&name), n_bytes, "case {case}");
        }
        let commit = among.journal().commit_of(0).await.unwrap().unwrap().unwrap();
        let members: Vec<Vec<u8>> =
            positions.iter().map(|&position| proposal.members[position].peer.clone()).collect();
        assert_eq!((commit.nonce, commit.members, commit.n_samples), (NONCE, members, n_samples));
        let is_included = positions.contains(&0);
        assert_eq!(commit.seqs.len() as u64, if is_included { N_HERE } else { 0 }, "case {case}");
        among.stop().await;
    }
}

#[tokio::test]
async fn an_averaging_without_a_whole_mean_makes_no_step_and_is_tried_again() {
    for (case, outcomes) in [[0, 1, 0], [0, 1, 0], [0, 0, 1]].into_iter().enumerate() {
        let mut among = Among::new(&format!("failed-{case}")).await;
        let proposal = among.average(ONE).await;
        let whole = averaged(&[0, 1], among.world.layout.n_parameters());
        let late = PartOutcome::NotAveraged { error: PartError::Deadline };
        let incomplete = Averaged { parts: [whole.parts.clone(), vec![late]].concat(), ..whole };
        let partial = PartialMean {
            round: 0,
            reason: PartialMeanReason::Deadline,
            expected: MemberSet::from_iter([0, 1]),
            came: MemberSet::from_iter([0]),
            faults: Vec::new(),
        };
        let ended = match case {
            0 => Ok(Arc::new(incomplete)),
            1 => Err(AveragingError::from(GridError::PartialMean(Box::new(partial)))),
            _ => Err(AveragingError::from(AverageError::NotAMember)),
        };
        tell(&among.alive, 7, AggregatorEvent::Averaged(proposal.clone(), ended)).await;
        assert_eq!((among.model().await, among.outcomes()), (proposal.model, outcomes), "case {case}");
        let standing = among.standing().await;
        let ready = Ready { n_samples: N_HERE * u64::from(SAMPLES), loss: 1.0 };
        assert_eq!((standing.is_busy, standing.ready), (false, Some(ready)), "case {case}");
        // Tried again, with the same gradient.
        let again = Proposal { nonce: NONCE - 1, ..proposal };
        tell(&among.alive, 7, AggregatorEvent::Proposal(again.clone())).await;
        let mean = averaged(&[0, 1], among.world.layout.n_parameters());
        tell(&among.alive, 7, AggregatorEvent::Averaged(again, Ok(Arc::new(mean)))).await;
        let model = among.model().await;
        assert_eq!((model.epoch, model.n_samples_total), (1, 256), "case {case}");
        among.stop().await;
    }
}

#[tokio::test]
async fn the_others_are_told_the_samples_the_speed_and_the_link_of_this_one() {
    let mut among = Among::new("standing").await;
    among.contribute(0..N_HERE).await;
    let standing = among.standing().await;
    assert_eq!((standing.n_samples, standing.n_contributors), (N_HERE * u64::from(SAMPLES), 2));
    assert_eq!((standing.is_closing, standing.samples_per_second), (false, 0.0));
    assert_eq!(
        (standing.download_bytes_per_s, standing.upload_bytes_per_s),
        (64.0 * 1024.0, 3.0 * 1024.0 * 1024.0)
    );
    // Enough for a step, which it waits for.
    let report = Report { epoch: 0, contribution_id: u64::MAX, n_samples: SAMPLES, samples_per_second: 5.0 };
    let (handled, done) = oneshot::channel();
    let peer = among.world.contributors[1].clone();
    among.alive.events.send(SessionEvent::Report { peer, report, handled }.into()).await.unwrap();
    // Dropped once it is.
    let _ = done.await;
    let standing = among.standing().await;
    assert_eq!((standing.n_samples, standing.samples_per_second), (PER_STEP * u64::from(SAMPLES), 5.0));
    assert!(standing.is_closing && standing.ready.is_none(), "{standing:?}");
    among.stop().await;
}

#[tokio::test]
async fn the_others_count_and_are_waited_for_as_long_as_is_configured() {
    let mut world = among_others("times");
    world.config.aggregators.silence = Some(Duration::from_secs(77));
    world.config.aggregators.gather_timeout = Some(Duration::from_secs(33));
    let (folder, storage) = (folder(), Storage::on(Arc::new(SimulatedDisk::new(1))));
    let store = world.store(folder.path()).await;
    let alive = world.start(storage.clone(), &store).await.unwrap();
    let (journal, checkpoints) = (Journal::new(storage.clone()), Checkpoints::new(storage, KEPT));
    let round = learner::round_config(world.configured(), world.layout.n_parameters());
    let stored = (&checkpoints, &journal);
    let (learner, _) =
        Learner::recover(world.configured(), round, world.fresh(), stored, true).await.unwrap();
    let alone = Coordination::new(&learner, PeerKey(vec![1]), 256);
    assert!(!alone.has_others());
    let before = *alone.matchmaking.config();
    let metrics = Metrics::new(alive.status.clone(), None);
    let here = Here { events: alive.events.clone(), metrics, work: Arc::default(), journal, checkpoints };
    let others = connect(&world, here, SpeedMeter::new(LinkSpeed::Auto, LinkSpeed::Auto)).await;
    let among = alone.with_others(others.unwrap());
    assert!(among.has_others());
    let config = *among.matchmaking.config();
    assert_eq!((config.silence, config.gather), (Duration::from_secs(77), Duration::from_secs(33)));
    assert_eq!((config.target_batch_size, config.retry), (256, before.retry));
    alive.stop().await;
    store.close().await;
}

#[tokio::test]
async fn others_are_shown_to_be_ahead_only_where_there_are_others() {
    let among = Among::new("ahead").await;
    let model = ModelVersion { n_samples_total: 0, epoch: 4, hash: Sha256Hash([0; 32]) };
    tell(&among.alive, 7, AggregatorEvent::Standing(AggregatorStatus::new(model))).await;
    among.model().await;
    let mut status = among.alive.status.clone();
    // Progress is published at every interval.
    for _ in 0..2 {
        tokio::time::timeout(HANG, status.changed()).await.unwrap().unwrap();
    }
    assert_eq!(among.count("epochs_behind"), 4);
    among.stop().await;
}

#[tokio::test]
async fn a_step_that_this_one_averaged_for_has_its_contributions_and_another_one_has_not() {
    // With the samples left for the next step, by half for their age.
    let all = N_HERE * u64::from(SAMPLES) / 2;
    for (nonce, is_member, n_left) in [(NONCE, true, 0), (NONCE + 1, true, all), (NONCE, false, all)] {
        let of = format!("left-{nonce}-{is_member}");
        let mut among = Among::new(&of).await;
        let proposal = among.average(ONE).await;
        let mut members = vec![vec![7]];
        members.extend(is_member.then(|| among.me()));
        let (header, mean) = among.step(proposal.model, nonce, members);
        let taken = ask(&among.alive, |done| AggregatorEvent::Step(header, mean, done)).await.unwrap();
        assert_eq!((taken.epoch, among.model().await), (1, taken), "{of}");
        assert_eq!(among.standing().await.n_samples, n_left, "{of}");
        among.stop().await;
    }
}

#[tokio::test]
async fn a_step_alone_has_all_that_was_collected_once_and_can_be_given_to_the_others() {
    let mut among = Among::new("alone").await;
    among.contribute(0..N_HERE).await;
    // Carried before a step failed: one of this step, and one that is not in it.
    let (journal, later) = (among.journal(), 50);
    for (sequence, id) in [(0, 0), (1, later)] {
        journal.append(1, sequence, &entry(&among.world, id, 0)).await.unwrap();
    }
    among.contribute(N_HERE..PER_STEP).await;
    among.alive.reaches(1).await;
    let n_samples = among.standing().await.n_samples;
    assert_eq!(n_samples, u64::from(SAMPLES) / 2, "by half for its age");
    let mut entries = journal.entries(1).await.unwrap();
    assert_eq!(entries.next_name().await.unwrap(), Some((1, entry(&among.world, later, 0).name())));
    assert_eq!(entries.next_name().await.unwrap(), None);
    let commit = journal.commit_of(0).await.unwrap().unwrap().unwrap();
    assert_eq!((commit.seqs.len() as u64, &commit.members), (PER_STEP, &vec![among.me()]));
    let mean = journal.mean(0, commit.nonce).await.unwrap();
    assert_eq!(mean.map(|mean| mean.len()), Some(4 * among.world.layout.n_parameters()));
    // One that asks for a checkpoint finds it.
    let checkpoints = Checkpoints::new(among.storage(), KEPT);
    let (done, made) = oneshot::channel();
    tell(&among.alive, 7, AggregatorEvent::WantCheckpoint(done)).await;
    assert!(made.await.is_err(), "it is dropped");
    let kept = checkpoints.kept().await.unwrap();
    assert!(kept.iter().any(|(epoch, _)| *epoch == 1), "{kept:?}");
    among.stop().await;
}

#[tokio::test]
async fn the_only_backbone_stores_no_mean_that_its_contributions_give() {
    let (world, folder) = (CrashHarness::new("only"), folder());
    let store = world.store(folder.path()).await;
    let storage = Storage::on(Arc::new(SimulatedDisk::new(1)));
    let mut alive = world.start(storage.clone(), &store).await.unwrap();
    for id in 0..PER_STEP {
        alive.contribute(&world, id).await.unwrap().unwrap();
    }
    alive.reaches(1).await;
    let journal = Journal::new(storage);
    let commit = journal.commit_of(0).await.unwrap().unwrap().unwrap();
    assert!(commit.is_of_entries());
    assert_eq!(journal.mean(0, commit.nonce).await.unwrap(), None);
    alive.stop().await;
    store.close().await;
}

#[tokio::test]
async fn nothing_of_others_is_taken_while_a_model_of_them_waits_for_the_disk() {
    const RUN: &str = "moving";
    let model = model_of_others(RUN, 1).await;
    let mut among = Among::new(RUN).await;
    let before = among.model().await;
    among.disk.fails_one_in(1);
    let told = take(&among.alive, &model).await;
    assert!(matches!(told, Err(AdoptError::Failed)), "{told:?}");
    let (header, mean) = among.step(before, NONCE, vec![vec![7]]);
    let told = ask(&among.alive, |done| AggregatorEvent::Step(header, mean, done)).await;
    assert!(matches!(told, Err(AdoptError::Busy)), "{told:?}");
    let told = take(&among.alive, &model).await;
    assert!(matches!(told, Err(AdoptError::Busy)), "{told:?}");
    assert_eq!(among.model().await, before, "it is not the model yet");
    among.disk.fails_one_in(0);
    among.alive.reaches(1).await;
    let after = among.model().await;
    assert_eq!((after.epoch, after.n_samples_total), (1, model.n_samples_total));
    among.stop().await;
}

#[tokio::test]
async fn contributions_of_an_epoch_that_the_followed_model_has_not_reached_count_now() {
    for is_followed in [true, false] {
        let among = Among::new(&format!("later-{is_followed}")).await;
        // Answered once it has started.
        assert_eq!(among.standing().await.n_samples, 0);
        among.journal().append(2, 0, &entry(&among.world, 0, 2)).await.unwrap();
        let followed = if is_followed { Ok(()) } else { Err(FollowError::Nobody(Vec::new())) };
        tell(&among.alive, 7, AggregatorEvent::Followed(followed)).await;
        assert_eq!(among.standing().await.n_samples, u64::from(SAMPLES), "{is_followed}");
        assert!(!among.journal().has_entries(2).await.unwrap(), "{is_followed}");
        among.stop().await;
    }
}

#[tokio::test]
async fn where_members_do_not_answer_a_grid_is_tried_then_one_group_and_then_a_step_alone() {
    let mut world = among_others("deserted");
    let section = &mut world.config.aggregators;
    section.group_members_max = 2;
    section.patience = Duration::from_millis(100);
    // What is told of them once holds.
    section.silence = Some(Duration::from_secs(3600));
    let mut among = Among::with(world).await;
    let model = among.model().await;
    for number in [7, 8, 9] {
        let standing = AggregatorStatus {
            n_samples: 1,
            n_contributors: 1,
            is_closing: true,
            ready: Some(Ready { n_samples: 1, loss: 1.0 }),
            download_bytes_per_s: 1e6,
            upload_bytes_per_s: 1e6,
            ..AggregatorStatus::new(model)
        };
        tell(&among.alive, number, AggregatorEvent::Standing(standing)).await;
    }
    among.model().await;
    among.contribute(0..PER_STEP).await;
    among.alive.reaches(1).await;
    // Each of the first three: the grid gives a partial mean, one group nothing.
    assert_eq!(among.outcomes(), [0, 1, 2]);
    let model = among.model().await;
    assert_eq!((model.epoch, model.n_samples_total), (1, PER_STEP * u64::from(SAMPLES)));
    among.stop().await;
}
