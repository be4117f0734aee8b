//! Passes with a gradient whose experts other peers host. Each waits for its own answers, so that many are on their way at once
//! (Learning@home §3.3, asynchronous training); what they find is added up when it is taken.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Tensor};

use super::super::batch::GraphBatch;
use super::super::interpreter::{GraphPass, Mode, Observed};
use super::super::loss::{judge, predictions};
use super::super::value::{PassError, WrongKind};
use super::super::{inputs, output};
use crate::device::DeviceError;
use crate::engine::PassRead;
use crate::engine::readback::read;
use crate::engine::tensors::{SharedTensors, added, of_leaves};
use crate::experts::ExpertPort;
use crate::graph::ResolvedGraph;

/// What passes found since it was taken.
#[derive(Debug, Default, Clone)]
pub(in super::super) struct Found(Arc<Mutex<FoundGradient>>);

#[derive(Debug, Default)]
struct FoundGradient {
    /// By each leaf.
    gradient: Option<Vec<Tensor<1>>>,
    observed: Vec<Observed>,
}

impl Found {
    /// Takes all. Passes that are on their way add nothing to what is found later.
    pub(in super::super) fn take(&mut self) -> (Option<Vec<Tensor<1>>>, Vec<Observed>) {
        let found = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        *self = Self::default();
        (found.gradient, found.observed)
    }

    fn add(&self, gradient: Vec<Tensor<1>>, observed: Vec<Observed>) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.gradient = Some(added(found.gradient.take(), gradient));
        found.observed.extend(observed);
    }
}

/// A pass that is independent of its engine.
pub(in super::super) struct HostedPass {
    pub(in super::super) graph: Arc<ResolvedGraph>,
    pub(in super::super) last_uses: Arc<[usize]>,
    pub(in super::super) tensors: SharedTensors,
    pub(in super::super) autodiff: Device,
    pub(in super::super) batch: GraphBatch,
    pub(in super::super) port: ExpertPort,
    pub(in super::super) found: Found,
}

impl HostedPass {
    /// Computes it.
    ///
    /// # Shapes
    /// - returns `[2, n_predictions]`: losses, and 1 where the top-1 prediction was correct
    pub(in super::super) fn run(self) -> PassRead {
        Box::pin(async move {
            let values = self.values().await.map_err(|error| match error {
                PassError::Device(error) => error,
                PassError::WrongKind(error) => DeviceError::Execution(error.to_string()),
            })?;
            read(values, None).await
        })
    }

    async fn values(&self) -> Result<Tensor<2>, PassError> {
        let (graph, batch) = (self.graph.as_ref(), &self.batch);
        let (observed, balance, cuts) = (Vec::new(), Vec::new(), Vec::new());
        let mut pass = GraphPass {
            graph,
            parameters: self.tensors.cursor(),
            device: &self.autodiff,
            mode: Mode::Training { seeds: &batch.seeds, observed, balance, cuts },
            masked: batch.masked_positions(&self.autodiff),
            last_uses: &self.last_uses,
            experts: Some(&self.port),
        };
        let rows = output(&mut pass, inputs(graph, batch, &self.autodiff)?).await?;
        let rows = predictions(rows, graph.loss())?;
        let judged = judge(rows.clone().without_autodiff(), &batch.targets, batch.n_samples)?;
        let Mode::Training { observed, balance, cuts, .. } = pass.mode else { return Err(WrongKind.into()) };
        let leaves = &self.tensors.leaves;
        let product = (rows * judged.residual.autodiff()).sum();
        let mut gradients = balance.into_iter().fold(product, |sum, loss| sum + loss).backward();
        let mut gradient = of_leaves(leaves, leaves.len(), &mut gradients);
        for cut in cuts.into_iter().rev() {
            let loss = cut.back(&mut gradients, batch.n_samples, &self.port).await?;
            gradients = loss.backward();
            gradient = added(Some(gradient), of_leaves(leaves, leaves.len(), &mut gradients));
        }
        self.found.add(gradient, observed);
        Ok(judged.values)
    }
}
