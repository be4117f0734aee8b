#![allow(clippy::unwrap_used)]

use super::*;

/// SQLx compares the checksums of applied migrations: a changed one would make existing databases unusable.
#[test]
fn no_migration_is_ever_changed() {
    let made = migrator()
        .migrations
        .iter()
        .map(|migration| crate::host::hex(&migration.checksum[..8]))
        .collect::<Vec<_>>();
    assert_eq!(made, ["fa8d8ca5081124cf", "e0a3ef501dcf3097", "54f2a22aace21563"]);
}

#[tokio::test]
async fn tokens_that_expired_are_remembered_within_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).await.unwrap();
    let give = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1) \
        INSERT INTO tokens (peer, token_id, user_name, invitation, expires_at, is_revoked) \
        SELECT 'peer', 'token ' || i, 'user', '', CASE WHEN i = 2 THEN 2000 ELSE 1000 END, i = 3 FROM n";
    sqlx::query(give).bind(TOKENS_KEPT + 10).execute(&store.pool).await.unwrap();
    store.forget_expired(UnixTime(1500)).await.unwrap();
    let n_kept = sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM tokens").fetch_one(&store.pool).await;
    // One of the oldest is in force, and one was taken back.
    assert_eq!(n_kept.unwrap(), TOKENS_KEPT + 2);
}
