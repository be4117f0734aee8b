#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;

use barnraise_protocol::access::Signature;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::{Sha256Hash, TensorCodec};
use proptest::prelude::*;

use super::*;
use crate::storage::hex;

fn entry(epoch: u64, id: u64, payload: Vec<u8>) -> JournalEntry {
    let transfer = Transfer { n_bytes: payload.len() as u64, sha256: Sha256Hash::of(&payload) };
    let offer = Offer {
        contribution_id: id,
        epoch,
        n_samples: 64,
        loss: 0.5,
        n_values: payload.len() as u64 / 2,
        codec: TensorCodec::F16,
        transfer,
    };
    let (milliseconds, accepted_at) = (1500, UnixTime(1_800_000_000));
    let (peer, group, payload) = (vec![1, 2, 3], AddressGroup(9), payload.into());
    JournalEntry { peer, group, offer, milliseconds, accepted_at, payload, samples: None }
}

/// The same with its samples.
fn committed(entry: JournalEntry) -> JournalEntry {
    let commitment = Commitment {
        parameters: Sha256Hash([6; 32]),
        parameters_epoch: 3,
        samples: Sha256Hash([8; 32]),
        n_samples: 2,
        signature: Signature::from([4; 64]),
    };
    JournalEntry { samples: Some(CommittedSamples { commitment, list: vec![1, 2].into() }), ..entry }
}

fn commit(epoch: u64, seqs: &[u32]) -> CommitRecord {
    let aggregation = Aggregation::CenteredClip { places: 7 };
    let n_samples = 64 * seqs.len() as u64;
    CommitRecord {
        epoch,
        before: Sha256Hash([5; 32]),
        nonce: 9,
        members: vec![vec![1]],
        n_samples,
        loss: 0.5,
        seqs: seqs.to_vec(),
        aggregation,
        learning_rate: 0.25,
    }
}

/// As the last version wrote them, byte by byte: what a program of before acknowledged is read by this one. A layout that
/// changes, that of an offer included, has another version of its kind.
#[test]
fn golden_bytes() {
    let entry = entry(3, 7, vec![9; 4]);
    for (entry, golden) in [(entry.clone(), GOLDEN_ENTRY), (committed(entry), GOLDEN_COMMITTED_ENTRY)] {
        let bytes = encode_entry(&entry).unwrap();
        assert_eq!(hex(&bytes), golden);
        assert_eq!(decode_entry(&bytes.into(), 3).unwrap(), entry);
    }
    let record = commit(4, &[1, 0]);
    let bytes = sealed::seal_parts(COMMIT, &record, &[]).unwrap();
    assert_eq!(hex(&bytes), GOLDEN_COMMIT);
    assert_eq!(decode_commit(&bytes, 4).unwrap(), record);
    for (aggregation, golden) in [
        (Aggregation::Mean, GOLDEN_MEAN_COMMIT),
        (Aggregation::MeanOfAddresses { places: 300 }, GOLDEN_ADDRESSES_COMMIT),
    ] {
        let record = CommitRecord { aggregation, ..commit(300, &[]) };
        let bytes = sealed::seal_parts(COMMIT, &record, &[]).unwrap();
        assert_eq!(hex(&bytes), golden);
        assert_eq!(decode_commit(&bytes, 300).unwrap(), record);
    }
}

#[test]
fn golden_names() {
    let names = [entry_path(3, 7), path_of(3, COMMIT_NAME), path_of(3, MEAN_NAME), given_path(3, 9)];
    let golden = ["00000007.grad", "commit", "mean", "given-0000000000000009"];
    let golden = golden.map(|name| format!("journal/000000000003/{name}"));
    assert_eq!(names.map(|path| path.to_string()), golden);
}

#[tokio::test]
async fn golden_bytes_of_what_is_averaged() {
    let storage = Storage::in_memory();
    let journal = Journal::new(storage.clone());
    journal.write_mean(3, 9, &vec![1.0, -2.0].into()).await.unwrap();
    journal.write_averaged_entries(3, 9, &[0, 300]).await.unwrap();
    for (path, golden) in [(path_of(3, MEAN_NAME), GOLDEN_MEAN), (given_path(3, 9), GOLDEN_GIVEN)] {
        let bytes = storage.get(&path, ENTRY_BYTES_MAX).await.unwrap().unwrap();
        assert_eq!(hex(&bytes), golden, "{path}");
    }
    assert_eq!(journal.mean(3, 9).await.unwrap().unwrap(), [1f32, -2.0].map(f32::to_le_bytes).concat());
    assert_eq!(journal.averaged_entries(3, 9).await.unwrap(), [0, 300]);
}

