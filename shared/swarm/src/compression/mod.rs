//! Gradient compression with error feedback, on the contributor's side.
//!
//! A lossy codec loses a part of every gradient. [`Compressor`] keeps that part, the residual, and adds it to the
//! next gradient, so that all of it arrives in the end (error feedback: Seide et al. 2014; Karimireddy et al.
//! 2019). With [`GradientCodec::TopK`] only the largest values are sent. The contributor applies the run's momentum
//! before that, because a value in the residual would otherwise miss it (Deep Gradient Compression, Lin et al. 2018:
//! momentum correction, momentum factor masking, local gradient clipping, warm-up of the sparsity).
//!
//! A contribution is a mean that is weighted by its samples. So the residual is a sum over samples: for all weights,
//! the sent values times their samples, plus the residual, are the computed gradient.
//!
//! F32 and F16 are precise enough: without [`Compressor::keep_always`] they have no residual. With it a contribution
//! that came too late is kept as well, as the work of many local steps needs. Contributions that are recomputed have no
//! residual ([`Compressor::keep_nothing`]); with int8 they are rounded at random before ([`round_stochastically`]), so that
//! nothing is lost on average. The compressor sends nothing; the driver reports the outcome of each contribution with [`Compressor::settle`].

mod late;
mod momentum;
mod outcome;
mod rounding;
mod select;
#[cfg(test)]
mod tests;

use barnraise_protocol::codec::{CodecError, TensorCodec, joined};
use barnraise_protocol::run::GradientCodec;

use self::late::LateGradient;
use self::momentum::Momentum;
pub use self::outcome::ContributionOutcome;
pub use self::rounding::round_stochastically;
pub use self::select::keep_largest;

/// After this many optimizer steps without a contribution the state is reset: its residual is of another model.
pub const ABSENCE_EPOCHS_MAX: u64 = 200;
/// Weight of the newest contribution in the moving average of weights.
const WEIGHT_SHARE: f32 = 0.125;

/// Encodes mean gradients, one at a time, and keeps the residual.
#[derive(Debug)]
pub struct Compressor {
    codec: GradientCodec,
    n_values: usize,
    target_batch_size: u32,
    keeps: bool,
    state: CompressorState,
}

/// State of error feedback and momentum; reset when values explode.
#[derive(Debug, Default)]
struct CompressorState {
    /// Gradient that was computed and not sent, as a sum over samples, `[n_values]`; empty where nothing is kept.
    residual: Vec<f32>,
    momentum: Momentum,
    /// Mean weight of contributions, 0 before the first.
    weight: f32,
    late: Option<LateGradient>,
    in_flight: Option<PendingContribution>,
    /// The contribution in flight as its receiver decodes it, `[n_values]`.
    sent: Vec<f32>,
    epoch: Option<u64>,
}

/// A contribution without an answer yet.
#[derive(Debug)]
struct PendingContribution {
    fresh: LateGradient,
    /// Samples with which it is offered.
    weight: f32,
}

impl Compressor {
    /// A compressor for gradients of `n_values`, in a run whose steps have `target_batch_size` samples.
    pub fn new(codec: GradientCodec, n_values: usize, target_batch_size: u32) -> Self {
        let keeps = !matches!(codec, GradientCodec::F32 | GradientCodec::F16);
        Self { codec, n_values, target_batch_size, keeps, state: CompressorState::default() }
    }

    /// With every codec, a gradient that did not count goes into the next contribution.
    pub fn keep_always(&mut self) {
        self.keeps = true;
    }

    /// With every codec, a contribution is the gradient of its own samples only, without a residual, so that a backbone
    /// that recomputes it gets the same gradient.
    pub fn keep_nothing(&mut self) {
        self.keeps = false;
    }

    /// Changes the codec from the next contribution on. A residual that is kept goes into that one.
    pub fn set_codec(&mut self, codec: GradientCodec) {
        self.codec = codec;
    }

    /// Encodes a contribution of `epoch`: `mean`, `[n_values]` and finite, over `n_samples` above 0.
    ///
    /// Report its outcome with [`Self::settle`] before the next one; without a report it is taken for counted.
    ///
    /// # Errors
    /// The gradient cannot be encoded. Then the state is reset: its values have exploded.
    pub fn compress(&mut self, mean: Vec<f32>, n_samples: u32, epoch: u64) -> Result<Vec<u8>, CodecError> {
        self.compress_parts(vec![mean], n_samples, epoch)
    }

    /// The same of a mean in parts. Where nothing is kept, it is never in one place.
    ///
    /// # Errors
    /// As of [`Self::compress`].
    pub fn compress_parts(
        &mut self,
        mean: Vec<Vec<f32>>,
        n_samples: u32,
        epoch: u64,
    ) -> Result<Vec<u8>, CodecError> {
        if !self.keeps() {
            return self.encoding().encode_parts(mean);
        }
        let mean = joined(mean);
        self.settle(ContributionOutcome::Unknown);
        let bytes = self.compress_lossy(LateGradient { mean, weight: n_samples as f32, epoch });
        if bytes.is_err() {
            self.state = CompressorState::default();
        }
        bytes
    }

