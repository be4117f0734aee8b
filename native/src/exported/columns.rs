//! `columns.json`: how rows of another file become samples of the run.

use barnraise_protocol::columns::{DataColumns, OtherColumns};
use barnraise_protocol::run::RunDescription;

/// Why a file is none of the run's columns.
#[derive(Debug, thiserror::Error)]
pub(super) enum ColumnsError {
    #[error("it is not understood: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Other(#[from] OtherColumns),
}

/// The columns of a run, checked against its data.
pub(super) fn read(bytes: &[u8], run: &RunDescription) -> Result<DataColumns, ColumnsError> {
    let columns: DataColumns = serde_json::from_slice(bytes)?;
    columns.check(&run.data.manifest.samples)?;
    Ok(columns)
}
