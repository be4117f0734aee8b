//! The two databases that contributions may be in, behind one face: SQLite in a file, PostgreSQL by its
//! address. Knows connections, transactions and values; no table.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Postgres, Sqlite, Transaction};

use super::StoreError;

/// Name of the file in the run's folder.
const FILE_NAME: &str = "contributions.sqlite";
/// How long a write waits for another process to finish its own.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a question waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections of this process.
const CONNECTIONS_MAX: u32 = 4;

/// An open database. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Database {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// What is written of a row.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Int(i64),
    Text(&'a str),
}

/// A transaction of either. Dropped without a commit it changes nothing.
pub(super) enum Changes {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
}

/// Either pool, in the same words.
macro_rules! on {
    ($database:expr, $pool:ident => $answer:expr) => {
        match $database {
            $crate::contributions::database::Database::Sqlite($pool) => $answer,
            $crate::contributions::database::Database::Postgres($pool) => $answer,
        }
    };
}
pub(super) use on;

impl Database {
    /// The file in `folder`, made if need be.
    pub(super) async fn file(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE_NAME);
        // Names and peers are for whoever operates the run; SQLite gives its other files the mode of the first.
        let made = barnraise_relay::create_private_directory(folder)
            .and_then(|()| barnraise_relay::create_private_file(&path, &["-wal", "-shm"]));
        let opened = made.map_err(sqlx::Error::Io);
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // What is committed stays: the journal of contributions is cut by what is in here.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS_MAX).acquire_timeout(ACQUIRE_TIMEOUT);
        let database = match opened {
            Ok(()) => pool.connect_with(options).await.map(Self::Sqlite),
            Err(error) => Err(error),
        };
        let name = path.display().to_string();
        database.map_err(|source| StoreError::Open { database: name.clone(), source })?.migrated(&name).await
    }

    /// The server at `url`, `postgres://user:password@host/database`.
    pub(super) async fn server(url: &str) -> Result<Self, StoreError> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS_MAX).acquire_timeout(ACQUIRE_TIMEOUT);
        // What stands before the host may be a password.
        let name = url.rsplit('@').next().unwrap_or_default();
        let connected = pool.connect(url).await;
        let pool = connected.map_err(|source| StoreError::Open { database: name.to_owned(), source })?;
        Self::Postgres(pool).migrated(name).await
    }

    async fn migrated(self, name: &str) -> Result<Self, StoreError> {
        let migrated = on!(&self, pool => migrator().run(pool).await);
        migrated.map_err(|source| StoreError::Migrate { database: name.to_owned(), source })?;
        Ok(self)
    }

    pub(super) async fn begin(&self) -> Result<Changes, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => Changes::Sqlite(pool.begin().await?),
            Self::Postgres(pool) => Changes::Postgres(pool.begin().await?),
        })
    }

    /// Whether it answers.
    pub(super) async fn answers(&self) -> bool {
        on!(self, pool => sqlx::query("SELECT 1").execute(pool).await.is_ok())
    }

    /// Writes what is in memory, and closes.
    pub(super) async fn close(&self) {
        on!(self, pool => pool.close().await);
    }
}

macro_rules! bound {
    ($sql:expr, $values:expr) => {
        $values.iter().fold(sqlx::query($sql), |query, value| match *value {
            Value::Int(number) => query.bind(number),
            Value::Text(text) => query.bind(text),
        })
    };
}

impl Changes {
    /// Executes a statement; returns how many rows it changed.
    pub(super) async fn execute(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(transaction) => {
                bound!(sql, values).execute(&mut **transaction).await?.rows_affected()
            }
            Self::Postgres(transaction) => {
                bound!(sql, values).execute(&mut **transaction).await?.rows_affected()
            }
        })
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(transaction) => transaction.commit().await,
            Self::Postgres(transaction) => transaction.commit().await,
        }
    }
}

pub(super) fn migrator() -> Migrator {
    let migration = |number, name, sql| {
        Migration::new(number, Cow::Borrowed(name), MigrationType::Simple, Cow::Borrowed(sql), false)
    };
    let all = vec![
        migration(1, "contributions", include_str!("../../migrations/contributions/0001_contributions.sql")),
        migration(2, "relays", include_str!("../../migrations/contributions/0002_relays.sql")),
        migration(3, "convictions", include_str!("../../migrations/contributions/0003_convictions.sql")),
        migration(4, "names", include_str!("../../migrations/contributions/0004_names.sql")),
    ];
    Migrator { migrations: Cow::Owned(all), ..Migrator::DEFAULT }
}
