//! From the blocks of a graph to the steps of a resolved one: counts what parts expand to, expands them, resolves names,
//! and applies the shape rules.

mod experts;

use std::collections::HashMap;
use std::sync::Arc;

use barnraise_protocol::run::model::Adapters;
use barnraise_protocol::run::model::graph::{Block, Graph, INPUT, Part};
use barnraise_protocol::run::model::operation::{Operation, PartCall, Repeat};

use super::check;
use super::data::{GraphData, GraphInput};
use super::error::{BlockProblem, GraphError};
use super::operation::{Context, Outcome, outcome};
use super::shape::{ValueShape, count};
use super::tensors::Tensors;
use super::{
    ACTIVATIONS_MAX, BLOCKS_MAX, FULL_NAME_BYTES_MAX, HostedBody, INPUTS_MAX, NAME_BYTES_MAX, PARTS_MAX,
    Step, TITLE_BYTES_MAX,
};

/// All of a graph but its loss.
pub(super) struct Expansion {
    pub(super) inputs: Vec<GraphInput>,
    pub(super) steps: Vec<Step>,
    pub(super) tensors: Tensors,
}

/// Expands and checks the blocks of `graph`.
pub(super) fn expand(
    graph: &Graph,
    data: &GraphData,
    adapters: Option<&Adapters>,
    is_hosted: bool,
) -> Result<Expansion, GraphError> {
    check_counts(graph, is_hosted)?;
    adapters.map_or(Ok(()), check::adapters)?;
    let inputs = data.inputs()?;
    let mut names = HashMap::new();
    let mut shapes = Vec::new();
    let mut n_activations = 0_usize;
    for (value, input) in inputs.iter().enumerate() {
        names.insert(input.name.to_owned(), value);
        shapes.push(input.shape.clone());
        n_activations = n_activations.saturating_add(input.shape.n_values().unwrap_or(usize::MAX));
    }
    let mut expander = Expander {
        data,
        parts: &graph.parts,
        shapes,
        steps: Vec::new(),
        full_names: HashMap::new(),
        tensors: Tensors::new(adapters.cloned()),
        n_activations,
        hosted: is_hosted.then(HashMap::new),
    };
    let scope = Scope { prefix: String::new(), tensors: String::new(), is_repeated: false };
    expander.blocks(&graph.blocks, graph.parts.len(), &scope, names, 0)?;
    let Expander { steps, mut tensors, n_activations, .. } = expander;
    tensors.layout.n_activations = n_activations;
    Ok(Expansion { inputs, steps, tensors })
}

/// Checks how many blocks there are once parts are expanded. A part calls parts before it only, so this ends.
fn check_counts(graph: &Graph, is_hosted: bool) -> Result<(), GraphError> {
    let title = &graph.name;
    if title.trim().is_empty() || title.len() > TITLE_BYTES_MAX || title.chars().any(char::is_control) {
        return Err(GraphError::Title { max: TITLE_BYTES_MAX });
    }
    if graph.parts.len() > PARTS_MAX {
        return Err(GraphError::TooManyParts { max: PARTS_MAX, got: graph.parts.len() });
    }
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for part in &graph.parts {
        check_name(&part.name)?;
        if part.blocks.is_empty() {
            return Err(GraphError::EmptyPart { name: part.name.clone() });
        }
        let n_blocks = count_blocks(&part.blocks, &counts, is_hosted)?;
        if counts.insert(&part.name, n_blocks).is_some() {
            return Err(GraphError::DuplicatePart { name: part.name.clone() });
        }
    }
    match count_blocks(&graph.blocks, &counts, is_hosted)? {
        0 => Err(GraphError::Empty),
        _ => Ok(()),
    }
}

