//! The access database of a run: allowlist, invitations, logins, tokens, revocations.
//!
//! An SQLite file in the run's folder. The backbone and the command line use it at the same time, so each decision
//! that must not be made twice is one statement, or one transaction that begins with its write.
//! Invitation codes are never stored, only their hashes.

mod exclusions;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{PublicKey, TokenId, UnixTime};
use barnraise_relay::{create_private_directory, create_private_file};
use sqlx::Connection as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteExecutor, SqliteJournalMode, SqlitePool, SqlitePoolOptions};

use self::exclusions::IS_EXCLUDED;
pub use self::exclusions::{AllowOutcome, RevocationTarget};

use crate::storage::schema;

/// Name of the file in the run's folder.
pub const FILE_NAME: &str = "access.sqlite";
/// Longest wait of one process for another one's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections of this process.
const CONNECTIONS_MAX: u32 = 4;
/// This many of the newest tokens are kept even after they expired. By a clock that is ahead all tokens have expired;
/// once it is right again, a deleted token could be neither renewed nor revoked. All peers that a gate admits have fewer
/// valid tokens.
const TOKENS_KEPT: i64 = 200_000;
/// SQLite's result codes for a full disk: in general, and for the shared-memory file of its connections. Extended codes
/// have the general code in their last byte.
const SQLITE_FULL: u32 = 13;
const SQLITE_IOERR_SHMSIZE: u32 = 4874;
/// Most keys for which one identity may sign in.
pub const PEERS_OF_IDENTITY_MAX: i64 = 64;

/// SQL condition: the list has an entry of the identity of a row of `logins l`, of which this holds as well.
macro_rules! is_listed {
    ($also:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM allowlist a WHERE a.issuer = l.issuer AND (\
            (a.kind = 'subject' AND a.value = l.subject) OR (a.kind = 'name' AND a.value = l.name) \
            OR (a.kind = 'email' AND a.value = l.email AND l.email <> ''))",
            $also,
            ")"
        )
    };
}

/// SQL condition: the identity of a row of `logins l` is on the list.
const IS_ALLOWED: &str = is_listed!("");
/// SQL condition: an entry of the list lets it host experts.
const MAY_HOST: &str = is_listed!(" AND a.may_host = 1");

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Its folder or file cannot be created.
    #[error("access database {}: {source}", path.display())]
    Folder {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// It cannot be opened.
    #[error("access database {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of SQLite.
        source: sqlx::Error,
    },
    /// Its tables are not those of this version.
    #[error("access database {}: {}", path.display(), schema::why_not(source, &migrator()))]
    Migrate {
        /// The file.
        path: PathBuf,
        /// The migration and its error.
        source: sqlx::migrate::MigrateError,
    },
    /// A statement failed.
    #[error("access database: {0}")]
    Query(#[from] sqlx::Error),
    /// A stored value is malformed.
    #[error("access database: {what} {got:?} makes no sense")]
    Value {
        /// Name of the value.
        what: &'static str,
        /// The stored value.
        got: String,
    },
}

impl StoreError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        let Self::Query(sqlx::Error::Database(error)) = self else { return false };
        let code = error.code().and_then(|code| code.parse::<u32>().ok());
        code.is_some_and(is_full_code)
    }
}

fn is_full_code(code: u32) -> bool {
    code & 0xff == SQLITE_FULL || code == SQLITE_IOERR_SHMSIZE
}

/// The part of an identity that an entry of the list is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum IdentityKind {
    /// The provider's user name (`preferred_username`). People may change it at some providers.
    Name,
    /// An address that the provider has verified.
    Email,
    /// The provider's own, unchanging identifier.
    Subject,
}

impl IdentityKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Email => "email",
            Self::Subject => "subject",
        }
    }
}

/// The identity of a person, as an identity provider attests it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Issuer URL of the provider.
    pub issuer: String,
    /// The provider's identifier of the person.
    pub subject: String,
    /// User name; the subject where there is none.
    pub name: String,
    /// Verified address, or empty.
    pub email: String,
}

