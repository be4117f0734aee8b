//! Mixtures of experts: the gating function, and for each place of the grid the blocks of an expert.

use std::sync::Arc;

use barnraise_protocol::run::model::graph::{Block, INPUT, Loss};
use barnraise_protocol::run::model::operation::{Experts, Operation, Route};

use super::super::error::{BlockProblem, GraphError, WantedShape};
use super::super::operation::layer;
use super::super::shape::{ValueShape, count};
use super::super::tensors::{Places, TensorPlan, Tensors};
use super::super::{
    ACTIVATIONS_MAX, BLOCKS_MAX, ExpertBodies, ExpertGrid, GraphData, GraphInput, HostedBody, ResolvedGraph,
    Step, check,
};
use super::{Expander, Scope};
use crate::data_shape::RowTarget;

/// Most places along a dimension: as many as a dictionary of the DHT has subkeys.
const SIDE_MAX: u32 = 512;
/// Names of the gating function's tensors, one for each dimension of the largest grid. With one dimension it is the first alone.
const GATES: [&str; 5] = ["gate.weight", "gate.0.weight", "gate.1.weight", "gate.2.weight", "gate.3.weight"];
/// Most experts of one input.
const ACTIVE_MAX: u32 = 64;

/// Most experts of a layer that peers host: what a DHT of many peers announces.
const HOSTED_MAX: usize = 1 << 24;

/// Experts of a mixture whose options are within their bounds.
pub(super) fn count_experts(options: &Experts, is_hosted: bool) -> Result<usize, BlockProblem> {
    let Experts { side, dimensions, active, capacity, balance, jitter, .. } = options;
    check::integers("side", &[*side], 1..=SIDE_MAX, "1 to 512")?;
    check::integers("dimensions", &[*dimensions], 1..=4, "1 to 4")?;
    let n_experts = u64::from(*side).pow(*dimensions);
    let (max, want) = match is_hosted {
        true => (HOSTED_MAX, "at most 16,777,216"),
        false => (BLOCKS_MAX, "at most 4,096, or experts that peers host"),
    };
    let n_experts = usize::try_from(n_experts).ok().filter(|&n| n <= max);
    let n_experts = n_experts.ok_or(BlockProblem::Option {
        option: "number of experts, side to the power of dimensions,",
        want,
        got: u64::from(*side).pow(*dimensions) as f64,
    })?;
    let is_there = (1..=ACTIVE_MAX).contains(active) && *active as usize <= n_experts;
    check::that(is_there, "active", *active, "1 to 64, and at most the number of experts")?;
    check::number("capacity", *capacity, 0.0..=1000.0, "0 to 1,000")?;
    check::number("balance", *balance, 0.0..=10.0, "0 to 10")?;
    check::number("jitter", *jitter, 0.0..=0.5, "0 to 0.5")?;
    Ok(n_experts)
}

/// What goes to experts of a value.
struct Routed {
    /// Shape of an input of an expert.
    input: Vec<usize>,
    /// Inputs of a sample.
    n_inputs: usize,
    /// Values that the gating function sees of each.
    gate_width: usize,
}

impl Routed {
    fn of(route: Route, value: &ValueShape) -> Result<Self, BlockProblem> {
        let shape = |want| BlockProblem::Shape { want, got: value.clone() };
        let ValueShape::Values(dims) = value else { return Err(shape(WantedShape::Values)) };
        match (route, dims.as_slice()) {
            (_, &[width]) => Ok(Self { input: vec![width], n_inputs: 1, gate_width: width }),
            (Route::Token, &[length, width]) => {
                Ok(Self { input: vec![width], n_inputs: length, gate_width: width })
            }
            (Route::Token, _) => Err(shape(WantedShape::Sequence)),
            (Route::Sample, &[_, width] | &[width, _, _]) => {
                Ok(Self { input: dims.clone(), n_inputs: 1, gate_width: width })
            }
            (Route::Sample, _) => Err(shape(WantedShape::Values)),
        }
    }

