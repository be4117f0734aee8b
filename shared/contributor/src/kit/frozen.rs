//! The weights that a run's model does not train: they are fetched, shard by shard, before there is a trainer.

use std::sync::Arc;

use barnraise_learning::{FrozenError, FrozenWeights, ParameterLayout};
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::dataset::Manifest;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;

use super::Kit;
use crate::platform::Platform;

/// Frozen weights of a run, as far as they are here.
pub(super) struct Frozen {
    codec: TensorCodec,
    layout: ParameterLayout,
    first: u32,
    n_shards: usize,
    n_bytes: u64,
    /// In order; empty once all of them are in `whole`.
    shards: Vec<Arc<[u8]>>,
    n_bytes_here: u64,
    whole: Option<FrozenWeights>,
    /// They have the hashes of the manifest, and are no weights of the model.
    failed: Option<FrozenError>,
}

impl Frozen {
    /// None of them; `None` of a model that trains all of its weights.
    pub(super) fn of(run: &RunDescription) -> Option<Self> {
        let adapters = run.model.weights.adapters()?;
        let layout = ParameterLayout::frozen_of_run(run).ok()?;
        let manifest = &run.data.manifest;
        Some(Self {
            codec: adapters.codec,
            layout,
            first: manifest.first_frozen(),
            n_shards: manifest.frozen.len(),
            n_bytes: manifest.frozen.iter().map(|entry| u64::from(entry.n_bytes)).sum(),
            shards: Vec::new(),
            n_bytes_here: 0,
            whole: None,
            failed: None,
        })
    }

    /// The next shard to fetch; `None` once all are here.
    pub(super) fn next(&self) -> Option<ShardId> {
        let is_wanted = self.whole.is_none() && self.failed.is_none();
        (is_wanted && self.shards.len() < self.n_shards)
            .then(|| ShardId::Numbered(self.first.saturating_add(self.shards.len() as u32)))
    }

    /// All of them, once they are here.
    pub(super) fn whole(&self) -> Option<&FrozenWeights> {
        self.whole.as_ref()
    }

    /// Why they can never be used.
    pub(super) fn failed(&self) -> Option<&FrozenError> {
        self.failed.as_ref()
    }

    /// The shard of [`Self::next`] has arrived.
    pub(super) fn on_shard(&mut self, bytes: Arc<[u8]>) {
        self.n_bytes_here += bytes.len() as u64;
        self.shards.push(bytes);
        if self.next().is_none() {
            match FrozenWeights::new(self.codec, &self.layout, std::mem::take(&mut self.shards)) {
                Ok(whole) => self.whole = Some(whole),
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Bytes that are here, and all of them; `here` are those of the shard that is arriving.
    pub(super) fn progress(&self, here: u64) -> (u64, u64) {
        (self.n_bytes_here.saturating_add(here).min(self.n_bytes), self.n_bytes)
    }
}

/// Whether a number is that of frozen weights.
pub(super) fn is_frozen(id: ShardId, manifest: &Manifest) -> bool {
    matches!(id, ShardId::Numbered(number) if number >= manifest.first_frozen())
}

impl<P: Platform> Kit<'_, P> {
    /// Whether the trainer has to wait for frozen weights.
    pub(super) fn awaits_frozen(&self) -> bool {
        let frozen = self.run.as_ref().and_then(|run| run.frozen.as_ref());
        frozen.is_some_and(|frozen| frozen.whole().is_none())
    }
}