const GOLDEN_MEAN: &str = "\
    6261726e726169736d65616e02000e0000000000000080ad3157d7e1fbd70f15943d4ea8929a07366054a7b74dc30360f09f\
    2a4bb0870200000003090000803f000000c0\
    ";
const GOLDEN_GIVEN: &str = "\
    6261726e726169736769766e01000800000000000000be4dce26a1aaa3837f989fbbdb65b9fdf373d7a778514207dddfe184\
    88ebbcf7040000000200ac02\
    ";

const GOLDEN_ENTRY: &str = "\
    6261726e726169736772616404003f0000000000000068e32d0268132f203cfb6e799d0b5233f294c79c6ff2b868981c76b2\
    0b84e1543700000003010203090703400000003f0201048493100b11a2fe625bcf97fc313f83b580ba4fd2c016221009db93\
    bfe184ee45dc0b80a4a7da060009090909\
    ";
const GOLDEN_COMMITTED_ENTRY: &str = "\
    6261726e72616973677261640400c4000000000000000f0aa1f83cdd3c9202ce8645a2ab2044170b8b4453ba6b358131ff9e\
    ec201203ba00000003010203090703400000003f0201048493100b11a2fe625bcf97fc313f83b580ba4fd2c016221009db93\
    bfe184ee45dc0b80a4a7da060106060606060606060606060606060606060606060606060606060606060606060308080808\
    0808080808080808080808080808080808080808080808080808080802040404040404040404040404040404040404040404\
    0404040404040404040404040404040404040404040404040404040404040404040404040404040404040402010209090909\
    ";
const GOLDEN_COMMIT: &str = "\
    6261726e72616973636d697405003800000000000000f156a40afe8781dbe2b507b3ae782fa78bd884e08167f74608115613\
    f7e808f134000000040505050505050505050505050505050505050505050505050505050505050505090101018001000000\
    3f02010001070000803e\
    ";
const GOLDEN_MEAN_COMMIT: &str = "\
    6261726e72616973636d6974050035000000000000007ba30e4b3b9ae630d959f5b43c033077ad637c2b4eae1976fab0d15f\
    54a4b13331000000ac0205050505050505050505050505050505050505050505050505050505050505050901010100000000\
    3f00000000803e\
    ";
const GOLDEN_ADDRESSES_COMMIT: &str = "\
    6261726e72616973636d697405003700000000000000eabf3eff77c614ba7467366dc6c6eeb767428cdcc83fb054a20228e4\
    215af17b33000000ac0205050505050505050505050505050505050505050505050505050505050505050901010100000000\
    3f0002ac020000803e\
    ";

/// Those of `from` and of what follows, up to the first that is none or damaged; and what is wrong with that.
async fn commits(journal: &Journal, from: u64) -> (Vec<CommitRecord>, Option<Damage>) {
    let mut records = Vec::new();
    loop {
        match journal.commit_of(from + records.len() as u64).await.unwrap() {
            Some(Ok(record)) => records.push(record),
            None => return (records, None),
            Some(Err(reason)) => return (records, Some(reason)),
        }
    }
}

fn whole<const N: usize>(records: [CommitRecord; N]) -> (Vec<CommitRecord>, Option<Damage>) {
    (records.into(), None)
}

async fn entries(journal: &Journal, epoch: u64) -> Vec<(u32, JournalEntry)> {
    let (mut reading, mut read) = (journal.entries(epoch).await.unwrap(), Vec::new());
    while let Some(entry) = reading.next().await.unwrap() {
        read.push(entry);
    }
    read
}

