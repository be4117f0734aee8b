//! Running statistics of batch normalizations on a device, and what passes would move them by.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData, Transaction};

use super::interpreter::Observed;
use crate::device::DeviceError;
use crate::engine::arithmetic::where_finite;
use crate::engine::readback::{failed, values};
use crate::graph::ResolvedGraph;
use crate::parameters::{ParameterSource, STATISTICS_UNIT};

/// Statistics of a model.
pub(super) struct DeviceStatistics {
    graph: Arc<ResolvedGraph>,
    /// Means and variances of each normalization.
    pub(super) running: Vec<[Tensor<1>; 2]>,
    /// Sums over samples of each normalization's moments, followed by the number of samples.
    observed: Vec<Option<Tensor<1>>>,
}

impl DeviceStatistics {
    pub(super) fn new(graph: Arc<ResolvedGraph>, flat: &[f32], device: &Device) -> Self {
        let mut statistics = Self { graph, running: Vec::new(), observed: Vec::new() };
        statistics.load(flat.into(), device);
        statistics
    }

    /// Replaces the running statistics by those of a flat parameter vector, and drops what was observed.
    pub(super) fn load(&mut self, source: ParameterSource<'_>, device: &Device) {
        let tensor = |range: Range<usize>| {
            let n = range.len();
            Tensor::from_data(TensorData::new(source.range(range), [n]), device)
        };
        let segments = self.graph.layout().segments();
        let running = self.graph.statistics().iter();
        self.running = running
            .map(|one| [one.mean, one.variance].map(|segment| tensor(segments[segment].range())))
            .collect();
        self.reset();
    }

    /// Drops what was observed.
    pub(super) fn reset(&mut self) {
        self.observed = vec![None; self.running.len()];
    }

    /// Adds what a pass observed; nothing where `is_finite` is 0.
    pub(super) fn add(&mut self, observed: Vec<Observed>, is_finite: Option<&Tensor<1>>) {
        for Observed { index, moments, n_samples } in observed {
            let count = Tensor::full([1], n_samples as f32, &moments.device());
            let mut weighted = Tensor::cat(vec![moments * n_samples as f32, count], 0);
            if let Some(flag) = is_finite {
                weighted = where_finite(weighted, flag);
            }
            if let Some(sum) = self.observed.get_mut(index) {
                *sum = Some(match sum.take() {
                    Some(sum) => sum + weighted,
                    None => weighted,
                });
            }
        }
    }

    /// Reads what the statistics are to move by, against their direction as a gradient is, in units of
    /// [`STATISTICS_UNIT`] and in the order of the layout, and drops what was observed.
    pub(super) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        let observed = std::mem::take(&mut self.observed).into_iter();
        self.reset();
        let all = observed.zip(&self.running).zip(self.graph.statistics());
        let moves = all.map(|((sum, running), statistics)| {
            let running = Tensor::cat(running.to_vec(), 0);
            let Some(sum) = sum else { return running.zeros_like() };
            let n_values = running.dims()[0];
            let count = sum.clone().narrow(0, n_values, 1).clamp_min(1.0);
            let moments = sum.narrow(0, 0, n_values) / count;
            (running - moments) * (statistics.momentum / STATISTICS_UNIT)
        });
        let transaction = moves.fold(Transaction::default(), Transaction::register);
        let mut flat = Vec::new();
        if !self.running.is_empty() {
            for data in transaction.execute_async().await.map_err(|error| failed(&error))? {
                flat.extend_from_slice(values(&data)?);
            }
        }
        Ok(flat)
    }
}
