//! The database of contributions: each of them once, and their sums.
//!
//! Rows of contributions and their sums change in one transaction, and a contribution that is there already changes
//! nothing: it may be written again after a crash. Decides nothing; queries are in `answers`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::receipt::Receipt;
use libp2p::PeerId;

use super::database::{Changes, Database, SqlValue, StoreError, on};
use super::question::CachedAnswer;
use super::relays::Relayed;
use crate::host::peer_id;

/// Changes that are written in one transaction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Accepted contributions, old or new.
    pub receipts: Vec<Receipt>,
    /// Further refusals, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Further work of the aggregator.
    pub work: AggregatorWork,
    /// Further contributions through relays, by the relays' ids in base58.
    pub relayed: BTreeMap<String, Relayed>,
    /// Further encoded bytes reduced by native peers, by their ids in base58.
    pub reduced: BTreeMap<String, u64>,
    /// With this batch all journal entries of earlier epochs are recorded.
    pub recorded_before: Option<u64>,
}

/// Work of an aggregator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AggregatorWork {
    /// Optimizer steps.
    pub n_steps: u64,
    /// Encoded bytes that were averaged.
    pub n_bytes: u64,
    /// Time that it took.
    pub microseconds: u64,
}

impl AggregatorWork {
    /// The difference to `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            n_steps: self.n_steps.saturating_sub(before.n_steps),
            n_bytes: self.n_bytes.saturating_sub(before.n_bytes),
            microseconds: self.microseconds.saturating_sub(before.microseconds),
        }
    }
}

/// The open database, for one run and one of its aggregators. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) database: Database,
    pub(super) run_id: String,
    aggregator: String,
    pub(super) shown: Arc<CachedAnswer>,
}

/// Sums over contributions.
#[derive(Debug, Default)]
struct Sums {
    n_contributions: u64,
    n_samples: u64,
    n_bytes: u64,
    milliseconds: u64,
    last_epoch: u64,
}

impl Sums {
    fn add(&mut self, receipt: &Receipt) {
        self.n_contributions += 1;
        self.n_samples += u64::from(receipt.n_samples);
        self.n_bytes = self.n_bytes.saturating_add(receipt.n_bytes);
        self.milliseconds += u64::from(receipt.milliseconds);
        self.last_epoch = self.last_epoch.max(receipt.epoch);
    }
}

const CONTRIBUTOR_COLUMNS: &str = "peer, n_contributions, n_samples, n_bytes, milliseconds, last_epoch";

impl Store {
    /// Opens the server at `url`, or the file in `folder`; made and migrated if need be.
    ///
    /// # Errors
    /// A database that cannot be used, or one of a newer version.
    pub async fn open(
        folder: &Path,
        url: Option<&str>,
        run_id: &str,
        aggregator: PeerId,
    ) -> Result<Self, StoreError> {
        let database = match url {
            #[cfg(feature = "operations")]
            Some(url) => Database::server(url).await?,
            _ => Database::file(folder).await?,
        };
        Ok(Self {
            database,
            run_id: run_id.to_owned(),
            aggregator: aggregator.to_string(),
            shown: Arc::default(),
        })
    }

    /// The same database, for another run.
    #[cfg(test)]
    pub(crate) fn of_run(&self, run_id: &str) -> Self {
        Self { run_id: run_id.to_owned(), shown: Arc::default(), ..self.clone() }
    }

