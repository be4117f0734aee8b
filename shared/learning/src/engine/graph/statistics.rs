//! Running statistics of batch normalizations on a device, and what passes observed.

use burn::tensor::{Device, Tensor, TensorData, Transaction};

use super::interpreter::Observed;
use crate::device::DeviceError;
use crate::engine::arithmetic::where_finite;
use crate::engine::readback::{failed, values};
use crate::graph::StatisticsLayout;

/// Statistics of a model.
pub(super) struct RunningStatistics {
    /// Means and variances of each normalization.
    pub(super) running: Vec<[Tensor<1>; 2]>,
    /// Sums over samples of each normalization's moments, followed by the number of samples.
    observed: Vec<Option<Tensor<1>>>,
}

impl RunningStatistics {
    pub(super) fn new(layout: &StatisticsLayout, device: &Device) -> Self {
        let mut statistics = Self { running: Vec::new(), observed: vec![None; layout.segments().len()] };
        statistics.load(layout, &layout.initial(), device);
        statistics
    }

    /// Replaces the running statistics. What was observed stays.
    pub(super) fn load(&mut self, layout: &StatisticsLayout, flat: &[f32], device: &Device) {
        let tensor = |from: usize, n: usize| {
            Tensor::from_data(TensorData::new(flat[from..from + n].to_vec(), [n]), device)
        };
        let segments = layout.segments().iter();
        self.running = segments
            .map(|segment| {
                let (offset, n) = (segment.offset, segment.channels);
                [tensor(offset, n), tensor(offset + n, n)]
            })
            .collect();
    }

    /// Drops what was observed.
    pub(super) fn reset(&mut self) {
        self.observed.iter_mut().for_each(|sum| *sum = None);
    }

    /// Adds what a pass observed; nothing where `is_finite` is 0.
    pub(super) fn add(&mut self, observed: Vec<Observed>, is_finite: Option<&Tensor<1>>) {
        for Observed { segment, moments, n_samples } in observed {
            let count = Tensor::full([1], n_samples as f32, &moments.device());
            let mut weighted = Tensor::cat(vec![moments * n_samples as f32, count], 0);
            if let Some(flag) = is_finite {
                weighted = where_finite(weighted, flag);
            }
            if let Some(sum) = self.observed.get_mut(segment) {
                *sum = Some(match sum.take() {
                    Some(sum) => sum + weighted,
                    None => weighted,
                });
            }
        }
    }

    /// Reads the mean of what was observed, in the order of the layout, and drops it. Empty where nothing was.
    #[cfg_attr(not(test), allow(dead_code, reason = "no run averages statistics yet"))]
    pub(super) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        let sums: Vec<Tensor<1>> = self.observed.iter_mut().filter_map(Option::take).collect();
        if sums.len() < self.observed.len() || sums.is_empty() {
            return Ok(Vec::new());
        }
        let transaction = sums.into_iter().fold(Transaction::default(), Transaction::register);
        let mut flat = Vec::new();
        for data in transaction.execute_async().await.map_err(|error| failed(&error))? {
            if let [sums @ .., n_samples] = values(&data)? {
                flat.extend(sums.iter().map(|sum| sum / n_samples.max(1.0)));
            }
        }
        Ok(flat)
    }
}
