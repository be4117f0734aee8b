//! The training set cut into shards, encoded once and kept.
//!
//! A shard is an object named by its hash; the manifest is a JSON object beside them, named by a hash of its inputs.
//! A start that finds both undamaged encodes nothing. The order of the samples depends on the seed alone, and every
//! shard holds the classes in nearly the proportions of the whole set, so that few shards still cover all classes.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Arc;

use barnraise_learning::FrozenWeights;
use barnraise_learning::frozen::FrozenOfRunError;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::dataset::{
    DatasetError, Manifest, PREPROCESSING_BYTES_MAX, RowTargets, SHARDS_MAX, Samples, ShardEntry, TableRows,
};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::streamed::StreamWindow;
use bytes::Bytes;
use object_store::path::Path as ObjectPath;

use super::TrainingData;
use super::streamed::StreamedShards;
use crate::storage::{Storage, StorageError};

/// Held-out samples of each class in the gallery; of text, in total.
pub const GALLERY_SAMPLES_PER_CLASS: usize = 4;
/// Raised when the same data, sizes and seed give other shards.
const LAYOUT_VERSION: u32 = 3;
/// Largest manifest that is read.
const MANIFEST_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How a data set is cut into shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// Samples in each shard; the last may have fewer.
    pub shard_samples: NonZeroUsize,
    /// Seed of the order of the samples.
    pub seed: u64,
}

/// Why shards cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// From the store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// From the encoder, or a manifest out of its bounds.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The manifest cannot be serialized; should not happen.
    #[error("manifest: {0}")]
    Manifest(#[from] serde_json::Error),
    /// More shards than allowed.
    #[error("{n_samples} samples make {got} shards of {shard_samples}, at most {SHARDS_MAX} are allowed")]
    TooMany {
        /// In the training set.
        n_samples: usize,
        /// From the configuration.
        shard_samples: usize,
        /// Number of shards.
        got: usize,
    },
    /// The manifest does not list the shard.
    #[error("there is no shard {id:?}, the manifest lists {n_shards}")]
    Unknown {
        /// The shard.
        id: ShardId,
        /// Number of training shards.
        n_shards: usize,
    },
    /// A shard of the stream that is not kept.
    #[error(
        "shard {number} is not in the window of the stream, which begins with {oldest}; ask for the window again"
    )]
    Left {
        /// The shard.
        number: u32,
        /// The oldest that is kept.
        oldest: u32,
    },
    /// The window cannot be encoded; does not happen.
    #[error("the window of the stream: {0}")]
    Window(#[from] postcard::Error),
    /// The shard was there at start-up, and is missing or damaged now.
    #[error("shard {id:?} is gone or damaged; restart the backbone to encode it again")]
    Damaged {
        /// The shard.
        id: ShardId,
    },
    /// An encoding thread failed.
    #[error("shards could not be encoded: {0}")]
    Encoder(String),
}

/// Encoded shards, and their manifest.
#[derive(Debug, Clone)]
pub struct ShardStore {
    storage: Storage,
    manifest: Manifest,
    /// Of data that are read while the run trains.
    stream: Option<StreamedShards>,
    preprocessing: Option<Arc<[u8]>>,
}

impl ShardStore {
    /// Opens the shards in `storage`, and encodes those that are missing or damaged.
    pub async fn open(
        storage: Storage,
        dataset: &TrainingData,
        sharding: Sharding,
    ) -> Result<Self, ShardError> {
        let path = manifest_path(dataset, sharding)?;
        if let Some(manifest) = read_manifest(&storage, &path).await? {
            let store = Self { storage: storage.clone(), manifest, stream: None, preprocessing: None };
            if store.repair(dataset, sharding).await? {
                return Ok(store);
            }
        }
        let parts = cut(dataset, sharding)?;
        let n_shards = parts.len() - 1;
        tracing::info!(n_shards, "encoding shards");
        let encoded = encode_all(parts).await?;
        for (bytes, entry) in &encoded {
            storage.put(&shard_path(entry), bytes.clone()).await?;
        }
        let mut entries: Vec<ShardEntry> = encoded.into_iter().map(|(_, entry)| entry).collect();
        let gallery = entries.pop().ok_or(DatasetError::Manifest("it has no gallery"))?;
        let manifest = Manifest {
            name: dataset.name.clone(),
            samples: dataset.kind.clone(),
            shards: entries,
            gallery,
            frozen: Vec::new(),
            preprocessing: None,
            stream: dataset.stream,
        };
        manifest.validate()?;
        // Last, so that a manifest exists only if its shards do.
        storage.put(&path, serde_json::to_vec_pretty(&manifest)?).await?;
        Ok(Self { storage, manifest, stream: None, preprocessing: None })
    }

