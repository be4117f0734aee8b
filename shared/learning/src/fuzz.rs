//! Fuzz targets: any bytes as a safetensors file; any graph, resolved and computed; any tokenizer and text.

use std::sync::OnceLock;

use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::dataset::{ImageShape, TokenShape};
use barnraise_protocol::framing;
use barnraise_protocol::run::model::FirstWeights;
use barnraise_protocol::run::model::Graph;
use barnraise_protocol::run::{ModelSpec, Preset};
use futures::executor::block_on;

use crate::data_shape::DataShape;
use crate::device::ComputeDevice;
use crate::error::ModelError;
use crate::graph::BLOCKS_MAX;
use crate::parameters::ParameterLayout;
use crate::tensor_file;
use crate::tokenizer::{BLANKS_MAX, Tokenizer};
use crate::trainer::Trainer;

#[test]
fn tensor_file() {
    fuzz!("tensor_file", |bytes| {
        static LAYOUT: OnceLock<ParameterLayout> = OnceLock::new();
        let layout = LAYOUT.get_or_init(|| {
            let shape = ImageShape { height: 2, width: 2, channels: 1 };
            let spec = Preset::Mlp { hidden: vec![2] }.model(7);
            ParameterLayout::of(&spec, DataShape::Images { shape, n_classes: 2 }).unwrap()
        });
        let Ok(file) = tensor_file::read(bytes, layout) else { return };
        assert_eq!(file.parameters.len(), layout.n_parameters());
        assert!(file.parameters.iter().all(|value| value.is_finite()));
        let Ok(header) = tensor_file::header(layout, &file.notes) else { return };
        let again = [header, tensor_file::value_bytes(&file.parameters)].concat();
        let again = tensor_file::read(&again, layout).unwrap();
        assert_eq!((again.parameters, again.notes), (file.parameters, file.notes));
    });
}

/// Largest graph that is computed, so that a pass takes no time.
const COMPUTED_PARAMETERS_MAX: usize = 1 << 12;
/// Most activations of a sample of it.
const COMPUTED_ACTIVATIONS_MAX: usize = 1 << 14;

/// What is resolved can be computed, on a graph of a hostile peer too.
#[test]
fn graph() {
    fuzz!("graph", |bytes| {
        let Some((kind, bytes)) = bytes.split_first() else { return };
        let Ok(graph) = framing::decode_payload::<Graph>(bytes) else { return };
        let data = match kind % 2 {
            0 => {
                let shape = ImageShape { height: 4, width: 4, channels: 1 };
                DataShape::Images { shape, n_classes: 2 }
            }
            _ => DataShape::Tokens(TokenShape { length: 6, vocabulary: 12, mask: Some(1) }),
        };
        let spec = ModelSpec { graph, seed: 1, weights: FirstWeights::Drawn, hosted: None };
        let Ok(layout) = ParameterLayout::of(&spec, data) else { return };
        assert!(layout.segments().len() <= 4 * BLOCKS_MAX);
        let mut end = 0;
        for segment in layout.segments() {
            assert_eq!((segment.offset, segment.len), (end, segment.shape.iter().product()));
            end += segment.len;
        }
        assert_eq!(end, layout.n_parameters());
        if end > COMPUTED_PARAMETERS_MAX || layout.n_activations() > COMPUTED_ACTIVATIONS_MAX {
            return;
        }
        let mut trainer = Trainer::new(&spec, data, ComputeDevice::cpu()).unwrap();
        let samples = data.blank_samples(2);
        block_on(async {
            trainer.accumulate_samples(&samples, 0).await.unwrap();
            match trainer.take_mean_gradient().await {
                Ok(mean) => assert_eq!(mean.unwrap().values.len(), end),
                Err(error) => assert!(matches!(error, ModelError::NotFinite { .. }), "{error}"),
            }
            trainer.evaluate_samples(&samples).await.unwrap();
        });
    });
}

/// Any bytes as a tokenizer.json, and a text for it.
#[test]
fn tokenizer_file() {
    fuzz!("tokenizer_file", |input| {
        let Some((length, text, file)) = value::<(u8, &str, &[u8])>(input) else { return };
        let Ok(tokenizer) = Tokenizer::read(file) else { return };
        let Ok(ids) = tokenizer.encode(text) else { return };
        assert!(ids.iter().all(|&id| id < tokenizer.size() && Some(id) != tokenizer.special().mask));
        let _ = tokenizer.decode(&ids);
        if let Ok(blanked) = tokenizer.encode_with_blanks(text, length.into()) {
            assert_eq!(blanked.ids.len(), usize::from(length));
            assert!((1..=BLANKS_MAX).contains(&blanked.blanks.len()));
            assert!(blanked.blanks.iter().all(|&at| at < length.into()));
        }
    });
}
