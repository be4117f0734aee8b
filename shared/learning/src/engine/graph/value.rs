//! What an operation gives, for all samples of a pass: a tensor whose rank is known when it runs.

use burn::tensor::{FloatDType, Int, Tensor};

use crate::device::DeviceError;

/// An operation that was given another kind of value than its graph was resolved for, which is a bug of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a block of the graph was given a value of another kind than it was resolved for")]
pub(super) struct WrongKind;

/// Why a pass has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum PassError {
    /// A bug of ours.
    #[error(transparent)]
    WrongKind(#[from] WrongKind),
    /// A device that failed in the middle.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A value of a graph. The first dimension is the samples.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// `[n_samples, width]`
    Vectors(Tensor<2>),
    /// `[n_samples, length, width]`
    Sequences(Tensor<3>),
    /// `[n_samples, channels, height, width]`
    Maps(Tensor<4>),
    /// `[n_samples]` or `[n_samples, length]`, flat.
    Ids {
        /// All of them.
        ids: Tensor<1, Int>,
        /// Of a sequence; `None` for one id.
        length: Option<usize>,
    },
}

/// Applies an expression to a tensor of any rank.
macro_rules! on_each_rank {
    ($value:expr, $tensor:ident => $result:expr) => {
        match $value {
            Value::Vectors($tensor) => Ok(Value::Vectors($result)),
            Value::Sequences($tensor) => Ok(Value::Sequences($result)),
            Value::Maps($tensor) => Ok(Value::Maps($result)),
            Value::Ids { .. } => Err(WrongKind),
        }
    };
}

/// Applies an expression to two tensors of one rank.
macro_rules! on_equal_ranks {
    ($left:expr, $right:expr, ($a:ident, $b:ident) => $result:expr) => {
        match ($left, $right) {
            (Value::Vectors($a), Value::Vectors($b)) => Ok(Value::Vectors($result)),
            (Value::Sequences($a), Value::Sequences($b)) => Ok(Value::Sequences($result)),
            (Value::Maps($a), Value::Maps($b)) => Ok(Value::Maps($result)),
            _ => Err(WrongKind),
        }
    };
}

pub(super) use {on_each_rank, on_equal_ranks};

impl Value {
    /// Of a flat tensor `[n_samples * product of shape]`.
    pub(super) fn of_shape(flat: Tensor<1>, shape: &[usize]) -> Result<Self, WrongKind> {
        let n = flat.dims()[0] / shape.iter().product::<usize>().max(1);
        match *shape {
            [width] => Ok(Self::Vectors(flat.reshape([n, width]))),
            [length, width] => Ok(Self::Sequences(flat.reshape([n, length, width]))),
            [channels, height, width] => Ok(Self::Maps(flat.reshape([n, channels, height, width]))),
            _ => Err(WrongKind),
        }
    }

    pub(super) fn flat(self) -> Result<Tensor<1>, WrongKind> {
        match self {
            Self::Vectors(tensor) => Ok(tensor.flatten(0, 1)),
            Self::Sequences(tensor) => Ok(tensor.flatten(0, 2)),
            Self::Maps(tensor) => Ok(tensor.flatten(0, 3)),
            Self::Ids { .. } => Err(WrongKind),
        }
    }

    /// `[n_rows, width]`: all but the last dimension in one.
    pub(super) fn rows(self) -> Result<Tensor<2>, WrongKind> {
        match self {
            Self::Vectors(tensor) => Ok(tensor),
            Self::Sequences(tensor) => Ok(tensor.flatten(0, 1)),
            Self::Maps(tensor) => Ok(tensor.flatten(0, 2)),
            Self::Ids { .. } => Err(WrongKind),
        }
    }

    pub(super) fn vectors(self) -> Result<Tensor<2>, WrongKind> {
        if let Self::Vectors(tensor) = self { Ok(tensor) } else { Err(WrongKind) }
    }

    pub(super) fn sequences(self) -> Result<Tensor<3>, WrongKind> {
        if let Self::Sequences(tensor) = self { Ok(tensor) } else { Err(WrongKind) }
    }

    pub(super) fn maps(self) -> Result<Tensor<4>, WrongKind> {
        if let Self::Maps(tensor) = self { Ok(tensor) } else { Err(WrongKind) }
    }

    /// In these numbers.
    pub(super) fn cast(self, dtype: FloatDType) -> Result<Self, WrongKind> {
        on_each_rank!(self, tensor => tensor.cast(dtype))
    }

    /// In single precision.
    pub(super) fn wide(self) -> Result<Self, WrongKind> {
        self.cast(FloatDType::F32)
    }

    /// One after another along the first dimension.
    pub(super) fn join_vectors(values: Vec<Self>) -> Result<Self, WrongKind> {
        let tensors: Result<Vec<_>, _> = values.into_iter().map(Self::vectors).collect();
        Ok(Self::Vectors(Tensor::cat(tensors?, 0)))
    }
}
