//! Models as others pull them.

use std::sync::Arc;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::sampled::{ModelSketch, SampledTask};
use barnraise_swarm::sampled::SampledModel;

/// The bytes of a model, and what is told of them before.
pub type EncodedModel = (Transfer, Arc<[u8]>);

/// Encodes a model.
///
/// # Errors
/// It has a value that the codec does not take.
pub fn encode(codec: TensorCodec, model: &SampledModel) -> Result<EncodedModel, CodecError> {
    let bytes: Arc<[u8]> = codec.encode(model)?.into();
    Ok((Transfer::of(&bytes), bytes))
}

/// The sketch of encoded `bytes` by a seed, as who pulls them makes it of what it decodes.
///
/// # Errors
/// They are no `n_parameters` values of the codec.
pub fn sketch_of(
    codec: TensorCodec,
    bytes: &[u8],
    n_parameters: usize,
    seed: u64,
) -> Result<ModelSketch, CodecError> {
    Ok(ModelSketch::of(&codec.decode(bytes, n_parameters)?, seed))
}

/// Models that are pushed now, each encoded once for all who pull it: the newest for trainers, and the newest for aggregators.
#[derive(Debug, Default)]
pub struct EncodedModels(Vec<(SampledTask, SampledModel, EncodedModel)>);

impl EncodedModels {
    /// A model of a task, where it is encoded already.
    pub fn find(&self, task: SampledTask, model: &SampledModel) -> Option<EncodedModel> {
        let mut kept = self.0.iter();
        let found = kept.find(|(of, from, _)| *of == task && Arc::ptr_eq(from, model));
        found.map(|(_, _, encoded)| encoded.clone())
    }

    /// Keeps a model in place of the earlier one of the same kind.
    pub fn keep(&mut self, task: SampledTask, model: SampledModel, encoded: EncodedModel) {
        let kind = std::mem::discriminant(&task);
        self.0.retain(|(of, ..)| std::mem::discriminant(of) != kind);
        self.0.push((task, model, encoded));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_kind_the_newest_is_kept_and_of_another_model_nothing_is() {
        let mut kept = EncodedModels::default();
        let [one, other]: [SampledModel; 2] = [Arc::new([1.0]), Arc::new([1.0])];
        let encoded = |byte: u8| -> EncodedModel { (Transfer::of(&[byte]), Arc::new([byte])) };
        let (train, aggregate) = (SampledTask::Train { round: 4 }, SampledTask::Aggregate { round: 5 });
        kept.keep(train, one.clone(), encoded(1));
        kept.keep(aggregate, other.clone(), encoded(2));
        assert_eq!(
            (kept.find(train, &one), kept.find(aggregate, &other)),
            (Some(encoded(1)), Some(encoded(2)))
        );
        assert_eq!(
            (kept.find(train, &other), kept.find(SampledTask::Train { round: 5 }, &one)),
            (None, None)
        );
        kept.keep(SampledTask::Train { round: 5 }, one.clone(), encoded(3));
        assert_eq!(kept.find(train, &one), None);
        assert_eq!(kept.0.len(), 2);
    }
}