    /// Reports the outcome of the contribution that was compressed last.
    pub fn settle(&mut self, outcome: ContributionOutcome) {
        let Some(PendingContribution { fresh, weight }) = self.state.in_flight.take() else { return };
        match outcome {
            ContributionOutcome::Counted | ContributionOutcome::Unknown => self.commit(&fresh.mean, weight),
            ContributionOutcome::NotCounted => self.keep_late(fresh),
            ContributionOutcome::Rejected => self.state = CompressorState::default(),
        }
    }

    /// Adds a mean gradient over `n_samples`, whose `epoch` was over before it was offered, to the next contribution; the
    /// staler, the less it weighs. Dropped where nothing is kept.
    pub fn add_late(&mut self, mean: Vec<f32>, n_samples: u32, epoch: u64) {
        if self.keeps() {
            self.keep_late(LateGradient { mean, weight: n_samples as f32, epoch });
        }
    }

    /// Encoding of the next contribution.
    pub fn encoding(&self) -> TensorCodec {
        self.codec.encoding()
    }

    /// Whether residuals and gradients that did not count are kept.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    fn compress_lossy(&mut self, mut fresh: LateGradient) -> Result<Vec<u8>, CodecError> {
        let (epoch, weight) = (fresh.epoch, fresh.weight);
        self.begin(epoch);
        if let Some(late) = self.state.late.take() {
            fresh.add(&late);
        }
        self.clip(&mut fresh.mean, weight);
        let state = &mut self.state;
        // A contribution of fewer samples than usual has only its share of the residual: divided by its few samples
        // the whole residual would look like no honest gradient.
        let share = if weight < state.weight { weight / state.weight } else { 1.0 };
        state.sent.clear();
        let values = fresh.mean.iter().zip(&state.residual);
        state.sent.extend(values.map(|(value, residual)| value + share / weight * residual));
        let encoding = self.codec.encoding();
        if let TensorCodec::TopK(sparsity) = encoding {
            keep_largest(&mut state.sent, sparsity.n_sent_max(self.n_values, epoch));
        }
        let bytes = encoding.encode(&state.sent)?;
        encoding.decode_into(&bytes, &mut state.sent)?;
        state.in_flight = Some(PendingContribution { fresh, weight });
        Ok(bytes)
    }

    /// Advances the state to `epoch`.
    fn begin(&mut self, epoch: u64) {
        let state = &mut self.state;
        let n_passed = state.epoch.map_or(0, |before| epoch.saturating_sub(before));
        if n_passed > ABSENCE_EPOCHS_MAX {
            *state = CompressorState::default();
        }
        state.epoch = Some(state.epoch.map_or(epoch, |before| before.max(epoch)));
        state.residual.resize(self.n_values, 0.0);
        let (momentum, _) = self.codec.momentum();
        if momentum > 0.0 {
            state.momentum.pass(momentum, n_passed, &mut state.residual);
        }
    }

    /// Local gradient clipping (Lin et al. 2018, section 3.2). There the norm of the sum over N peers is limited, and
    /// each peer's to `1/√N` of that. Here each gradient is a mean, N times as large, so its limit is `√N` times that.
    fn clip(&self, mean: &mut [f32], weight: f32) {
        let Some(norm_max) = self.codec.clip_norm() else { return };
        let n_peers = (self.target_batch_size as f32 / weight).max(1.0);
        let norm_max = f64::from(norm_max) * f64::from(n_peers).sqrt();
        let norm = mean.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        if norm > norm_max {
            let factor = (norm_max / norm) as f32;
            mean.iter_mut().for_each(|value| *value *= factor);
        }
    }

    /// Keeps the part of `fresh` that was not sent as residual.
    fn commit(&mut self, fresh: &[f32], weight: f32) {
        let state = &mut self.state;
        let values = fresh.iter().zip(&state.sent);
        for (residual, (fresh, sent)) in state.residual.iter_mut().zip(values) {
            *residual += weight * (fresh - sent);
        }
        let (momentum, masking) = self.codec.momentum();
        if momentum > 0.0 {
            state.momentum.add(fresh, weight);
            if masking {
                state.momentum.mask(&state.sent);
            }
        }
        let step = if state.weight == 0.0 { 1.0 } else { WEIGHT_SHARE };
        state.weight += step * (weight - state.weight);
    }

    fn keep_late(&mut self, late: LateGradient) {
        match &mut self.state.late {
            Some(known) => known.add(&late),
            none => *none = Some(late),
        }
    }
}