    /// The same with shards of frozen weights: each with its number of values.
    ///
    /// # Errors
    /// The store has no room, or there are too many shards.
    pub async fn with_frozen(
        mut self,
        shards: impl IntoIterator<Item = (Arc<[u8]>, usize)>,
    ) -> Result<Self, ShardError> {
        for (bytes, n_values) in shards {
            let entry = ShardEntry {
                n_samples: u32::try_from(n_values).unwrap_or(u32::MAX),
                n_bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                sha256: Sha256Hash::of(&bytes),
            };
            if self.read(&entry).await?.is_none() {
                self.storage.put(&shard_path(&entry), bytes.to_vec()).await?;
            }
            self.manifest.frozen.push(entry);
        }
        self.manifest.validate()?;
        Ok(self)
    }

    /// The same with how a file of anybody's becomes samples: what the data came with. It is in memory, once for all who ask.
    ///
    /// # Errors
    /// Does not happen.
    pub fn with_preprocessing(mut self, dataset: &TrainingData) -> Result<Self, ShardError> {
        if let Some(file) = dataset.preprocessing()? {
            let transfer = Transfer::of(&file);
            if transfer.n_bytes > PREPROCESSING_BYTES_MAX {
                let n_bytes = transfer.n_bytes;
                tracing::warn!(n_bytes, "nobody can bring data: the tokenizer or the columns are too large");
                return Ok(self);
            }
            self.manifest.preprocessing = Some(transfer);
            self.preprocessing = Some(Arc::from(&*file));
        }
        Ok(self)
    }

    /// The same with the shards of a stream.
    #[must_use]
    pub fn with_stream(self, shards: StreamedShards) -> Self {
        Self { stream: Some(shards), ..self }
    }

    /// How a file of anybody's becomes samples, where the manifest has that.
    pub fn preprocessing(&self) -> Option<Arc<[u8]>> {
        self.preprocessing.clone()
    }

    /// The window of a stream, if the data are one.
    pub fn window(&self) -> Option<Arc<StreamWindow>> {
        self.stream.as_ref().map(StreamedShards::window)
    }

    /// The frozen weights of a run's model, where it has such.
    ///
    /// # Errors
    /// A shard is gone or damaged, or they are of another model.
    pub async fn frozen(
        &self,
        run: &RunDescription,
    ) -> Result<Option<FrozenWeights>, FrozenOfRunError<ShardError>> {
        let fetch = async |number| self.get(ShardId::Numbered(number)).await.map(|bytes| bytes.to_vec());
        FrozenWeights::of_run(run, fetch).await
    }

    /// The manifest of the shards.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The compressed bytes of a shard, checked against its hash; or the encoded window of a stream.
    pub async fn get(&self, id: ShardId) -> Result<Bytes, ShardError> {
        match (id, &self.stream) {
            (ShardId::Window, Some(stream)) => return Ok(stream.window().encode()?.into()),
            (ShardId::Streamed(number), Some(stream)) => {
                let left = || ShardError::Left { number, oldest: stream.window().oldest() };
                return stream.get(number).await?.ok_or_else(left);
            }
            _ => {}
        }
        let entry = self.entry(id)?;
        self.read(entry).await?.ok_or(ShardError::Damaged { id })
    }

    fn entry(&self, id: ShardId) -> Result<&ShardEntry, ShardError> {
        id.entry(&self.manifest).ok_or(ShardError::Unknown { id, n_shards: self.manifest.n_numbered() })
    }

