#![allow(clippy::unwrap_used)]

use std::path::Path;

use barnraise_protocol::access::UnixTime;
use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::run::ModelKind;
use barnraise_swarm::robust::Aggregation;
use barnraise_swarm::round::AddressGroup;

use super::*;
use crate::storage::Storage;

/// A run of a small model, and what its backbone stores.
struct Run {
    config: RunConfig,
    layout: ParameterLayout,
    checkpoints: Checkpoints,
    journal: Journal,
}

impl Run {
    fn new() -> Self {
        let mut config = RunConfig::dev(Path::new("unused"));
        config.run.model = ModelKind::Mlp { hidden: vec![2] };
        config.run.gradient_codec = TensorCodec::F32;
        let shape = ImageShape { height: 2, width: 2, channels: 1 };
        let layout =
            ParameterLayout::of(&config.model_spec(), DataShape::Images { shape, n_classes: 2 }).unwrap();
        let storage = Storage::in_memory();
        let (checkpoints, journal) = (Checkpoints::new(storage.clone(), 9), Journal::new(storage));
        Self { config, layout, checkpoints, journal }
    }

    /// Its journal has the steps of these epochs, each by a gradient of its own.
    async fn with_steps(self, epochs: std::ops::Range<u64>) -> Self {
        for epoch in epochs {
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
            let entry = JournalEntry {
                peer,
                group: AddressGroup::UNKNOWN,
                offer,
                milliseconds: 500,
                accepted_at,
                payload,
            };
            self.journal.append(epoch, 0, &entry).await.unwrap();
            let commit = CommitRecord {
                epoch,
                n_samples: 64,
                seqs: vec![0],
                aggregation: Aggregation::Mean,
                together: None,
                learning_rate: Some(0.1),
            };
            self.journal.commit(&commit).await.unwrap();
        }
        self
    }

    async fn recover(&self) -> Result<Learner, LearnerError> {
        let round = round_config(&self.config, self.layout.n_parameters());
        let (config, checkpoints, journal) = (&self.config, &self.checkpoints, &self.journal);
        Learner::recover(config, round, &self.layout, checkpoints, journal).await.map(|(learner, _)| learner)
    }
}

/// The checkpoint after so many of these steps.
async fn checkpoint_of(epoch: u64) -> Checkpoint {
    Run::new().with_steps(0..epoch).await.recover().await.unwrap().checkpoint().unwrap()
}

/// An old checkpoint, or none, beside a journal that was cut behind a newer one.
#[tokio::test]
async fn a_gap_between_checkpoint_and_journal_is_an_error_that_says_what_is_missing() {
    for has_checkpoint in [false, true] {
        let run = Run::new().with_steps(4..6).await;
        let mut reached = 0;
        if has_checkpoint {
            reached = 2;
            run.checkpoints.save(&checkpoint_of(reached).await).await.unwrap();
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
        assert_eq!(run.journal.commits(4).await.unwrap().len(), 2);
        // As the words say: a newer checkpoint closes it, and the model is that of all steps.
        run.checkpoints.save(&checkpoint_of(4).await).await.unwrap();
        let learner = run.recover().await.unwrap();
        assert_eq!(learner.checkpoint().unwrap(), checkpoint_of(6).await);
    }
}

#[tokio::test]
async fn the_missing_steps_put_back_or_the_later_ones_taken_away_close_the_gap() {
    let put_back = Run::new().with_steps(3..6).await.with_steps(0..3).await;
    assert_eq!(put_back.recover().await.unwrap().checkpoint().unwrap(), checkpoint_of(6).await);
    let taken_away = Run::new().with_steps(0..2).await.with_steps(4..6).await;
    assert!(matches!(taken_away.recover().await, Err(LearnerError::Gap { reached: 2, found: 4 })));
    for epoch in 4..6 {
        taken_away.journal.clear(epoch).await.unwrap();
    }
    assert_eq!(taken_away.recover().await.unwrap().checkpoint().unwrap(), checkpoint_of(2).await);
}
