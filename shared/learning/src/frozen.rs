//! Weights that a run does not train, encoded as they travel: shards of [`FROZEN_SHARD_VALUES`] values each.
//!
//! They stay encoded, a byte a value in `int8`, and are decoded shard by shard for a device.

use std::sync::Arc;

use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::dataset::{DatasetError, ShardEntry};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::weights::FROZEN_SHARD_VALUES;
use burn::tensor::{Device, Tensor, TensorData};

use crate::error::{FrozenError, ModelError};
use crate::parameters::ParameterLayout;

/// Why the frozen weights of a run cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum FrozenOfRunError<E> {
    /// A shard is not there.
    #[error(transparent)]
    Fetch(E),
    /// A shard of another hash.
    #[error(transparent)]
    Shard(#[from] DatasetError),
    /// Weights of another model.
    #[error(transparent)]
    Frozen(#[from] FrozenError),
    /// A model that cannot be computed.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// All frozen weights of a model, in the order of its frozen layout; cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub struct FrozenWeights {
    codec: TensorCodec,
    n_values: usize,
    shards: Vec<Arc<[u8]>>,
}

impl FrozenWeights {
    /// Weights of a model with this frozen layout. Each shard is decoded once, to see that it can be.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(
        codec: TensorCodec,
        layout: &ParameterLayout,
        shards: Vec<Arc<[u8]>>,
    ) -> Result<Self, FrozenError> {
        let n_values = layout.n_parameters();
        let (want, got) = (shard_lengths(n_values).count(), shards.len());
        if want != got {
            return Err(FrozenError::Shards { want, got });
        }
        let frozen = Self { codec, n_values, shards };
        frozen.decoded(|_| {})?;
        Ok(frozen)
    }

    /// Encodes `values`, `[n_values]` and finite.
    ///
    /// # Errors
    /// A value that is not finite.
    pub fn encode(codec: TensorCodec, values: &[f32]) -> Result<Self, FrozenError> {
        let encode = |(shard, values): (usize, &[f32])| {
            codec.encode(values).map(Into::into).map_err(|source| FrozenError::Shard { shard, source })
        };
        let shards = values.chunks(FROZEN_SHARD_VALUES).enumerate().map(encode);
        Ok(Self { codec, n_values: values.len(), shards: shards.collect::<Result<_, _>>()? })
    }

    /// The frozen weights of a run's model, where it has such. `fetch` has their shards, by number.
    ///
    /// # Errors
    /// A shard that is not there, or is another one; weights that are not those of the model.
    pub async fn of_run<E>(
        run: &RunDescription,
        fetch: impl AsyncFn(u32) -> Result<Vec<u8>, E>,
    ) -> Result<Option<Self>, FrozenOfRunError<E>> {
        let Some(adapters) = run.model.weights.adapters() else { return Ok(None) };
        let layout = ParameterLayout::frozen_of_run(run)?;
        let manifest = &run.data.manifest;
        let mut shards = Vec::with_capacity(manifest.frozen.len());
        for (number, entry) in (manifest.first_frozen()..).zip(&manifest.frozen) {
            let bytes = fetch(number).await.map_err(FrozenOfRunError::Fetch)?;
            entry.check(&bytes)?;
            shards.push(bytes.into());
        }
        Ok(Some(Self::new(adapters.codec, &layout, shards)?))
    }

    /// The encoded shards.
    pub fn shards(&self) -> &[Arc<[u8]>] {
        &self.shards
    }

    /// The encoded shards, each with its number of values.
    pub fn sized_shards(&self) -> impl Iterator<Item = (Arc<[u8]>, usize)> {
        self.shards.iter().cloned().zip(shard_lengths(self.n_values))
    }

    /// The values, `[n_values]`, as every peer computes with them.
    pub fn values(&self) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.n_values);
        let decoded = self.decoded(|shard| values.extend_from_slice(shard));
        debug_assert!(decoded.is_ok(), "they were decoded before");
        values
    }

    /// One tensor for each segment. At most one shard is decoded at a time, beside them.
    pub(crate) fn tensors(&self, layout: &ParameterLayout, device: &Device) -> Vec<Tensor<1>> {
        let mut tensors = Vec::with_capacity(layout.segments().len());
        let mut lengths = layout.segments().iter().map(|segment| segment.len);
        let mut want = lengths.next();
        let mut values = Vec::new();
        let decoded = self.decoded(|mut shard| {
            while let Some(len) = want {
                let (now, rest) = shard.split_at(shard.len().min(len - values.len()));
                values.extend_from_slice(now);
                shard = rest;
                if values.len() < len {
                    break;
                }
                let data = TensorData::new(std::mem::take(&mut values), [len]);
                tensors.push(Tensor::from_data(data, device));
                want = lengths.next();
            }
        });
        debug_assert!(decoded.is_ok() && want.is_none(), "they were decoded before, and are of this layout");
        tensors
    }

    /// Calls `on_shard` with the values of each shard.
    fn decoded(&self, mut on_shard: impl FnMut(&[f32])) -> Result<(), FrozenError> {
        let mut values = vec![0.0; self.n_values.min(FROZEN_SHARD_VALUES)];
        for (shard, (bytes, len)) in self.shards.iter().zip(shard_lengths(self.n_values)).enumerate() {
            let values = &mut values[..len];
            let decoded = self.codec.decode_into(bytes, values);
            decoded.map_err(|source| FrozenError::Shard { shard, source })?;
            on_shard(values);
        }
        Ok(())
    }
}

