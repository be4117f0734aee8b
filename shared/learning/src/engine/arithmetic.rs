//! In which numbers a pass is computed: single precision, or half where that is enough.

use burn::tensor::{FloatDType, Tensor};

/// In which numbers a pass with a gradient is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Arithmetic {
    /// Single precision.
    Single,
    /// Products and convolutions in half precision; exponentials, sums over many values, parameters and gradient in
    /// single. The loss is multiplied by `scale`, the gradient divided by it. The pass returns one value more: 1 where
    /// its gradient is finite; else 0, and nothing is added to the gradient sum.
    Mixed { scale: f32, half: FloatDType },
}

impl Arithmetic {
    /// Of products and convolutions.
    pub(super) fn dtype(self) -> FloatDType {
        match self {
            Self::Single => FloatDType::F32,
            Self::Mixed { half, .. } => half,
        }
    }
}

/// In single precision.
pub(super) fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.cast(FloatDType::F32)
}

/// `[1]`: 1 where all values of all tensors are finite, else 0. Of no tensors `None`.
pub(super) fn all_finite(tensors: &[Tensor<1>]) -> Option<Tensor<1>> {
    let flags = tensors.iter().map(|tensor| tensor.clone().is_finite().all().float());
    let flags: Vec<Tensor<1>> = flags.collect();
    (!flags.is_empty()).then(|| Tensor::cat(flags, 0).min())
}

/// `tensor` where `flag` `[1]` is 1, zeros where it is 0, even in place of what is no number.
pub(super) fn where_finite<const D: usize>(tensor: Tensor<D>, flag: &Tensor<1>) -> Tensor<D> {
    let n_values = tensor.dims().iter().product::<usize>();
    let lost = flag.clone().equal_elem(0.0).expand([n_values]).reshape(tensor.dims());
    tensor.mask_fill(lost, 0.0)
}
