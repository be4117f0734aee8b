#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path as Folder;

use barnraise_protocol::access::{AccessDescription, AccessMode, Authority, KeyPair};
use barnraise_swarm::access::Policy;

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::run::RunDescription;
use tokio::sync::mpsc;

use super::super::token::TokenHash;
use super::*;
use crate::fixture;
use crate::host::access::Gate;
use crate::host::audit::AuditLog;
use crate::host::clock::system_clock;
use crate::host::contributions::Store;
use crate::host::operator::request::{OperatorError, OperatorHandle, OperatorRequest};
use crate::storage::Storage;
use crate::storage::checkpoint::Checkpoints;

/// The API of a run whose core is played by the test.
async fn admin(folder: &Folder, operator: OperatorHandle) -> Admin {
    let key = KeyPair::from_seed(&[1; 32]);
    let access = AccessDescription::open(key.public());
    let description = Arc::new(RunDescription { access, ..fixture::run() });
    let authority = Authority { key: key.public(), run_id: "r".into() };
    let policy = Policy { mode: AccessMode::Open, authority, clock_tolerance: Duration::from_secs(30) };
    let gate = Gate::new(policy, key.public(), system_clock());
    let contributions = Store::open(folder, None, "r", PeerId::random()).await.unwrap();
    let checkpoints = Checkpoints::new(Storage::in_memory(), 3);
    let run = HostedRun { description, operator, gate, contributions, checkpoints };
    let audit = AuditLog::open(folder, system_clock()).unwrap();
    Admin::new(vec![run], TokenHash::of("a token"), audit)
}

#[tokio::test]
async fn a_command_that_takes_long_is_in_the_log_with_its_outcome_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (core, mut heard) = mpsc::channel::<OperatorRequest>(1);
    let admin = admin(folder.path(), OperatorHandle::new(core)).await;
    let record = audit_record("127.0.0.1:5".parse().unwrap(), "resume", "r", json!({}));
    let told = admin.execute("r", record, OperatorCommand::Resume).await;
    assert!(matches!(told, Err(Problem::Timeout)), "{told:?}");
    let outcomes =
        || -> Vec<String> { admin.audit.newest(9).unwrap().into_iter().map(|entry| entry.outcome).collect() };
    let Some(asked) = heard.recv().await else { panic!("a word is wanted") };
    assert_eq!(outcomes(), ["begun"], "the outcome is not known yet");
    asked.answer.send(Err(OperatorError::NotBlocked)).unwrap();
    while outcomes().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(outcomes(), ["begun", "the peer is not blocked"]);
}