    /// Writes a batch, all of it or nothing; returns how many of its contributions were new.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn record(&self, batch: &Batch) -> Result<u64, StoreError> {
        let mut changes = self.database.begin().await?;
        let run = SqlValue::Text(&self.run_id);
        let mut of_peers: BTreeMap<String, Sums> = BTreeMap::new();
        let mut all = Sums::default();
        for receipt in &batch.receipts {
            let Some(peer) = text_of(receipt.peer) else { continue };
            if insert(&mut changes, run, &peer, receipt).await? {
                of_peers.entry(peer).or_default().add(receipt);
                all.add(receipt);
            }
        }
        // In the order of their keys, so that two backbones with one database seldom deadlock; where they do, one of
        // them gets an error and tries again.
        let mut n_new = 0;
        for (peer, sums) in &of_peers {
            n_new += add_to_contributor(&mut changes, run, peer, sums).await?;
        }
        self.add_refusals(&mut changes, &batch.refused).await?;
        self.add_work(&mut changes, batch).await?;
        for (peer, n_bytes) in &batch.reduced {
            self.add_work_of(
                &mut changes,
                peer,
                AggregatorWork { n_bytes: *n_bytes, ..AggregatorWork::default() },
            )
            .await?;
        }
        self.add_relayed(&mut changes, &batch.relayed).await?;
        if all.n_contributions > 0 {
            add_to_run(&mut changes, run, n_new, &all).await?;
        }
        changes.commit().await?;
        Ok(all.n_contributions)
    }

    async fn add_refusals(
        &self,
        changes: &mut Changes,
        refused: &BTreeMap<&'static str, u64>,
    ) -> Result<(), sqlx::Error> {
        let upsert = "INSERT INTO refusals (run_id, reason, n) VALUES ($1, $2, $3) \
            ON CONFLICT (run_id, reason) DO UPDATE SET n = refusals.n + excluded.n";
        for (reason, n) in refused {
            let values = [SqlValue::Text(&self.run_id), SqlValue::Text(reason), int(*n)];
            changes.execute(upsert, &values).await?;
        }
        Ok(())
    }

    async fn add_relayed(
        &self,
        changes: &mut Changes,
        relayed: &BTreeMap<String, Relayed>,
    ) -> Result<(), sqlx::Error> {
        let upsert = "INSERT INTO relays (run_id, peer, n_contributions, n_bytes, microseconds) \
            VALUES ($1, $2, $3, $4, $5) ON CONFLICT (run_id, peer) DO UPDATE SET \
            n_contributions = relays.n_contributions + excluded.n_contributions, \
            n_bytes = relays.n_bytes + excluded.n_bytes, \
            microseconds = relays.microseconds + excluded.microseconds";
        for (peer, sums) in relayed {
            let Relayed { n_contributions, n_bytes, microseconds } = *sums;
            let (run, peer) = (SqlValue::Text(&self.run_id), SqlValue::Text(peer));
            changes
                .execute(upsert, &[run, peer, int(n_contributions), int(n_bytes), int(microseconds)])
                .await?;
        }
        Ok(())
    }

    async fn add_work(&self, changes: &mut Changes, batch: &Batch) -> Result<(), sqlx::Error> {
        if batch.work == AggregatorWork::default() && batch.recorded_before.is_none() {
            return Ok(());
        }
        self.add_work_of(changes, &self.aggregator, batch.work).await?;
        if let Some(epoch) = batch.recorded_before {
            let (run, peer) = (SqlValue::Text(&self.run_id), SqlValue::Text(&self.aggregator));
            let update = "UPDATE aggregators SET recorded_before = $3 WHERE run_id = $1 AND peer = $2";
            changes.execute(update, &[run, peer, int(epoch)]).await?;
        }
        Ok(())
    }

    async fn add_work_of(
        &self,
        changes: &mut Changes,
        peer: &str,
        work: AggregatorWork,
    ) -> Result<(), sqlx::Error> {
        let AggregatorWork { n_steps, n_bytes, microseconds } = work;
        let upsert = "INSERT INTO aggregators \
            (run_id, peer, n_steps, n_bytes, microseconds, recorded_before) \
            VALUES ($1, $2, $3, $4, $5, 0) ON CONFLICT (run_id, peer) DO UPDATE SET \
            n_steps = aggregators.n_steps + excluded.n_steps, \
            n_bytes = aggregators.n_bytes + excluded.n_bytes, \
            microseconds = aggregators.microseconds + excluded.microseconds";
        let (run, peer) = (SqlValue::Text(&self.run_id), SqlValue::Text(peer));
        changes.execute(upsert, &[run, peer, int(n_steps), int(n_bytes), int(microseconds)]).await?;
        Ok(())
    }

    /// Removes a convicted peer from the leaderboard; `epoch` is that of its wrong contribution.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn convict(&self, peer: PublicKey, epoch: u64) -> Result<(), StoreError> {
        let Some(peer) = text_of(peer) else { return Ok(()) };
        let mut changes = self.database.begin().await?;
        let insert =
            "INSERT INTO convictions (run_id, peer, epoch) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        changes.execute(insert, &[SqlValue::Text(&self.run_id), SqlValue::Text(&peer), int(epoch)]).await?;
        changes.commit().await?;
        Ok(())
    }

    /// The epoch before which this aggregator's journal is recorded.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn recorded_before(&self) -> Result<u64, StoreError> {
        let select = "SELECT recorded_before FROM aggregators WHERE run_id = $1 AND peer = $2";
        let epoch = on!(&self.database, pool => {
            let query = sqlx::query_scalar::<_, i64>(select).bind(&self.run_id).bind(&self.aggregator);
            query.fetch_optional(pool).await?
        });
        Ok(epoch.map_or(0, unsigned))
    }

    /// How many of these contributions, given by peer id and contribution id, are not in the database, as read over a new
    /// connection.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn n_missing(&self, names: &[(Vec<u8>, u64)]) -> Result<usize, StoreError> {
        let select =
            "SELECT count(*) FROM contributions WHERE run_id = $1 AND peer = $2 AND contribution_id = $3";
        let mut reader = self.database.reader().await?;
        let mut n_missing = 0;
        for (peer, contribution_id) in names {
            let Some(peer) = PublicKey::of_peer_id(peer).and_then(text_of) else { continue };
            let id = SqlValue::Int(contribution_id.cast_signed());
            let n = reader.number(select, &[SqlValue::Text(&self.run_id), SqlValue::Text(&peer), id]).await?;
            n_missing += usize::from(n == 0);
        }
        reader.close().await;
        Ok(n_missing)
    }

    /// Whether the database answers.
    pub async fn is_at_hand(&self) -> bool {
        self.database.answers().await
    }

    /// Writes what is in memory, and closes.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

