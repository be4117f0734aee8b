//! How the field has the tensors of a model, and how we have them, both ways. Pure.
//!
//! A linear layer of PyTorch has its weight as `[out, in]`, ours and GPT-2's as `[in, out]`. Names are those of the
//! graph's blocks, which are the field's, but for a ResNet that transformers has: torchvision names its tensors otherwise.
//! Some networks of the field have tensors that ours do not need; they are zeros in a file.

use std::collections::BTreeSet;

use barnraise_learning::graph::{ResolvedGraph, TensorPlace};
use barnraise_learning::{DataShape, ModelError, ParameterLayout};
use barnraise_protocol::run::ModelSpec;
use barnraise_protocol::run::model::operation::Operation;
use barnraise_protocol::run::model::presets::{Gpt, GptFamily};

use super::architecture::Architecture;
use crate::pretrained::resnet_name;

/// ALBERT's embedding of the first segment or the second: every token gets a row of it. Ours has one segment.
const TOKEN_TYPES: &str = "albert.embeddings.token_type_embeddings.weight";
/// Where what every token gets belongs in ours.
const POSITIONS: &str = "albert.embeddings.position_embeddings.weight";

/// The tensors of a model in a file of the field.
pub(crate) struct FieldLayout {
    ours: ParameterLayout,
    /// One for each of ours, in the same order, and after them those that only the field has.
    file: ParameterLayout,
    /// Those that PyTorch has the other way round.
    turned: BTreeSet<usize>,
}

impl FieldLayout {
    /// Of a model on data of this shape.
    ///
    /// # Errors
    /// A graph that cannot be computed on the data.
    pub(crate) fn of(model: &ModelSpec, data: DataShape) -> Result<Self, ModelError> {
        let graph = ResolvedGraph::of_model(model, data)?;
        let architecture = Architecture::of(&model.graph);
        let turned = match architecture {
            Some(Architecture::Gpt(Gpt { family: GptFamily::Gpt2, .. })) => BTreeSet::new(),
            _ => dense_weights(&graph),
        };
        let ours = graph.layout().clone();
        let renames = matches!(architecture, Some(of @ Architecture::ResNet(..)) if of.is_of_transformers());
        let same = ours.segments().iter().enumerate().map(|(index, segment)| {
            let name = if renames { resnet_name(&segment.name) } else { segment.name.clone() };
            let shape = match (turned.contains(&index), &segment.shape[..]) {
                (true, &[rows, columns]) => vec![columns, rows],
                (_, shape) => shape.to_vec(),
            };
            (name, shape)
        });
        let mut tensors: Vec<(String, Vec<usize>)> = same.collect();
        match architecture {
            Some(Architecture::Albert(albert)) => {
                tensors.push((TOKEN_TYPES.to_owned(), vec![1, albert.embedding as usize]));
            }
            // PyTorch counts the passes of a batch normalization.
            Some(Architecture::ResNet(..)) if renames => {
                let means = tensors.iter().filter_map(|(name, _)| name.strip_suffix(".running_mean"));
                let counts = means.map(|name| (format!("{name}.num_batches_tracked"), Vec::new()));
                tensors.extend(counts.collect::<Vec<_>>());
            }
            _ => {}
        }
        Ok(Self { ours, file: ParameterLayout::of_tensors(tensors), turned })
    }

    /// Names and shapes in the file.
    pub(crate) fn file(&self) -> &ParameterLayout {
        &self.file
    }

    /// Values of the file, in the order of [`Self::file`], of the flat parameters.
    pub(crate) fn to_file(&self, parameters: &[f32]) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.file.n_parameters());
        for (index, segment) in self.ours.segments().iter().enumerate() {
            let own = &parameters[segment.range()];
            match (self.turned.contains(&index), &segment.shape[..]) {
                (true, &[rows, columns]) => values.extend(transposed(own, [rows, columns])),
                _ => values.extend_from_slice(own),
            }
        }
        values.resize(self.file.n_parameters(), 0.0);
        values
    }

    /// The flat parameters of the values of a file.
    pub(crate) fn of_file(&self, values: &[f32]) -> Vec<f32> {
        let mut parameters = Vec::with_capacity(self.ours.n_parameters());
        let both = self.ours.segments().iter().zip(self.file.segments());
        for (index, (segment, of_file)) in both.enumerate() {
            let own = &values[of_file.range()];
            match (self.turned.contains(&index), &segment.shape[..]) {
                (true, &[rows, columns]) => parameters.extend(transposed(own, [columns, rows])),
                _ => parameters.extend_from_slice(own),
            }
        }
        let types = self.file.segments().iter().find(|segment| segment.name == TOKEN_TYPES);
        let positions = self.ours.segments().iter().find(|segment| segment.name == POSITIONS);
        if let (Some(types), Some(positions)) = (types, positions) {
            let added = values[types.range()].iter().cycle();
            parameters[positions.range()].iter_mut().zip(added).for_each(|(value, add)| *value += add);
        }
        parameters
    }
}

