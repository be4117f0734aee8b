#![allow(clippy::unwrap_used, clippy::panic)]

use std::num::NonZeroU32;
use std::path::Path;

use bytes::Bytes;

use super::*;
use crate::data::TrainingData;
use crate::data::text::{TextSettings, TextSource};
use crate::storage::simulated::SimulatedDisk;

const WINDOW: u32 = 3;
const SHARD_SAMPLES: u32 = 10;

/// A stream of one file, which is written.
pub(crate) fn settings(folder: &Path) -> StreamSettings {
    let path = folder.join("a.txt");
    let text: String = (0..9000).map(|n| format!("the sheep number {n} is over the fence\n")).collect();
    std::fs::write(&path, text).unwrap();
    StreamSettings {
        text: TextSettings {
            name: "Sheep".into(),
            sources: vec![TextSource {
                name: "a".into(),
                file: path.into(),
                field: "text".into(),
                weight: 1.0,
            }],
            tokenizer: None,
            vocabulary: 100,
            sequence_tokens: 8,
            held_out: 0.1,
            seed: 5,
        },
        window_shards: WINDOW,
        held_out_sequences: 8,
        shard_samples: NonZeroU32::new(SHARD_SAMPLES).unwrap(),
    }
}

fn loaded(folder: &Path) -> (StreamSettings, TrainingData) {
    let settings = settings(folder);
    let data = crate::data::DataSource::Stream(settings.clone()).load(folder).unwrap();
    (settings, data)
}

async fn open(storage: &Storage, (settings, data): &(StreamSettings, TrainingData)) -> StreamFeed {
    let of_data = (data.stream.unwrap(), &data.tokenizer.as_ref().unwrap()[..]);
    StreamFeed::open(storage.clone(), settings.clone(), of_data).await.unwrap()
}

/// Makes shards until none is due for a run that has trained on so many samples, in steps of a shard.
async fn fill(feed: &mut StreamFeed, n_samples: u64) {
    for step in (0..n_samples).step_by(SHARD_SAMPLES as usize).chain([n_samples]) {
        while feed.is_due(step) {
            feed.make().await.unwrap();
        }
    }
}

fn numbers(feed: &StreamFeed) -> Vec<u32> {
    feed.shards().window().shards.iter().map(|shard| shard.number).collect()
}

async fn stored(storage: &Storage) -> usize {
    storage.list(&ObjectPath::from_iter(SHARDS)).await.unwrap().len()
}

#[tokio::test]
async fn the_window_moves_as_the_run_trains_and_stays_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = loaded(folder.path());
    let storage = Storage::in_memory();
    let mut feed = open(&storage, &loaded).await;
    fill(&mut feed, 0).await;
    assert_eq!(numbers(&feed), [0, 1, 2]);
    fill(&mut feed, u64::from(SHARD_SAMPLES) * 2 - 1).await;
    assert_eq!((numbers(&feed), feed.shards().window().first_drawn), (vec![0, 1, 2, 3], 1));
    let n_kept = loaded.1.stream.unwrap().shards_kept() as usize;
    for trained in 2..100 {
        fill(&mut feed, u64::from(SHARD_SAMPLES) * trained).await;
        assert!(numbers(&feed).len() <= n_kept && stored(&storage).await <= n_kept);
        assert_eq!(feed.shards().window().drawn().count(), WINDOW as usize);
        assert_eq!(feed.shards().window().end(), trained as u32 + WINDOW);
    }
    assert_eq!(feed.shards().get(3).await.unwrap(), None, "it left");
    let newest = feed.shards().get(101).await.unwrap().unwrap();
    assert_eq!(Sha256Hash::of(&newest), feed.shards().window().entry(101).unwrap().sha256);
}

