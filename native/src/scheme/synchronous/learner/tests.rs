#![allow(clippy::unwrap_used)]

use std::path::Path;

use barnraise_learning::OptimizerState;
use barnraise_protocol::access::UnixTime;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_protocol::run::{GradientCodec, Preset};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::Moment;
use barnraise_swarm::PeerKey;
use barnraise_swarm::collection::CollectionRound;
use barnraise_swarm::robust::Aggregation;
use object_store::path::Path as ObjectPath;

use super::*;
use crate::storage::Storage;
use crate::storage::checkpoint::Checkpoints;
use crate::storage::journal::{Journal, JournalEntry};

/// As it lies within a checkpoint.
#[test]
fn golden_bytes_of_what_an_optimizer_remembers() {
    let moments = vec![vec![1.0, -2.0], vec![]];
    let state = OptimizerState { n_steps: 300, beta_products: [0.5, 0.25], moments };
    let bytes = postcard::to_allocvec(&state).unwrap();
    let golden = "ac02000000000000e03f000000000000d03f02020000803f000000c000";
    assert_eq!(crate::storage::hex(&bytes), golden);
    assert_eq!(postcard::from_bytes::<OptimizerState>(&bytes).unwrap(), state);
}

/// A run of a small model, and what its backbone stores.
struct LearnerHarness {
    config: RunConfig,
    layout: ParameterLayout,
    storage: Storage,
    checkpoints: Checkpoints,
    journal: Journal,
    has_others: bool,
}

impl LearnerHarness {
    fn new() -> Self {
        let mut config = RunConfig::dev(Path::new("unused"));
        config.model.kind = Preset::Mlp { hidden: vec![2] };
        config.synchronous_mut().unwrap().gradient_codec = GradientCodec::F32;
        let shape = ImageShape { height: 2, width: 2, channels: 1 };
        let layout =
            ParameterLayout::of(&config.model_spec(), DataShape::Images { shape, n_classes: 2 }).unwrap();
        let storage = Storage::in_memory();
        let (checkpoints, journal) = (Checkpoints::new(storage.clone(), 9), Journal::new(storage.clone()));
        Self { config, layout, storage, checkpoints, journal, has_others: false }
    }

    /// Its journal has a contribution to this epoch.
    async fn with_entry(self, epoch: u64) -> Self {
        let values = vec![0.01 * (epoch + 1) as f32; self.layout.n_parameters()];
        let payload = TensorCodec::F32.encode(&values).unwrap();
        let offer = Offer {
            contribution_id: epoch,
            epoch,
            n_samples: 64,
            loss: 0.5,
            n_values: values.len() as u64,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&payload),
        };
        let (peer, accepted_at) = (vec![1, 2, 3], UnixTime(1_800_000_000));
        let group = AddressGroup::UNKNOWN;
        let (milliseconds, payload) = (500, payload.into());
        let entry = JournalEntry { peer, group, offer, milliseconds, accepted_at, payload, samples: None };
        self.journal.append(epoch, 0, &entry).await.unwrap();
        self
    }

    /// Its journal has the steps of these epochs, each by a gradient of its own.
    async fn with_steps(mut self, epochs: std::ops::Range<u64>) -> Self {
        // Has all steps from the beginning: a commit names the model before it.
        let mut twin = Self::new();
        for epoch in 0..epochs.end {
            let commit = commit(&twin.recover().await.unwrap());
            twin = twin.with_entry(epoch).await;
            twin.journal.commit(&commit).await.unwrap();
            if epochs.contains(&epoch) {
                self = self.with_entry(epoch).await;
                self.journal.commit(&commit).await.unwrap();
            }
        }
        self
    }

    async fn recover(&self) -> Result<Learner, LearnerError> {
        self.recover_both().await.map(|(learner, _)| learner)
    }

    async fn recover_both(&self) -> Result<(Learner, CollectionRound), LearnerError> {
        let configured = (&self.config, self.config.synchronous().unwrap());
        let round = round_config(configured, self.layout.n_parameters());
        let first = self.layout.initial_parameters(self.config.model_spec().seed);
        let stored = (&self.checkpoints, &self.journal);
        Learner::recover(configured, round, (&self.layout, first), stored, self.has_others).await
    }

    /// Flips a bit of an object of its journal.
    async fn damage(&self, name: &str) {
        let path = ObjectPath::from(format!("journal/{name}"));
        let mut bytes = self.storage.get(&path, 1_000_000).await.unwrap().unwrap().to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        self.storage.put(&path, bytes).await.unwrap();
    }
}

