//! Files of the visitor's own. They become samples as the run's data did, by the tokenizer or the columns that its manifest names by
//! hash, and never leave the tab.

use barnraise_messages::ByteBuf;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::columns::ratings::OwnRatings;
use barnraise_protocol::columns::rows::{BrokenRows, OwnRows, OwnRowsError};
use barnraise_protocol::columns::{DataColumns, OtherColumns};
use barnraise_protocol::dataset::{SampleKind, Samples};

use crate::earlier::download;
use crate::platform::fetch_status;
use crate::text::{OwnTextError, TextModels};
use crate::web::WebError;

/// Why they cannot be trained on. For people, without a full stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnFilesError {
    /// How they become samples cannot be had.
    #[error(transparent)]
    Web(#[from] WebError),
    /// The run does not say how.
    #[error("this run takes no such files")]
    NotTaken,
    /// The web server has other columns than the run names.
    #[error("the backbone handed out other columns than those of the run")]
    Columns,
    /// Those of a table, or of ratings.
    #[error(transparent)]
    Rows(#[from] OwnRowsError),
    /// Those of texts.
    #[error(transparent)]
    Texts(#[from] OwnTextError),
}

impl OwnFilesError {
    /// Whether the web server was not there: it may be the next time.
    pub(crate) fn is_temporary(&self) -> bool {
        let web = match self {
            Self::Web(error) => Some(error),
            Self::Texts(error) => error.of_web(),
            _ => None,
        };
        web.is_some_and(WebError::is_temporary)
    }
}

impl From<OtherColumns> for OwnFilesError {
    fn from(_: OtherColumns) -> Self {
        Self::Columns
    }
}

/// The samples of files, and the rows that are left out. Given up where they are not `wanted` any longer.
///
/// - `origin`: the page's: `https://host:port`
pub(crate) async fn samples_of(
    origin: &str,
    texts: &TextModels,
    files: &[ByteBuf],
    wanted: impl Fn() -> bool,
) -> Result<(Samples, BrokenRows), OwnFilesError> {
    let manifest = fetch_status(origin).await?.run.data.manifest;
    let (kind, preprocessing) = (manifest.samples, manifest.preprocessing.ok_or(OwnFilesError::NotTaken)?);
    if let SampleKind::Tokens(shape) = kind {
        let read = texts.sequences(files, shape, preprocessing.sha256, wanted).await?;
        return Ok((Samples::Tokens(read), BrokenRows::default()));
    }
    let table = files.first().map(|file| &file[..]).unwrap_or_default();
    match (columns(origin, preprocessing, &kind).await?, &kind) {
        (DataColumns::Table(columns), SampleKind::Rows(shape)) => {
            let read = OwnRows::read(table, &columns, &shape.target)?;
            Ok((Samples::Rows(read.rows), read.broken))
        }
        (DataColumns::Ratings(columns), SampleKind::Ratings(shape)) => {
            let read = OwnRatings::read(table, &columns, *shape)?;
            Ok((Samples::Ratings(read.ratings), read.broken))
        }
        _ => Err(OwnFilesError::NotTaken),
    }
}

/// The columns that the manifest names.
async fn columns(origin: &str, wanted: Transfer, kind: &SampleKind) -> Result<DataColumns, OwnFilesError> {
    let n_bytes_max = usize::try_from(wanted.n_bytes).unwrap_or(usize::MAX);
    let bytes = download(&format!("{origin}/api/columns.json"), n_bytes_max).await?;
    if Sha256Hash::of(&bytes) != wanted.sha256 {
        return Err(OwnFilesError::Columns);
    }
    let columns: DataColumns = serde_json::from_slice(&bytes).map_err(WebError::from)?;
    columns.check(kind)?;
    Ok(columns)
}