#[tokio::test]
async fn after_a_source_was_slow_it_catches_up_in_steps_and_what_was_drawn_before_stays() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = loaded(folder.path());
    let mut feed = open(&Storage::in_memory(), &loaded).await;
    fill(&mut feed, 0).await;
    let step_max = loaded.1.stream.unwrap().step_shards_max();
    // The run went over its window until it had trained on 60 shards.
    let mut end = WINDOW;
    for step in 600..603 {
        while feed.is_due(step) {
            feed.make().await.unwrap();
        }
        end += step_max;
        assert_eq!(feed.shards().window().end(), end);
        assert!(feed.shards().get(WINDOW - 1).await.unwrap().is_some(), "its contributions still count");
    }
    fill(&mut feed, 1000).await;
    assert_eq!(feed.shards().window().end(), 100 + WINDOW, "it has caught up");
}

#[tokio::test]
async fn weights_that_an_operator_changes_hold_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut settings, _) = loaded(folder.path());
    let goats = folder.path().join("b.txt");
    std::fs::write(&goats, "a goat is a goat and no sheep\n".repeat(3000)).unwrap();
    let (name, weight) = ("b".to_owned(), 1.0);
    settings.text.sources.push(TextSource { name, file: goats.into(), field: "text".into(), weight });
    let data = crate::data::DataSource::Stream(settings.clone()).load(folder.path()).unwrap();
    let loaded = (settings, data);
    let no_goats: BTreeMap<String, f64> = [("a".to_owned(), 1.0), ("b".to_owned(), 0.0)].into();
    let (once, often) = (Storage::in_memory(), Storage::in_memory());
    let mut want = open(&once, &loaded).await;
    fill(&mut want, 50).await;
    let as_in_the_file = want.shards().window();
    want.set_weights(no_goats.clone());
    fill(&mut want, 300).await;
    for n_samples in (0..=300).step_by(50) {
        let mut feed = open(&often, &loaded).await;
        if n_samples > 50 {
            feed.set_weights(no_goats.clone());
        }
        fill(&mut feed, n_samples).await;
    }
    let feed = open(&often, &loaded).await;
    assert_eq!(feed.shards().window(), want.shards().window());
    let mut unchanged = open(&Storage::in_memory(), &loaded).await;
    fill(&mut unchanged, 300).await;
    let (unchanged, changed) = (unchanged.shards().window(), feed.shards().window());
    assert_eq!(unchanged.shards[..8], as_in_the_file.shards[..]);
    assert_eq!(unchanged.shards[..8], changed.shards[..8]);
    assert!((8..33).all(|number| unchanged.entry(number) != changed.entry(number)));
}

#[tokio::test]
async fn a_restart_goes_on_at_the_same_place() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = loaded(folder.path());
    let (once, often) = (Storage::in_memory(), Storage::in_memory());
    let mut want = open(&once, &loaded).await;
    fill(&mut want, 200).await;
    for n_samples in (0..=200).step_by(20) {
        let mut feed = open(&often, &loaded).await;
        fill(&mut feed, n_samples).await;
    }
    let feed = open(&often, &loaded).await;
    assert_eq!(feed.shards().window(), want.shards().window());
}

#[tokio::test]
async fn contributors_take_a_window_that_is_shorter_than_before() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::in_memory();
    let with = |window_shards| {
        let settings = StreamSettings { window_shards, ..settings(folder.path()) };
        let data = crate::data::DataSource::Stream(settings.clone()).load(folder.path()).unwrap();
        (settings, data)
    };
    let long = with(100);
    let mut feed = open(&storage, &long).await;
    fill(&mut feed, u64::from(SHARD_SAMPLES) * 150).await;
    assert_eq!(numbers(&feed).len(), 200);
    let short = with(WINDOW);
    let stream = short.1.stream.unwrap();
    let feed = open(&storage, &short).await;
    let window = feed.shards().window();
    assert_eq!((window.first_drawn, window.end()), (250 - WINDOW, 250));
    assert_eq!(StreamWindow::decode(&window.encode().unwrap(), &stream).as_ref(), Ok(&*window));
    assert_eq!(stored(&storage).await, stream.shards_kept() as usize);
}

