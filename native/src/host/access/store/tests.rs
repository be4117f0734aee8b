#![allow(clippy::unwrap_used)]

use barnraise_protocol::access::KeyPair;

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

#[test]
fn a_full_disk_has_two_codes_and_the_general_one_may_be_extended() {
    // SQLITE_IOERR, SQLITE_CANTOPEN and SQLITE_IOERR_SHMOPEN, among others.
    for (code, is_full) in
        [(13, true), (13 + 256, true), (4874, true), (10, false), (14, false), (4618, false), (255, false)]
    {
        assert_eq!(is_full_code(code), is_full, "{code}");
    }
}

#[tokio::test]
async fn a_database_that_may_not_grow_says_that_it_is_full_and_any_other_error_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).await.unwrap();
    let mut connection = store.pool.acquire().await.unwrap();
    // As large as it is.
    sqlx::query("PRAGMA max_page_count = 1").execute(&mut *connection).await.unwrap();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) \
        INSERT INTO tokens (peer, token_id, user_name, invitation, expires_at, is_revoked) \
        SELECT 'peer', 'token ' || i, 'user', '', 1000, 0 FROM n";
    let full = sqlx::query(fill).execute(&mut *connection).await.unwrap_err();
    assert!(StoreError::from(full).is_full());
    let wrong = sqlx::query("SELECT * FROM nothing").execute(&mut *connection).await.unwrap_err();
    assert!(!StoreError::from(wrong).is_full());
    assert!(!StoreError::Value { what: "peer", got: String::new() }.is_full());
}

#[test]
fn a_number_that_is_no_time_or_no_id_is_told_or_bounded() {
    assert_eq!((unix_time(-1), unix_time(7)), (UnixTime(0), UnixTime(7)));
    assert_eq!((seconds(UnixTime(u64::MAX)), seconds(UnixTime(7))), (i64::MAX, 7));
    let id = TokenId([7; 16]);
    assert_eq!(parse_id(&id_text(id)).unwrap(), id);
    assert!(matches!(parse_id("no id"), Err(StoreError::Value { what: "token id", .. })));
}

/// `barnraise revoke` refuses a name that it would find nobody by.
#[tokio::test]
async fn a_name_is_known_once_somebody_of_it_has_signed_in_or_had_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).await.unwrap();
    let [signed_in, guest] = [2, 3].map(|seed| KeyPair::from_seed(&[seed; 32]).public());
    let identity = Identity {
        issuer: "https://id.example".into(),
        subject: "7".into(),
        name: "alice".into(),
        email: String::new(),
    };
    store.sign_in(signed_in, &identity, UnixTime(1000)).await.unwrap();
    let issued = IssuedToken {
        token_id: TokenId([7; 16]),
        user: "guest".into(),
        peer: guest,
        expires_at: UnixTime(2000),
        invitation: String::new(),
        may_host: false,
    };
    assert!(store.issue(&issued).await.unwrap());
    for (name, is_known) in [("alice", true), ("guest", true), ("bob", false), ("", false)] {
        assert_eq!(store.has_user(name).await.unwrap(), is_known, "{name}");
    }
}
