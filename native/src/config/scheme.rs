//! `[scheme]`: how the parameters that several peers hold are kept in step. Of the configuration it alone knows which
//! schemes there are.
//!
//! A value belongs here if it travels in the run's description or changes what a step is: then it is the same for all
//! backbones. What only concerns one machine is in the other sections.

mod sampled;
mod synchronous;

use barnraise_protocol::run::Scheme;
use serde::{Deserialize, Serialize};

pub use self::sampled::SampledSection;
pub use self::synchronous::{AggregationKind, LocalStepsSection, RecomputationSection, SynchronousSection};
use super::{Invalid, RunConfig};

/// `[scheme]`: the one scheme of the run, by the name of its table, as in the run's description.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", try_from = "SchemeTables")]
pub enum SchemeSection {
    /// All gradients of a target batch become one optimizer step.
    Synchronous(SynchronousSection),
    /// Each round a few peers train, and fewer average their models.
    Sampled(SampledSection),
}

/// The tables of `[scheme]`, of which one is wanted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SchemeTables {
    synchronous: Option<SynchronousSection>,
    sampled: Option<SampledSection>,
}

/// A `[scheme]` without a table, or with several.
#[derive(Debug, thiserror::Error)]
#[error("one scheme is wanted by the name of its table: [scheme.synchronous] or [scheme.sampled]")]
struct NoScheme;

impl TryFrom<SchemeTables> for SchemeSection {
    type Error = NoScheme;

    fn try_from(tables: SchemeTables) -> Result<Self, NoScheme> {
        match (tables.synchronous, tables.sampled) {
            (Some(section), None) => Ok(Self::Synchronous(section)),
            (None, Some(section)) => Ok(Self::Sampled(section)),
            _ => Err(NoScheme),
        }
    }
}

impl Default for SchemeSection {
    fn default() -> Self {
        Self::Synchronous(SynchronousSection::default())
    }
}

impl SchemeSection {
    /// What participants are not told, and so do not check.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        match self {
            Self::Synchronous(section) => section.validate(),
            // Participants check all of it.
            Self::Sampled(_) => Ok(()),
        }
    }

    /// What it cannot be combined with in `config`.
    pub(super) fn validate_in(&self, config: &RunConfig) -> Result<(), Invalid> {
        match self {
            Self::Synchronous(section) => section.validate_in(config),
            Self::Sampled(section) => section.validate_in(config),
        }
    }

    /// As participants see it, in the run of `config`; nothing is checked.
    pub(super) fn describe(&self, config: &RunConfig) -> Scheme {
        match self {
            Self::Synchronous(section) => Scheme::Synchronous(section.describe(config)),
            Self::Sampled(section) => Scheme::Sampled(section.describe()),
        }
    }

    /// Keys and values that are fixed for the lifetime of a run.
    pub(super) fn bound_values(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Synchronous(section) => section.bound_values().into(),
            Self::Sampled(section) => section.bound_values().into(),
        }
    }

    /// Whether contributions are computed in single precision, in the run of `config`.
    pub(super) fn needs_single_precision(&self, config: &RunConfig) -> bool {
        match self {
            Self::Synchronous(section) => section.recomputation_in(config).is_some(),
            Self::Sampled(_) => false,
        }
    }

    /// A key whose value is probably not intended in `config`, and why.
    pub(super) fn warning(&self, config: &RunConfig) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Synchronous(section) => section.warning(config),
            Self::Sampled(section) => section.warning(),
        }
    }
}