    /// `None` where the object is missing or does not have the hash of its name.
    async fn read(&self, entry: &ShardEntry) -> Result<Option<Bytes>, ShardError> {
        match self.storage.get(&shard_path(entry), entry.n_bytes.into()).await {
            Ok(Some(bytes)) if Sha256Hash::of(&bytes) == entry.sha256 => Ok(Some(bytes)),
            Ok(_) | Err(StorageError::TooLarge { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks every shard and encodes the broken ones again.
    ///
    /// `false` where the encoder gives other bytes than when the manifest was made (another version of
    /// the compressor): then all shards have to be encoded again.
    async fn repair(&self, dataset: &TrainingData, sharding: Sharding) -> Result<bool, ShardError> {
        let entries: Vec<ShardEntry> =
            self.manifest.shards.iter().chain([&self.manifest.gallery]).copied().collect();
        let mut broken = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            if self.read(entry).await?.is_none() {
                tracing::warn!(path = %shard_path(entry), "shard is missing or damaged, encoding it again");
                broken.push(index);
            }
        }
        if broken.is_empty() {
            return Ok(true);
        }
        let mut parts = cut(dataset, sharding)?;
        if parts.len() != entries.len() {
            return Ok(false);
        }
        for index in broken {
            let (Some(part), Some(entry)) = (parts.get_mut(index), entries.get(index)) else { continue };
            let (bytes, encoded) = part.encode()?;
            if encoded != *entry {
                return Ok(false);
            }
            self.storage.put(&shard_path(entry), bytes).await?;
        }
        Ok(true)
    }
}

fn shard_path(entry: &ShardEntry) -> ObjectPath {
    ObjectPath::from_iter(["shards", &entry.sha256.to_string()])
}

/// Path of the manifest: a hash of all inputs.
fn manifest_path(dataset: &TrainingData, sharding: Sharding) -> Result<ObjectPath, ShardError> {
    let mut key = Vec::new();
    for part in [&dataset.train, &dataset.test] {
        match part {
            Samples::Images(samples) => {
                key.extend_from_slice(&Sha256Hash::of(&samples.images).0);
                key.extend_from_slice(&Sha256Hash::of(&samples.labels).0);
            }
            other => key.extend_from_slice(&Sha256Hash::of(&other.to_bytes()).0),
        }
    }
    key.extend_from_slice(&serde_json::to_vec(&(&dataset.name, &dataset.kind, &dataset.stream))?);
    key.extend_from_slice(&(sharding.shard_samples.get() as u64).to_le_bytes());
    key.extend_from_slice(&sharding.seed.to_le_bytes());
    key.extend_from_slice(&LAYOUT_VERSION.to_le_bytes());
    Ok(ObjectPath::from_iter(["manifests", &format!("{}.json", Sha256Hash::of(&key))]))
}

async fn read_manifest(storage: &Storage, path: &ObjectPath) -> Result<Option<Manifest>, ShardError> {
    let bytes = match storage.get(path, MANIFEST_BYTES_MAX).await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(error @ StorageError::TooLarge { .. }) => {
            tracing::warn!(%path, %error, "manifest is not usable, making it again");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    match parse_manifest(&bytes) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error) => {
            tracing::warn!(%path, %error, "manifest is not usable, making it again");
            Ok(None)
        }
    }
}

/// Why a stored manifest is made again.
#[derive(Debug, thiserror::Error)]
enum ManifestError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Invalid(#[from] DatasetError),
}

fn parse_manifest(bytes: &[u8]) -> Result<Manifest, ManifestError> {
    let manifest: Manifest = serde_json::from_slice(bytes)?;
    manifest.validate()?;
    Ok(manifest)
}

/// The training shards in order, then the gallery.
fn cut(dataset: &TrainingData, sharding: Sharding) -> Result<Vec<Samples>, ShardError> {
    let shard_samples = sharding.shard_samples.get();
    let n_samples = dataset.train.n_samples();
    let got = n_samples.div_ceil(shard_samples);
    if got > SHARDS_MAX {
        return Err(ShardError::TooMany { n_samples, shard_samples, got });
    }
    let order = stratified_order(&labels(&dataset.train), sharding.seed);
    let mut parts: Vec<Samples> =
        order.chunks(shard_samples).map(|indices| pick(&dataset.train, indices)).collect();
    let test_labels = labels(&dataset.test);
    let mut taken = [0; 256];
    let gallery: Vec<usize> = stratified_order(&test_labels, sharding.seed)
        .into_iter()
        .filter(|&index| {
            let Some(n) = test_labels.get(index).and_then(|&label| taken.get_mut(usize::from(label))) else {
                return false;
            };
            *n += 1;
            *n <= GALLERY_SAMPLES_PER_CLASS
        })
        .collect();
    parts.push(pick(&dataset.test, &gallery));
    Ok(parts)
}

/// Label of each sample; what has none is all of one class.
fn labels(samples: &Samples) -> Cow<'_, [u8]> {
    match samples {
        Samples::Images(images) => Cow::Borrowed(&images.labels),
        Samples::Rows(TableRows { targets: RowTargets::Classes(labels), .. }) => Cow::Borrowed(labels),
        _ => Cow::Owned(vec![0; samples.n_samples()]),
    }
}

/// An order of the samples that depends on the seed alone, with the classes evenly interleaved.
///
/// Within its class a sample's rank is the rank of SHA-256(seed, index): a shuffle that is the same
/// everywhere and needs no generator. Classes are merged by rank relative to their size.
fn stratified_order(labels: &[u8], seed: u64) -> Vec<usize> {
    let key = |index: usize| {
        let mut bytes = [0; 16];
        let (a, b) = bytes.split_at_mut(8);
        a.copy_from_slice(&seed.to_le_bytes());
        b.copy_from_slice(&(index as u64).to_le_bytes());
        Sha256Hash::of(&bytes)
    };
    let mut by_class: Vec<Vec<(Sha256Hash, usize)>> = vec![Vec::new(); 256];
    for (index, &label) in labels.iter().enumerate() {
        if let Some(class) = by_class.get_mut(usize::from(label)) {
            class.push((key(index), index));
        }
    }
    let mut ranked = Vec::with_capacity(labels.len());
    for mut class in by_class {
        class.sort_unstable();
        let n = class.len();
        // The middle of the stretch that a sample of its class stands for.
        let place = |rank: usize| (2 * rank as u64 + 1) * labels.len() as u64 / (2 * n as u64);
        ranked.extend(class.into_iter().enumerate().map(|(rank, (key, index))| (place(rank), key, index)));
    }
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, _, index)| index).collect()
}

