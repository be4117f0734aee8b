//! The run as participants see it, made of a configuration.

use barnraise_contributor::description;
use barnraise_learning::frozen::shard_sizes;
use barnraise_learning::graph::ResolvedGraph;
use barnraise_learning::{DataShape, MemoryEstimate};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{AccessDescription, PublicKey};
use barnraise_protocol::dataset::{DataStream, Manifest, SampleKind, ShardEntry};
use barnraise_protocol::run::{DataSpec, RunDescription, RunIdentity};

use super::{Invalid, RunConfig, as_written};

impl RunConfig {
    /// The description of a run on the data of `manifest`; nothing is checked.
    pub fn describe(&self, manifest: Manifest, access: AccessDescription) -> RunDescription {
        let run = &self.run;
        RunDescription {
            identity: RunIdentity {
                run_id: run.id.clone(),
                title: run.title.clone(),
                purpose: run.purpose.clone(),
            },
            model: self.model_spec(),
            data: DataSpec {
                manifest,
                shuffle_buffer_samples: self.data.shuffle_buffer_samples,
                augmentation: self.data.augment,
            },
            scheme: self.scheme.describe(self),
            access,
        }
    }
}

/// What every participant will check of the run, before there is any data.
pub(super) fn validate(config: &RunConfig) -> Result<(), Invalid> {
    let access = AccessDescription::open(PublicKey([0; 32]));
    description::validate(&config.describe(manifest(config), access)).map(drop).map_err(|error| {
        let key = error.key();
        Invalid::new(key, error, written(config, key))
    })
}

/// The memory that the run takes, about; `None` of one that cannot be trained.
pub(super) fn memory(config: &RunConfig) -> Option<MemoryEstimate> {
    let access = AccessDescription::open(PublicKey([0; 32]));
    MemoryEstimate::of_run(&config.describe(manifest(config), access)).ok()
}

/// A manifest of the samples that the configuration leads to, without any.
fn manifest(config: &RunConfig) -> Manifest {
    let samples = samples(config);
    let gallery = ShardEntry { n_samples: 0, n_bytes: 0, sha256: Sha256Hash::of(b"") };
    let frozen = frozen(config, &samples);
    let (shards, preprocessing, stream) = (Vec::new(), None, stream(config));
    Manifest { name: String::new(), samples, shards, gallery, frozen, preprocessing, stream }
}

/// A stream as far as it is known before its sources are read.
fn stream(config: &RunConfig) -> Option<DataStream> {
    let source = config.data_source();
    let settings = source.streamed()?;
    let (shard_samples, window_shards) = (settings.shard_samples.get(), settings.window_shards);
    Some(DataStream { sources: Sha256Hash::of(b""), shard_samples, window_shards })
}

/// Entries of frozen weights, without what is in them. A model that cannot be computed has none: its error is told.
fn frozen(config: &RunConfig, samples: &SampleKind) -> Vec<ShardEntry> {
    let spec = config.model_spec();
    let Some(adapters) = spec.weights.adapters() else { return Vec::new() };
    let Ok(graph) = ResolvedGraph::of_model(&spec, DataShape::of(samples)) else { return Vec::new() };
    let sizes = shard_sizes(adapters.codec, graph.frozen()).into_iter();
    let entry = |sizes: [usize; 2]| {
        let [n_samples, n_bytes] = sizes.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        ShardEntry { n_samples, n_bytes, sha256: Sha256Hash::of(b"") }
    };
    sizes.map(entry).collect()
}

/// The samples that the configuration leads to, as far as it is known before they are read.
pub(super) fn samples(config: &RunConfig) -> SampleKind {
    config.data.samples(config.model.seed, config.tells_classes())
}

/// The value of a key in TOML syntax.
fn written(config: &RunConfig, key: &str) -> String {
    let table = toml::Value::try_from(config).ok();
    let value = table.as_ref().and_then(|table| key.split('.').try_fold(table, |table, key| table.get(key)));
    value.map_or_else(|| "(none)".to_owned(), as_written)
}
