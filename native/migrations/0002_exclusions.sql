-- Who was sent away: a key, or an identity. Being put on the list again lifts it, and nothing else does: no time stands
-- here that a clock could be set to.

CREATE TABLE exclusions (
    -- 'peer' or 'subject'.
    kind TEXT NOT NULL,
    -- Of a subject; empty of a peer.
    issuer TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (kind, issuer, value)
);
