//! `[run.recomputation]`: contributions that are computed once more.

use barnraise_protocol::run::is_recomputable;
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
    let run = &config.run;
    // Steps that cannot be made are told by their own check.
    let local_steps = run.local_steps.and_then(|section| section.describe().ok());
    let codecs = (run.gradient_codec, run.slow_links.map(|slow| slow.codec));
    is_recomputable(&run.model, codecs, local_steps.as_ref())
        .map_err(|error| Invalid::new(KEY, format!("none of it: {error}"), super::as_written(&section)))
}
