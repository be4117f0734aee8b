//! Queries of the database of contributions: totals, the leaderboard, one peer. Writes nothing.

use std::time::{Duration, Instant};

use barnraise_protocol::DisplayName;
use barnraise_protocol::api::{
    AcceptedTotals, AggregatorTotals, Contributions, ContributorTotals, RefusalCount, RelayTotals,
};
use libp2p::PeerId;

use super::database::{StoreError, on};
use super::question::Question;
use super::store::{Store, unsigned};

/// Aggregators that are listed.
const AGGREGATORS_MAX: i64 = 20;
/// Relays that are listed.
const RELAYS_MAX: i64 = 20;
/// How long an answer is cached for the same question.
const SHOWN_FOR: Duration = Duration::from_millis(500);

type ContributorRow = (String, i64, i64, i64, i64, i64, Option<String>);

/// Columns of a contributor, with the displayed name.
const NAMED_COLUMNS: &str =
    "contributors.peer, n_contributions, n_samples, n_bytes, milliseconds, last_epoch, name";
const WITH_NAMES: &str = "contributors LEFT JOIN names ON names.run_id = contributors.run_id \
    AND names.peer = contributors.peer AND names.is_hidden = 0";

impl Store {
    /// Totals, and the contributors that were asked for. The answer for all is cached briefly; that for one peer is read
    /// each time.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn contributions(&self, question: &Question) -> Result<Contributions, StoreError> {
        let mut answer = self.of_all(&Question { peer: None, ..question.clone() }).await?;
        if let Some(peer) = question.peer {
            answer.peer = self.contributor(peer).await?;
        }
        if let Some(totals) = &answer.peer {
            answer.rank = self.rank(&totals.peer, totals.totals.n_samples).await?;
        }
        Ok(answer)
    }

    async fn of_all(&self, question: &Question) -> Result<Contributions, StoreError> {
        let mut shown = self.shown.lock().await;
        match &*shown {
            Some((at, asked, answer)) if asked == question && at.elapsed() < SHOWN_FOR => Ok(answer.clone()),
            _ => {
                let answer = self.read(question).await?;
                *shown = Some((Instant::now(), question.clone(), answer.clone()));
                Ok(answer)
            }
        }
    }

    async fn read(&self, question: &Question) -> Result<Contributions, StoreError> {
        let run = &self.run_id;
        let select = "SELECT n_contributors, n_contributions, n_samples, n_bytes, milliseconds FROM runs \
            WHERE run_id = $1";
        let totals: Option<(i64, i64, i64, i64, i64)> = on!(&self.database, pool => {
            sqlx::query_as(select).bind(run).fetch_optional(pool).await?
        });
        let (n_contributors, n_contributions, n_samples, n_bytes, milliseconds) = totals.unwrap_or_default();
        Ok(Contributions {
            totals: given(n_contributions, n_samples, n_bytes, milliseconds),
            n_contributors: unsigned(n_contributors),
            contributors: self.contributors(question).await?,
            peer: None,
            rank: None,
            aggregators: self.aggregators().await?,
            relays: self.relays().await?,
            refused: self.refused().await?,
        })
    }

    async fn contributors(&self, question: &Question) -> Result<Vec<ContributorTotals>, StoreError> {
        let select = format!(
            "SELECT {NAMED_COLUMNS} FROM {WITH_NAMES} WHERE contributors.run_id = $1 \
            AND contributors.peer NOT IN (SELECT peer FROM convictions WHERE run_id = $1) \
            ORDER BY n_samples DESC, contributors.peer LIMIT $2 OFFSET $3"
        );
        let (limit, offset) = (i64::from(question.limit), i64::from(question.offset));
        let rows: Vec<ContributorRow> = on!(&self.database, pool => {
            sqlx::query_as(&select).bind(&self.run_id).bind(limit).bind(offset).fetch_all(pool).await?
        });
        Ok(rows.into_iter().map(contributor).collect())
    }

    async fn contributor(&self, peer: PeerId) -> Result<Option<ContributorTotals>, StoreError> {
        let select = format!(
            "SELECT {NAMED_COLUMNS} FROM {WITH_NAMES} WHERE contributors.run_id = $1 AND contributors.peer = $2"
        );
        let row: Option<ContributorRow> = on!(&self.database, pool => {
            sqlx::query_as(&select).bind(&self.run_id).bind(peer.to_string()).fetch_optional(pool).await?
        });
        Ok(row.map(contributor))
    }

    /// Totals of one peer; `None` where it never contributed.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn of_peer(&self, peer: PeerId) -> Result<Option<ContributorTotals>, StoreError> {
        self.contributor(peer).await
    }

    async fn aggregators(&self) -> Result<Vec<AggregatorTotals>, StoreError> {
        let select = "SELECT peer, n_steps, n_bytes, microseconds FROM aggregators WHERE run_id = $1 \
            ORDER BY n_bytes DESC, peer LIMIT $2";
        let rows: Vec<(String, i64, i64, i64)> = on!(&self.database, pool => {
            sqlx::query_as(select).bind(&self.run_id).bind(AGGREGATORS_MAX).fetch_all(pool).await?
        });
        let totals = |(peer, n_steps, n_bytes, microseconds)| AggregatorTotals {
            peer,
            n_steps: unsigned(n_steps),
            n_bytes: unsigned(n_bytes),
            seconds: unsigned(microseconds) / 1_000_000,
        };
        Ok(rows.into_iter().map(totals).collect())
    }

    async fn relays(&self) -> Result<Vec<RelayTotals>, StoreError> {
        let select = "SELECT peer, n_contributions, n_bytes, microseconds FROM relays WHERE run_id = $1 \
            ORDER BY n_bytes DESC, peer LIMIT $2";
        let rows: Vec<(String, i64, i64, i64)> = on!(&self.database, pool => {
            sqlx::query_as(select).bind(&self.run_id).bind(RELAYS_MAX).fetch_all(pool).await?
        });
        let totals = |(peer, n_contributions, n_bytes, microseconds)| RelayTotals {
            peer,
            n_contributions: unsigned(n_contributions),
            n_bytes: unsigned(n_bytes),
            seconds: unsigned(microseconds) / 1_000_000,
        };
        Ok(rows.into_iter().map(totals).collect())
    }

    async fn refused(&self) -> Result<Vec<RefusalCount>, StoreError> {
        let select = "SELECT reason, n FROM refusals WHERE run_id = $1 ORDER BY n DESC, reason";
        let rows: Vec<(String, i64)> = on!(&self.database, pool => {
            sqlx::query_as(select).bind(&self.run_id).fetch_all(pool).await?
        });
        Ok(rows.into_iter().map(|(reason, n)| RefusalCount { reason, n: unsigned(n) }).collect())
    }
}

fn contributor(row: ContributorRow) -> ContributorTotals {
    let (peer, n_contributions, n_samples, n_bytes, milliseconds, last_epoch, name) = row;
    let given = given(n_contributions, n_samples, n_bytes, milliseconds);
    // It was valid when it was written; an operator may have changed the row.
    let name = name.and_then(|name| DisplayName::new(&name).ok());
    ContributorTotals { peer, name, totals: given, last_epoch: unsigned(last_epoch) }
}

fn given(n_contributions: i64, n_samples: i64, n_bytes: i64, milliseconds: i64) -> AcceptedTotals {
    AcceptedTotals {
        n_contributions: unsigned(n_contributions),
        n_samples: unsigned(n_samples),
        n_bytes: unsigned(n_bytes),
        seconds: unsigned(milliseconds) / 1000,
    }
}