/// Checks that the frozen weights of a layout are here.
pub(crate) fn check(layout: &ParameterLayout, frozen: Option<&FrozenWeights>) -> Result<(), FrozenError> {
    let n_values = layout.n_parameters();
    let got = frozen.map_or(0, |frozen| frozen.n_values);
    if got == n_values { Ok(()) } else { Err(FrozenError::Missing { n_values }) }
}

/// Checks the entries of a manifest for the frozen weights of a model.
///
/// # Errors
/// The first entry with another number of values or bytes than it is to have.
pub fn check_entries(
    codec: TensorCodec,
    layout: &ParameterLayout,
    entries: &[ShardEntry],
) -> Result<(), FrozenError> {
    let sizes = shard_sizes(codec, layout);
    let (want, got) = (sizes.len(), entries.len());
    if want != got {
        return Err(FrozenError::Shards { want, got });
    }
    for (shard, (entry, want)) in entries.iter().zip(sizes).enumerate() {
        let got = [entry.n_samples, entry.n_bytes].map(|n| n as usize);
        if want != got {
            return Err(FrozenError::Entry { shard, want, got });
        }
    }
    Ok(())
}

/// Values and bytes of each shard of the frozen weights of a model.
pub fn shard_sizes(codec: TensorCodec, layout: &ParameterLayout) -> Vec<[usize; 2]> {
    shard_lengths(layout.n_parameters()).map(|len| [len, codec.encoded_len(len)]).collect()
}

/// Values of each shard of `n_values`.
fn shard_lengths(n_values: usize) -> impl Iterator<Item = usize> {
    (0..n_values).step_by(FROZEN_SHARD_VALUES).map(move |at| FROZEN_SHARD_VALUES.min(n_values - at))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::codec::CodecError;

    use super::*;
    use crate::parameters::{Initialization, ParameterSegment};

    fn layout(lengths: &[usize]) -> ParameterLayout {
        let mut layout = ParameterLayout::default();
        for (index, &len) in lengths.iter().enumerate() {
            let (name, initial) = (index.to_string(), Initialization::Constant(0.0));
            let offset = layout.n_parameters;
            layout.segments.push(ParameterSegment { name, shape: vec![len], offset, len, initial });
            layout.n_parameters += len;
        }
        layout
    }

    #[test]
    fn segments_that_end_within_shards_come_back() {
        let lengths = [5, FROZEN_SHARD_VALUES, FROZEN_SHARD_VALUES - 5, 1, 2];
        let layout = layout(&lengths);
        let values: Vec<f32> = (0..layout.n_parameters()).map(|at| (at % 251) as f32 - 125.0).collect();
        let frozen = FrozenWeights::encode(TensorCodec::F32, &values).unwrap();
        assert_eq!(frozen.shards().len(), 3);
        let frozen = FrozenWeights::new(TensorCodec::F32, &layout, frozen.shards().to_vec()).unwrap();
        assert!(frozen.values() == values);
        let tensors = frozen.tensors(&layout, crate::ComputeDevice::cpu().burn());
        assert_eq!(tensors.len(), lengths.len());
        for (tensor, segment) in tensors.into_iter().zip(layout.segments()) {
            assert!(
                tensor.into_data().try_to_vec::<f32>().unwrap() == values[segment.range()],
                "{}",
                segment.name
            );
        }
    }

    #[test]
    fn what_is_not_of_the_model_is_refused() {
        let (of_three, of_four) = (layout(&[3]), layout(&[4]));
        let frozen = FrozenWeights::encode(TensorCodec::Int8, &[1.0, -0.5, 0.25]).unwrap();
        let shards = frozen.shards().to_vec();
        assert_eq!(FrozenWeights::new(TensorCodec::Int8, &of_three, shards.clone()), Ok(frozen));
        let of_other = FrozenWeights::new(TensorCodec::Int8, &of_four, shards.clone()).unwrap_err();
        assert!(matches!(of_other, FrozenError::Shard { shard: 0, source: CodecError::Length { .. } }));
        let none = FrozenWeights::new(TensorCodec::Int8, &of_three, Vec::new());
        assert_eq!(none, Err(FrozenError::Shards { want: 1, got: 0 }));
        let nan: Arc<[u8]> = [[0; 4], [0; 4], f32::NAN.to_le_bytes()].concat().into();
        let refused = FrozenWeights::new(TensorCodec::F32, &of_three, vec![nan]).unwrap_err();
        assert_eq!(refused.to_string(), "shard 0 of the frozen weights: value 2 is not finite");
        assert!(FrozenWeights::encode(TensorCodec::F32, &[f32::INFINITY]).is_err());
    }
}