fn count_blocks(
    blocks: &[Block],
    counts: &HashMap<&str, usize>,
    is_hosted: bool,
) -> Result<usize, GraphError> {
    let too_many = GraphError::TooManyBlocks { max: BLOCKS_MAX };
    let mut total = 0_usize;
    for block in blocks {
        check_name(&block.name)?;
        let problem = |problem| GraphError::Block { block: block.name.clone(), problem };
        let (part, times) = match &block.op {
            Operation::Part(PartCall { part }) => (part, 1),
            Operation::Repeat(Repeat { part, times, .. }) => (part, *times as usize),
            Operation::Experts(options) => {
                total += 1;
                let n_experts = experts::count_experts(options, is_hosted).map_err(problem)?;
                (&options.part, if is_hosted { 1 } else { n_experts })
            }
            _ => {
                total += 1;
                continue;
            }
        };
        if times == 0 || times > BLOCKS_MAX {
            let (option, want) = ("times", "1 to 4,096");
            return Err(problem(BlockProblem::Option { option, want, got: times as f64 }));
        }
        let of_part = counts.get(part.as_str());
        let of_part = of_part.ok_or_else(|| problem(BlockProblem::UnknownPart { name: part.clone() }))?;
        total = of_part.checked_mul(times).and_then(|n| n.checked_add(total)).unwrap_or(usize::MAX);
        if total > BLOCKS_MAX {
            return Err(too_many);
        }
    }
    if total > BLOCKS_MAX { Err(too_many) } else { Ok(total) }
}

fn check_name(name: &str) -> Result<(), GraphError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_allowed) {
        return Ok(());
    }
    let cut = name.chars().filter(|c| !c.is_control()).take(NAME_BYTES_MAX).collect();
    Err(GraphError::Name { name: cut, max: NAME_BYTES_MAX })
}

/// Where the blocks that are being expanded stand.
#[derive(Debug, Clone)]
struct Scope {
    /// Before the names of its blocks.
    prefix: String,
    /// Before the names of their tensors, which repeated parts may share.
    tensors: String,
    /// Whether a pass before it made the tensors.
    is_repeated: bool,
}

struct Expander<'a> {
    data: &'a GraphData,
    parts: &'a [Part],
    /// Of every value, the inputs first.
    shapes: Vec<ValueShape>,
    steps: Vec<Step>,
    /// Names under which tensors are, by full name of a block.
    full_names: HashMap<String, String>,
    tensors: Tensors,
    n_activations: usize,
    /// Of each layer of hosted experts, by the name of its tensors; `None` where none is hosted.
    hosted: Option<HashMap<String, Arc<HostedBody>>>,
}

