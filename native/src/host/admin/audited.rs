//! A command between the two lines of the audit log.

use crate::host::audit::{AuditError, AuditLog, AuditRecord};
use crate::host::problem::Problem;

/// Runs `doing` between the two lines of the audit log.
///
/// # Errors
/// The first line cannot be written, and nothing was done; or those of `doing`.
pub(crate) async fn with_audit<T>(
    audit: &AuditLog,
    record: &AuditRecord,
    doing: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let number = written(audit, record, |audit, record| audit.begin(record)).await?;
    let done = doing.await;
    let error = done.as_ref().err().map(ToString::to_string);
    let end = move |audit: &AuditLog, record: &AuditRecord| audit.end(number, record, error.as_deref());
    // The command took effect: a missing second line is logged, and no error of the request.
    let _ = written(audit, record, end).await;
    done
}

/// Writes to the audit log on a thread that may block.
pub(super) async fn written<T: Send + 'static>(
    audit: &AuditLog,
    record: &AuditRecord,
    write: impl FnOnce(&AuditLog, &AuditRecord) -> Result<T, AuditError> + Send + 'static,
) -> Result<T, Problem> {
    let (audit, record) = (audit.clone(), record.clone());
    let written = tokio::task::spawn_blocking(move || write(&audit, &record)).await;
    match written {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            tracing::error!(%error, "an operator command is not in the audit log");
            Err(Problem::Audit)
        }
        Err(_) => Err(Problem::Inside),
    }
}