#[tokio::test]
async fn what_a_crash_left_is_swept_and_a_damaged_shard_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = loaded(folder.path());
    let storage = Storage::in_memory();
    fill(&mut open(&storage, &loaded).await, 0).await;
    storage.put(&shard_path(3), Bytes::from_static(b"not in the record")).await.unwrap();
    storage.put(&shard_path(1), Bytes::from_static(b"damaged")).await.unwrap();
    let mut feed = open(&storage, &loaded).await;
    assert_eq!((numbers(&feed), stored(&storage).await), (vec![0, 2], 2));
    fill(&mut feed, 10).await;
    assert_eq!(numbers(&feed), [0, 2, 3]);
    storage.put(&ObjectPath::from_iter(RECORD), Bytes::from_static(b"damaged")).await.unwrap();
    let of_data = (loaded.1.stream.unwrap(), &loaded.1.tokenizer.as_ref().unwrap()[..]);
    let refused = StreamFeed::open(storage, loaded.0.clone(), of_data).await.err().unwrap();
    assert!(refused.to_string().contains("begins again"), "{refused}");
}

#[tokio::test]
async fn a_full_disk_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = loaded(folder.path());
    let (once, disk) = (Storage::in_memory(), SimulatedDisk::new(3));
    let mut want = open(&once, &loaded).await;
    fill(&mut want, 30).await;
    let storage = Storage::on(Arc::new(disk.clone()));
    let mut feed = open(&storage, &loaded).await;
    fill(&mut feed, 0).await;
    let before = feed.shards().window();
    disk.holds(disk.n_bytes_used());
    for _ in 0..2 {
        let error = feed.make().await.unwrap_err();
        assert!(matches!(&error, FeedError::Shard { number: 3, source, .. } if source.is_full()), "{error}");
        assert_eq!(feed.shards().window(), before);
        assert!(feed.shards().get(0).await.unwrap().is_some());
    }
    disk.holds(u64::MAX);
    fill(&mut feed, 30).await;
    assert_eq!(feed.shards().window(), want.shards().window());
}

#[tokio::test]
async fn after_a_power_failure_anywhere_the_shards_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = loaded(folder.path());
    let once = Storage::in_memory();
    let mut want = open(&once, &loaded).await;
    fill(&mut want, 100).await;
    let mut n_died = 0;
    for n_operations in (0..120).step_by(3) {
        let disk = SimulatedDisk::new(n_operations);
        let mut feed = open(&Storage::on(Arc::new(disk.clone())), &loaded).await;
        disk.dies_after(n_operations);
        while feed.is_due(70) && feed.make().await.is_ok() {}
        n_died += u32::from(disk.is_dead());
        let mut feed = open(&Storage::on(Arc::new(disk.after_power_loss())), &loaded).await;
        fill(&mut feed, 100).await;
        let window = feed.shards().window();
        assert_eq!(window.shards, want.shards().window().shards, "after {n_operations} operations");
    }
    assert!(n_died > 5, "{n_died}");
}

#[test]
fn golden_bytes_of_a_record() {
    let entry = ShardEntry { n_samples: 3, n_bytes: 300, sha256: Sha256Hash([0xab; 32]) };
    let shards = vec![StreamedShard { number: 7, entry }];
    let window = StreamWindow { first_drawn: 6, shards };
    let record = StreamRecord { window, position: StreamPosition::default() };
    let sealed = sealed::seal_parts(KIND, &record, &[]).unwrap();
    let hex = crate::host::hex(&sealed);
    assert_eq!(hex, GOLDEN);
    assert_eq!(sealed::open_parts::<StreamRecord>(KIND, &sealed).unwrap().0, record);
}

const GOLDEN: &str = "6261726e726169737374726d01002c00000000000000b5e530c0e45bf5a6bc99b9998d0133f18eba74d2319df3e1a3113b42\
    fea192992800000006010703ac02abababababababababababababababababababababababababababababababab0000";