/// The step of one entry that this backbone makes alone with the learner's model.
fn commit(learner: &Learner) -> CommitRecord {
    CommitRecord {
        epoch: learner.epoch(),
        before: learner.version().hash,
        nonce: 100 + learner.epoch(),
        members: vec![vec![1, 2, 3]],
        n_samples: 64,
        loss: 0.5,
        seqs: vec![0],
        aggregation: Aggregation::Mean,
        learning_rate: 0.1,
    }
}

/// Makes a step; where no record is given, that of [`commit`].
async fn step(learner: &mut Learner, record: Option<&CommitRecord>, mean: &[f32]) {
    let record = record.cloned().unwrap_or_else(|| commit(learner));
    let hash = learner.stepping(&record, Arc::new(mean.to_vec())).await;
    learner.on_stepped(&record, hash);
}

/// The checkpoint after so many of these steps.
async fn checkpoint_of(epoch: u64) -> Checkpoint {
    // A harness is large, and tests hold several such futures.
    let made = async {
        LearnerHarness::new().with_steps(0..epoch).await.recover().await.unwrap().checkpoint().await
    };
    Box::pin(made).await.unwrap()
}

#[tokio::test]
async fn a_step_that_leaves_the_finite_numbers_passes_and_leaves_no_trace_in_the_optimizer() {
    let run = LearnerHarness::new();
    let mut learner = run.recover().await.unwrap();
    let mut gradient = vec![0.5; run.layout.n_parameters()];
    step(&mut learner, None, &gradient).await;
    let before = learner.checkpoint().await.unwrap();
    *gradient.last_mut().unwrap() = f32::INFINITY;
    step(&mut learner, None, &gradient).await;
    let after = learner.checkpoint().await.unwrap();
    assert_eq!((after.epoch, after.n_samples_total), (2, 128), "the epoch passes");
    assert_eq!(after.parameters, before.parameters);
    assert_eq!(after.optimizer_state, before.optimizer_state);
}

#[tokio::test]
async fn what_a_step_behind_the_checkpoint_counted_is_not_counted_again() {
    let run = LearnerHarness::new().with_steps(4..5).await;
    run.checkpoints.save(checkpoint_of(5).await).await.unwrap();
    let (learner, mut round) = run.recover_both().await.unwrap();
    assert_eq!(learner.epoch(), 5);
    let entry = run.journal.entry(4, 0).await.unwrap().unwrap();
    let offered = round.on_offer(Moment::ZERO, &PeerKey(entry.peer), &entry.offer);
    assert_eq!(offered.unwrap_err(), ContributionRefusal::Duplicate { contribution_id: 4 });
}

/// An old checkpoint, or none, beside a journal that was cut behind a newer one.
#[tokio::test]
async fn a_gap_between_checkpoint_and_journal_is_an_error_that_says_what_is_missing() {
    for has_checkpoint in [false, true] {
        let run = LearnerHarness::new().with_steps(4..6).await;
        let mut reached = 0;
        if has_checkpoint {
            reached = 2;
            run.checkpoints.save(checkpoint_of(reached).await).await.unwrap();
        }
        for _ in 0..2 {
            // Not the second time either: nothing was moved or made up.
            let error = run.recover().await.unwrap_err();
            assert!(matches!(error, LearnerError::Gap { reached: to, found: 4 } if to == reached), "{error}");
            let words = error.to_string();
            let missing = format!("epochs {reached} to 3 are missing");
            for part in
                [missing.as_str(), "a checkpoint of epoch 4 or later", "journal/000000000004", "backup"]
            {
                assert!(words.contains(part), "{part} is not in: {words}");
            }
        }
        for epoch in 4..6 {
            assert!(matches!(run.journal.commit_of(epoch).await, Ok(Some(Ok(_)))));
        }
        // As the words say: a newer checkpoint closes it, and the model is that of all steps.
        run.checkpoints.save(checkpoint_of(4).await).await.unwrap();
        let learner = run.recover().await.unwrap();
        assert_eq!(learner.checkpoint().await.unwrap(), checkpoint_of(6).await);
    }
}

