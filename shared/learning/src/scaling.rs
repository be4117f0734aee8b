//! The scale of a loss whose gradient is computed in half precision (Micikevicius et al. 2018, "Mixed precision
//! training", §3.2): as large as goes, so that small gradients are not lost, and no larger.
//!
//! Only decides: the engine multiplies, divides and detects overflow. A pass that overflowed is repeated, never
//! skipped.

/// Scale of the first pass.
pub(crate) const SCALE_FIRST: f32 = 1024.0;
/// Smallest scale. A pass that overflows with it is computed in single precision.
pub(crate) const SCALE_MIN: f32 = 1.0;
/// Largest scale.
pub(crate) const SCALE_MAX: f32 = 16_777_216.0;
/// Passes in a row without overflow after which the scale doubles.
pub(crate) const GROWTH_PASSES: u32 = 256;

/// The scale, a power of two, so that multiplying by it and dividing again is exact.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LossScaler {
    scale: f32,
    /// Passes at this scale without overflow.
    n_good: u32,
}

impl Default for LossScaler {
    fn default() -> Self {
        Self::beginning_at(SCALE_FIRST)
    }
}

impl LossScaler {
    /// Begins at `scale`, a power of two, brought within the bounds.
    pub(crate) fn beginning_at(scale: f32) -> Self {
        Self { scale: scale.clamp(SCALE_MIN, SCALE_MAX), n_good: 0 }
    }

    /// For the next pass.
    pub(crate) fn scale(&self) -> f32 {
        self.scale
    }

    /// A pass that was scaled by `scale` has a finite gradient.
    pub(crate) fn on_finite(&mut self, scale: f32) {
        // A pass at an earlier scale says nothing about this one.
        if scale != self.scale {
            return;
        }
        self.n_good += 1;
        if self.n_good >= GROWTH_PASSES {
            *self = Self::beginning_at(self.scale * 2.0);
        }
    }

    /// A pass that was scaled by `scale` has a gradient that is not finite: what to scale it by when it is made again,
    /// or `None` where it is to be made in single precision.
    pub(crate) fn on_overflow(&mut self, scale: f32) -> Option<f32> {
        if scale <= SCALE_MIN {
            return None;
        }
        // Passes that were begun together overflow together: the scale is halved once for them.
        *self = Self::beginning_at(self.scale.min(scale / 2.0));
        Some(self.scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_passes_in_a_row_double_the_scale_up_to_its_bound() {
        let mut scaler = LossScaler::beginning_at(8.0);
        for _ in 1..GROWTH_PASSES {
            scaler.on_finite(8.0);
        }
        assert_eq!(scaler.scale(), 8.0);
        scaler.on_finite(8.0);
        assert_eq!(scaler.scale(), 16.0);
        // Begun before it was doubled.
        scaler.on_finite(8.0);
        assert_eq!(scaler, LossScaler::beginning_at(16.0));
        let mut scaler = LossScaler::beginning_at(SCALE_MAX);
        (0..2 * GROWTH_PASSES).for_each(|_| scaler.on_finite(SCALE_MAX));
        assert_eq!(scaler.scale(), SCALE_MAX);
        assert_eq!(LossScaler::beginning_at(f32::INFINITY).scale(), SCALE_MAX);
    }

    #[test]
    fn overflow_halves_it_once_for_all_that_were_begun_together() {
        let mut scaler = LossScaler::beginning_at(8.0);
        (1..GROWTH_PASSES).for_each(|_| scaler.on_finite(8.0));
        assert_eq!(scaler.on_overflow(8.0), Some(4.0));
        assert_eq!(scaler.on_overflow(8.0), Some(4.0));
        assert_eq!(scaler.on_overflow(4.0), Some(2.0));
        // Good passes are counted from the overflow on.
        (1..GROWTH_PASSES).for_each(|_| scaler.on_finite(2.0));
        assert_eq!(scaler.scale(), 2.0);
        assert_eq!(scaler.on_overflow(2.0), Some(SCALE_MIN));
        assert_eq!(scaler.on_overflow(SCALE_MIN), None);
        assert_eq!(scaler.scale(), SCALE_MIN);
    }
}