impl Expander<'_> {
    /// Expands a sequence of blocks and returns the value that the last one gives. Parts are those before `n_parts`,
    /// which bounds the depth. An unnamed input of the first block is `previous`.
    fn blocks(
        &mut self,
        blocks: &[Block],
        n_parts: usize,
        scope: &Scope,
        mut names: HashMap<String, usize>,
        mut previous: usize,
    ) -> Result<usize, GraphError> {
        for block in blocks {
            let full = format!("{}{}", scope.prefix, block.name);
            let problem = |problem| GraphError::Block { block: full.clone(), problem };
            if full.len() > FULL_NAME_BYTES_MAX {
                return Err(GraphError::Name { name: full, max: FULL_NAME_BYTES_MAX });
            }
            if block.from.len() > INPUTS_MAX {
                let want = "at most 16";
                return Err(problem(BlockProblem::InputCount { want, got: block.from.len() }));
            }
            let mut inputs = Vec::with_capacity(block.from.len().max(1));
            for name in &block.from {
                let input = names.get(name).copied();
                inputs.push(input.ok_or_else(|| problem(BlockProblem::UnknownInput { name: name.clone() }))?);
            }
            if inputs.is_empty() {
                inputs.push(previous);
            }
            previous = match &block.op {
                Operation::Part(PartCall { part }) => {
                    let inner = scope.within(&block.name);
                    self.call(part, &full, n_parts, &inner, &inputs)?
                }
                Operation::Repeat(repeat) => self.repeat(repeat, block, n_parts, scope, &inputs)?,
                Operation::Experts(options) => self.experts(options, block, n_parts, scope, inputs)?,
                _ => self.step(block, &full, scope, inputs)?,
            };
            if names.insert(block.name.clone(), previous).is_some() {
                return Err(problem(BlockProblem::Duplicate));
            }
        }
        Ok(previous)
    }

    fn repeat(
        &mut self,
        repeat: &Repeat,
        block: &Block,
        n_parts: usize,
        scope: &Scope,
        inputs: &[usize],
    ) -> Result<usize, GraphError> {
        let mut inputs = inputs.to_vec();
        for pass in 0..repeat.times {
            let number = repeat.first.saturating_add(pass);
            let mut inner = scope.within(&format!("{}.{number}", block.name));
            if repeat.share {
                inner.tensors = format!("{}{}.", scope.tensors, block.name);
                inner.is_repeated |= pass > 0;
            }
            let full = format!("{}{}", scope.prefix, block.name);
            inputs = vec![self.call(&repeat.part, &full, n_parts, &inner, &inputs)?];
        }
        Ok(inputs[0])
    }

    /// Expands a part on its one input.
    fn call(
        &mut self,
        name: &str,
        block: &str,
        n_parts: usize,
        scope: &Scope,
        inputs: &[usize],
    ) -> Result<usize, GraphError> {
        let problem = |problem| GraphError::Block { block: block.to_owned(), problem };
        let &[input] = inputs else {
            return Err(problem(BlockProblem::InputCount { want: "1", got: inputs.len() }));
        };
        let index = self.parts[..n_parts].iter().position(|part| part.name == name);
        let index = index.ok_or_else(|| problem(BlockProblem::UnknownPart { name: name.to_owned() }))?;
        let names = HashMap::from([(INPUT.to_owned(), input)]);
        let parts = self.parts;
        self.blocks(&parts[index].blocks, index, scope, names, input)
    }

    fn step(
        &mut self,
        block: &Block,
        full: &str,
        scope: &Scope,
        inputs: Vec<usize>,
    ) -> Result<usize, GraphError> {
        let problem = |problem| GraphError::Block { block: full.to_owned(), problem };
        let shapes: Vec<ValueShape> = inputs.iter().map(|&value| self.shapes[value].clone()).collect();
        let context = Context { inputs: &shapes, data: self.data };
        let outcome = outcome(&block.op, &context).map_err(problem)?;
        self.count_activations(&outcome).map_err(|overflow| match overflow {
            Some(overflow) => problem(overflow),
            None => GraphError::Activations { max: ACTIVATIONS_MAX },
        })?;
        let own = format!("{}{}", scope.tensors, block.name);
        let shared = block.shares.as_deref().map(|name| self.shared(name, scope)).transpose();
        let shared = shared.map_err(problem)?;
        if !scope.is_repeated && self.tensors.has(&own) {
            return Err(problem(BlockProblem::Duplicate));
        }
        let Outcome { shape, tensors, statistics, .. } = outcome;
        let adapter = match (&block.op, tensors.first()) {
            (Operation::Dense(_), Some(weight)) => self.tensors.adapter_of(&own, &weight.shape)?,
            _ => None,
        };
        let mut parameters = self.tensors.of_block(&own, shared.as_deref(), tensors)?;
        let statistics = match statistics {
            Some((channels, _)) if self.tensors.is_frozen(&own) => {
                parameters.extend(self.tensors.frozen_statistics_of(&own, channels)?);
                None
            }
            Some((channels, momentum)) => Some(self.tensors.statistics_of(&own, channels, momentum)),
            None => None,
        };
        let shape = ValueShape::Values(shape);
        self.full_names.insert(full.to_owned(), own);
        self.shapes.push(shape.clone());
        let (name, op) = (full.to_owned(), block.op.clone());
        self.steps.push(Step { name, op, inputs, shape, parameters, adapter, statistics, experts: None });
        Ok(self.shapes.len() - 1)
    }

    /// Name under which the tensors of a block are: one of the scope, or one by its full name.
    fn shared(&self, name: &str, scope: &Scope) -> Result<String, BlockProblem> {
        let local = self.full_names.get(&format!("{}{name}", scope.prefix));
        let found = local.or_else(|| self.full_names.get(name)).filter(|own| self.tensors.has(own)).cloned();
        found.ok_or_else(|| BlockProblem::UnknownShared { name: name.to_owned() })
    }

    /// Adds what an operation keeps; an error without a problem where the sum is too large.
    fn count_activations(&mut self, outcome: &Outcome) -> Result<(), Option<BlockProblem>> {
        let given = count(&outcome.shape).ok_or(Some(BlockProblem::Overflow))?;
        let kept = given.checked_mul(outcome.kept).and_then(|n| n.checked_add(outcome.kept_besides));
        let total = kept.and_then(|kept| kept.checked_add(self.n_activations));
        self.n_activations = total.filter(|&total| total <= ACTIVATIONS_MAX).ok_or(None)?;
        Ok(())
    }
}

impl Scope {
    fn within(&self, name: &str) -> Self {
        let (prefix, tensors) = (format!("{}{name}.", self.prefix), format!("{}{name}.", self.tensors));
        Self { prefix, tensors, is_repeated: self.is_repeated }
    }
}
