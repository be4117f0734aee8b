//! A mixture of experts: inputs go to the experts that their scores choose, and what these give is weighted by the same scores
//! (Learning@home §3.1, eq. 1).
//!
//! Of experts whose parameters are in the model only the scores come to the host, which chooses; all else stays on the device,
//! and in the graph of the pass. Experts that other peers host get their inputs through a port.

mod host;
mod hosted;
mod passes;

use barnraise_protocol::run::model::operation::{Experts, Route};
use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::{Int, Tensor, TensorData};

pub(crate) use self::host::ExpertEngine;
pub(super) use self::passes::{Found, HostedPass};
use super::dropout;
use super::interpreter::{GraphPass, Mode};
use super::value::{PassError, Value, WrongKind};
use crate::engine::arithmetic::wide;
use crate::engine::composite::linear;
use crate::engine::readback::on_host;
use crate::experts::{Routes, places};
use crate::graph::{ExpertBodies, ExpertGrid, Step};

/// Score of an expert that is left out. Its weight is zero in single precision.
const LEFT_OUT: f32 = -1e9;

impl GraphPass<'_> {
    /// Computes a mixture. `live` are the values that later steps look at.
    pub(super) async fn experts(
        &mut self,
        index: usize,
        step: &Step,
        (options, grid): (&Experts, &ExpertGrid),
        input: Value,
        live: &mut [Option<Value>],
    ) -> Result<Value, PassError> {
        let length = match &input {
            Value::Sequences(tensor) if options.route == Route::Token => Some(tensor.dims()[1]),
            _ => None,
        };
        let (inputs, seen) = routed(input, options.route)?;
        let scores = self.scores(index, step, options, seen)?;
        let on_host = self.on_host(&scores).await?;
        let n_active = options.active as usize;
        let (weights, given) = match &grid.bodies {
            ExpertBodies::Here(bodies) => {
                let mut routes = Routes::best(&on_host, grid.side, grid.n_dimensions, n_active);
                if options.capacity > 0.0 && matches!(self.mode, Mode::Training { .. }) {
                    routes.limit(bodies.len(), options.capacity);
                }
                self.balance(&scores, options, grid, &routes);
                let given = self.bodies(&inputs, (grid, bodies), &routes)?;
                (self.weights(scores, grid, &routes), given)
            }
            ExpertBodies::Hosted(body) => {
                let hosted = self.ask(body, on_host, &inputs, n_active).await?;
                self.balance(&scores, options, grid, &hosted.routes);
                let weights = self.weights(scores, grid, &hosted.routes);
                self.cut(live, inputs, weights, hosted)?
            }
        };
        let [n_pairs, n_values] = given.dims();
        let weighted = given * weights.reshape([n_pairs, 1]);
        let mean: Tensor<2> =
            weighted.reshape([n_pairs / n_active, n_active, n_values]).sum_dim(1).squeeze_dim(1);
        match length {
            Some(length) => Ok(Value::of_shape(mean.flatten(0, 1), &[length, n_values])?),
            None => Ok(Value::of_shape(mean.flatten(0, 1), step.shape.dims())?),
        }
    }

    /// Scores of all dimensions, `[n_inputs, n_dimensions * side]`, in single precision: a choice is not to depend on rounding.
    fn scores(
        &self,
        index: usize,
        step: &Step,
        options: &Experts,
        seen: Tensor<2>,
    ) -> Result<Tensor<2>, WrongKind> {
        let seen = match &self.mode {
            Mode::Training { seeds, .. } if options.jitter > 0.0 => {
                dropout::jitter(seen, options.jitter, seeds, index, self.device)
            }
            _ => seen,
        };
        let mut scores = Vec::with_capacity(step.parameters.len());
        for dimension in 0..step.parameters.len() {
            let weight = self.matrix(step, dimension, self.vector(step, dimension))?;
            scores.push(linear(seen.clone(), weight, None));
        }
        Ok(Tensor::cat(scores, 1))
    }

    async fn on_host(&self, scores: &Tensor<2>) -> Result<Vec<f32>, PassError> {
        let scores = match self.mode {
            Mode::Training { .. } => scores.clone().without_autodiff(),
            _ => scores.clone(),
        };
        Ok(on_host(scores).await?)
    }

    /// Adds the loss that balances the places of each dimension: the product of how often a place is chosen and of its mean
    /// share in the softmax of the dimension's scores, times the places (Fedus et al. 2021, eq. 4). Of a sample it is the mean
    /// over its inputs.
    fn balance(&mut self, scores: &Tensor<2>, options: &Experts, grid: &ExpertGrid, routes: &Routes) {
        let ExpertGrid { side, n_dimensions, n_routed, .. } = *grid;
        let device = self.device;
        let Mode::Training { balance, .. } = &mut self.mode else { return };
        if options.balance <= 0.0 {
            return;
        }
        let factor = options.balance * side as f32 / n_routed.max(1) as f32;
        let shares: Vec<f32> = routes.shares(side, n_dimensions).iter().map(|share| share * factor).collect();
        let n_places = shares.len();
        let shares = Tensor::<2>::from_data(TensorData::new(shares, [1, n_places]), device);
        let likely = of_dimensions(scores, side, n_dimensions, |scores| softmax(scores, 1));
        balance.push((likely * shares).sum());
    }

    /// Weights of the chosen experts, `[n_inputs * n_active]`; zero where none is.
    fn weights(&self, scores: Tensor<2>, grid: &ExpertGrid, routes: &Routes) -> Tensor<1> {
        let ExpertGrid { side, n_dimensions, .. } = *grid;
        let (n_pairs, n_active, device) = (routes.chosen().len(), routes.n_active(), self.device);
        let [_, n_places] = scores.dims();
        // The softmax over the grid is the product of those over its dimensions.
        let scores = match n_active {
            1 => of_dimensions(&scores, side, n_dimensions, |scores| log_softmax(scores, 1)),
            _ => scores,
        };
        let flat: Tensor<1> = scores.flatten(0, 1);
        let mut at = vec![Vec::with_capacity(n_pairs); n_dimensions];
        for (pair, chosen) in routes.chosen().iter().enumerate() {
            let first = pair / n_active * n_places;
            let expert = chosen.map_or(0, |expert| expert as usize);
            let places = places(expert, side, n_dimensions);
            at.iter_mut().zip(places).for_each(|(at, place)| at.push(index_of(first + place)));
        }
        let is_there = routes.chosen().iter().map(|chosen| if chosen.is_some() { 1.0 } else { 0.0 });
        let is_there: Vec<f32> = is_there.collect();
        let is_there = Tensor::<1>::from_data(TensorData::new(is_there, [n_pairs]), device);
        let mut sum: Tensor<1> = (is_there.clone() - 1.0) * -LEFT_OUT;
        for at in at {
            sum = sum
                + flat.clone().select(0, Tensor::<1, Int>::from_ints(TensorData::new(at, [n_pairs]), device));
        }
        let weights = match n_active {
            1 => sum.exp(),
            _ => softmax(sum.reshape([n_pairs / n_active, n_active]), 1).flatten(0, 1),
        };
        weights * is_there
    }

    /// What the chosen experts give, `[n_pairs, n_values]`; zeros where none is.
    fn bodies(
        &mut self,
        inputs: &Tensor<2>,
        (grid, bodies): (&ExpertGrid, &[Vec<Step>]),
        routes: &Routes,
    ) -> Result<Tensor<2>, WrongKind> {
        let n_active = routes.n_active();
        let mut rows = Vec::new();
        let mut positions: Vec<Option<usize>> = vec![None; routes.chosen().len()];
        let mut n_rows = 0;
        for (body, pairs) in bodies.iter().zip(routes.of_experts(bodies.len())) {
            if pairs.is_empty() {
                continue;
            }
            let at: Vec<i32> = pairs.iter().map(|pair| index_of(pair / n_active)).collect();
            let n_pairs = at.len();
            let at = Tensor::<1, Int>::from_ints(TensorData::new(at, [n_pairs]), self.device);
            let input = Value::of_shape(inputs.clone().select(0, at).flatten(0, 1), &grid.input)?;
            rows.push(self.body(body, input)?.flat()?.reshape([n_pairs as i32, -1]));
            pairs.iter().enumerate().for_each(|(row, &pair)| positions[pair] = Some(n_rows + row));
            n_rows += n_pairs;
        }
        let n_values = rows.first().map_or(1, |rows: &Tensor<2>| rows.dims()[1]);
        let zeros = Tensor::zeros([1, n_values], self.device);
        rows.push(zeros);
        let positions: Vec<i32> = positions.into_iter().map(|at| index_of(at.unwrap_or(n_rows))).collect();
        let n_pairs = positions.len();
        let positions = Tensor::<1, Int>::from_ints(TensorData::new(positions, [n_pairs]), self.device);
        Ok(Tensor::cat(rows, 0).select(0, positions))
    }

    /// What an expert gives.
    fn body(&mut self, steps: &[Step], input: Value) -> Result<Value, WrongKind> {
        let mut values = vec![input];
        for (index, step) in steps.iter().enumerate() {
            let inputs: Option<Vec<Value>> = step.inputs.iter().map(|&at| values.get(at).cloned()).collect();
            let value = self.step(index, step, inputs.ok_or(WrongKind)?)?;
            values.push(value);
        }
        values.pop().ok_or(WrongKind)?.wide()
    }
}

/// What goes to experts, `[n_inputs, n_values]`, and what the gating function sees of it, `[n_inputs, width]`.
fn routed(input: Value, route: Route) -> Result<(Tensor<2>, Tensor<2>), WrongKind> {
    let input = input.wide()?;
    match (route, input) {
        (Route::Sample, Value::Sequences(tensor)) => {
            Ok((tensor.clone().flatten(1, 2), tensor.mean_dim(1).squeeze_dim(1)))
        }
        (Route::Sample, Value::Maps(tensor)) => {
            let seen = tensor.clone().mean_dim(3).mean_dim(2).flatten(1, 3);
            Ok((tensor.flatten(1, 3), seen))
        }
        (_, input) => {
            let rows = wide(input.rows()?);
            Ok((rows.clone(), rows))
        }
    }
}

/// Applies a function of `[n_inputs, side]` to the scores of each dimension.
fn of_dimensions(
    scores: &Tensor<2>,
    side: usize,
    n_dimensions: usize,
    f: impl Fn(Tensor<2>) -> Tensor<2>,
) -> Tensor<2> {
    let of = |dimension| f(scores.clone().narrow(1, dimension * side, side));
    Tensor::cat((0..n_dimensions).map(of).collect(), 1)
}

fn index_of(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}
