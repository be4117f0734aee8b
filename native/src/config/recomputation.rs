//! `[run.recomputation]`: contributions that are computed once more.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::run::ModelKind;
use serde::{Deserialize, Serialize};

use super::{Invalid, RunConfig};

const KEY: &str = "run.recomputation";

/// `[run.recomputation]`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecomputationSection {
    /// How many of all contributions this backbone computes once more, 0 to 1, as far as its device keeps up.
    pub share: f64,
    /// How far a gradient may be from the recomputed one, as a part of its length: what devices differ by.
    pub tolerance: f32,
}

/// A contribution must be the gradient of its samples and nothing else.
pub(super) fn validate(config: &RunConfig) -> Result<(), Invalid> {
    let Some(section) = &config.run.recomputation else { return Ok(()) };
    let RecomputationSection { share, tolerance } = *section;
    Invalid::check(KEY, (0.0..=1.0).contains(&share), "share = 0.0 to 1.0", share)?;
    let is_part = (0.0..1.0).contains(&tolerance);
    Invalid::check(KEY, is_part, "tolerance = 0.0 or more, and below 1.0", tolerance)?;
    let is_stepwise = config.run.local_steps.is_none();
    let want =
        "none of it with [run.local_steps]: where those lead depends on all that a contributor did before";
    Invalid::check(KEY, is_stepwise, want, format!("{section:?}"))?;
    let has_queue = matches!(config.run.model, ModelKind::Swav { queue_samples: 1.., .. });
    let want = "run.model with queue_samples = 0 with it: in a queue are samples of other contributions";
    Invalid::check(KEY, !has_queue, want, format!("{:?}", config.run.model))?;
    let codec = config.run.gradient_codec;
    let is_whole = matches!(codec, TensorCodec::F32 | TensorCodec::F16 | TensorCodec::Int8);
    let want =
        "run.gradient_codec = \"f32\", \"f16\" or \"int8\" with it: of the others what was kept comes along";
    Invalid::check(KEY, is_whole, want, format!("{codec:?}"))
}
