//! `[contributions]`: the database of contributions.

use serde::{Deserialize, Serialize};

use super::Invalid;

/// `[contributions]`
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContributionsSection {
    /// Address of a PostgreSQL server and its database, `postgres://user:password@host/database`. Not set: a
    /// file in the run's folder.
    pub database: Option<String>,
}

impl std::fmt::Debug for ContributionsSection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may contain a password.
        f.debug_struct("ContributionsSection").field("is_on_a_server", &self.database.is_some()).finish()
    }
}

impl ContributionsSection {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let Some(url) = &self.database else { return Ok(()) };
        let is_good = url.starts_with("postgres://") || url.starts_with("postgresql://");
        // The error shows the scheme only: the rest may have a password.
        let got = url.split_once("://").map_or("(something else)", |(scheme, _)| scheme);
        Invalid::check("contributions.database", is_good, "begins with postgres://", got)
    }
}
