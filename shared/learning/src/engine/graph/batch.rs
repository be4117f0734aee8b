//! Samples as a graph takes them.

use barnraise_protocol::dataset::{ImageShape, Ratings, RowTargets, TableRows};
use barnraise_protocol::run::model::graph::LARGE_CROPS;

use crate::batch;
use crate::crops::Crops;
use crate::masking::MaskedTokens;

/// Samples of a pass, checked by the trainer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GraphBatch {
    /// Samples.
    pub(crate) n_samples: usize,
    /// In the order of the graph's inputs.
    pub(crate) inputs: Vec<InputValues>,
    /// What the output is compared with.
    pub(crate) targets: GraphTargets,
    /// Positions of masked tokens in `[n_samples * length]`, as many of each sample.
    pub(crate) masked: Vec<u32>,
    /// Of each sample, for dropout: `[n_samples]`, or empty where the graph has none.
    pub(crate) seeds: Vec<u64>,
}

/// Values of an input, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum InputValues {
    /// Of the shape of the input.
    Values(Vec<f32>),
    /// Below the rows of the input.
    Ids(Vec<u32>),
}

/// What the output of a pass is compared with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum GraphTargets {
    /// Nothing: the pass is one without a loss.
    None,
    /// The class of each prediction.
    Classes(Vec<u32>),
    /// The values of each sample.
    Values(Vec<f32>),
    /// Crops of one picture are to have the same prototype. The large ones are the input.
    Crops {
        /// `[n_small * n_samples, channels, small_side, small_side]`
        small: Vec<f32>,
        /// Whether the prototypes get no gradient.
        is_frozen: bool,
    },
}

impl GraphBatch {
    /// # Shapes
    /// - `images`: `[n_samples, height, width, channels]`
    /// - `labels`: `[n_samples]`, or empty
    pub(crate) fn images(images: &[u8], labels: &[u8], shape: ImageShape) -> Self {
        let values = batch::normalize_channels_first(images, shape);
        let classes = labels.iter().map(|&label| label.into()).collect();
        let targets = if labels.is_empty() { GraphTargets::None } else { GraphTargets::Classes(classes) };
        let n_samples = images.len() / shape.n_values().max(1);
        Self::new(n_samples, InputValues::Values(values), targets)
    }

    /// Text with masked tokens.
    pub(crate) fn masked(masked: &MaskedTokens, length: usize) -> Self {
        let classes = &masked.targets;
        let targets =
            if classes.is_empty() { GraphTargets::None } else { GraphTargets::Classes(classes.clone()) };
        let n_samples = masked.inputs.len() / length.max(1);
        let batch = Self::new(n_samples, InputValues::Ids(masked.inputs.clone()), targets);
        Self { masked: masked.positions.clone(), ..batch }
    }

    /// Text, each token after the first of a sequence to be predicted from those before it.
    ///
    /// # Shapes
    /// - `ids`: `[n_samples, length]`
    pub(crate) fn text(ids: &[u32], length: usize) -> Self {
        let sequences = ids.chunks_exact(length.max(1));
        let n_samples = sequences.len();
        let classes = sequences.flat_map(|sequence| &sequence[1..]).copied().collect();
        Self::new(n_samples, InputValues::Ids(ids.to_vec()), GraphTargets::Classes(classes))
    }

    /// Rows of a table.
    pub(crate) fn rows(rows: &TableRows) -> Self {
        let targets = match &rows.targets {
            RowTargets::Classes(labels) => {
                GraphTargets::Classes(labels.iter().map(|&label| label.into()).collect())
            }
            RowTargets::Values { values, .. } => GraphTargets::Values(values.clone()),
        };
        Self::new(rows.n_samples(), InputValues::Values(rows.values.clone()), targets)
    }

    /// Ratings.
    pub(crate) fn ratings(ratings: &Ratings) -> Self {
        let targets = GraphTargets::Values(ratings.ratings.clone());
        let items = InputValues::Ids(ratings.items.clone());
        let mut batch = Self::new(ratings.ratings.len(), InputValues::Ids(ratings.users.clone()), targets);
        batch.inputs.push(items);
        batch
    }

    /// Crops of pictures.
    pub(crate) fn crops(crops: &Crops, is_frozen: bool) -> Self {
        let targets = GraphTargets::Crops { small: crops.small.clone(), is_frozen };
        Self::new(crops.n_samples, InputValues::Values(crops.large.clone()), targets)
    }

    /// Of no samples: no graph takes it.
    pub(super) fn none() -> Self {
        Self { inputs: Vec::new(), ..Self::new(0, InputValues::Ids(Vec::new()), GraphTargets::None) }
    }

    /// With a number for each sample that its dropout follows from.
    pub(crate) fn with_seeds(self, seeds: Vec<u64>) -> Self {
        Self { seeds, ..self }
    }

    fn new(n_samples: usize, input: InputValues, targets: GraphTargets) -> Self {
        Self { n_samples, inputs: vec![input], targets, masked: Vec::new(), seeds: Vec::new() }
    }

    /// Rows of the first dimension of the input: a crop is one.
    pub(super) fn n_rows(&self) -> usize {
        match self.targets {
            GraphTargets::Crops { .. } => LARGE_CROPS * self.n_samples,
            _ => self.n_samples,
        }
    }
}
