//! Computes a contribution once more from its evidence and the data of its run.

use std::collections::BTreeMap;

use barnraise_contributor::description::{self, DescriptionError};
use barnraise_contributor::{PlatformError, trainer};
use barnraise_learning::{ComputeDevice, FrozenWeights, ModelError, Precision, Trainer};
use barnraise_protocol::commitment::{self, SampleId};
use barnraise_protocol::dataset::{DatasetError, Samples, ShardEntry};
use barnraise_protocol::evidence::{self, ContributionEvidence, EvidenceError, EvidenceHeader};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::{ConversationError, Sha256Hash};
use barnraise_swarm::recomputation::Difference;

use super::shards::DecodedShards;
use crate::data::shards::ShardError;

/// Why a contribution could not be recomputed.
#[derive(Debug, thiserror::Error)]
pub enum RecomputationError {
    /// The evidence does not parse or verify.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// The description of its run is not supported.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// A shard of the data cannot be read.
    #[error("shard {shard} of the data: {source}")]
    Shard {
        /// Which.
        shard: u32,
        /// Why.
        source: ShardSourceError,
    },
    /// A shard does not match the run's description.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The model, or the device.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The recomputed gradient is zero or not finite.
    #[error("the gradient of the samples is zero or not finite: nothing can be said")]
    Nothing,
}

/// Why the bytes of a shard cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ShardSourceError {
    /// The run has no such shard.
    #[error("there is none")]
    None,
    /// The storage of a backbone does not have it.
    #[error(transparent)]
    Store(#[from] ShardError),
    /// A peer has no stream to the backbone.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The backbone does not send it.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
}

/// Recomputes contributions of one run on one device.
pub struct Recomputer {
    trainer: Trainer,
    tolerance: f32,
    shards: DecodedShards,
}

impl Recomputer {
    /// For contributions to `run`, with the frozen weights that its model has; devices may differ by `tolerance`, relative to a gradient's norm.
    ///
    /// # Errors
    /// The run is of another scheme, or the device does not support the model.
    pub fn new(
        run: &RunDescription,
        frozen: Option<&FrozenWeights>,
        device: ComputeDevice,
        tolerance: f32,
    ) -> Result<Self, RecomputationError> {
        // Contributions to such a run are computed in single precision.
        let device = device.with_precision(Precision::Single).map_err(ModelError::from)?;
        Ok(Self {
            trainer: trainer(run, evidence::scheme(run)?, frozen, device)?,
            tolerance,
            shards: DecodedShards::default(),
        })
    }

    /// The difference between the gradient in `evidence` and that of its samples. `shard` returns the compressed bytes of
    /// shards that are not cached; they are checked.
    ///
    /// # Errors
    /// The gradient cannot be recomputed. An error is no evidence against the peer.
    pub async fn recompute(
        &mut self,
        evidence: &ContributionEvidence,
        shard: impl AsyncFn(ShardId) -> Result<Vec<u8>, ShardSourceError>,
    ) -> Result<Difference, RecomputationError> {
        let run = &evidence.header.run;
        let claim = evidence.verify(description::validate(run)?.n_parameters())?;
        let batches = gather(run, (&claim.samples, &evidence.samples), &mut self.shards, shard).await?;
        let epoch = evidence.header.commitment.parameters_epoch;
        self.trainer.load_parameters(&claim.parameters)?;
        self.trainer.on_epoch(epoch);
        for batch in &batches {
            self.trainer.accumulate_samples(batch, epoch).await?;
        }
        let mean = self.trainer.take_mean_gradient().await?.ok_or(RecomputationError::Nothing)?;
        let EvidenceHeader { offer, commitment, .. } = &evidence.header;
        let encoding = (offer.codec, commitment.rounding_seed());
        let difference = Difference::between(&claim.gradient, &mean.values, encoding, self.tolerance);
        difference.ok_or(RecomputationError::Nothing)
    }
}

/// The samples in the micro-batches of the contribution.
async fn gather(
    run: &RunDescription,
    (samples, list): (&[SampleId], &[u8]),
    shards: &mut DecodedShards,
    shard: impl AsyncFn(ShardId) -> Result<Vec<u8>, ShardSourceError>,
) -> Result<Vec<Samples>, RecomputationError> {
    let mut of_shards: BTreeMap<u32, Vec<(usize, u32)>> = BTreeMap::new();
    for (place, sample) in samples.iter().enumerate() {
        of_shards.entry(sample.shard).or_default().push((place, sample.index));
    }
    let mut pool: Option<Samples> = None;
    // Where in the pool each sample is.
    let mut places = vec![0; samples.len()];
    for (id, wanted) in of_shards {
        let unknown = RecomputationError::Shard { shard: id, source: ShardSourceError::None };
        let fetch = async |wanted| {
            shard(wanted).await.map_err(|source| RecomputationError::Shard { shard: id, source })
        };
        let manifest = &run.data.manifest;
        // Of a stream the list has the hash.
        let (entry, bytes) = match &manifest.stream {
            None => (*manifest.shards.get(id as usize).ok_or(unknown)?, None),
            Some(stream) => {
                let bytes = fetch(ShardId::Streamed(id)).await?;
                let sha256 = Sha256Hash::of(&bytes);
                if !commitment::names_streamed(list, id, sha256) {
                    return Err(unknown);
                }
                let n_bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                (ShardEntry { n_samples: stream.shard_samples, n_bytes, sha256 }, Some(bytes))
            }
        };
        let decoded = match shards.get(&entry, manifest) {
            Some(decoded) => decoded,
            None => {
                let bytes = match bytes {
                    Some(bytes) => bytes,
                    None => fetch(ShardId::Numbered(id)).await?,
                };
                shards.decode(&bytes, &entry, manifest)?
            }
        };
        let pool = pool.get_or_insert_with(|| decoded.none_of());
        for (place, index) in wanted {
            places[place] = pool.n_samples();
            pool.push(decoded, index as usize);
        }
    }
    let Some(pool) = pool else { return Ok(Vec::new()) };
    let batch = |places: &[usize]| {
        let mut batch = pool.none_of();
        places.iter().for_each(|&place| batch.push(&pool, place));
        batch
    };
    Ok(places.chunks(run.scheme.micro_batch_size().max(1) as usize).map(batch).collect())
}
