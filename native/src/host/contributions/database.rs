//! The database of contributions behind one interface: SQLite in a file, or PostgreSQL by its address. Knows
//! connections, transactions and values; no table.
//!
//! SQLite is written over one connection, which does nothing else, and read over others, which cannot write. A connection
//! whose transaction did not end cleanly is closed, never used again. On a full disk SQLite rolls back by itself, while
//! sqlx still counts the transaction as open, and later ones on that connection are savepoints. The first of them that
//! is rolled back leaves a transaction open that is never committed and that only this connection sees.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
#[cfg(feature = "operations")]
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{Connection as _, Sqlite, Transaction};

use crate::storage::schema;

/// Name of the file in the run's folder.
const FILE_NAME: &str = "contributions.sqlite";
/// How long a write waits for another process to finish its own.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a query waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Read connections of this process.
const CONNECTIONS_MAX: u32 = 4;
/// Takes the write lock at the beginning: no other process writes between a transaction's reads and its writes.
const BEGIN: &str = "BEGIN IMMEDIATE";

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
    /// Its tables are of another version.
    #[error("database of contributions {database}: {}", schema::why_not(source, &migrator()))]
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

/// An open database. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Database {
    Sqlite(SqliteFile),
    #[cfg(feature = "operations")]
    Postgres(PgPool),
}

/// A database in a file.
#[derive(Debug, Clone)]
pub(super) struct SqliteFile {
    pub(super) readers: SqlitePool,
    /// Of one connection.
    pub(super) writer: SqlitePool,
    options: Arc<SqliteConnectOptions>,
}

impl SqliteFile {
    async fn open(options: SqliteConnectOptions) -> Result<Self, sqlx::Error> {
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(BUSY_TIMEOUT)
            // A connection that is dropped without a commit is closed, whether or not it was rolled back.
            .after_release(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }));
        // It creates the file before the first query.
        let writer = writer.connect_with(options.clone()).await?;
        let readers =
            SqlitePoolOptions::new().max_connections(CONNECTIONS_MAX).acquire_timeout(ACQUIRE_TIMEOUT);
        let readers = readers.connect_lazy_with(reading(options.clone()));
        Ok(Self { readers, writer, options: Arc::new(options) })
    }
}

/// For a connection that cannot write, nor stay within a transaction.
fn reading(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options.pragma("query_only", "ON")
}

/// A value of a statement.
#[derive(Debug, Clone, Copy)]
pub(super) enum SqlValue<'a> {
    Int(i64),
    Text(&'a str),
}

/// A transaction of either. Dropped without a commit it changes nothing.
pub(super) enum Changes {
    Sqlite(Transaction<'static, Sqlite>),
    #[cfg(feature = "operations")]
    Postgres(Transaction<'static, sqlx::Postgres>),
}

/// Runs the same query on either database.
macro_rules! on {
    ($database:expr, $pool:ident => $answer:expr) => {
        match $database {
            $crate::host::contributions::database::Database::Sqlite(file) => {
                let $pool = &file.readers;
                $answer
            }
            #[cfg(feature = "operations")]
            $crate::host::contributions::database::Database::Postgres($pool) => $answer,
        }
    };
}
pub(super) use on;

impl Database {
    /// The file in `folder`, created if needed.
    pub(super) async fn file(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE_NAME);
        // Names and peers are for the operator only; SQLite gives its other files the mode of the first.
        let made = barnraise_relay::create_private_directory(folder)
            .and_then(|()| barnraise_relay::create_private_file(&path, &["-wal", "-shm"]));
        let opened = made.map_err(sqlx::Error::Io);
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // Commits must be durable: the journal is truncated by what is in the database.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        let database = match opened {
            Ok(()) => SqliteFile::open(options).await.map(Self::Sqlite),
            Err(error) => Err(error),
        };
        let name = path.display().to_string();
        database.map_err(|source| StoreError::Open { database: name.clone(), source })?.migrated(&name).await
    }

