//! A database on a full disk: what it acknowledged is visible to all connections, and the rest is in the journal.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use barnraise_protocol::access::{KeyPair, PublicKey, UnixTime};
use barnraise_protocol::api::ContributionsQuery;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::receipt::Receipt;
use barnraise_swarm::AddressGroup;
use barnraise_swarm::random::SplitMix64;
use libp2p::PeerId;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use super::database::Database;
use super::{Batch, Issuer, Question, Recording, Store, WorkMeter};
use crate::host::peer_id;
use crate::storage::Storage;
use crate::storage::journal::{Journal, JournalEntry};

const RUN: &str = "barn";

async fn store(folder: &Path) -> Store {
    Store::open(folder, None, RUN, PeerId::from_bytes(&peer(1)).unwrap()).await.unwrap()
}

fn key(seed: u8) -> PublicKey {
    KeyPair::from_seed(&[seed; 32]).public()
}

fn peer(seed: u8) -> Vec<u8> {
    peer_id(key(seed)).unwrap().to_bytes()
}

fn receipt(id: u64) -> Receipt {
    Receipt {
        run_id: RUN.into(),
        peer: key((id % 5) as u8),
        reducer: key(1),
        contribution_id: id,
        epoch: id / 100,
        n_samples: 64,
        n_bytes: 1000,
        milliseconds: 500,
        issued_at: UnixTime(1_800_000_000),
    }
}

fn batch(ids: std::ops::Range<u64>) -> Batch {
    let refused = BTreeMap::from([("storage", 1), ("busy", 2), ("rate", 3)]);
    Batch { receipts: ids.map(receipt).collect(), refused, ..Batch::default() }
}

/// The file becomes no larger than that, as if the disk were full.
async fn hold(store: &Store, n_pages: u64) {
    let Database::Sqlite(file) = &store.database else { panic!("a server") };
    for pragma in [format!("PRAGMA max_page_count = {n_pages}"), "PRAGMA busy_timeout = 1".to_owned()] {
        sqlx::query(&pragma).execute(&file.writer).await.unwrap();
    }
}

/// Another process writes, and lets nobody else do so.
async fn lock(folder: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(folder.join("contributions.sqlite"));
    let mut other = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    other
}

async fn n_pages(store: &Store) -> u64 {
    let Database::Sqlite(file) = &store.database else { panic!("a server") };
    let n: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(&file.writer).await.unwrap();
    n.cast_unsigned()
}

/// What somebody reads who has just come.
async fn n_recorded(folder: &Path) -> u64 {
    let other = store(folder).await;
    let question = Question::try_from(ContributionsQuery { offset: None, limit: None, peer: None }).unwrap();
    let answer = other.contributions(&question).await.unwrap();
    let of_peers: u64 = answer.contributors.iter().map(|it| it.totals.n_contributions).sum();
    assert_eq!(of_peers, answer.totals.n_contributions);
    other.close().await;
    answer.totals.n_contributions
}

/// There is no room, then there is, another process writes meanwhile, and what was said to be written is read by somebody
/// who has just come. (sqlx counts on a transaction that SQLite has rolled back by itself where the disk is full; had the
/// connection been used again, the first write after that which found the database locked would have left a transaction
/// open for ever, and all that followed were in it.)
#[tokio::test]
async fn what_is_said_to_be_written_after_a_full_disk_is_there_for_everybody() {
    for seed in 0..6 {
        let mut random = SplitMix64::new(seed);
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path()).await;
        store.record(&batch(0..50)).await.unwrap();
        let (mut n_written, mut n_failed) = (50, 0);
        for _ in 0..12 {
            let is_full = random.below(3) > 0;
            let room = n_pages(&store).await + random.below(4) as u64;
            hold(&store, if is_full { room } else { 1_000_000 }).await;
            let until = n_written + 20 + random.below(600) as u64;
            let locker = if random.below(3) == 0 { Some(lock(folder.path()).await) } else { None };
            match store.record(&batch(n_written..until)).await {
                Ok(_) => n_written = until,
                Err(_) => n_failed += 1,
            }
            if let Some(locker) = locker {
                locker.close().await.unwrap();
            }
            if random.below(2) == 0 {
                let _ = store.convict(key(50 + random.below(200) as u8), 3).await;
                let _ = store.call(PeerId::from_bytes(&peer(2)).unwrap(), None, seed).await;
            }
            assert_eq!(n_recorded(folder.path()).await, n_written, "seed {seed}");
        }
        assert!(n_failed > 2, "seed {seed}: the disk was never full");
        hold(&store, 1_000_000).await;
        store.record(&batch(n_written..n_written + 1000)).await.unwrap();
        assert_eq!(n_recorded(folder.path()).await, n_written + 1000, "seed {seed}");
        store.close().await;
        assert_eq!(n_recorded(folder.path()).await, n_written + 1000, "seed {seed}: after a restart");
    }
}

