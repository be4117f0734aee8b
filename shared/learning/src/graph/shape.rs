//! Shapes of the values of a graph, for one sample.

use std::fmt;

/// Largest size of a dimension: a length that every device can address.
const DIMENSION_MAX: usize = 1 << 30;

/// A value of a graph, for one sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueShape {
    /// Floating-point values of this shape: `[width]`, `[length, width]` or `[channels, height, width]`.
    Values(Vec<usize>),
    /// Ids, each below `rows`.
    Ids {
        /// `[]` for one id, `[length]` for a sequence.
        shape: Vec<usize>,
        /// Ids that there are.
        rows: usize,
    },
}

impl ValueShape {
    /// Sizes, of values and of ids alike.
    pub fn dims(&self) -> &[usize] {
        match self {
            Self::Values(shape) | Self::Ids { shape, .. } => shape,
        }
    }

    /// Values of one sample; `None` where they cannot be counted.
    pub fn n_values(&self) -> Option<usize> {
        count(self.dims())
    }
}

impl fmt::Display for ValueShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values(shape) => ShapeText(shape).fmt(f),
            Self::Ids { shape, rows } => write!(f, "{} of ids below {rows}", ShapeText(shape)),
        }
    }
}

/// `[3, 32, 32]`
pub(super) struct ShapeText<'a>(pub(super) &'a [usize]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, size) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{size}")?;
        }
        f.write_str("]")
    }
}

/// Values of a shape; `None` where a size or the product is out of bounds.
pub(super) fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, &size| {
        (1..=DIMENSION_MAX).contains(&size).then_some(())?;
        product.checked_mul(size)
    })
}
