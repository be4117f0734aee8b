-- Who may take part in a run. Plain SQL that SQLite and PostgreSQL both take: keys and hashes as
-- hexadecimal text, times as seconds since 1970, no sequence of the database's own.

CREATE TABLE allowlist (
    issuer TEXT NOT NULL,
    -- What of an identity is compared: 'subject', 'name' or 'email'.
    kind TEXT NOT NULL,
    value TEXT NOT NULL,
    added_at BIGINT NOT NULL,
    PRIMARY KEY (issuer, kind, value)
);

CREATE TABLE invitations (
    -- SHA-256 of the code: whoever reads this table cannot use it.
    code_hash TEXT PRIMARY KEY,
    uses_left BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

-- Which identity signed in for which peer.
CREATE TABLE logins (
    peer TEXT PRIMARY KEY,
    issuer TEXT NOT NULL,
    subject TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Empty where the provider did not say that it is verified.
    email TEXT NOT NULL,
    confirmed_at BIGINT NOT NULL
);

CREATE INDEX logins_of_identity ON logins (issuer, subject);

CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY,
    peer TEXT NOT NULL,
    user_name TEXT NOT NULL,
    -- Hash of the invitation's code, empty for a login.
    invitation TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    -- 0 or 1.
    is_revoked BIGINT NOT NULL
);

CREATE INDEX tokens_of_peer ON tokens (peer);

-- In the order in which they happened; other backbones ask for what is new.
CREATE TABLE revocations (
    seq BIGINT PRIMARY KEY,
    token_id TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);
