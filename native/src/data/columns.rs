//! `columns.json`: how rows of another file become samples of a run.

use barnraise_protocol::columns::{DataColumns, OtherColumns};
use barnraise_protocol::dataset::SampleKind;

/// Why a file is none of the run's columns.
#[derive(Debug, thiserror::Error)]
pub enum ColumnsError {
    /// Of another version, or damaged.
    #[error("it is not understood: {0}")]
    Json(#[from] serde_json::Error),
    /// Of other data.
    #[error(transparent)]
    Other(#[from] OtherColumns),
}

/// The columns of a run, checked against its data.
pub(crate) fn read(bytes: &[u8], samples: &SampleKind) -> Result<DataColumns, ColumnsError> {
    let columns: DataColumns = serde_json::from_slice(bytes)?;
    columns.check(samples)?;
    Ok(columns)
}
