//! Experts that other peers host. A pass with a gradient is cut before each layer of them: what crosses the cut becomes leaves
//! of the graph after it, and on the way back the gradients of these leaves, and those that the experts told, begin the
//! backward pass of the graph before it.

use burn::tensor::{Gradients, Tensor, TensorData};

use super::super::interpreter::{GraphPass, Mode, PassError};
use super::super::value::{Value, WrongKind};
use crate::engine::readback::{failed, values};
use crate::experts::{ExpertPort, Routes, WayBack};
use crate::graph::HostedBody;

/// A value that crosses a cut, flat.
#[derive(Debug)]
struct Crossing {
    /// In the graph before the cut.
    before: Tensor<1>,
    /// The leaf after it.
    after: Tensor<1>,
}

/// Where a pass with a gradient is cut.
#[derive(Debug)]
pub(in super::super) struct Cut {
    /// Of the call, for its way back.
    call: u64,
    /// Dropped with the pass.
    way_back: Option<WayBack>,
    crossing: Vec<Crossing>,
    /// What went to experts, in the graph before the cut: `[n_inputs * n_values]`.
    inputs: Tensor<1>,
    /// What experts gave, a leaf after the cut: `[n_pairs, n_given]`.
    given: Tensor<2>,
    /// Losses of the graph before the cut.
    balance: Vec<Tensor<1>>,
}

/// What hosted experts gave.
pub(super) struct Hosted {
    pub(super) routes: Routes,
    /// `[n_pairs, n_given]`
    pub(super) given: Tensor<2>,
    call: u64,
    way_back: Option<WayBack>,
}

impl GraphPass<'_> {
    /// Asks the experts of a layer.
    pub(super) async fn ask(
        &self,
        body: &HostedBody,
        scores: Vec<f32>,
        inputs: &Tensor<2>,
        n_active: usize,
    ) -> Result<Hosted, PassError> {
        let is_training = matches!(self.mode, Mode::Training { .. });
        let detached = if is_training { inputs.clone().without_autodiff() } else { inputs.clone() };
        let n_pairs = detached.dims()[0] * n_active;
        let n_given = body.n_given();
        let inputs = host(detached).await?;
        let sizes = (n_pairs, n_active, n_given);
        let answers = match self.experts {
            Some(port) => port.forward((body.layer, is_training), scores, inputs, sizes).await,
            None => None,
        };
        let (call, chosen, given, way_back) = match answers {
            Some(answers) => (answers.call, answers.chosen, answers.given, answers.way_back),
            None => (0, vec![None; n_pairs], vec![0.0; n_pairs * n_given], None),
        };
        let is_there = |expert: &u32| (*expert as usize) < body.n_experts;
        let chosen = chosen.into_iter().map(|expert| expert.filter(is_there)).collect();
        let given = TensorData::new(given, [n_pairs, n_given]);
        Ok(Hosted {
            routes: Routes::of(n_active, chosen),
            given: Tensor::from_data(given, self.device),
            call,
            way_back,
        })
    }

    /// Cuts the graph, where it is one of training. `live` are the values that later steps look at. Returns weights and what
    /// experts gave as the graph after the cut has them.
    pub(super) fn cut(
        &mut self,
        live: &mut [Option<Value>],
        inputs: Tensor<2>,
        weights: Tensor<1>,
        hosted: Hosted,
    ) -> Result<(Tensor<1>, Tensor<2>), WrongKind> {
        let graph = self.graph;
        let Mode::Training { balance, cuts, .. } = &mut self.mode else {
            return Ok((weights, hosted.given));
        };
        let mut crossing = Vec::new();
        let mut cross = |before: Tensor<1>| {
            let after = leaf(before.clone().without_autodiff());
            crossing.push(Crossing { before, after: after.clone() });
            after
        };
        for (number, slot) in live.iter_mut().enumerate() {
            *slot = match slot.take() {
                Some(ids @ Value::Ids { .. }) => Some(ids),
                Some(value) => Some(Value::of_shape(cross(value.flat()?), graph.shape_of(number).dims())?),
                None => None,
            };
        }
        let weights = cross(weights);
        let given = leaf(hosted.given.clone().without_autodiff());
        let (inputs, balance) = (inputs.flatten(0, 1), std::mem::take(balance));
        let Hosted { call, way_back, .. } = hosted;
        cuts.push(Cut { call, way_back, crossing, inputs, given: given.clone(), balance });
        Ok((weights, given))
    }
}

impl Cut {
    /// The loss of the graph before the cut, whose derivatives are those of the whole pass. `gradients` are of the graph after
    /// it, of the sum over `n_samples`. Experts are told the gradient of the mean, by which they step.
    pub(in super::super) async fn back(
        self,
        gradients: &mut Gradients,
        n_samples: usize,
        port: &ExpertPort,
    ) -> Result<Tensor<1>, PassError> {
        let n_inputs = self.inputs.dims()[0];
        let n_samples = n_samples.max(1) as f32;
        let _way_back = self.way_back;
        let told = match self.given.grad_remove(gradients) {
            Some(given) => {
                let mean = host(given.without_autodiff() / n_samples).await?;
                port.backward(self.call, mean, n_inputs).await
            }
            None => None,
        };
        let mut loss = self.balance.into_iter().fold(self.inputs.clone().sum() * 0.0, |sum, loss| sum + loss);
        if let Some(told) = told {
            let told = Tensor::from_data(TensorData::new(told, [n_inputs]), &self.inputs.device());
            loss = loss + (self.inputs * told).sum() * n_samples;
        }
        for Crossing { before, after } in self.crossing {
            if let Some(gradient) = after.grad_remove(gradients) {
                loss = loss + (before * gradient.without_autodiff().autodiff()).sum();
            }
        }
        Ok(loss)
    }
}

fn leaf<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.autodiff().require_grad()
}

async fn host<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, PassError> {
    let data = tensor.into_data_async().await.map_err(|error| failed(&error))?;
    Ok(values(&data)?.to_vec())
}
