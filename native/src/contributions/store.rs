//! The database of who gave what: each contribution once, and the sums over them.
//!
//! Rows of contributions and their sums change in one transaction, and a contribution that is there already
//! changes nothing: the same may be written again after a crash. Decides nothing; what is asked of it is
//! answered in `answers`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::receipt::Receipt;
use libp2p::PeerId;

use super::answers::Shown;
use super::database::{Changes, Database, Value, on};
use super::relays::Relayed;
use crate::access::peer_id;
use crate::storage::schema;

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be opened.
    #[error("database of contributions {database}: {source}")]
    Open {
        /// The file, or the server.
        database: String,
        /// What it said.
        source: sqlx::Error,
    },
    /// Its tables are not those of this version.
    #[error("database of contributions {database}: {}", schema::why_not(source, &super::database::migrator()))]
    Migrate {
        /// The file, or the server.
        database: String,
        /// Which migration, and why.
        source: sqlx::migrate::MigrateError,
    },
    /// A statement failed.
    #[error("database of contributions: {0}")]
    Query(#[from] sqlx::Error),
}

/// What is written at once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Accepted contributions, old or new.
    pub receipts: Vec<Receipt>,
    /// How many more were refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// What more the aggregator did.
    pub work: Work,
    /// What more came through relays, by their ids in base58.
    pub relayed: BTreeMap<String, Relayed>,
    /// Encoded bytes that native peers averaged more, by their ids in base58.
    pub reduced: BTreeMap<String, u64>,
    /// All contributions of earlier epochs in the aggregator's journal are recorded then.
    pub recorded_before: Option<u64>,
}

/// What an aggregator did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Optimizer steps.
    pub n_steps: u64,
    /// Encoded bytes that were averaged.
    pub n_bytes: u64,
    /// Time that it took.
    pub microseconds: u64,
}

impl Work {
    /// What was done more than `before`.
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
    pub(super) shown: Arc<Shown>,
}

/// Of some contributions.
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
            Some(url) => Database::server(url).await?,
            None => Database::file(folder).await?,
        };
        Ok(Self {
            database,
            run_id: run_id.to_owned(),
            aggregator: aggregator.to_string(),
            shown: Arc::default(),
        })
    }

    /// Writes a batch, all of it or nothing; returns how many of its contributions were new.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn record(&self, batch: &Batch) -> Result<u64, StoreError> {
        let mut changes = self.database.begin().await?;
        let run = Value::Text(&self.run_id);
        let mut of_peers: BTreeMap<String, Sums> = BTreeMap::new();
        let mut all = Sums::default();
        for receipt in &batch.receipts {
            let Some(peer) = text_of(receipt.peer) else { continue };
            if insert(&mut changes, run, &peer, receipt).await? {
                of_peers.entry(peer).or_default().add(receipt);
                all.add(receipt);
            }
        }
        // In the order of their keys, so that two backbones with one database seldom wait for each other in
        // a circle; where they do, one of them is told to try again.
        let mut n_new = 0;
        for (peer, sums) in &of_peers {
            n_new += add_to_contributor(&mut changes, run, peer, sums).await?;
        }
        self.add_refusals(&mut changes, &batch.refused).await?;
        self.add_work(&mut changes, batch).await?;
        for (peer, n_bytes) in &batch.reduced {
            self.add_work_of(&mut changes, peer, Work { n_bytes: *n_bytes, ..Work::default() }).await?;
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
            let values = [Value::Text(&self.run_id), Value::Text(reason), int(*n)];
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
            let (run, peer) = (Value::Text(&self.run_id), Value::Text(peer));
            changes
                .execute(upsert, &[run, peer, int(n_contributions), int(n_bytes), int(microseconds)])
                .await?;
        }
        Ok(())
    }

    async fn add_work(&self, changes: &mut Changes, batch: &Batch) -> Result<(), sqlx::Error> {
        if batch.work == Work::default() && batch.recorded_before.is_none() {
            return Ok(());
        }
        self.add_work_of(changes, &self.aggregator, batch.work).await?;
        if let Some(epoch) = batch.recorded_before {
            let (run, peer) = (Value::Text(&self.run_id), Value::Text(&self.aggregator));
            let update = "UPDATE aggregators SET recorded_before = $3 WHERE run_id = $1 AND peer = $2";
            changes.execute(update, &[run, peer, int(epoch)]).await?;
        }
        Ok(())
    }

    async fn add_work_of(&self, changes: &mut Changes, peer: &str, work: Work) -> Result<(), sqlx::Error> {
        let Work { n_steps, n_bytes, microseconds } = work;
        let upsert = "INSERT INTO aggregators \
            (run_id, peer, n_steps, n_bytes, microseconds, recorded_before) \
            VALUES ($1, $2, $3, $4, $5, 0) ON CONFLICT (run_id, peer) DO UPDATE SET \
            n_steps = aggregators.n_steps + excluded.n_steps, \
            n_bytes = aggregators.n_bytes + excluded.n_bytes, \
            microseconds = aggregators.microseconds + excluded.microseconds";
        let (run, peer) = (Value::Text(&self.run_id), Value::Text(peer));
        changes.execute(upsert, &[run, peer, int(n_steps), int(n_bytes), int(microseconds)]).await?;
        Ok(())
    }

    /// `peer` is on the leaderboard no longer, for what it contributed to `epoch`.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn convict(&self, peer: PublicKey, epoch: u64) -> Result<(), StoreError> {
        let Some(peer) = text_of(peer) else { return Ok(()) };
        let mut changes = self.database.begin().await?;
        let insert =
            "INSERT INTO convictions (run_id, peer, epoch) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        changes.execute(insert, &[Value::Text(&self.run_id), Value::Text(&peer), int(epoch)]).await?;
        changes.commit().await?;
        Ok(())
    }

    /// Up to which epoch, itself excluded, this aggregator's journal is recorded.
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
    run: Value<'_>,
    peer: &str,
    receipt: &Receipt,
) -> Result<bool, sqlx::Error> {
    let insert = "INSERT INTO contributions \
        (run_id, peer, contribution_id, epoch, n_samples, n_bytes, milliseconds, issued_at) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING";
    let values = [
        run,
        Value::Text(peer),
        Value::Int(receipt.contribution_id.cast_signed()),
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
    run: Value<'_>,
    peer: &str,
    sums: &Sums,
) -> Result<u64, sqlx::Error> {
    let first = format!(
        "INSERT INTO contributors (run_id, {CONTRIBUTOR_COLUMNS}) VALUES ($1, $2, 0, 0, 0, 0, 0) \
        ON CONFLICT DO NOTHING"
    );
    let is_new = changes.execute(&first, &[run, Value::Text(peer)]).await?;
    let update = "UPDATE contributors SET n_contributions = n_contributions + $3, \
        n_samples = n_samples + $4, n_bytes = n_bytes + $5, milliseconds = milliseconds + $6, \
        last_epoch = CASE WHEN last_epoch < $7 THEN $7 ELSE last_epoch END WHERE run_id = $1 AND peer = $2";
    let values = [
        run,
        Value::Text(peer),
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
    run: Value<'_>,
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

/// As the tables name a peer.
fn text_of(peer: PublicKey) -> Option<String> {
    peer_id(peer).map(|id| id.to_string())
}

pub(super) fn int(number: u64) -> Value<'static> {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
