//! The tensors of an ALBERT (Lan et al. 2020) in the order of the flat vector.
//!
//! Embeddings of `embedding` values, projected to `hidden`; one layer, applied `layers` times; a head whose last map
//! is the table of token embeddings again. There is no sentence-order objective, and no segment embedding with it.

use barnraise_protocol::dataset::TokenShape;
use barnraise_protocol::run::ModelKind;

use super::Builder;
use crate::error::ModelError;
use crate::masking::masked_per_sequence;
use crate::parameters::{ACTIVATIONS_MAX, Initialization, ParameterLayout};

/// Most values in the embedding, the layers, or between the maps of their feed-forward part.
const WIDTH_MAX: u32 = 16_384;
/// Most times that the layer is applied.
const LAYERS_MAX: u32 = 64;
/// `0.02 * sqrt(3)`: the standard deviation that BERT and ALBERT begin with, of a uniform distribution.
const EMBEDDING_BOUND: f32 = 0.034_641_016;

/// Sizes of an ALBERT, in bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AlbertSizes {
    /// Tokens of a sequence.
    pub(crate) length: usize,
    /// Rows of the embedding table.
    pub(crate) vocabulary: usize,
    /// Columns of it.
    pub(crate) embedding: usize,
    /// Width of the layers.
    pub(crate) hidden: usize,
    /// Attention heads; they divide the width.
    pub(crate) heads: usize,
    /// Units of the feed-forward part.
    pub(crate) inner: usize,
    /// Times that the layer is applied.
    pub(crate) layers: usize,
}

impl AlbertSizes {
    /// Checks every size before anything is made of it.
    pub(crate) fn of(kind: &ModelKind, tokens: TokenShape) -> Result<Self, ModelError> {
        let ModelKind::Albert { embedding, hidden, heads, inner, layers } = *kind else {
            return Err(ModelError::WrongData { got: "text" });
        };
        for (name, got) in [("embedding", embedding), ("hidden", hidden), ("inner", inner)] {
            if got == 0 || got > WIDTH_MAX {
                return Err(ModelError::Dimension { name, want: "1 to 16,384", got });
            }
        }
        if heads == 0 || !hidden.is_multiple_of(heads) {
            let (name, want) = ("heads", "a divisor of its hidden width");
            return Err(ModelError::Dimension { name, want, got: heads });
        }
        if layers == 0 || layers > LAYERS_MAX {
            return Err(ModelError::Dimension { name: "layers", want: "1 to 64", got: layers });
        }
        let [embedding, hidden, heads, inner, layers] =
            [embedding, hidden, heads, inner, layers].map(|size| size as usize);
        let (length, vocabulary) = (tokens.length.into(), tokens.vocabulary.into());
        Ok(Self { length, vocabulary, embedding, hidden, heads, inner, layers })
    }

    /// The tensors.
    pub(crate) fn layout(&self) -> Result<ParameterLayout, ModelError> {
        let Self { length, vocabulary, embedding, hidden, inner, .. } = *self;
        let mut builder = Builder::new(self.n_activations());
        if self.n_activations() > ACTIVATIONS_MAX {
            return Err(ModelError::Activations { max: ACTIVATIONS_MAX });
        }
        let initial = Initialization::Uniform { bound: EMBEDDING_BOUND };
        builder.segment("embedding.tokens".into(), vec![vocabulary, embedding], initial)?;
        builder.segment("embedding.positions".into(), vec![length, embedding], initial)?;
        builder.norm("embedding.norm", embedding)?;
        builder.linear("embedding.projection", embedding, hidden)?;
        for name in ["query", "key", "value", "output"] {
            builder.linear(&format!("attention.{name}"), hidden, hidden)?;
        }
        builder.norm("attention.norm", hidden)?;
        builder.linear("feed-forward.inner", hidden, inner)?;
        builder.linear("feed-forward.outer", inner, hidden)?;
        builder.norm("feed-forward.norm", hidden)?;
        builder.linear("head.transform", hidden, embedding)?;
        builder.norm("head.norm", embedding)?;
        builder.segment("head.bias".into(), vec![vocabulary], Initialization::Constant(0.0))?;
        Ok(builder.layout)
    }