/// Returns whether the contribution is new.
async fn insert(
    changes: &mut Changes,
    run: SqlValue<'_>,
    peer: &str,
    receipt: &Receipt,
) -> Result<bool, sqlx::Error> {
    let insert = "INSERT INTO contributions \
        (run_id, peer, contribution_id, epoch, n_samples, n_bytes, milliseconds, issued_at) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
    let values = [
        run,
        SqlValue::Text(peer),
        SqlValue::Int(receipt.contribution_id.cast_signed()),
        int(receipt.epoch),
        int(receipt.n_samples.into()),
        int(receipt.n_bytes),
        int(receipt.milliseconds.into()),
        int(receipt.issued_at.0),
    ];
    Ok(changes.execute(insert, &values).await? > 0)
}

/// Returns 1 where it is the first of its contributions, else 0.
async fn add_to_contributor(
    changes: &mut Changes,
    run: SqlValue<'_>,
    peer: &str,
    sums: &Sums,
) -> Result<u64, sqlx::Error> {
    let first = format!(
        "INSERT INTO contributors (run_id, {CONTRIBUTOR_COLUMNS}) VALUES ($1, $2, 0, 0, 0, 0, 0) \
        ON CONFLICT DO NOTHING"
    );
    let is_new = changes.execute(&first, &[run, SqlValue::Text(peer)]).await?;
    let update = "UPDATE contributors SET n_contributions = n_contributions + $3, \
        n_samples = n_samples + $4, n_bytes = n_bytes + $5, milliseconds = milliseconds + $6, \
        last_epoch = CASE WHEN last_epoch < $7 THEN $7 ELSE last_epoch END WHERE run_id = $1 AND peer = $2";
    let values = [
        run,
        SqlValue::Text(peer),
        int(sums.n_contributions),
        int(sums.n_samples),
        int(sums.n_bytes),
        int(sums.milliseconds),
        int(sums.last_epoch),
    ];
    changes.execute(update, &values).await?;
    Ok(is_new)
}

async fn add_to_run(
    changes: &mut Changes,
    run: SqlValue<'_>,
    n_contributors: u64,
    sums: &Sums,
) -> Result<u64, sqlx::Error> {
    let upsert = "INSERT INTO runs \
        (run_id, n_contributors, n_contributions, n_samples, n_bytes, milliseconds) \
        VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (run_id) DO UPDATE SET \
        n_contributors = runs.n_contributors + excluded.n_contributors, \
        n_contributions = runs.n_contributions + excluded.n_contributions, \
        n_samples = runs.n_samples + excluded.n_samples, n_bytes = runs.n_bytes + excluded.n_bytes, \
        milliseconds = runs.milliseconds + excluded.milliseconds";
    let values = [
        run,
        int(n_contributors),
        int(sums.n_contributions),
        int(sums.n_samples),
        int(sums.n_bytes),
        int(sums.milliseconds),
    ];
    changes.execute(upsert, &values).await
}

/// Peer id in the tables.
fn text_of(peer: PublicKey) -> Option<String> {
    peer_id(peer).map(|id| id.to_string())
}

pub(super) fn int(number: u64) -> SqlValue<'static> {
    SqlValue::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