/// An entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Issuer URL of the provider.
    pub issuer: String,
    /// `name`, `email` or `subject`.
    pub kind: String,
    /// Value of that part of the identity.
    pub value: String,
}

/// What an invitation is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvitationTerms {
    /// Peers that may redeem it.
    pub uses: u32,
    /// End of its validity.
    pub expires_at: UnixTime,
    /// Whether those who redeem it may also host experts.
    pub may_host: bool,
}

/// An access token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedToken {
    /// Id of the token.
    pub token_id: TokenId,
    /// Name of the user.
    pub user: String,
    /// Key that the token is valid for.
    pub peer: PublicKey,
    /// End of its validity.
    pub expires_at: UnixTime,
    /// Hash of the invitation, empty for a login.
    pub invitation: String,
    /// Whether the peer may also host experts.
    pub may_host: bool,
}

/// Result of recording a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginOutcome {
    /// The peer is bound to the identity.
    Yes,
    /// The identity has [`PEERS_OF_IDENTITY_MAX`] keys already.
    TooManyKeys,
    /// The peer is bound to another identity, and stays so.
    AnothersPeer,
}

/// Result of redeeming an invitation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedeemOutcome {
    /// The invitation was valid and is used once more; its hash.
    Yes(String),
    /// The same peer had redeemed it before; its hash.
    Before(String),
    /// No such code.
    Unknown,
    /// No use is left.
    UsedUp,
    /// It expired at this time.
    Expired(UnixTime),
    /// The peer's access was revoked meanwhile.
    Excluded,
}

/// The open database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    pool: SqlitePool,
}

type TokenRow = (String, String, String, i64, String, i64);