#[tokio::test]
async fn a_restart_finds_committed_steps_and_the_open_epoch() {
    let folder = tempfile::tempdir().unwrap();
    {
        let journal = Journal::new(Storage::open(folder.path()).unwrap());
        for (epoch, seq) in [(4, 0), (4, 1), (5, 1), (5, 0), (6, 0)] {
            journal.append(epoch, seq, &entry(epoch, seq.into(), vec![seq as u8; 20])).await.unwrap();
        }
        journal.commit(&commit(4, &[1, 0])).await.unwrap();
        journal.commit(&commit(5, &[0])).await.unwrap();
    }
    let journal = Journal::new(Storage::open(folder.path()).unwrap());
    assert_eq!(journal.epochs().await.unwrap(), [4, 5, 6]);
    assert_eq!(commits(&journal, 4).await, whole([commit(4, &[1, 0]), commit(5, &[0])]));
    assert_eq!(commits(&journal, 6).await, whole([]));
    assert_eq!(entries(&journal, 6).await, [(0, entry(6, 0, vec![0; 20]))]);
    let of_five: Vec<u32> = entries(&journal, 5).await.iter().map(|e| e.0).collect();
    assert_eq!(of_five, [0, 1], "in order of their numbers");
    journal.truncate(5).await.unwrap();
    assert_eq!(entries(&journal, 4).await, []);
    assert_eq!(commits(&journal, 4).await, whole([]));
    assert_eq!(commits(&journal, 5).await, whole([commit(5, &[0])]));
}

/// What another version wrote is told from damage, for each kind of object, and is left where it is.
#[tokio::test]
async fn a_newer_format_is_refused_by_name_and_never_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::new(Storage::open(folder.path()).unwrap());
    let newer = |kind: ObjectKind| {
        sealed::seal(ObjectKind { version: kind.version + 2, ..kind }, b"of another layout")
    };
    for (kind, name) in
        [(ENTRY, "00000000.grad"), (COMMIT, "commit"), (MEAN, "mean"), (GIVEN, "given-0000000000000009")]
    {
        let file = folder.path().join("journal/000000000004").join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, newer(kind)).unwrap();
        let error = match name {
            "commit" => journal.commit_of(4).await.unwrap_err(),
            "mean" => journal.mean(4, 9).await.unwrap_err(),
            "00000000.grad" => {
                let by_name = journal.entries(4).await.unwrap().next_name().await.unwrap_err();
                let whole = journal.entries(4).await.unwrap().next().await.unwrap_err();
                assert_eq!(by_name.to_string(), whole.to_string());
                whole
            }
            _ => journal.averaged_entries(4, 9).await.unwrap_err(),
        };
        let want =
            format!("{} format {}, this program knows up to {}", kind.what, kind.version + 2, kind.version);
        assert!(error.to_string().contains(&want), "{error}");
        assert!(file.exists(), "{name} is not damaged");
        fs::remove_file(&file).unwrap();
    }
    assert!(!folder.path().join("journal/corrupt").exists());
}

#[tokio::test]
async fn what_is_forgotten_leaves_no_folder_behind_that_every_start_would_read() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::new(Storage::open(folder.path()).unwrap());
    for epoch in 0..50 {
        journal.append(epoch, 0, &entry(epoch, epoch, vec![1; 10_000])).await.unwrap();
        journal.commit(&commit(epoch, &[0])).await.unwrap();
    }
    journal.truncate(48).await.unwrap();
    journal.clear(48).await.unwrap();
    let left = std::fs::read_dir(folder.path().join("journal")).unwrap().count();
    assert_eq!((left, journal.epochs().await.unwrap()), (1, vec![49]));
    let named = journal.entries(49).await.unwrap().next_name().await.unwrap();
    assert_eq!(named, Some((0, entry(49, 49, Vec::new()).name())));
}

