//! Which tensors a graph's blocks have, where they are in the flat vector, and who shares them.

use std::collections::HashMap;

use super::error::{BlockProblem, GraphError};
use super::shape::count;
use super::{PARAMETERS_MAX, RunningStatistics};
use crate::parameters::{Initialization, ParameterLayout, ParameterSegment};

/// A tensor that an operation has.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorPlan {
    /// `weight` or `bias`.
    pub(super) name: &'static str,
    /// Row-major.
    pub(super) shape: Vec<usize>,
    /// Its values at the beginning.
    pub(super) initial: Initialization,
    /// Whether there is none unless another block shares its own.
    pub(super) is_shared_only: bool,
}

impl TensorPlan {
    pub(super) fn weight(shape: Vec<usize>, initial: Initialization) -> Self {
        Self { name: "weight", shape, initial, is_shared_only: false }
    }

    pub(super) fn bias(n: usize, initial: Initialization) -> Self {
        Self { name: "bias", shape: vec![n], initial, is_shared_only: false }
    }
}

/// The tensors so far.
#[derive(Debug)]
pub(super) struct Tensors {
    pub(super) layout: ParameterLayout,
    /// Of each normalization with running statistics: name, channels, momentum.
    statistics: Vec<(String, usize, f32)>,
    /// Segments of each block by its name.
    blocks: HashMap<String, Vec<(&'static str, usize)>>,
    /// Statistics of each block by its name.
    running: HashMap<String, usize>,
}

impl Tensors {
    pub(super) fn new() -> Self {
        Self {
            layout: ParameterLayout::default(),
            statistics: Vec::new(),
            blocks: HashMap::new(),
            running: HashMap::new(),
        }
    }

    /// Whether a block of this name has its tensors.
    pub(super) fn has(&self, block: &str) -> bool {
        self.blocks.contains_key(block)
    }

    /// Segments of the tensors of `block`, in their order: those of `shared` that have the same name, and new ones. A
    /// block that already has tensors keeps them.
    pub(super) fn of_block(
        &mut self,
        block: &str,
        shared: Option<&str>,
        plans: Vec<TensorPlan>,
    ) -> Result<Vec<usize>, GraphError> {
        let problem = |problem| GraphError::Block { block: block.to_owned(), problem };
        let known = self.blocks.get(block).or_else(|| self.blocks.get(shared?)).cloned().unwrap_or_default();
        let mut own = Vec::with_capacity(plans.len());
        for plan in plans {
            let found = known.iter().find(|(name, _)| *name == plan.name).map(|&(_, segment)| segment);
            let segment = match found {
                Some(segment) => {
                    let (tensor, got) = (plan.name, &self.layout.segments[segment].shape);
                    if *got != plan.shape {
                        let (want, got) = (plan.shape, got.clone());
                        return Err(problem(BlockProblem::SharedShape { tensor, want, got }));
                    }
                    segment
                }
                None if plan.is_shared_only => return Err(problem(BlockProblem::NothingShared)),
                None => self.push(format!("{block}.{}", plan.name), plan.shape, plan.initial)?,
            };
            own.push((plan.name, segment));
        }
        let segments = own.iter().map(|&(_, segment)| segment).collect();
        self.blocks.entry(block.to_owned()).or_insert(own);
        Ok(segments)
    }

    /// Running statistics of `block`, the same as before where it has them.
    pub(super) fn statistics_of(&mut self, block: &str, channels: usize, momentum: f32) -> usize {
        if let Some(&index) = self.running.get(block) {
            return index;
        }
        let index = self.statistics.len();
        self.statistics.push((block.to_owned(), channels, momentum));
        self.running.insert(block.to_owned(), index);
        index
    }

    /// The layout of all, running statistics last, and where those of each normalization are.
    pub(super) fn finish(mut self) -> Result<(ParameterLayout, Vec<RunningStatistics>), GraphError> {
        self.layout.n_trained_segments = self.layout.segments.len();
        self.layout.n_trained = self.layout.n_parameters;
        let mut all = Vec::with_capacity(self.statistics.len());
        for (block, channels, momentum) in std::mem::take(&mut self.statistics) {
            let mut push = |name: &str, initial| {
                self.push(format!("{block}.{name}"), vec![channels], Initialization::Constant(initial))
            };
            let (mean, variance) = (push("running_mean", 0.0)?, push("running_var", 1.0)?);
            all.push(RunningStatistics { mean, variance, momentum });
        }
        Ok((self.layout, all))
    }

    fn push(
        &mut self,
        name: String,
        shape: Vec<usize>,
        initial: Initialization,
    ) -> Result<usize, GraphError> {
        let offset = self.layout.n_parameters;
        let len = count(&shape);
        let total = len.and_then(|len| offset.checked_add(len)).filter(|&n| n <= PARAMETERS_MAX);
        let (Some(len), Some(total)) = (len, total) else {
            return Err(GraphError::TooManyParameters { max: PARAMETERS_MAX });
        };
        self.layout.segments.push(ParameterSegment { name, shape, offset, len, initial });
        self.layout.n_parameters = total;
        Ok(self.layout.segments.len() - 1)
    }
}