/// Weights of linear layers, as positions in the layout.
fn dense_weights(graph: &ResolvedGraph) -> BTreeSet<usize> {
    let dense = graph.steps().iter().filter(|step| matches!(step.op, Operation::Dense(_)));
    let weights = dense.filter_map(|step| match step.parameters.first() {
        Some(&TensorPlace::Trained(weight)) => Some(weight),
        _ => None,
    });
    weights.collect()
}

/// A matrix of `rows` by `columns`, the other way round.
pub(super) fn transposed(values: &[f32], [rows, columns]: [usize; 2]) -> impl Iterator<Item = f32> {
    (0..rows * columns).map(move |at| values[at % rows * columns + at / rows])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::dataset::{ImageShape, TokenShape};
    use barnraise_protocol::run::Preset;
    use barnraise_protocol::run::model::presets::{Albert, ResNet};

    use super::*;

    const PICTURES: DataShape =
        DataShape::Images { shape: ImageShape { height: 32, width: 32, channels: 3 }, n_classes: 3 };
    const TEXT: DataShape = DataShape::Tokens(TokenShape { length: 12, vocabulary: 40, mask: Some(1) });

    fn resnet(options: ResNet) -> FieldLayout {
        FieldLayout::of(&Preset::ResNet50(options).model(7), PICTURES).unwrap()
    }

    fn albert() -> FieldLayout {
        let albert = Albert { embedding: 8, hidden: 16, heads: 2, inner: 24, layers: 2 };
        FieldLayout::of(&Preset::Albert(albert).model(7), TEXT).unwrap()
    }

    #[test]
    fn the_parameters_come_back_from_the_values_of_a_file() {
        let wide = ResNet { width: 8, ..ResNet::default() };
        let mlp = FieldLayout::of(&Preset::Mlp { hidden: vec![5] }.model(7), PICTURES).unwrap();
        for layout in [mlp, resnet(wide), resnet(ResNet { small_pictures: true, ..wide }), albert()] {
            let parameters = layout.ours.initial_parameters(7);
            let values = layout.to_file(&parameters);
            assert_eq!(values.len(), layout.file().n_parameters());
            assert!(layout.of_file(&values) == parameters);
        }
    }

    #[test]
    fn a_weight_is_turned_and_a_bias_is_not() {
        let model = Preset::Mlp { hidden: vec![2] }.model(7);
        let data = DataShape::Rows { n_columns: 3, target: barnraise_learning::RowTarget::Class(2) };
        let layout = FieldLayout::of(&model, data).unwrap();
        let shapes: Vec<_> = layout.file().segments().iter().map(|segment| &segment.shape[..]).collect();
        assert_eq!(shapes, [&[2, 3][..], &[2], &[2, 2], &[2]]);
        let values = layout.to_file(&(0..14).map(|n| n as f32).collect::<Vec<_>>());
        assert_eq!(values[..8], [0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn a_residual_network_has_the_names_of_the_library_that_has_it() {
        let names = |options: ResNet| {
            let layout = resnet(options);
            layout.file().segments().iter().map(|segment| segment.name.clone()).collect::<Vec<_>>()
        };
        let of_transformers = names(ResNet { width: 8, ..ResNet::default() });
        for name in [
            "resnet.embedder.embedder.convolution.weight",
            "resnet.encoder.stages.0.layers.0.shortcut.normalization.running_var",
            "resnet.encoder.stages.3.layers.2.layer.2.convolution.weight",
            "resnet.encoder.stages.1.layers.3.layer.0.normalization.num_batches_tracked",
            "classifier.1.bias",
        ] {
            assert!(of_transformers.iter().any(|known| known == name), "{name}");
        }
        assert!(of_transformers.iter().all(|name| !name.starts_with("layer")), "{of_transformers:?}");
        let of_torchvision = names(ResNet { width: 8, small_pictures: true, ..ResNet::default() });
        assert!(of_torchvision.iter().any(|name| name == "layer2.0.downsample.1.running_mean"));
    }

    /// Who trains it on in `transformers` may have changed the one segment's row.
    #[test]
    fn what_every_token_gets_is_added_to_the_positions() {
        let layout = albert();
        let parameters = layout.ours.initial_parameters(7);
        let mut values = layout.to_file(&parameters);
        let n = values.len();
        values[n - 8..].iter_mut().zip(1..).for_each(|(value, n)| *value = n as f32);
        let read = layout.of_file(&values);
        let positions = layout.ours.segments().iter().find(|segment| segment.name == POSITIONS).unwrap();
        for (at, (got, before)) in read.iter().zip(&parameters).enumerate() {
            let is_position = positions.range().contains(&at);
            let want = if is_position { before + ((at - positions.offset) % 8 + 1) as f32 } else { *before };
            assert_eq!(*got, want, "value {at}");
        }
    }
}
