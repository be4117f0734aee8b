//! The operator's side of a run's start: the operator's page and the admin API.

use std::path::Path;
use std::time::Duration;

use barnraise_relay::server::HostNames;
use tokio_util::sync::CancellationToken;

use crate::config::RunConfig;
use crate::host::admin::token::TokenHash;
use crate::host::admin::{Admin, HostedRun};
use crate::host::audit::AuditLog;
use crate::host::clock::system_clock;
use crate::host::readiness::{OperatorPage, Readiness};

/// Shortest timeout of an operator's request: a rollback, or hashing a checkpoint, takes a while.
const OPERATOR_PATIENCE_MIN: Duration = Duration::from_secs(60);

/// Opens the operator's page, where the run has one.
pub(super) async fn operator_page(
    config: &RunConfig,
    readiness: &Readiness,
    stop: &CancellationToken,
) -> anyhow::Result<Option<OperatorPage>> {
    let Some(address) = config.network.operator else { return Ok(None) };
    let timeout = config.network.http_timeout.max(OPERATOR_PATIENCE_MIN);
    let names = HostNames::new("operator_names", &config.network.operator_names);
    OperatorPage::open(address, names, timeout, readiness.clone(), stop.clone()).await.map(Some)
}

/// The admin API of a run.
pub(super) fn admin(folder: &Path, run: HostedRun) -> anyhow::Result<Admin> {
    let token = TokenHash::load_or_create(folder)?;
    let audit = AuditLog::open(folder, system_clock())?;
    Ok(Admin::new(vec![run], token, audit))
}
