//! How much a restart has in memory of what the journal has.

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{SampleKind, ShardEntry, TokenShape};

use super::*;
use crate::scheme::synchronous::ledger::SharedLedger;
use crate::storage::journal::CommitRecord;
use crate::storage::simulated::SimulatedDisk;
use barnraise_swarm::robust::Aggregation;

const STEPS: u64 = 30;
const ENTRIES: u64 = 40;

/// Many steps of many contributions each, and an open one.
async fn fill(world: &CrashHarness, storage: &Storage) -> u64 {
    let (journal, checkpoints) = (&Journal::new(storage.clone()), Checkpoints::new(storage.clone(), KEPT));
    let n_parameters = world.layout.n_parameters();
    for epoch in 0..=STEPS {
        for sequence in 0..ENTRIES {
            let id = epoch * ENTRIES + sequence;
            let (offer, payload, _) = world.contribution(id, epoch);
            let (peer, group) = (world.contributor(id).0.clone(), AddressGroup(1));
            let (milliseconds, accepted_at, payload) = (1, UnixTime(1_800_000_000), payload.into());
            let entry =
                JournalEntry { peer, group, offer, milliseconds, accepted_at, payload, samples: None };
            journal.append(epoch, sequence as u32, &entry).await.unwrap();
        }
        if epoch < STEPS {
            let (stored, round) =
                ((&checkpoints, journal), learner::round_config(world.configured(), n_parameters));
            let recovered = Learner::recover(world.configured(), round, world.fresh(), stored, false).await;
            let before = recovered.unwrap().0.version().hash;
            let n_samples = ENTRIES * u64::from(SAMPLES);
            let commit = CommitRecord {
                epoch,
                before,
                nonce: 0,
                members: vec![vec![1]],
                n_samples,
                loss: 1.0,
                seqs: (0..ENTRIES as u32).collect(),
                aggregation: Aggregation::Mean,
                learning_rate: 1.0,
            };
            journal.commit(&commit).await.unwrap();
        }
    }
    (STEPS + 1) * ENTRIES
}

#[tokio::test]
async fn a_restart_has_one_contribution_in_memory_at_a_time_however_many_there_are() {
    let (disk, folder) = (SimulatedDisk::new(1), folder());
    let world = CrashHarness::new("many");
    let store = world.store(folder.path()).await;
    let storage = Storage::on(Arc::new(disk.clone()));
    let journal = Journal::new(storage.clone());
    let n = fill(&world, &storage).await;
    let mut alive = world.start(storage, &store).await.unwrap();
    let shard = ShardEntry { n_samples: 1_000_000, n_bytes: 1, sha256: Sha256Hash::of(b"") };
    let samples = SampleKind::Tokens(TokenShape { length: 1, vocabulary: 4, mask: Some(1) });
    let manifest = fixture::manifest(samples, shard);
    let ledger = SharedLedger::restore(&manifest, &journal, STEPS).await.unwrap();
    alive.recording.catch_up().await.unwrap();
    // The open step is more than enough, and is made.
    alive.reaches(STEPS + 1).await;
    let of_one = disk.n_bytes_used() / n;
    let held = disk.n_bytes_held_max();
    assert!(held < 3 * of_one, "{held} bytes of {n} contributions at once, one has about {of_one}");
    drop(ledger);
    alive.stop().await;
    store.close().await;
}
