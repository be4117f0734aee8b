//! Why an answer of the page or of the operator's page is missing.

/// Why an answer is missing, or cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// There is no answer, or it is a refusal.
    #[error("cannot reach {url}: {source}")]
    Unreachable {
        /// The address that was asked.
        url: String,
        /// Of HTTP.
        source: Box<ureq::Error>,
    },
    /// Another version answered, or another server.
    #[error("{url} is not what this version understands: {source}")]
    NotUnderstood {
        /// The address that was asked.
        url: String,
        /// Of the parser.
        source: serde_json::Error,
    },
    /// Metrics that are no text.
    #[error("{url} is not UTF-8")]
    NotUtf8 {
        /// The address that was asked.
        url: String,
    },
    /// The backbone hung up.
    #[error("{page} ended the stream of events")]
    StreamEnded {
        /// Address of the page.
        page: String,
    },
    /// The address is that of several runs.
    #[error("several runs are at {page}: look at one of them, {}", choices(page, run_ids))]
    SeveralRuns {
        /// Address of the page.
        page: String,
        /// Their ids.
        run_ids: Vec<String>,
    },
}

impl AskError {
    pub(super) fn unreachable(url: &str, source: ureq::Error) -> Self {
        Self::Unreachable { url: url.to_owned(), source: Box::new(source) }
    }

    /// Whether the server has nothing at that address.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if matches!(**source, ureq::Error::StatusCode(404)))
    }
}

fn choices(page: &str, run_ids: &[String]) -> String {
    let one: Vec<String> = run_ids.iter().map(|id| format!("{page}/run/{id}")).collect();
    if one.is_empty() { format!("{page}/run/<id>") } else { one.join(" or ") }
}