impl Store {
    /// Opens the database in `folder`, after creating and migrating it if need be.
    ///
    /// # Errors
    /// The folder or the file cannot be used, or a newer version wrote the database.
    pub async fn open(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(FILE_NAME);
        // The list is private; SQLite gives its other files the mode of the first.
        create_private_directory(folder)
            .and_then(|()| create_private_file(&path, &["-wal", "-shm"]))
            .map_err(|source| StoreError::Folder { path: path.clone(), source })?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            // A full disk ends a transaction by itself, and what follows on that connection would never be committed.
            .after_release(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
            .connect_with(options)
            .await;
        let pool = pool.map_err(|source| StoreError::Open { path: path.clone(), source })?;
        let migrated = migrator().run(&pool).await;
        migrated.map_err(|source| StoreError::Migrate { path, source })?;
        Ok(Self { pool })
    }

    /// All entries of the list.
    pub async fn allowed(&self) -> Result<Vec<Entry>, StoreError> {
        let select = "SELECT issuer, kind, value FROM allowlist ORDER BY issuer, value, kind";
        let rows: Vec<(String, String, String)> = sqlx::query_as(select).fetch_all(&self.pool).await?;
        Ok(rows.into_iter().map(|(issuer, kind, value)| Entry { issuer, kind, value }).collect())
    }

    /// Creates an invitation that `code` redeems.
    pub async fn invite(&self, code: &str, terms: InvitationTerms, now: UnixTime) -> Result<(), StoreError> {
        let InvitationTerms { uses, expires_at, may_host } = terms;
        let insert = "INSERT INTO invitations (code_hash, uses_left, expires_at, created_at, may_host) \
            VALUES ($1, $2, $3, $4, $5)";
        let query = sqlx::query(insert).bind(hash(code)).bind(i64::from(uses)).bind(seconds(expires_at));
        query.bind(seconds(now)).bind(i64::from(may_host)).execute(&self.pool).await?;
        Ok(())
    }

    /// Whether those who redeem the invitation with this hash may host experts.
    pub async fn invites_hosts(&self, invitation: &str) -> Result<bool, StoreError> {
        let select = "SELECT may_host FROM invitations WHERE code_hash = $1";
        let query = sqlx::query_scalar::<_, i64>(select).bind(invitation);
        Ok(query.fetch_optional(&self.pool).await? == Some(1))
    }

    /// Whether `code` would redeem an invitation at `now`. Nothing is changed.
    pub async fn is_good(&self, code: &str, now: UnixTime) -> Result<bool, StoreError> {
        let select = "SELECT COUNT(*) FROM invitations \
            WHERE code_hash = $1 AND uses_left > 0 AND expires_at > $2";
        let query = sqlx::query_scalar::<_, i64>(select).bind(hash(code)).bind(seconds(now));
        Ok(query.fetch_one(&self.pool).await? > 0)
    }

    /// Whether the database has an invitation whose code has this hash, used up or expired ones included.
    pub async fn has_invitation(&self, code_hash: &Sha256Hash) -> Result<bool, StoreError> {
        let select = "SELECT COUNT(*) FROM invitations WHERE code_hash = $1";
        let query = sqlx::query_scalar::<_, i64>(select).bind(code_hash.to_string());
        Ok(query.fetch_one(&self.pool).await? > 0)
    }

    /// Uses an invitation once and stores `token` with the invitation's hash, in one transaction: a full disk costs no use.
    /// A peer that redeemed it before uses it no second time, and may have another token: the answer to its first request
    /// may have been lost.
    pub async fn redeem(
        &self,
        code: &str,
        token: IssuedToken,
        now: UnixTime,
    ) -> Result<RedeemOutcome, StoreError> {
        let (hash, peer) = (hash(code), token.peer);
        let used = "SELECT COUNT(*) FROM tokens WHERE peer = $1 AND invitation = $2 AND is_revoked = 0 \
            AND (expires_at > $3 OR EXISTS \
            (SELECT 1 FROM invitations i WHERE i.code_hash = $2 AND i.expires_at > $3))";
        let query = sqlx::query_scalar::<_, i64>(used).bind(peer.to_string()).bind(&hash).bind(seconds(now));
        if query.fetch_one(&self.pool).await? > 0 {
            return Ok(RedeemOutcome::Before(hash));
        }
        let take = "UPDATE invitations SET uses_left = uses_left - 1 \
            WHERE code_hash = $1 AND uses_left > 0 AND expires_at > $2";
        let mut transaction = self.pool.begin().await?;
        let taken = sqlx::query(take).bind(&hash).bind(seconds(now)).execute(&mut *transaction).await?;
        if taken.rows_affected() > 0 {
            let select = "SELECT may_host FROM invitations WHERE code_hash = $1";
            let query = sqlx::query_scalar::<_, i64>(select).bind(&hash);
            let may_host = query.fetch_one(&mut *transaction).await? == 1;
            let token = IssuedToken { invitation: hash.clone(), may_host, ..token };
            if !insert(&token, &mut *transaction).await? {
                return Ok(RedeemOutcome::Excluded);
            }
            transaction.commit().await?;
            return Ok(RedeemOutcome::Yes(hash));
        }
        drop(transaction);
        let why = "SELECT expires_at FROM invitations WHERE code_hash = $1";
        let expires_at = sqlx::query_scalar::<_, i64>(why).bind(&hash).fetch_optional(&self.pool).await?;
        Ok(match expires_at.map(unix_time) {
            None => RedeemOutcome::Unknown,
            Some(expires_at) if expires_at <= now => RedeemOutcome::Expired(expires_at),
            Some(_) => RedeemOutcome::UsedUp,
        })
    }

    /// Binds `peer` to `identity`, unless it is bound to another identity, or this one has too many keys.
    pub async fn sign_in(
        &self,
        peer: PublicKey,
        identity: &Identity,
        now: UnixTime,
    ) -> Result<LoginOutcome, StoreError> {
        let Identity { issuer, subject, name, email } = identity;
        let insert = "INSERT INTO logins (peer, issuer, subject, name, email, confirmed_at) \
            SELECT $1, $2, $3, $4, $5, $6 WHERE \
            (SELECT COUNT(*) FROM logins WHERE issuer = $2 AND subject = $3 AND peer <> $1) < $7 \
            ON CONFLICT (peer) DO UPDATE SET name = excluded.name, email = excluded.email, \
            confirmed_at = excluded.confirmed_at \
            WHERE logins.issuer = excluded.issuer AND logins.subject = excluded.subject";
        let query = sqlx::query(insert).bind(peer.to_string()).bind(issuer).bind(subject).bind(name);
        let query = query.bind(email).bind(seconds(now)).bind(PEERS_OF_IDENTITY_MAX);
        if query.execute(&self.pool).await?.rows_affected() > 0 {
            return Ok(LoginOutcome::Yes);
        }
        let others = "SELECT COUNT(*) FROM logins WHERE peer = $1 AND NOT (issuer = $2 AND subject = $3)";
        let query = sqlx::query_scalar::<_, i64>(others).bind(peer.to_string()).bind(issuer).bind(subject);
        let is_anothers = query.fetch_one(&self.pool).await? > 0;
        Ok(if is_anothers { LoginOutcome::AnothersPeer } else { LoginOutcome::TooManyKeys })
    }

    /// Name of the identity that `peer` is bound to, and whether it is on the list; `None` for an unbound peer.
    pub async fn login(&self, peer: PublicKey) -> Result<Option<(String, bool)>, StoreError> {
        let select = format!(
            "SELECT l.name, CASE WHEN {IS_ALLOWED} THEN 1 ELSE 0 END FROM logins l WHERE l.peer = $1"
        );
        let query = sqlx::query_as::<_, (String, i64)>(&select).bind(peer.to_string());
        let row = query.fetch_optional(&self.pool).await?;
        Ok(row.map(|(name, is_allowed)| (name, is_allowed == 1)))
    }

    /// Whether an entry of the list lets the identity that `peer` is bound to host experts.
    pub async fn login_may_host(&self, peer: PublicKey) -> Result<bool, StoreError> {
        let select = format!("SELECT COUNT(*) FROM logins l WHERE l.peer = $1 AND {MAY_HOST}");
        let query = sqlx::query_scalar::<_, i64>(&select).bind(peer.to_string());
        Ok(query.fetch_one(&self.pool).await? > 0)
    }

    /// Whether `identity` is on the list.
    pub async fn is_allowed(&self, identity: &Identity) -> Result<bool, StoreError> {
        let select = format!(
            "SELECT CASE WHEN {IS_ALLOWED} THEN 1 ELSE 0 END FROM \
            (SELECT $1 AS issuer, $2 AS subject, $3 AS name, $4 AS email) l"
        );
        let Identity { issuer, subject, name, email } = identity;
        let query = sqlx::query_scalar::<_, i64>(&select).bind(issuer).bind(subject).bind(name).bind(email);
        Ok(query.fetch_one(&self.pool).await? == 1)
    }

    /// Stores a token; `false` where the peer's access was revoked, which may have happened meanwhile.
    pub async fn issue(&self, issued: &IssuedToken) -> Result<bool, StoreError> {
        insert(issued, &self.pool).await
    }

    /// Tokens valid at `now`, the latest expiry first.
    pub async fn tokens(&self, now: UnixTime) -> Result<Vec<IssuedToken>, StoreError> {
        let select = "SELECT token_id, user_name, peer, expires_at, invitation, may_host FROM tokens \
            WHERE is_revoked = 0 AND expires_at > $1 ORDER BY expires_at DESC";
        let rows: Vec<TokenRow> = sqlx::query_as(select).bind(seconds(now)).fetch_all(&self.pool).await?;
        rows.into_iter().map(issued).collect()
    }

    /// The token of `peer` with the latest expiry, if one is valid at `now`.
    pub async fn token_of(&self, peer: PublicKey, now: UnixTime) -> Result<Option<IssuedToken>, StoreError> {
        let select = "SELECT token_id, user_name, peer, expires_at, invitation, may_host FROM tokens \
            WHERE peer = $1 AND is_revoked = 0 AND expires_at > $2 ORDER BY expires_at DESC, rowid DESC LIMIT 1";
        let query = sqlx::query_as(select).bind(peer.to_string()).bind(seconds(now));
        query.fetch_optional(&self.pool).await?.map(issued).transpose()
    }

    /// Deletes tokens that expired before `now`. Kept are the newest ones, those of an invitation that is still valid, and
    /// revoked ones. Revocations keep their numbers for ever.
    pub async fn forget_expired(&self, now: UnixTime) -> Result<(), StoreError> {
        let delete = "DELETE FROM tokens WHERE expires_at <= $1 AND is_revoked = 0 \
            AND rowid <= (SELECT MAX(rowid) FROM tokens) - $2 AND NOT EXISTS \
            (SELECT 1 FROM invitations i WHERE i.code_hash = tokens.invitation AND i.expires_at > $1)";
        sqlx::query(delete).bind(seconds(now)).bind(TOKENS_KEPT).execute(&self.pool).await?;
        Ok(())
    }

    /// Writes the write-ahead log into the file, and closes the database.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Inserts a token unless its peer is excluded; returns whether it was inserted.
async fn insert(issued: &IssuedToken, database: impl SqliteExecutor<'_>) -> Result<bool, StoreError> {
    let insert = format!(
        "INSERT INTO tokens (peer, token_id, user_name, invitation, expires_at, is_revoked, may_host) \
        SELECT $1, $2, $3, $4, $5, 0, $6 WHERE NOT {IS_EXCLUDED}"
    );
    let query = sqlx::query(&insert).bind(issued.peer.to_string()).bind(id_text(issued.token_id));
    let query = query.bind(&issued.user).bind(&issued.invitation).bind(seconds(issued.expires_at));
    let query = query.bind(i64::from(issued.may_host));
    Ok(query.execute(database).await?.rows_affected() > 0)
}

fn migrator() -> Migrator {
    let migration = |number, name, sql| {
        Migration::new(number, Cow::Borrowed(name), MigrationType::Simple, Cow::Borrowed(sql), false)
    };
    let all = vec![
        migration(1, "access", include_str!("../../../migrations/0001_access.sql")),
        migration(2, "exclusions", include_str!("../../../migrations/0002_exclusions.sql")),
        migration(3, "hosts", include_str!("../../../migrations/0003_hosts.sql")),
    ];
    Migrator { migrations: Cow::Owned(all), ..Migrator::DEFAULT }
}

fn issued(row: TokenRow) -> Result<IssuedToken, StoreError> {
    let (token_id, user, peer, expires_at, invitation, may_host) = row;
    let token_id = parse_id(&token_id)?;
    let key = peer.parse().map_err(|_| StoreError::Value { what: "peer", got: peer })?;
    let (expires_at, may_host) = (unix_time(expires_at), may_host == 1);
    Ok(IssuedToken { token_id, user, peer: key, expires_at, invitation, may_host })
}

fn hash(code: &str) -> String {
    Sha256Hash::of(code.as_bytes()).to_string()
}

fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn unix_time(seconds: i64) -> UnixTime {
    UnixTime(seconds.try_into().unwrap_or(0))
}

fn id_text(TokenId(bytes): TokenId) -> String {
    crate::host::hex(&bytes)
}

fn parse_id(text: &str) -> Result<TokenId, StoreError> {
    let value = || StoreError::Value { what: "token id", got: text.to_owned() };
    let number = u128::from_str_radix(text, 16).map_err(|_| value())?;
    Ok(TokenId(number.to_be_bytes()))
}
