//! Which tensors a graph's blocks have, where they are in the flat vector or among the frozen weights, and who shares
//! them.

use std::collections::HashMap;

use barnraise_protocol::run::model::Adapters;
use barnraise_protocol::run::model::weights::is_meant;

use super::error::{BlockProblem, GraphError};
use super::shape::count;
use super::{Adapter, PARAMETERS_MAX, RunningStatistics, TensorPlace};
use crate::parameters::{Initialization, ParameterLayout, ParameterSegment};

/// Names of running statistics, and their values at the beginning: means and variances.
const RUNNING: [(&str, f32); 2] = [("running_mean", 0.0), ("running_var", 1.0)];
/// Blocks that an error names.
const SHOWN_BLOCKS: usize = 8;

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

/// Where all tensors are.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) layout: ParameterLayout,
    pub(super) frozen: ParameterLayout,
    pub(super) statistics: Vec<RunningStatistics>,
}

/// The tensors so far.
#[derive(Debug)]
pub(super) struct Tensors {
    pub(super) layout: ParameterLayout,
    frozen: ParameterLayout,
    /// Where the rest is frozen.
    adapters: Option<Adapters>,
    /// Of each normalization with running statistics: name, channels, momentum.
    statistics: Vec<(String, usize, f32)>,
    /// Tensors of each block by its name.
    blocks: HashMap<String, Vec<(&'static str, TensorPlace)>>,
    /// Statistics of each block by its name.
    running: HashMap<String, usize>,
    /// Running means and variances of each frozen block by its name.
    frozen_running: HashMap<String, [TensorPlace; 2]>,
    /// Adapters of each block by its name.
    adapted: HashMap<String, Adapter>,
    /// Dense blocks, in order.
    dense: Vec<String>,
}

impl Tensors {
    pub(super) fn new(adapters: Option<Adapters>) -> Self {
        Self {
            layout: ParameterLayout::default(),
            frozen: ParameterLayout::default(),
            adapters,
            statistics: Vec::new(),
            blocks: HashMap::new(),
            running: HashMap::new(),
            frozen_running: HashMap::new(),
            adapted: HashMap::new(),
            dense: Vec::new(),
        }
    }

    /// Whether a block of this name has its tensors.
    pub(super) fn has(&self, block: &str) -> bool {
        self.blocks.contains_key(block)
    }

    /// Whether the weights of a block stay as they are.
    pub(super) fn is_frozen(&self, block: &str) -> bool {
        self.adapters.as_ref().is_some_and(|adapters| !adapters.trains(block))
    }

    /// Tensors of `block`, in their order: those of `shared` that have the same name, and new ones. A block that already
    /// has tensors keeps them.
    pub(super) fn of_block(
        &mut self,
        block: &str,
        shared: Option<&str>,
        plans: Vec<TensorPlan>,
    ) -> Result<Vec<TensorPlace>, GraphError> {
        let problem = |problem| GraphError::Block { block: block.to_owned(), problem };
        let known = self.blocks.get(block).or_else(|| self.blocks.get(shared?)).cloned().unwrap_or_default();
        let mut own = Vec::with_capacity(plans.len());
        for plan in plans {
            let found = known.iter().find(|(name, _)| *name == plan.name).map(|&(_, place)| place);
            let place = match found {
                Some(place) => {
                    let (tensor, got) = (plan.name, &self.segment(place).shape);
                    if *got != plan.shape {
                        let (want, got) = (plan.shape, got.clone());
                        return Err(problem(BlockProblem::SharedShape { tensor, want, got }));
                    }
                    place
                }
                None if plan.is_shared_only => return Err(problem(BlockProblem::NothingShared)),
                None => self.push(block, plan.name, plan.shape, plan.initial)?,
            };
            own.push((plan.name, place));
        }
        let places = own.iter().map(|&(_, place)| place).collect();
        self.blocks.entry(block.to_owned()).or_insert(own);
        Ok(places)
    }

