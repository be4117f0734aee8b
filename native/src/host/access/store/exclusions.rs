//! Changes of the list, and revocations. A revocation excludes for good: it has no time that a wrong clock could pass,
//! and only a new entry on the list lifts it.

use barnraise_protocol::access::{PublicKey, RevokedToken, UnixTime};
use sqlx::{Sqlite, Transaction};

use super::{IS_ALLOWED, Identity, IdentityKind, Store, StoreError, parse_id, seconds, unix_time};

/// SQL condition: the peer $1 is excluded, or the identity that it is bound to.
pub(super) const IS_EXCLUDED: &str = "EXISTS (SELECT 1 FROM exclusions e WHERE (e.kind = 'peer' AND e.value = $1) \
    OR (e.kind = 'subject' AND EXISTS (SELECT 1 FROM logins l WHERE l.peer = $1 AND l.issuer = e.issuer \
    AND l.subject = e.value)))";

/// Result of an addition to the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllowOutcome {
    /// The entry is new.
    pub is_new: bool,
    /// It lifted an exclusion.
    pub is_back: bool,
}

/// The peers whose tokens are revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevocationTarget {
    /// Everybody of that name.
    User(String),
    /// One key.
    Peer(PublicKey),
    /// Everybody without an invitation who is not on the list any more.
    NotOnList,
}

impl Store {
    /// Adds an identity to the list, and lifts its exclusions by [`Self::revoke`].
    pub async fn allow(
        &self,
        issuer: &str,
        kind: IdentityKind,
        value: &str,
        now: UnixTime,
    ) -> Result<AllowOutcome, StoreError> {
        let mut transaction = self.pool.begin().await?;
        let insert = "INSERT INTO allowlist (issuer, kind, value, added_at) VALUES ($1, $2, $3, $4) \
            ON CONFLICT DO NOTHING";
        let query = sqlx::query(insert).bind(issuer).bind(kind.as_str()).bind(value).bind(seconds(now));
        let is_new = query.execute(&mut *transaction).await?.rows_affected() > 0;
        let lift = format!(
            "DELETE FROM exclusions WHERE EXISTS (SELECT 1 FROM logins l WHERE l.issuer = $1 \
            AND l.{} = $2 AND $2 <> '' AND ((exclusions.kind = 'peer' AND exclusions.value = l.peer) OR \
            (exclusions.kind = 'subject' AND exclusions.issuer = l.issuer AND exclusions.value = l.subject)))",
            kind.as_str()
        );
        let lifted = sqlx::query(&lift).bind(issuer).bind(value).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(AllowOutcome { is_new, is_back: lifted.rows_affected() > 0 })
    }

    /// Sets whether an entry of the list lets its identity host experts: in its next token.
    pub async fn set_may_host(
        &self,
        issuer: &str,
        kind: IdentityKind,
        value: &str,
        may_host: bool,
    ) -> Result<(), StoreError> {
        let update = "UPDATE allowlist SET may_host = $4 WHERE issuer = $1 AND kind = $2 AND value = $3";
        let query = sqlx::query(update).bind(issuer).bind(kind.as_str()).bind(value);
        query.bind(i64::from(may_host)).execute(&self.pool).await?;
        Ok(())
    }

    /// Removes an entry of the list and revokes its tokens. Returns how many; `None` where there was no such entry.
    pub async fn disallow(
        &self,
        issuer: &str,
        kind: IdentityKind,
        value: &str,
        now: UnixTime,
    ) -> Result<Option<usize>, StoreError> {
        let mut transaction = self.pool.begin().await?;
        let delete = "DELETE FROM allowlist WHERE issuer = $1 AND kind = $2 AND value = $3";
        let query = sqlx::query(delete).bind(issuer).bind(kind.as_str()).bind(value);
        if query.execute(&mut *transaction).await?.rows_affected() == 0 {
            return Ok(None);
        }
        let n_revoked = revoke_in(&mut transaction, &RevocationTarget::NotOnList, now).await?;
        transaction.commit().await?;
        Ok(Some(n_revoked))
    }

    /// Whether `identity` is excluded.
    pub async fn is_excluded(&self, identity: &Identity) -> Result<bool, StoreError> {
        let select = "SELECT COUNT(*) FROM exclusions WHERE kind = 'subject' AND issuer = $1 AND value = $2";
        let query = sqlx::query_scalar::<_, i64>(select).bind(&identity.issuer).bind(&identity.subject);
        Ok(query.fetch_one(&self.pool).await? > 0)
    }

    /// Whether `peer` is excluded, or the identity that it is bound to.
    pub async fn was_revoked(&self, peer: PublicKey) -> Result<bool, StoreError> {
        let select = format!("SELECT CASE WHEN {IS_EXCLUDED} THEN 1 ELSE 0 END");
        let query = sqlx::query_scalar::<_, i64>(&select).bind(peer.to_string());
        Ok(query.fetch_one(&self.pool).await? > 0)
    }

