//! Queries of the contributions, with their bounds checked.

use std::time::Instant;

use barnraise_protocol::api::{
    CONTRIBUTORS_DEFAULT, CONTRIBUTORS_MAX, Contributions, ContributionsQuery, OFFSET_MAX,
};
use libp2p::PeerId;
use tokio::sync::Mutex;

/// Longest text that is a peer id.
const PEER_CHARS_MAX: usize = 128;

/// The newest answer, its question, and when it was read.
pub(super) type CachedAnswer = Mutex<Option<(Instant, Question, Contributions)>>;

/// Why a query is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    /// Out of bounds.
    #[error("`{what}` is {got}, at most {max} is answered")]
    TooMany {
        /// Which number.
        what: &'static str,
        /// Largest allowed.
        max: u32,
        /// Number in the query.
        got: u32,
    },
    /// No peer id.
    #[error("`peer` is no peer id")]
    Peer,
}

/// A query whose bounds were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub(super) offset: u32,
    pub(super) limit: u32,
    pub(super) peer: Option<PeerId>,
}

impl TryFrom<ContributionsQuery> for Question {
    type Error = BadQuery;

    fn try_from(query: ContributionsQuery) -> Result<Self, BadQuery> {
        let within =
            |what, got, max| if got > max { Err(BadQuery::TooMany { what, max, got }) } else { Ok(got) };
        let offset = within("offset", query.offset.unwrap_or(0), OFFSET_MAX)?;
        let limit = within("limit", query.limit.unwrap_or(CONTRIBUTORS_DEFAULT), CONTRIBUTORS_MAX)?;
        let parse = |text: String| match text.len() {
            0..=PEER_CHARS_MAX => text.parse().map_err(|_| BadQuery::Peer),
            _ => Err(BadQuery::Peer),
        };
        Ok(Self { offset, limit, peer: query.peer.map(parse).transpose()? })
    }
}
