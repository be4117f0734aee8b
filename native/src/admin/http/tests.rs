#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path as Folder;

use barnraise_protocol::access::{AccessDescription, AccessMode, Authority, KeyPair};
use barnraise_protocol::dataset::{ImageShape, Manifest, SampleKind, ShardEntry};
use barnraise_protocol::run::{Compression, ModelKind, ModelSpec};
use barnraise_protocol::{Sha256Hash, TensorCodec};
use barnraise_swarm::access::Policy;

use super::*;
use crate::access::system_clock;
use crate::backbone::core::operator::WordError;
use crate::storage::Storage;

fn description(key: &KeyPair) -> RunDescription {
    let entry = ShardEntry { n_samples: 1, n_bytes: 1, sha256: Sha256Hash([7; 32]) };
    let shape = ImageShape { height: 1, width: 1, channels: 1 };
    let samples = SampleKind::Images { shape, class_names: vec!["a".into()] };
    RunDescription {
        run_id: "r".into(),
        title: "t".into(),
        purpose: "p".into(),
        access: AccessDescription::open(key.public()),
        model: ModelSpec { kind: ModelKind::LeNet, seed: 1 },
        n_parameters: 10,
        target_batch_size: 1024,
        micro_batch_size: 64,
        shuffle_buffer_samples: 1000,
        gradient_codec: TensorCodec::F16,
        compression: Compression::default(),
        delayed_updates: false,
        local_steps: None,
        state_codec: TensorCodec::F32,
        contribution_samples_max: 4096,
        recomputed: false,
        manifest: Manifest { name: "d".into(), samples, shards: vec![entry], gallery: entry },
    }
}

/// Of a run whose core is the test.
async fn admin(folder: &Folder, core: mpsc::Sender<CoreEvent>) -> Admin {
    let key = KeyPair::from_seed(&[1; 32]);
    let description = Arc::new(description(&key));
    let authority = Authority { key: key.public(), run_id: "r".into() };
    let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance: Duration::from_secs(30) };
    let gate = Gate::new(policy, key.public(), system_clock());
    let contributions = Store::open(folder, None, "r", PeerId::random()).await.unwrap();
    let checkpoints = Checkpoints::new(Storage::in_memory(), 3);
    let run = Run { description, core, gate, contributions, checkpoints };
    let audit = Audit::open(folder, system_clock()).unwrap();
    Admin::new(vec![run], TokenHash::of("a token"), audit)
}

#[tokio::test]
async fn a_word_that_takes_long_is_in_the_log_with_its_outcome_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (core, mut heard) = mpsc::channel(1);
    let admin = admin(folder.path(), core).await;
    let deed = deed("127.0.0.1:5".parse().unwrap(), "resume", "r", json!({}));
    let told = admin.tell("r", deed, Word::Resume).await;
    assert!(matches!(told, Err(Problem::Timeout)), "{told:?}");
    let outcomes =
        || -> Vec<String> { admin.audit.newest(9).unwrap().into_iter().map(|entry| entry.outcome).collect() };
    let Some(CoreEvent::Operator(asked)) = heard.recv().await else { panic!("a word is wanted") };
    assert_eq!(outcomes(), ["begun"], "nobody knows yet");
    asked.answer.send(Err(WordError::NotBlocked)).unwrap();
    while outcomes().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(outcomes(), ["begun", "the peer is not blocked"]);
}