#[tokio::test]
async fn a_step_of_several_records_its_mean_and_its_entries() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::new(Storage::open(folder.path()).unwrap());
    assert_eq!(
        (journal.averaged_entries(4, 9).await.unwrap(), journal.mean(4, 9).await.unwrap()),
        (vec![], None)
    );
    let (before, members) = (Sha256Hash::of(b"before"), vec![vec![1], vec![2]]);
    let record = CommitRecord { before, members, ..commit(4, &[0]) };
    journal.write_averaged_entries(4, 9, &[0]).await.unwrap();
    journal.write_mean(4, 9, &vec![1.0, -2.0].into()).await.unwrap();
    journal.commit(&record).await.unwrap();
    assert_eq!(journal.commit_of(4).await.unwrap(), Some(Ok(record)));
    assert_eq!(journal.averaged_entries(4, 9).await.unwrap(), [0]);
    assert!(journal.averaged_entries(4, 8).await.unwrap().is_empty(), "of another averaging");
    let mean = journal.mean(4, 9).await.unwrap().unwrap();
    assert_eq!(mean, [1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat());
    assert_eq!(
        journal.mean(4, 8).await.unwrap(),
        None,
        "the mean of another averaging makes no step of this one"
    );
    let file = folder.path().join("journal/000000000004/mean");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(journal.mean(4, 9).await.unwrap(), None, "a damaged mean is none");
    journal.append(5, 0, &entry(5, 0, vec![1; 10])).await.unwrap();
    journal.abandon_branch(4, "another branch is followed").await.unwrap();
    assert_eq!(
        (journal.averaged_entries(4, 9).await.unwrap(), journal.commit_of(4).await.unwrap()),
        (vec![0], None)
    );
    assert_eq!(entries(&journal, 5).await.len(), 1, "what was accepted stays");
    journal.clear(5).await.unwrap();
    assert_eq!(entries(&journal, 5).await.len(), 0);
}

#[tokio::test]
async fn a_torn_entry_is_set_aside_and_the_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::new(Storage::open(folder.path()).unwrap());
    let file = folder.path().join("journal/000000000003/00000001.grad");
    journal.append(3, 0, &entry(3, 0, vec![7; 40])).await.unwrap();
    journal.append(3, 1, &entry(3, 1, vec![8; 40])).await.unwrap();
    let whole = fs::read(&file).unwrap();
    for cut in 0..whole.len() {
        fs::write(&file, &whole[..cut]).unwrap();
        assert_eq!(entries(&journal, 3).await, [(0, entry(3, 0, vec![7; 40]))], "cut at {cut}");
        let aside = folder.path().join("journal/corrupt/000000000003-00000001.grad");
        assert_eq!((file.exists(), fs::read(aside).unwrap()), (false, whole[..cut].to_vec()));
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(entries(&journal, 3).await.len(), 2);
}

#[tokio::test]
async fn an_entry_is_of_its_folders_epoch_or_late() {
    let journal = Journal::new(Storage::in_memory());
    journal.append(3, 0, &entry(4, 0, vec![7; 40])).await.unwrap();
    journal.append(3, 1, &entry(2, 1, vec![7; 40])).await.unwrap();
    assert_eq!(entries(&journal, 3).await, [(1, entry(2, 1, vec![7; 40]))]);
    let bytes = encode_entry(&entry(4, 0, vec![7; 40])).unwrap();
    assert_eq!(decode_entry(&bytes.into(), 3).unwrap_err(), Damage::Epoch { want: 3, got: 4 });
}

#[tokio::test]
async fn a_torn_commit_is_told_and_nothing_is_moved_until_somebody_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::new(Storage::open(folder.path()).unwrap());
    journal.append(1, 0, &entry(1, 0, vec![1; 10])).await.unwrap();
    for epoch in 1..4 {
        journal.commit(&commit(epoch, &[0])).await.unwrap();
    }
    journal.append(3, 0, &entry(3, 0, vec![1; 10])).await.unwrap();
    let file = folder.path().join("journal/000000000002/commit");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    for _ in 0..2 {
        let (records, damaged) = commits(&journal, 1).await;
        assert_eq!(records, [commit(1, &[0])]);
        assert!(matches!(damaged, Some(Damage::Seal(SealError::Length { .. }))), "{damaged:?}");
        assert!(file.exists());
    }
    journal.abandon_branch(2, "it is damaged").await.unwrap();
    assert!(!file.exists());
    assert!(folder.path().join("journal/corrupt/000000000002-commit").exists());
    assert_eq!(commits(&journal, 1).await, whole([commit(1, &[0])]));
    assert_eq!(entries(&journal, 3).await.len(), 1, "what was accepted stays");
    journal.truncate(100).await.unwrap();
    assert!(folder.path().join("journal/corrupt/000000000002-commit").exists());
}

#[test]
fn the_largest_object_can_be_stored_and_no_larger_one() {
    let path = entry_path(3, 7);
    assert!(check_size(&path, ENTRY_BYTES_MAX).is_ok());
    let error = check_size(&path, ENTRY_BYTES_MAX + 1).unwrap_err();
    assert!(matches!(error, JournalError::TooLarge { got, .. } if got == ENTRY_BYTES_MAX + 1), "{error}");
}

