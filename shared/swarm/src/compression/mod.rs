//! What a contributor sends of a gradient, and what it keeps for later.
//!
//! A lossy codec loses a part of every gradient. [`Compressor`] keeps that part, the residual, and adds it to the
//! next gradient, so that all of it arrives in the end (error feedback: Seide et al. 2014; Karimireddy et al.
//! 2019). With [`TensorCodec::TopK`] only the largest values are sent, and the run's momentum is applied before
//! that, by whoever sends, because a value that waits would otherwise miss it (Deep Gradient Compression, Lin et
//! al. 2018: momentum correction, momentum factor masking, local gradient clipping, warm-up of the sparsity).
//!
//! A contribution is a mean that counts with its samples. So the residual is kept as a sum over samples: what is
//! sent, times its samples, plus what is kept, is what was computed, whatever the weights are.
//!
//! Nothing is encoded or kept of F32 and F16 but what came: those are close enough. Unless [`Compressor::keep_always`]
//! says that what came too late is not to be lost either: the work of many local steps. No bytes are sent here, and no
//! answer is waited for: the driver says with [`Compressor::settle`] what became of them.

mod fate;
mod late;
mod select;
#[cfg(test)]
mod tests;
mod velocity;

use barnraise_protocol::codec::{CodecError, TensorCodec};
use barnraise_protocol::run::Compression;

pub use self::fate::Fate;
use self::late::Late;
pub use self::select::keep_largest;
use self::velocity::Velocity;

/// Whoever contributed nothing for so many optimizer steps begins anew: what it kept was of another model.
pub const ABSENCE_EPOCHS_MAX: u64 = 200;
/// Share of a contribution in the mean weight of all.
const WEIGHT_SHARE: f32 = 0.125;

/// Turns mean gradients into bytes, one at a time, and keeps what they lack.
#[derive(Debug)]
pub struct Compressor {
    codec: TensorCodec,
    settings: Compression,
    n_values: usize,
    target_batch_size: u32,
    keeps: bool,
    state: State,
}

/// What is forgotten when numbers explode.
#[derive(Debug, Default)]
struct State {
    /// Sum over samples that was computed and not sent, `[n_values]`; empty where nothing is kept.
    residual: Vec<f32>,
    velocity: Velocity,
    /// Mean weight of contributions, 0 before the first.
    weight: f32,
    late: Option<Late>,
    in_flight: Option<InFlight>,
    /// What the receiver decodes while a contribution is in flight, `[n_values]`.
    sent: Vec<f32>,
    epoch: Option<u64>,
}

/// A contribution whose fate is not known.
#[derive(Debug)]
struct InFlight {
    fresh: Late,
    /// With which it is offered.
    weight: f32,
}

impl Compressor {
    /// For gradients of `n_values`, of a run whose steps have `target_batch_size` samples.
    pub fn new(codec: TensorCodec, settings: Compression, n_values: usize, target_batch_size: u32) -> Self {
        let keeps = !matches!(codec, TensorCodec::F32 | TensorCodec::F16);
        Self { codec, settings, n_values, target_batch_size, keeps, state: State::default() }
    }

    /// Whatever the codec, what does not count comes with the next contribution.
    pub fn keep_always(&mut self) {
        self.keeps = true;
    }

    /// Whatever the codec, a contribution is the gradient of its samples and of no others: what the codec loses is
    /// lost, so that whoever computes it once more finds the same.
    pub fn keep_nothing(&mut self) {
        self.keeps = false;
    }

    /// Contributions travel so from the next one on. What is kept of a lossy codec comes with it, if what is lost is kept
    /// whatever the codec.
    pub fn set_codec(&mut self, codec: TensorCodec) {
        self.codec = codec;
    }

    /// Encodes a contribution of `epoch`: `mean`, `[n_values]` and finite, over `n_samples` above 0.
    ///
    /// Its fate is to be told with [`Self::settle`]; where that was not, it counted, as far as is known.
    ///
    /// # Errors
    /// A gradient that cannot be sent. Then all that was kept is forgotten: its numbers have exploded.
    pub fn compress(&mut self, mean: Vec<f32>, n_samples: u32, epoch: u64) -> Result<Vec<u8>, CodecError> {
        if !self.keeps() {
            return self.codec.encode(&mean);
        }
        self.settle(Fate::Unknown);
        let bytes = self.compress_lossy(Late { mean, weight: n_samples as f32, epoch });
        if bytes.is_err() {
            self.state = State::default();
        }
        bytes
    }

