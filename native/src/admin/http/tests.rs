#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path as Folder;

use barnraise_protocol::access::{AccessDescription, AccessMode, Authority, KeyPair};
use barnraise_swarm::access::Policy;

use super::*;
use crate::access::system_clock;
use crate::backbone::core::operator::WordError;
use crate::fixture;
use crate::storage::Storage;

/// Of a run whose core is the test.
async fn admin(folder: &Folder, core: mpsc::Sender<CoreEvent>) -> Admin {
    let key = KeyPair::from_seed(&[1; 32]);
    let access = AccessDescription::open(key.public());
    let description = Arc::new(RunDescription { access, ..fixture::run() });
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