    /// The server at `url`, `postgres://user:password@host/database`.
    #[cfg(feature = "operations")]
    pub(super) async fn server(url: &str) -> Result<Self, StoreError> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS_MAX).acquire_timeout(ACQUIRE_TIMEOUT);
        // The part before the host may contain a password.
        let name = url.rsplit('@').next().unwrap_or_default();
        let connected = pool.connect(url).await;
        let pool = connected.map_err(|source| StoreError::Open { database: name.to_owned(), source })?;
        Self::Postgres(pool).migrated(name).await
    }

    async fn migrated(self, name: &str) -> Result<Self, StoreError> {
        let migrated = match &self {
            Self::Sqlite(file) => migrator().run(&file.writer).await,
            #[cfg(feature = "operations")]
            Self::Postgres(pool) => migrator().run(pool).await,
        };
        migrated.map_err(|source| StoreError::Migrate { database: name.to_owned(), source })?;
        Ok(self)
    }

    pub(super) async fn begin(&self) -> Result<Changes, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(file) => Changes::Sqlite(file.writer.begin_with(BEGIN).await?),
            #[cfg(feature = "operations")]
            Self::Postgres(pool) => Changes::Postgres(pool.begin().await?),
        })
    }

    /// A new connection, which reads committed data only.
    pub(super) async fn reader(&self) -> Result<Reader, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(file) => Reader::Sqlite(
                SqliteConnection::connect_with(&reading(SqliteConnectOptions::clone(&file.options))).await?,
            ),
            #[cfg(feature = "operations")]
            Self::Postgres(pool) => {
                Reader::Postgres(PgConnection::connect_with(&pool.connect_options()).await?)
            }
        })
    }

    /// Whether it answers.
    pub(super) async fn answers(&self) -> bool {
        on!(self, pool => sqlx::query("SELECT 1").execute(pool).await.is_ok())
    }

    /// Writes what is in memory, and closes.
    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(file) => {
                file.readers.close().await;
                file.writer.close().await;
            }
            #[cfg(feature = "operations")]
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

/// A connection that is separate from those for writing.
pub(super) enum Reader {
    Sqlite(SqliteConnection),
    #[cfg(feature = "operations")]
    Postgres(PgConnection),
}

impl Reader {
    /// The single number that a statement asks for.
    pub(super) async fn number(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<i64, sqlx::Error> {
        macro_rules! ask {
            ($connection:expr) => {
                values
                    .iter()
                    .fold(sqlx::query_scalar(sql), |query, value| match *value {
                        SqlValue::Int(number) => query.bind(number),
                        SqlValue::Text(text) => query.bind(text),
                    })
                    .fetch_one($connection)
                    .await
            };
        }
        match self {
            Self::Sqlite(connection) => ask!(connection),
            #[cfg(feature = "operations")]
            Self::Postgres(connection) => ask!(connection),
        }
    }

    pub(super) async fn close(self) {
        // All was read.
        let _ = match self {
            Self::Sqlite(connection) => connection.close().await,
            #[cfg(feature = "operations")]
            Self::Postgres(connection) => connection.close().await,
        };
    }
}

macro_rules! bound {
    ($sql:expr, $values:expr) => {
        $values.iter().fold(sqlx::query($sql), |query, value| match *value {
            SqlValue::Int(number) => query.bind(number),
            SqlValue::Text(text) => query.bind(text),
        })
    };
}

impl Changes {
    /// Executes a statement; returns how many rows it changed.
    pub(super) async fn execute(&mut self, sql: &str, values: &[SqlValue<'_>]) -> Result<u64, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(transaction) => {
                bound!(sql, values).execute(&mut **transaction).await?.rows_affected()
            }
            #[cfg(feature = "operations")]
            Self::Postgres(transaction) => {
                bound!(sql, values).execute(&mut **transaction).await?.rows_affected()
            }
        })
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(transaction) => transaction.commit().await,
            #[cfg(feature = "operations")]
            Self::Postgres(transaction) => transaction.commit().await,
        }
    }
}

pub(super) fn migrator() -> Migrator {
    let migration = |number, name, sql| {
        Migration::new(number, Cow::Borrowed(name), MigrationType::Simple, Cow::Borrowed(sql), false)
    };
    let all = vec![
        migration(
            1,
            "contributions",
            include_str!("../../../migrations/contributions/0001_contributions.sql"),
        ),
        migration(2, "relays", include_str!("../../../migrations/contributions/0002_relays.sql")),
        migration(3, "convictions", include_str!("../../../migrations/contributions/0003_convictions.sql")),
        migration(4, "names", include_str!("../../../migrations/contributions/0004_names.sql")),
    ];
    Migrator { migrations: Cow::Owned(all), ..Migrator::DEFAULT }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a database that there is, a migration that was made is compared: with other words it could not be opened.
    #[test]
    fn no_migration_is_ever_changed() {
        let short = |migration: &Migration| crate::storage::hex(&migration.checksum[..8]);
        let made: Vec<String> = migrator().migrations.iter().map(short).collect();
        assert_eq!(made, ["7952b09786ffb57d", "95c0f5290171dd21", "44283db47aad6ec1", "95cbf6128441004e"]);
    }
}