#[test]
fn a_mean_follows_from_the_entries_of_one_aggregator_that_has_some() {
    let of = |n_members: usize, seqs: &[u32]| {
        CommitRecord { members: vec![vec![1]; n_members], ..commit(4, seqs) }.is_of_entries()
    };
    assert_eq!([of(1, &[0]), of(1, &[]), of(2, &[0]), of(0, &[0])], [true, false, false, false]);
}

#[tokio::test]
async fn the_next_commit_is_of_a_later_epoch_and_entries_are_no_commits() {
    let journal = Journal::new(Storage::in_memory());
    for epoch in [3, 5, 7] {
        journal.commit(&commit(epoch, &[0])).await.unwrap();
    }
    journal.append(4, 0, &entry(4, 0, vec![1; 10])).await.unwrap();
    journal.append(4, 1, &entry(4, 1, vec![1; 10])).await.unwrap();
    for (epoch, next) in [(2, Some(3)), (3, Some(5)), (4, Some(5)), (5, Some(7)), (6, Some(7)), (7, None)] {
        assert_eq!(journal.first_commit_after(epoch).await.unwrap(), next, "after {epoch}");
    }
    let has = [3, 4, 6].map(|epoch| journal.has_entries(epoch));
    let has = futures::future::try_join_all(has).await.unwrap();
    assert_eq!(has, [false, true, false], "a commit is no entry");
    journal.forget(4, 0).await.unwrap();
    let left: Vec<u32> = entries(&journal, 4).await.into_iter().map(|(sequence, _)| sequence).collect();
    assert_eq!(left, [1]);
}

#[tokio::test]
async fn a_branch_is_left_from_its_epoch_on_and_what_is_set_aside_is_forgotten_when_asked() {
    let storage = Storage::in_memory();
    let journal = Journal::new(storage.clone());
    for epoch in 1..5 {
        journal.commit(&commit(epoch, &[0])).await.unwrap();
    }
    journal.abandon_branch(3, "another branch is followed").await.unwrap();
    assert_eq!(commits(&journal, 1).await, whole([commit(1, &[0]), commit(2, &[0])]));
    assert_eq!(journal.commit_of(4).await.unwrap(), None);
    let aside = ObjectPath::from_iter([FOLDER, CORRUPT]);
    assert_eq!(storage.list(&aside).await.unwrap().len(), 2);
    journal.forget_set_aside().await.unwrap();
    assert_eq!(storage.list(&aside).await.unwrap(), []);
    assert_eq!(journal.epochs().await.unwrap(), [1, 2]);
}

#[tokio::test]
async fn a_name_is_read_from_the_start_of_an_entry_and_a_damaged_one_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::new(Storage::open(folder.path()).unwrap());
    for sequence in 0..3 {
        journal.append(3, sequence, &entry(3, sequence.into(), vec![7; 10_000])).await.unwrap();
    }
    let file = folder.path().join("journal/000000000003/00000001.grad");
    let bytes = fs::read(&file).unwrap();
    // In its header.
    fs::write(&file, &bytes[..60]).unwrap();
    let (mut reading, mut names) = (journal.entries(3).await.unwrap(), Vec::new());
    while let Some(name) = reading.next_name().await.unwrap() {
        names.push(name);
    }
    assert_eq!(names, [(0, (vec![1, 2, 3], 0)), (2, (vec![1, 2, 3], 2))]);
    assert!(!file.exists() && folder.path().join("journal/corrupt/000000000003-00000001.grad").exists());
}

proptest! {
    #[test]
    fn an_entry_survives_the_round_trip(
        peer in prop::collection::vec(any::<u8>(), 0..64),
        epoch in any::<u64>(),
        id in any::<u64>(),
        payload in prop::collection::vec(any::<u8>(), 0..500),
        is_committed in any::<bool>(),
    ) {
        let entry = JournalEntry { peer, ..entry(epoch, id, payload) };
        let entry = if is_committed { committed(entry) } else { entry };
        let bytes = encode_entry(&entry).unwrap();
        prop_assert_eq!(decode_entry(&bytes.into(), epoch).unwrap(), entry);
    }
}
