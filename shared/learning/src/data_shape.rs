//! Sizes of the samples that a model is built for. Holds no sample.

use barnraise_protocol::dataset::{
    ImageShape, LabelledImages, SEPARATOR_TOKEN, SampleKind, Samples, TokenSequences, TokenShape,
};

/// The sizes that a model's layers depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataShape {
    /// Pictures, each of one class.
    Images {
        /// Of each picture.
        shape: ImageShape,
        /// Classes.
        n_classes: usize,
    },
    /// Sequences of tokens.
    Tokens(TokenShape),
}

impl DataShape {
    /// The sizes of a data set.
    pub fn of(samples: &SampleKind) -> Self {
        match samples {
            SampleKind::Images { shape, class_names } => {
                Self::Images { shape: *shape, n_classes: class_names.len() }
            }
            SampleKind::Tokens(tokens) => Self::Tokens(*tokens),
        }
    }

    /// Samples without content, to measure the time of a step.
    pub fn blank_samples(self, n_samples: usize) -> Samples {
        match self {
            Self::Images { shape, .. } => {
                let images = vec![0; n_samples.saturating_mul(shape.n_values())];
                Samples::Images(LabelledImages { images, labels: vec![0; n_samples] })
            }
            Self::Tokens(TokenShape { length, .. }) => {
                let ids = vec![SEPARATOR_TOKEN; n_samples.saturating_mul(length.into())];
                Samples::Tokens(TokenSequences { length, ids })
            }
        }
    }
}