    /// Revokes tokens, with the invitations behind them if `with_invitations`, and excludes their holders: a peer, or every
    /// identity of that name with all its peers, until [`Self::allow`] names it again.
    /// Returns how many valid tokens were revoked.
    pub async fn revoke(
        &self,
        whose: &RevocationTarget,
        with_invitations: bool,
        now: UnixTime,
    ) -> Result<usize, StoreError> {
        let mut transaction = self.pool.begin().await?;
        exclude_in(&mut transaction, whose).await?;
        if with_invitations {
            let (column, value) = match whose {
                RevocationTarget::User(user) => ("user_name", user.clone()),
                RevocationTarget::Peer(peer) => ("peer", peer.to_string()),
                RevocationTarget::NotOnList => ("invitation", String::new()),
            };
            let end = format!(
                "UPDATE invitations SET uses_left = 0 WHERE code_hash IN \
                (SELECT invitation FROM tokens WHERE {column} = $1)"
            );
            sqlx::query(&end).bind(value).execute(&mut *transaction).await?;
        }
        let n_revoked = revoke_in(&mut transaction, whose, now).await?;
        transaction.commit().await?;
        Ok(n_revoked)
    }

    /// Whether anybody of this name has signed in or has had a token: whom [`Self::revoke`] finds by it.
    pub async fn has_user(&self, user: &str) -> Result<bool, StoreError> {
        let select = "SELECT CASE WHEN EXISTS (SELECT 1 FROM tokens WHERE user_name = $1) \
            OR EXISTS (SELECT 1 FROM logins WHERE name = $1) THEN 1 ELSE 0 END";
        let query = sqlx::query_scalar::<_, i64>(select).bind(user);
        Ok(query.fetch_one(&self.pool).await? > 0)
    }

    /// Revocations after `since`, the oldest first, at most `n_max`, and the number of the last.
    pub async fn revoked_since(
        &self,
        since: u64,
        n_max: usize,
    ) -> Result<(Vec<RevokedToken>, u64), StoreError> {
        let select = "SELECT seq, token_id, expires_at FROM revocations WHERE seq > $1 \
            ORDER BY seq LIMIT $2";
        let query = sqlx::query_as(select).bind(i64::try_from(since).unwrap_or(i64::MAX));
        let rows: Vec<(i64, String, i64)> = query.bind(n_max as i64).fetch_all(&self.pool).await?;
        let next = rows.last().map_or(since, |(seq, ..)| seq.unsigned_abs());
        let tokens = rows.into_iter().map(|(_, token_id, expires_at)| {
            Ok(RevokedToken { token_id: parse_id(&token_id)?, expires_at: unix_time(expires_at) })
        });
        Ok((tokens.collect::<Result<_, StoreError>>()?, next))
    }
}

/// Excludes the target: it gets no other token, even if it is on the list now.
async fn exclude_in(
    transaction: &mut Transaction<'_, Sqlite>,
    whose: &RevocationTarget,
) -> Result<(), StoreError> {
    let (statements, value): (&[&str], String) = match whose {
        RevocationTarget::Peer(peer) => (
            &["INSERT INTO exclusions (kind, issuer, value) VALUES ('peer', '', $1) ON CONFLICT DO NOTHING"],
            peer.to_string(),
        ),
        RevocationTarget::User(user) => (
            &[
                "INSERT INTO exclusions (kind, issuer, value) SELECT DISTINCT 'peer', '', peer FROM tokens \
                WHERE user_name = $1 ON CONFLICT DO NOTHING",
                // A token's name may be a shortened one.
                "INSERT INTO exclusions (kind, issuer, value) SELECT DISTINCT 'subject', issuer, subject \
                FROM logins WHERE name = $1 OR peer IN (SELECT peer FROM tokens WHERE user_name = $1) \
                ON CONFLICT DO NOTHING",
            ],
            user.clone(),
        ),
        // The list itself says who is not on it.
        RevocationTarget::NotOnList => return Ok(()),
    };
    for statement in statements {
        sqlx::query(statement).bind(&value).execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Revokes expired tokens as well: the clock may be wrong. The transaction has written already, so that no other writer
/// interferes. Returns how many of them were valid at `now`.
async fn revoke_in(
    transaction: &mut Transaction<'_, Sqlite>,
    whose: &RevocationTarget,
    now: UnixTime,
) -> Result<usize, StoreError> {
    let (condition, value) = match whose {
        RevocationTarget::User(user) => ("t.user_name = $1".to_owned(), user.clone()),
        RevocationTarget::Peer(peer) => ("t.peer = $1".to_owned(), peer.to_string()),
        RevocationTarget::NotOnList => (
            format!(
                "t.invitation = $1 AND NOT EXISTS (SELECT 1 FROM logins l WHERE l.peer = t.peer \
                AND {IS_ALLOWED})"
            ),
            String::new(),
        ),
    };
    // The update is the write that the transaction begins with, where nothing was written before.
    let update = format!(
        "UPDATE tokens AS t SET is_revoked = 1 WHERE t.is_revoked = 0 AND {condition} \
        RETURNING token_id, expires_at"
    );
    let query = sqlx::query_as::<_, (String, i64)>(&update).bind(value);
    let revoked = query.fetch_all(&mut **transaction).await?;
    for (token_id, expires_at) in &revoked {
        let insert = "INSERT INTO revocations (seq, token_id, expires_at) \
            SELECT COALESCE(MAX(seq), 0) + 1, $1, $2 FROM revocations";
        sqlx::query(insert).bind(token_id).bind(expires_at).execute(&mut **transaction).await?;
    }
    Ok(revoked.iter().filter(|(_, expires_at)| *expires_at > seconds(now)).count())
}