    /// Shape of the output where an expert gives this.
    fn output(&self, value: &ValueShape, given: &ValueShape) -> Result<Vec<usize>, BlockProblem> {
        match (value.dims(), given.dims()) {
            (&[length, _], &[width]) if self.input.len() == 1 => Ok(vec![length, width]),
            (_, &[width]) => Ok(vec![width]),
            (_, dims) if self.input.len() > 1 => Ok(dims.to_vec()),
            (_, _) => Err(BlockProblem::Shape { want: WantedShape::Vector, got: given.clone() }),
        }
    }
}

impl Expander<'_> {
    /// Expands a mixture on its one input.
    pub(super) fn experts(
        &mut self,
        options: &Experts,
        block: &Block,
        n_parts: usize,
        scope: &Scope,
        inputs: Vec<usize>,
    ) -> Result<usize, GraphError> {
        let full = format!("{}{}", scope.prefix, block.name);
        let problem = |problem| GraphError::Block { block: full.clone(), problem };
        let &[input] = inputs.as_slice() else {
            return Err(problem(BlockProblem::InputCount { want: "1", got: inputs.len() }));
        };
        if block.shares.is_some() {
            return Err(problem(BlockProblem::ExpertsShare));
        }
        let value = self.shapes[input].clone();
        let routed = Routed::of(options.route, &value).map_err(problem)?;
        let own = format!("{}{}", scope.tensors, block.name);
        if !scope.is_repeated && self.tensors.has(&own) {
            return Err(problem(BlockProblem::Duplicate));
        }
        let gates = gates(options, routed.gate_width);
        let parameters = self.tensors.of_block(&own, None, gates)?;
        let n_before = self.n_activations;
        let (bodies, given) = match self.hosted.is_some() {
            true => self.hosted_body(options, &own, &full, n_parts, &routed.input)?,
            false => self.bodies(options, block, n_parts, scope, &routed.input)?,
        };
        let shape = routed.output(&value, &given).map_err(problem)?;
        // An input goes to `active` experts; each keeps what it was given, computed and gave.
        let of_routed = self.n_activations.saturating_add(count(&routed.input).unwrap_or(usize::MAX));
        let of_routed = of_routed.saturating_mul(options.active as usize).saturating_mul(routed.n_inputs);
        let n_given = count(&shape).ok_or_else(|| problem(BlockProblem::Overflow))?;
        self.n_activations = n_before.saturating_add(of_routed).saturating_add(n_given);
        if self.n_activations > ACTIVATIONS_MAX {
            return Err(GraphError::Activations { max: ACTIVATIONS_MAX });
        }
        let experts = ExpertGrid {
            side: options.side as usize,
            n_dimensions: options.dimensions as usize,
            input: routed.input,
            n_routed: routed.n_inputs,
            bodies,
        };
        let shape = ValueShape::Values(shape);
        self.full_names.insert(full.clone(), own);
        self.shapes.push(shape.clone());
        let (op, experts) = (block.op.clone(), Some(experts));
        let step =
            Step { name: full, op, inputs, shape, parameters, adapter: None, statistics: None, experts };
        self.steps.push(step);
        Ok(self.shapes.len() - 1)
    }

    /// The steps of all experts, with their tensors in the model.
    fn bodies(
        &mut self,
        options: &Experts,
        block: &Block,
        n_parts: usize,
        scope: &Scope,
        input: &[usize],
    ) -> Result<(ExpertBodies, ValueShape), GraphError> {
        let full = format!("{}{}", scope.prefix, block.name);
        let problem = |problem| GraphError::Block { block: full.clone(), problem };
        let n_experts = count_experts(options, false).map_err(problem)?;
        let (mut bodies, mut given) = (Vec::with_capacity(n_experts), None);
        for expert in 0..n_experts {
            let inner = scope.within(&format!("{}.experts{}", block.name, place(expert, options)));
            let (steps, shape) = self.body(options, &full, n_parts, &inner, input)?;
            given = Some(shape);
            bodies.push(steps);
        }
        Ok((ExpertBodies::Here(bodies), given.ok_or(GraphError::Empty)?))
    }

    /// The steps of one expert, whose tensors are its own. Blocks that share their weights have the same experts.
    fn hosted_body(
        &mut self,
        options: &Experts,
        own: &str,
        full: &str,
        n_parts: usize,
        input: &[usize],
    ) -> Result<(ExpertBodies, ValueShape), GraphError> {
        let tensors = std::mem::replace(&mut self.tensors, Tensors::new(None));
        let scope = Scope { prefix: format!("{full}.expert."), tensors: String::new(), is_repeated: false };
        let body = self.body(options, full, n_parts, &scope, input);
        let of_body = std::mem::replace(&mut self.tensors, tensors);
        let (steps, given) = body?;
        let Places { mut layout, frozen, statistics } = of_body.finish()?;
        layout.n_activations = self.n_activations;
        let n_experts = count_experts(options, true)
            .map_err(|problem| GraphError::Block { block: full.to_owned(), problem })?;
        let hosted = self.hosted.get_or_insert_default();
        let layer = hosted.len();
        let body = hosted.entry(own.to_owned()).or_insert_with(|| {
            let shape = ValueShape::Values(input.to_vec());
            let (n_values, n_targets) = (input.iter().product(), given.dims().iter().product());
            let graph = ResolvedGraph {
                data: GraphData::Rows { n_values, target: RowTarget::Values(n_targets) },
                inputs: vec![GraphInput { name: INPUT, shape }],
                steps,
                layout,
                frozen,
                statistics,
                loss: Loss::Regression,
                features: None,
            };
            Arc::new(HostedBody { layer, n_experts, graph })
        });
        Ok((ExpertBodies::Hosted(body.clone()), given))
    }

    /// The steps of one expert, by themselves, and what it gives. Leaves in `n_activations` what it keeps for one input.
    fn body(
        &mut self,
        options: &Experts,
        full: &str,
        n_parts: usize,
        scope: &Scope,
        input: &[usize],
    ) -> Result<(Vec<Step>, ValueShape), GraphError> {
        self.n_activations = 0;
        let shapes = std::mem::replace(&mut self.shapes, vec![ValueShape::Values(input.to_vec())]);
        let steps = std::mem::take(&mut self.steps);
        let given = self.call(&options.part, full, n_parts, scope, &[0]);
        let body = std::mem::replace(&mut self.steps, steps);
        let mut shapes = std::mem::replace(&mut self.shapes, shapes);
        let given = shapes.swap_remove(given?);
        let is_refused = |step: &&Step| match &step.op {
            Operation::BatchNorm(_)
            | Operation::Dropout(_)
            | Operation::PickMasked
            | Operation::Experts(_) => true,
            Operation::Attention(attention) => attention.dropout > 0.0,
            _ => false,
        };
        match body.iter().find(is_refused) {
            Some(step) => {
                let problem = BlockProblem::NotInExperts { name: step.name.clone() };
                Err(GraphError::Block { block: full.to_owned(), problem })
            }
            None => Ok((body, given)),
        }
    }
}

/// The tensors of a gating function.
fn gates(options: &Experts, width: usize) -> Vec<TensorPlan> {
    let side = options.side as usize;
    let names = if options.dimensions == 1 { &GATES[..1] } else { &GATES[1..=options.dimensions as usize] };
    names.iter().map(|name| TensorPlan { name, ..layer(vec![width, side], width) }).collect()
}

/// Where an expert is on the grid, such as `.3.17`.
fn place(expert: usize, options: &Experts) -> String {
    let side = options.side as usize;
    let at = |dimension: u32| expert / side.pow(options.dimensions - 1 - dimension) % side;
    (0..options.dimensions).map(|dimension| format!(".{}", at(dimension))).collect()
}