async fn journaled(journal: &Journal, epochs: std::ops::Range<u64>) {
    for id in epochs.start * 4..epochs.end * 4 {
        let offer = Offer {
            contribution_id: id,
            epoch: id / 4,
            n_samples: 64,
            loss: 1.0,
            n_values: 1,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&[0; 4]),
        };
        let (milliseconds, accepted_at) = (1, UnixTime(1_800_000_000));
        let (peer, group, payload) = (peer(2), AddressGroup(1), vec![0; 4].into());
        let entry = JournalEntry { peer, group, offer, milliseconds, accepted_at, payload, samples: None };
        journal.append(id / 4, (id % 4) as u32, &entry).await.unwrap();
    }
}

async fn recording(store: &Store, journal: &Journal, epoch: u64) -> (Recording, super::Recorder) {
    let issuer = Issuer::new(RUN, KeyPair::from_seed(&[1; 32]));
    let refused = Box::new(BTreeMap::<&'static str, u64>::new);
    let work = Arc::new(WorkMeter::default());
    Recording::new(store.clone(), journal.clone(), issuer, epoch, refused, work).await.unwrap()
}

#[tokio::test]
async fn the_journal_is_cut_behind_what_others_read_and_not_behind_what_was_said_to_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path()).await;
    let journal = Journal::new(Storage::in_memory());
    journaled(&journal, 0..6).await;
    let (mut recording, recorder) = recording(&store, &journal, 5).await;
    recording.catch_up().await.unwrap();
    // As if a transaction had been said to be committed and was not.
    let Database::Sqlite(file) = &store.database else { panic!("a server") };
    let lost = "DELETE FROM contributions WHERE epoch = 2 AND contribution_id = 9";
    sqlx::query(lost).execute(&file.writer).await.unwrap();
    recorder.forget_before(4);
    let error = recording.catch_up().await.unwrap_err().to_string();
    assert!(error.contains("1 contributions of epoch 2"), "{error}");
    assert_eq!(journal.epochs().await.unwrap(), [0, 1, 2, 3, 4, 5], "nothing is forgotten");
    // It is written again, and then the journal may go.
    recording.catch_up().await.unwrap();
    let names: Vec<(Vec<u8>, u64)> = (0..24).map(|id| (peer(2), id)).collect();
    assert_eq!(store.n_missing(&names).await.unwrap(), 0);
    assert_eq!(journal.epochs().await.unwrap(), [4, 5]);
    store.close().await;
}

#[tokio::test]
async fn a_full_database_keeps_the_journal_and_counts_as_behind() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path()).await;
    let journal = Journal::new(Storage::in_memory());
    journaled(&journal, 0..100).await;
    hold(&store, 1).await;
    let (mut recording, recorder) = recording(&store, &journal, 99).await;
    recorder.forget_before(90);
    // Until it is full: some of it may fit into what there is.
    let held = n_pages(&store).await;
    hold(&store, held).await;
    assert!(recording.catch_up().await.is_err());
    assert_eq!(journal.epochs().await.unwrap().len(), 100);
    // The connection that failed is gone, and with it the limit.
    recording.catch_up().await.unwrap();
    recorder.forget_before(90);
    recording.catch_up().await.unwrap();
    assert_eq!(journal.epochs().await.unwrap(), (90..100).collect::<Vec<_>>());
    assert_eq!(n_recorded(folder.path()).await, 400);
    store.close().await;
}