    /// Values that a forward pass keeps for one sequence, roughly: what each operation gives.
    fn n_activations(&self) -> usize {
        let mul = |factors: &[usize]| factors.iter().fold(1, |product: usize, &f| product.saturating_mul(f));
        let attention = mul(&[3, self.heads, self.length, self.length]);
        let wide = mul(&[self.length, self.hidden.saturating_mul(14)]);
        let inner = mul(&[2, self.length, self.inner]);
        let layers = mul(&[self.layers, attention.saturating_add(wide).saturating_add(inner)]);
        let embedded = mul(&[4, self.length, self.embedding]);
        let head = mul(&[3, masked_per_sequence(self.length), self.vocabulary]);
        layers.saturating_add(embedded).saturating_add(head)
    }
}

impl Builder {
    /// `[in, out]`, then `[out]`.
    pub(super) fn linear(&mut self, name: &str, n_in: usize, n_out: usize) -> Result<(), ModelError> {
        let initial = Initialization::Layer { fan_in: n_in, before_relu: false };
        self.segment(format!("{name}.weight"), vec![n_in, n_out], initial)?;
        self.segment(format!("{name}.bias"), vec![n_out], initial)
    }

    /// Of a layer normalization.
    pub(super) fn norm(&mut self, name: &str, size: usize) -> Result<(), ModelError> {
        self.segment(format!("{name}.weight"), vec![size], Initialization::Constant(1.0))?;
        self.segment(format!("{name}.bias"), vec![size], Initialization::Constant(0.0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use barnraise_protocol::run::ModelSpec;

    use super::*;
    use crate::data_shape::DataShape;

    const TOKENS: TokenShape = TokenShape { length: 16, vocabulary: 100 };

    fn layout(kind: ModelKind) -> Result<ParameterLayout, ModelError> {
        ParameterLayout::of(&ModelSpec { kind, seed: 1 }, DataShape::Tokens(TOKENS))
    }

    fn albert(hidden: u32, layers: u32) -> ModelKind {
        ModelKind::Albert { embedding: 8, hidden, heads: 2, inner: 24, layers }
    }

    #[test]
    fn layers_share_their_parameters() {
        let shallow = layout(albert(12, 1)).unwrap();
        let deep = layout(albert(12, 6)).unwrap();
        assert_eq!(shallow.segments(), deep.segments());
        let embedded = (100 + 16) * 8 + 2 * 8 + (8 * 12 + 12);
        let layer = 4 * (12 * 12 + 12) + 2 * 12 + (12 * 24 + 24) + (24 * 12 + 12) + 2 * 12;
        let head = (12 * 8 + 8) + 2 * 8 + 100;
        assert_eq!(deep.n_parameters(), embedded + layer + head);
        assert!(deep.batch_samples_max() <= shallow.batch_samples_max());
        let flat = deep.initial_parameters(3);
        let norm = deep.segments().iter().find(|segment| segment.name == "attention.norm.weight").unwrap();
        assert!(flat[norm.range()].iter().all(|value| *value == 1.0));
    }

    #[test]
    fn sizes_that_cannot_be_are_named() {
        let name = |kind| match layout(kind) {
            Err(ModelError::Dimension { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(name(albert(0, 1)), "hidden");
        assert_eq!(name(albert(13, 1)), "heads");
        assert_eq!(name(albert(u32::MAX, 1)), "hidden");
        assert_eq!(name(albert(12, 0)), "layers");
        assert_eq!(name(albert(12, u32::MAX)), "layers");
        let huge = ModelKind::Albert { embedding: 1, hidden: 16_384, heads: 1, inner: 16_384, layers: 1 };
        assert!(matches!(layout(huge), Err(ModelError::TooLarge { .. })));
        let wide = ModelKind::Albert { embedding: 1, hidden: 16_384, heads: 16_384, inner: 1, layers: 64 };
        let tokens = TokenShape { length: 1024, vocabulary: 100 };
        let wide = ParameterLayout::of(&ModelSpec { kind: wide, seed: 1 }, DataShape::Tokens(tokens));
        assert!(matches!(wide, Err(ModelError::Activations { .. })));
        let images = ModelKind::Mlp { hidden: vec![4] };
        assert_eq!(layout(images), Err(ModelError::WrongData { got: "text" }));
    }
}
