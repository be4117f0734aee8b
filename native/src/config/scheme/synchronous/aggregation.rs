//! `aggregation` of `[scheme.synchronous]`: how contributions become one gradient.

use serde::{Deserialize, Serialize};

/// How contributions become one gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AggregationKind {
    /// The mean over samples. In an open run no address has more weight than all others together.
    #[default]
    Mean,
    /// CenteredClip, which tolerates a minority of Byzantine peers.
    CenteredClip,
}
