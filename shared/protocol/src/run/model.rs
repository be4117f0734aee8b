//! What a run computes.

mod experts;
pub mod graph;
pub mod operation;
pub mod presets;
mod size;
pub mod weights;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::experts::HostedExperts;
pub use self::graph::Graph;
pub use self::presets::Preset;
pub use self::size::Size;
pub use self::weights::{Adapters, FirstWeights};

/// The network to train, and its first weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Its blocks and its loss.
    pub graph: Graph,
    /// The same seed gives the same initial weights on every platform.
    pub seed: u64,
    /// Whether it begins with those.
    pub weights: FirstWeights,
    /// Whether the experts of all layers live on other peers and train there; otherwise they are parameters of the model as all
    /// others.
    pub hosted: Option<HostedExperts>,
}

impl ModelSpec {
    /// Whether the parameters of the other one are parameters of this one. How hosted experts learn may change while a run goes on.
    pub fn has_parameters_of(&self, other: &Self) -> bool {
        let of = |model: &Self| (model.seed, model.hosted.is_some());
        self.graph == other.graph && self.weights == other.weights && of(self) == of(other)
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}", self.graph.name, self.seed)
    }
}
