//! Experts that other peers host. A pass with a gradient is cut before each layer of them: what crosses the cut becomes leaves
//! of the graph after it, and on the way back the gradients of these leaves, and those that the experts told, begin the
//! backward pass of the graph before it.

use burn::tensor::{Tensor, TensorData};

use super::super::cut::{Crossing, Cut, leaf};
use super::super::interpreter::{GraphPass, Mode};
use super::super::value::{PassError, Value, WrongKind};
use crate::engine::readback::on_host;
use crate::experts::{Routes, WayBack};
use crate::graph::HostedBody;

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
        let inputs = on_host(detached).await?;
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