    /// The adapter of a dense block whose weight has this shape, if it is to have one.
    pub(super) fn adapter_of(
        &mut self,
        block: &str,
        weight: &[usize],
    ) -> Result<Option<Adapter>, GraphError> {
        let Some(adapters) = &self.adapters else { return Ok(None) };
        if !self.has(block) {
            self.dense.push(block.to_owned());
        }
        if let Some(&known) = self.adapted.get(block) {
            return Ok(Some(known));
        }
        let &[n_in, units] = weight else { return Ok(None) };
        if !adapters.adapts(block) {
            return Ok(None);
        }
        let rank = adapters.rank as usize;
        let scale = adapters.alpha / adapters.rank as f32;
        let of_a = Initialization::Layer { fan_in: n_in, before_relu: false };
        let a = self.layout.push(format!("{block}.lora_A.weight"), vec![n_in, rank], of_a)?;
        let of_b = Initialization::Constant(0.0);
        let b = self.layout.push(format!("{block}.lora_B.weight"), vec![rank, units], of_b)?;
        let adapter = Adapter { a, b, scale };
        self.adapted.insert(block.to_owned(), adapter);
        Ok(Some(adapter))
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

    /// Running means and variances of a frozen `block`, which stay as they are, too.
    pub(super) fn frozen_statistics_of(
        &mut self,
        block: &str,
        channels: usize,
    ) -> Result<[TensorPlace; 2], GraphError> {
        if let Some(&places) = self.frozen_running.get(block) {
            return Ok(places);
        }
        let mut places = [TensorPlace::Frozen(0); 2];
        for (place, (name, initial)) in places.iter_mut().zip(RUNNING) {
            let initial = Initialization::Constant(initial);
            let index = self.frozen.push(format!("{block}.{name}"), vec![channels], initial)?;
            *place = TensorPlace::Frozen(index);
        }
        self.frozen_running.insert(block.to_owned(), places);
        Ok(places)
    }

    /// The layouts of all, running statistics last, and where those of each normalization are.
    pub(super) fn finish(mut self) -> Result<Places, GraphError> {
        if let Some(adapters) = &self.adapters {
            let with_tensors = self.blocks.iter().filter(|(_, tensors)| !tensors.is_empty());
            let mut all: Vec<String> = with_tensors.map(|(block, _)| block.clone()).collect();
            all.sort_unstable();
            check_names(&adapters.targets, "dense block", &self.dense)?;
            check_names(&adapters.trained, "block with weights", &all)?;
        }
        self.layout.n_trained_segments = self.layout.segments.len();
        self.layout.n_trained = self.layout.n_parameters;
        let mut statistics = Vec::with_capacity(self.statistics.len());
        for (block, channels, momentum) in std::mem::take(&mut self.statistics) {
            let mut push = |(name, initial)| {
                let initial = Initialization::Constant(initial);
                self.layout.push(format!("{block}.{name}"), vec![channels], initial)
            };
            let [of_mean, of_variance] = RUNNING;
            let (mean, variance) = (push(of_mean)?, push(of_variance)?);
            statistics.push(RunningStatistics { mean, variance, momentum });
        }
        Ok(Places { layout: self.layout, frozen: self.frozen, statistics })
    }

    fn segment(&self, place: TensorPlace) -> &ParameterSegment {
        match place {
            TensorPlace::Trained(index) => &self.layout.segments[index],
            TensorPlace::Frozen(index) => &self.frozen.segments[index],
        }
    }

    fn push(
        &mut self,
        block: &str,
        name: &str,
        shape: Vec<usize>,
        initial: Initialization,
    ) -> Result<TensorPlace, GraphError> {
        let is_frozen = self.is_frozen(block);
        let name = format!("{block}.{name}");
        Ok(match is_frozen {
            true => TensorPlace::Frozen(self.frozen.push(name, shape, initial)?),
            false => TensorPlace::Trained(self.layout.push(name, shape, initial)?),
        })
    }
}

impl ParameterLayout {
    fn push(
        &mut self,
        name: String,
        shape: Vec<usize>,
        initial: Initialization,
    ) -> Result<usize, GraphError> {
        let offset = self.n_parameters;
        let len = count(&shape);
        let total = len.and_then(|len| offset.checked_add(len)).filter(|&n| n <= PARAMETERS_MAX);
        let (Some(len), Some(total)) = (len, total) else {
            return Err(GraphError::TooManyParameters { max: PARAMETERS_MAX });
        };
        self.segments.push(ParameterSegment { name, shape, offset, len, initial });
        self.n_parameters = total;
        Ok(self.segments.len() - 1)
    }
}

/// Checks that each name means one of `blocks` at least.
fn check_names(names: &[String], wanted: &'static str, blocks: &[String]) -> Result<(), GraphError> {
    match names.iter().find(|name| !blocks.iter().any(|block| is_meant(name, block))) {
        Some(name) => {
            let names = blocks.iter().take(SHOWN_BLOCKS).cloned().collect();
            Err(GraphError::NoTarget { name: name.clone(), wanted, names })
        }
        None => Ok(()),
    }
}
