//! In which form contributors send their gradients.

use serde::{Deserialize, Serialize};

use crate::codec::{Density, Sparsity, TensorCodec};

/// Codec of gradients, with what a contributor does to them before they are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GradientCodec {
    /// [`TensorCodec::F32`].
    F32,
    /// [`TensorCodec::F16`].
    F16,
    /// [`TensorCodec::Int8`].
    Int8,
    /// [`TensorCodec::Int4`].
    Int4,
    /// [`TensorCodec::TopK`].
    TopK(TopK),
}

/// The largest values of a gradient, with momentum and clipping before they are selected (Lin et al. 2018, "Deep
/// Gradient Compression"). The residual, what is not sent, is always added to the next gradient (error feedback).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopK {
    /// Share of the values once the warm-up is over.
    pub density: Density,
    /// Optimizer steps until then, while more is sent, because gradients change fast in the beginning.
    #[serde(default)]
    pub warmup_epochs: u32,
    /// Momentum that contributors apply in place of the optimizer, 0 for none (momentum correction).
    #[serde(default)]
    pub momentum: f32,
    /// Whether the momentum of a value is reset when the value is sent (momentum factor masking). Values that are sent
    /// often then have hardly any momentum: most of a small model, and most values during the density's warm-up.
    #[serde(default)]
    pub masking: bool,
    /// Largest Euclidean norm of the gradient of a whole step. That of a contribution may be larger by the square root
    /// of the number of contributions in a step.
    #[serde(default)]
    pub clip_norm: Option<f32>,
}

/// Why gradients cannot be sent so.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum GradientCodecError {
    /// A momentum below 0, or so large that it would never decay.
    #[error("a momentum of {0}: at least 0 and below 1 is wanted")]
    Momentum(f32),
    /// A momentum that is not there cannot be reset.
    #[error("masking without momentum: a momentum above 0 is wanted with it")]
    Masking,
    /// A largest norm that is not above 0.
    #[error("a clip_norm of {0}: a number above 0 is wanted")]
    ClipNorm(f32),
}

impl TopK {
    /// The largest values, without momentum and clipping.
    pub fn plain(density: Density, warmup_epochs: u32) -> Self {
        Self { density, warmup_epochs, momentum: 0.0, masking: false, clip_norm: None }
    }

    /// How many values are sent.
    pub fn sparsity(self) -> Sparsity {
        Sparsity { density: self.density, warmup_epochs: self.warmup_epochs }
    }
}

impl GradientCodec {
    /// How the values of a gradient are encoded.
    pub fn encoding(self) -> TensorCodec {
        match self {
            Self::F32 => TensorCodec::F32,
            Self::F16 => TensorCodec::F16,
            Self::Int8 => TensorCodec::Int8,
            Self::Int4 => TensorCodec::Int4,
            Self::TopK(top_k) => TensorCodec::TopK(top_k.sparsity()),
        }
    }

    /// Momentum that contributors apply, and whether it is masked.
    pub fn momentum(self) -> (f32, bool) {
        match self {
            Self::TopK(top_k) => (top_k.momentum, top_k.masking),
            Self::F32 | Self::F16 | Self::Int8 | Self::Int4 => (0.0, false),
        }
    }

    /// Largest norm of the gradient of a whole step.
    pub fn clip_norm(self) -> Option<f32> {
        match self {
            Self::TopK(top_k) => top_k.clip_norm,
            Self::F32 | Self::F16 | Self::Int8 | Self::Int4 => None,
        }
    }

    /// Checks its numbers.
    ///
    /// # Errors
    /// The first that is impossible.
    pub fn validate(self) -> Result<(), GradientCodecError> {
        let (momentum, masking) = self.momentum();
        if !(0.0..1.0).contains(&momentum) {
            return Err(GradientCodecError::Momentum(momentum));
        }
        if masking && momentum == 0.0 {
            return Err(GradientCodecError::Masking);
        }
        match self.clip_norm() {
            Some(norm) if !(norm.is_finite() && norm > 0.0) => Err(GradientCodecError::ClipNorm(norm)),
            _ => Ok(()),
        }
    }
}