    /// What became of the contribution that was compressed last.
    pub fn settle(&mut self, fate: Fate) {
        let Some(InFlight { fresh, weight }) = self.state.in_flight.take() else { return };
        match fate {
            Fate::Counted | Fate::Unknown => self.commit(&fresh.mean, weight),
            Fate::NotCounted => self.keep_late(fresh),
            Fate::Rejected => self.state = State::default(),
        }
    }

    /// A mean gradient over `n_samples` whose `epoch` was over before it was offered: the next contribution has it
    /// in, the less, the older it is. Forgotten where nothing is kept.
    pub fn add_late(&mut self, mean: Vec<f32>, n_samples: u32, epoch: u64) {
        if self.keeps() {
            self.keep_late(Late { mean, weight: n_samples as f32, epoch });
        }
    }

    /// How the bytes are to be decoded.
    pub fn codec(&self) -> TensorCodec {
        self.codec
    }

    /// Whether what was not sent, or did not count, is kept.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    fn compress_lossy(&mut self, mut fresh: Late) -> Result<Vec<u8>, CodecError> {
        let (epoch, weight) = (fresh.epoch, fresh.weight);
        self.begin(epoch);
        if let Some(late) = self.state.late.take() {
            fresh.add(&late);
        }
        self.clip(&mut fresh.mean, weight);
        let state = &mut self.state;
        // A contribution of fewer samples than usual brings no more of the residual than its share: divided by
        // its few samples the whole would look like no honest gradient.
        let share = if weight < state.weight { weight / state.weight } else { 1.0 };
        state.sent.clear();
        let values = fresh.mean.iter().zip(&state.residual);
        state.sent.extend(values.map(|(value, kept)| value + share / weight * kept));
        if let TensorCodec::TopK(sparsity) = self.codec {
            keep_largest(&mut state.sent, sparsity.n_sent_max(self.n_values, epoch));
        }
        let bytes = self.codec.encode(&state.sent)?;
        self.codec.decode_into(&bytes, &mut state.sent)?;
        state.in_flight = Some(InFlight { fresh, weight });
        Ok(bytes)
    }

    /// Brings what is kept to `epoch`.
    fn begin(&mut self, epoch: u64) {
        let state = &mut self.state;
        let n_passed = state.epoch.map_or(0, |before| epoch.saturating_sub(before));
        if n_passed > ABSENCE_EPOCHS_MAX {
            *state = State::default();
        }
        state.epoch = Some(state.epoch.map_or(epoch, |before| before.max(epoch)));
        state.residual.resize(self.n_values, 0.0);
        if self.settings.momentum > 0.0 {
            state.velocity.pass(self.settings.momentum, n_passed, &mut state.residual);
        }
    }

    /// The norm of a mean over few samples is larger by its noise (Lin et al. 2018, section 3.2): its limit is,
    /// too. There the sum of N peers is limited and each to `1/√N` of it; here each is a mean, N times that.
    fn clip(&self, mean: &mut [f32], weight: f32) {
        let Some(norm_max) = self.settings.clip_norm else { return };
        let n_peers = (self.target_batch_size as f32 / weight).max(1.0);
        let norm_max = f64::from(norm_max) * f64::from(n_peers).sqrt();
        let norm = mean.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        if norm > norm_max {
            let factor = (norm_max / norm) as f32;
            mean.iter_mut().for_each(|value| *value *= factor);
        }
    }

    /// What was sent is no longer owed.
    fn commit(&mut self, fresh: &[f32], weight: f32) {
        let state = &mut self.state;
        let values = fresh.iter().zip(&state.sent);
        for (kept, (fresh, sent)) in state.residual.iter_mut().zip(values) {
            *kept += weight * (fresh - sent);
        }
        if self.settings.momentum > 0.0 {
            state.velocity.add(fresh, weight);
            if self.settings.masking {
                state.velocity.mask(&state.sent);
            }
        }
        let step = if state.weight == 0.0 { 1.0 } else { WEIGHT_SHARE };
        state.weight += step * (weight - state.weight);
    }

    fn keep_late(&mut self, late: Late) {
        match &mut self.state.late {
            Some(known) => known.add(&late),
            none => *none = Some(late),
        }
    }
}