#[tokio::test]
async fn the_missing_steps_put_back_or_the_later_ones_taken_away_close_the_gap() {
    let put_back = LearnerHarness::new().with_steps(3..6).await.with_steps(0..3).await;
    assert_eq!(put_back.recover().await.unwrap().checkpoint().await.unwrap(), checkpoint_of(6).await);
    let taken_away = LearnerHarness::new().with_steps(0..2).await.with_steps(4..6).await;
    assert!(matches!(taken_away.recover().await, Err(LearnerError::Gap { reached: 2, found: 4 })));
    for epoch in 4..6 {
        taken_away.journal.clear(epoch).await.unwrap();
    }
    assert_eq!(taken_away.recover().await.unwrap().checkpoint().await.unwrap(), checkpoint_of(2).await);
}

/// An operator may edit the configuration between a crash and the restart: acknowledged contributions count as written.
#[tokio::test]
async fn edited_limits_codec_schedule_and_aggregation_change_nothing_that_was_accepted() {
    let edits: [fn(&mut RunConfig); 6] = [
        |config| config.synchronous_mut().unwrap().gradient_codec = GradientCodec::Int8,
        |config| config.synchronous_mut().unwrap().contribution_samples_max = 8,
        |config| config.synchronous_mut().unwrap().samples_per_second_max = 1,
        |config| config.synchronous_mut().unwrap().gradient_norm_max = 1e-6,
        |config| config.synchronous_mut().unwrap().schedule = ScheduleSpec::constant(1e-5),
        |config| config.synchronous_mut().unwrap().target_batch_size *= 2,
    ];
    let mut edited = LearnerHarness::new().with_steps(0..3).await.with_entry(3).await;
    let (want, open) = edited.recover_both().await.unwrap();
    assert_eq!((want.epoch(), want.n_samples_total(), open.n_samples()), (3, 3 * 64, 64));
    for edit in edits {
        edit(&mut edited.config);
        let (learner, round) = edited.recover_both().await.unwrap();
        assert_eq!(learner.checkpoint().await.unwrap(), want.checkpoint().await.unwrap());
        assert_eq!((round.n_samples(), round.mean().gradient), (64, open.mean().gradient));
    }
    assert!(edited.storage.list(&ObjectPath::from("journal/corrupt")).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_damaged_step_costs_its_damaged_entry_and_no_epoch_comes_twice() {
    for crashed in [false, true] {
        let run = LearnerHarness::new().with_steps(0..5).await.with_entry(5).await;
        run.damage("000000000003/00000000.grad").await;
        if crashed {
            // In the middle of what follows: one contribution was journaled again.
            let entry = run.journal.entry(4, 0).await.unwrap().unwrap();
            run.journal.append(7, 0, &entry).await.unwrap();
        }
        // The second start finds what the first one left.
        for _ in 0..2 {
            let (learner, round) = run.recover_both().await.unwrap();
            // The model of before the step, under an epoch that nobody has heard of.
            let (before, after) = (checkpoint_of(3).await, learner.checkpoint().await.unwrap());
            let model = |of: &Checkpoint| (of.parameters.clone(), of.optimizer_state.clone());
            assert_eq!((model(&after), after.n_samples_total), (model(&before), before.n_samples_total));
            assert_eq!(learner.epoch(), if crashed { 9 } else { 7 }, "6 may have been announced");
            // The contributions of epochs 4 and 5 count, once each, by their age.
            let n_late = [4, 5].map(|of| 64_u64.div_ceil(learner.epoch() - of + 1));
            assert_eq!(round.n_samples(), n_late.iter().sum::<u64>());
        }
        let aside = run.storage.list(&ObjectPath::from("journal/corrupt")).await.unwrap();
        let is_damaged = |name: &str| name.ends_with("000000000003-00000000.grad");
        assert!(aside.iter().any(|object| is_damaged(object.location.as_ref())));
    }
}

#[tokio::test]
async fn a_commit_that_a_crash_tore_leaves_its_epoch_open() {
    let run = LearnerHarness::new().with_steps(0..3).await;
    run.damage("000000000002/commit").await;
    let (learner, round) = run.recover_both().await.unwrap();
    assert_eq!((learner.epoch(), round.n_samples()), (2, 64));
    assert_eq!(learner.checkpoint().await.unwrap(), checkpoint_of(2).await);
    // One in the middle was shown.
    let run = LearnerHarness::new().with_steps(0..3).await;
    run.damage("000000000001/commit").await;
    let (learner, round) = run.recover_both().await.unwrap();
    assert_eq!((learner.epoch(), round.n_samples() > 0), (4, true));
}

/// Steps of several backbones, of which this one gave an entry to each, the newest of which is open.
async fn of_several(epochs: std::ops::Range<u64>) -> LearnerHarness {
    let mut run = LearnerHarness { has_others: true, ..LearnerHarness::new() };
    let open = epochs.end;
    for epoch in epochs {
        let (mut learner, _) = run.recover_both().await.unwrap();
        assert_eq!(learner.epoch(), epoch);
        run = run.with_entry(epoch).await;
        let record = CommitRecord { members: vec![vec![1, 2, 3], vec![4]], ..commit(&learner) };
        let mean = vec![0.01 * (epoch + 1) as f32; run.layout.n_parameters()];
        step_of_several(&run, &mut learner, &record, &mean).await;
    }
    run.with_entry(open).await
}

/// As the core does it, where it makes a step with others, or takes one of theirs.
async fn step_of_several(run: &LearnerHarness, learner: &mut Learner, record: &CommitRecord, mean: &[f32]) {
    let (epoch, nonce) = (learner.epoch(), record.nonce);
    step(learner, Some(record), mean).await;
    run.journal.write_averaged_entries(epoch, nonce, &[0]).await.unwrap();
    run.journal.write_mean(epoch, nonce, &Arc::new(mean.to_vec())).await.unwrap();
    run.journal.commit(record).await.unwrap();
}

/// A step that cannot be repeated costs nothing that was accepted where others have it: all of it stays in the journal until
/// they have led this backbone on, over as many starts as it takes.
#[tokio::test]
async fn a_damaged_step_that_others_have_costs_nothing_that_was_accepted() {
    for damaged in ["000000000003/mean", "000000000003/commit"] {
        let run = of_several(0..6).await;
        let (want, open) = run.recover_both().await.unwrap();
        assert_eq!((want.epoch(), open.n_samples(), want.is_behind()), (6, 64, false));
        let record = run.journal.commit_of(3).await.unwrap().unwrap().unwrap();
        let mean = run.journal.mean(3, record.nonce).await.unwrap().unwrap();
        run.damage(damaged).await;
        for _ in 0..2 {
            let (mut learner, round) = run.recover_both().await.unwrap();
            assert_eq!((learner.epoch(), learner.is_behind(), round.n_samples()), (3, true, 64));
            for epoch in 3..7 {
                assert!(run.journal.entry(epoch, 0).await.unwrap().is_some(), "the entry of epoch {epoch}");
                let given = run.journal.averaged_entries(epoch, 100 + epoch).await.unwrap();
                assert_eq!(given.len(), usize::from(epoch < 6), "what is in the step of epoch {epoch}");
            }
            // It crashed when it had begun to store the step that another one gave it.
            let mean = learner.decode_mean(mean.clone()).await.unwrap();
            run.journal.write_mean(3, 7, &Arc::new(mean.clone())).await.unwrap();
            step(&mut learner, Some(&record), &mean).await;
        }
        let (mut learner, _) = run.recover_both().await.unwrap();
        let values = learner.decode_mean(mean.clone()).await.unwrap();
        step_of_several(&run, &mut learner, &record, &values).await;
        // What is behind that step it can repeat itself.
        let (learner, round) = run.recover_both().await.unwrap();
        assert_eq!(learner.checkpoint().await.unwrap(), want.checkpoint().await.unwrap());
        assert_eq!((round.n_samples(), learner.is_behind()), (64, false));
        assert!(run.storage.list(&ObjectPath::from("journal/corrupt")).await.unwrap().is_empty());
    }
}