fn pick(from: &Samples, indices: &[usize]) -> Samples {
    let mut picked = from.none_of();
    indices.iter().for_each(|&index| picked.push(from, index));
    picked
}

/// Encodes on every core, in the order given.
async fn encode_all(parts: Vec<Samples>) -> Result<Vec<(Vec<u8>, ShardEntry)>, ShardError> {
    let n_threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let n_each = parts.len().div_ceil(n_threads).max(1);
    let mut rest = parts.into_iter();
    let mut tasks = Vec::new();
    loop {
        let some: Vec<Samples> = rest.by_ref().take(n_each).collect();
        if some.is_empty() {
            break;
        }
        tasks.push(tokio::task::spawn_blocking(move || {
            some.iter().map(Samples::encode).collect::<Result<Vec<_>, DatasetError>>()
        }));
    }
    let mut encoded = Vec::new();
    for task in tasks {
        encoded.extend(task.await.map_err(|error| ShardError::Encoder(error.to_string()))??);
    }
    Ok(encoded)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::fs;

    use barnraise_protocol::dataset::{ImageShape, LabelledImages, SampleKind, TokenSequences, TokenShape};

    use super::*;

    /// 10 classes, unevenly; the image of a sample tells which sample it is.
    fn dataset(n_train: usize, n_test: usize) -> TrainingData {
        let part = |n: usize| {
            let images = (0..n).flat_map(|i| (i as u32).to_le_bytes()).collect();
            let labels = (0..n).map(|i| if i % 3 == 0 { 0 } else { (i % 10) as u8 }).collect();
            Samples::Images(LabelledImages { images, labels })
        };
        let shape = ImageShape { height: 2, width: 2, channels: 1 };
        let class_names = (0..10).map(|class| format!("Class {class}")).collect();
        let kind = SampleKind::Images { shape, class_names };
        TrainingData {
            name: "numbers".into(),
            kind,
            train: part(n_train),
            test: part(n_test),
            tokenizer: None,
            columns: None,
            stream: None,
        }
    }

    fn sharding(shard_samples: usize, seed: u64) -> Sharding {
        Sharding { shard_samples: NonZeroUsize::new(shard_samples).unwrap(), seed }
    }

    async fn decoded(store: &ShardStore) -> Vec<Samples> {
        let mut shards = Vec::new();
        for (index, entry) in store.manifest().shards.iter().enumerate() {
            let bytes = store.get(ShardId::Numbered(index as u32)).await.unwrap();
            shards.push(Samples::decode(&bytes, entry, store.manifest()).unwrap());
        }
        shards
    }

    #[tokio::test]
    async fn every_sample_is_in_exactly_one_shard_with_its_label() {
        let data = dataset(1037, 300);
        let store = ShardStore::open(Storage::in_memory(), &data, sharding(100, 1)).await.unwrap();
        let shards = decoded(&store).await;
        assert_eq!(shards.len(), 11);
        assert_eq!(store.manifest().n_samples(), 1037);
        let mut seen = Vec::new();
        let train_labels = labels(&data.train);
        for shard in &shards {
            let Samples::Images(shard) = shard else { panic!("no pictures") };
            for (image, label) in shard.images.chunks_exact(4).zip(&shard.labels) {
                let index = u32::from_le_bytes(image.try_into().unwrap());
                assert_eq!(*label, train_labels[index as usize]);
                seen.push(index);
            }
        }
        assert!(!seen.is_sorted(), "not in the order of the files");
        seen.sort_unstable();
        assert_eq!(seen, (0..1037).collect::<Vec<u32>>());
    }

    #[tokio::test]
    async fn each_shard_has_each_class_in_its_proportion() {
        let data = dataset(2000, 300);
        let store = ShardStore::open(Storage::in_memory(), &data, sharding(100, 1)).await.unwrap();
        let count = |labels: &[u8], class| labels.iter().filter(|&&label| label == class).count();
        for shard in decoded(&store).await {
            for class in 0..10 {
                let want = count(&labels(&data.train), class) as f64 / 20.0;
                let got = count(&labels(&shard), class) as f64;
                assert!((got - want).abs() <= 2.0, "class {class}: {got}, {want} wanted");
            }
        }
    }

    #[tokio::test]
    async fn the_gallery_holds_four_test_samples_of_each_class() {
        let data = dataset(500, 600);
        let store = ShardStore::open(Storage::in_memory(), &data, sharding(100, 1)).await.unwrap();
        let bytes = store.get(ShardId::Gallery).await.unwrap();
        let gallery = Samples::decode(&bytes, &store.manifest().gallery, store.manifest()).unwrap();
        let counts: Vec<usize> =
            (0..10).map(|class| labels(&gallery).iter().filter(|&&label| label == class).count()).collect();
        assert_eq!(counts, [4; 10]);
        assert_eq!(store.manifest().class_names()[9], "Class 9");
    }

    #[tokio::test]
    async fn text_is_cut_into_whole_sequences() {
        let ids = (0..103_u32).flat_map(|n| [n + 3; 4]).collect();
        let train = Samples::Tokens(TokenSequences { length: 4, ids });
        let test = Samples::Tokens(TokenSequences { length: 4, ids: vec![3; 40] });
        let kind = SampleKind::Tokens(TokenShape { length: 4, vocabulary: 106, mask: Some(1) });
        let data = TrainingData {
            name: "text".into(),
            kind,
            train,
            test,
            tokenizer: None,
            columns: None,
            stream: None,
        };
        let store = ShardStore::open(Storage::in_memory(), &data, sharding(10, 1)).await.unwrap();
        let mut seen = Vec::new();
        for shard in decoded(&store).await {
            let Samples::Tokens(tokens) = shard else { panic!("no text") };
            assert!(tokens.sequences().all(|ids| ids.iter().all(|id| *id == ids[0])));
            seen.extend(tokens.sequences().map(|ids| ids[0] - 3));
        }
        assert!(!seen.is_sorted());
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..103));
        assert_eq!(store.manifest().gallery.n_samples, 4);
    }

    #[tokio::test]
    async fn the_order_depends_on_the_seed_alone() {
        let data = dataset(500, 100);
        let mut manifests = Vec::new();
        for seed in [1, 1, 2] {
            let store = ShardStore::open(Storage::in_memory(), &data, sharding(50, seed)).await.unwrap();
            manifests.push(store.manifest().clone());
        }
        assert_eq!(manifests[0], manifests[1]);
        assert_ne!(manifests[0], manifests[2]);
        assert_eq!(stratified_order(&[0, 1, 0, 1, 0, 1], 42), stratified_order(&[0, 1, 0, 1, 0, 1], 42));
    }

    #[tokio::test]
    async fn a_second_start_encodes_nothing_and_mends_what_broke() {
        let folder = tempfile::tempdir().unwrap();
        let data = dataset(500, 100);
        let open = async || {
            let storage = Storage::open_shared(folder.path()).unwrap();
            ShardStore::open(storage, &data, sharding(50, 3)).await.unwrap()
        };
        let first = open().await.manifest().clone();
        let file = |entry: &ShardEntry| folder.path().join(shard_path(entry).to_string());
        let modified = |index: usize| fs::metadata(file(&first.shards[index])).unwrap().modified().unwrap();
        let untouched = modified(0);
        fs::write(file(&first.shards[1]), b"damaged").unwrap();
        fs::remove_file(file(&first.shards[2])).unwrap();
        let store = open().await;
        assert_eq!(*store.manifest(), first);
        assert_eq!(decoded(&store).await.len(), 10);
        assert_eq!(modified(0), untouched, "a whole shard is not written again");
    }

    /// What another version cut into shards is found by its name, and read.
    #[tokio::test]
    async fn golden_text_of_a_manifest_and_its_name() {
        let path = manifest_path(&dataset(3, 2), sharding(50, 3)).unwrap();
        assert_eq!(
            path.to_string(),
            "manifests/15e7523fa659604d120ea4920a2f914196fc4dcaed4bb85f3863e955b42de53a.json"
        );
        let entry = ShardEntry { n_samples: 3, n_bytes: 300, sha256: Sha256Hash([0xab; 32]) };
        let pictures = Manifest {
            name: "numbers".into(),
            samples: dataset(3, 2).kind,
            shards: vec![entry],
            gallery: ShardEntry { n_samples: 2, ..entry },
            frozen: Vec::new(),
            preprocessing: None,
            stream: None,
        };
        let samples = SampleKind::Tokens(TokenShape { length: 4, vocabulary: 106, mask: Some(1) });
        let text = Manifest { samples, ..pictures.clone() };
        let storage = Storage::in_memory();
        for (manifest, golden) in [(pictures, GOLDEN_PICTURES), (text, GOLDEN_TEXT)] {
            assert_eq!(serde_json::to_string_pretty(&manifest).unwrap(), golden);
            storage.put(&path, golden.as_bytes().to_vec()).await.unwrap();
            assert_eq!(read_manifest(&storage, &path).await.unwrap(), Some(manifest));
        }
    }

    const GOLDEN_PICTURES: &str = r#"{
  "name": "numbers",
  "samples": {
    "Images": {
      "shape": {
        "height": 2,
        "width": 2,
        "channels": 1
      },
      "class_names": [
        "Class 0",
        "Class 1",
        "Class 2",
        "Class 3",
        "Class 4",
        "Class 5",
        "Class 6",
        "Class 7",
        "Class 8",
        "Class 9"
      ]
    }
  },
  "shards": [
    {
      "n_samples": 3,
      "n_bytes": 300,
      "sha256": "abababababababababababababababababababababababababababababababab"
    }
  ],
  "gallery": {
    "n_samples": 2,
    "n_bytes": 300,
    "sha256": "abababababababababababababababababababababababababababababababab"
  },
  "frozen": [],
  "preprocessing": null,
  "stream": null
}"#;
    const GOLDEN_TEXT: &str = r#"{
  "name": "numbers",
  "samples": {
    "Tokens": {
      "length": 4,
      "vocabulary": 106,
      "mask": 1
    }
  },
  "shards": [
    {
      "n_samples": 3,
      "n_bytes": 300,
      "sha256": "abababababababababababababababababababababababababababababababab"
    }
  ],
  "gallery": {
    "n_samples": 2,
    "n_bytes": 300,
    "sha256": "abababababababababababababababababababababababababababababababab"
  },
  "frozen": [],
  "preprocessing": null,
  "stream": null
}"#;

    #[tokio::test]
    async fn a_damaged_manifest_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let data = dataset(200, 100);
        let storage = Storage::open_shared(folder.path()).unwrap();
        let first = ShardStore::open(storage.clone(), &data, sharding(50, 3)).await.unwrap();
        let path = manifest_path(&data, sharding(50, 3)).unwrap();
        for damage in [&b"{"[..], b"{}", b""] {
            fs::write(folder.path().join(path.to_string()), damage).unwrap();
            let again = ShardStore::open(storage.clone(), &data, sharding(50, 3)).await.unwrap();
            assert_eq!(again.manifest(), first.manifest());
        }
    }

    #[tokio::test]
    async fn errors_name_what_was_asked_for() {
        let data = dataset(200, 100);
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::open_shared(folder.path()).unwrap();
        let store = ShardStore::open(storage, &data, sharding(50, 3)).await.unwrap();
        let error = store.get(ShardId::Numbered(4)).await.unwrap_err();
        assert_eq!(error.to_string(), "there is no shard Numbered(4), the manifest lists 4");
        fs::write(folder.path().join(shard_path(&store.manifest().shards[0]).to_string()), b"x").unwrap();
        let error = store.get(ShardId::Numbered(0)).await.unwrap_err();
        assert!(matches!(error, ShardError::Damaged { id: ShardId::Numbered(0) }), "{error}");
        let huge = dataset(10_001, 100);
        let error = ShardStore::open(Storage::in_memory(), &huge, sharding(1, 3)).await.unwrap_err();
        assert!(matches!(error, ShardError::TooMany { got: 10_001, .. }), "{error}");
    }
}
