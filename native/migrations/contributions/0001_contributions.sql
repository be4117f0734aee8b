-- Who gave what to a run. Plain SQL that SQLite and PostgreSQL both take: peers by their ids in base58, times
-- as seconds since 1970. Several runs, and several backbones of a run, may share a database.

-- One row for each contribution that was accepted: what its receipt says.
CREATE TABLE contributions (
    run_id TEXT NOT NULL,
    peer TEXT NOT NULL,
    -- As the peer named it; above 2^63 it is stored as the negative number with the same bits.
    contribution_id BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    n_samples BIGINT NOT NULL,
    n_bytes BIGINT NOT NULL,
    milliseconds BIGINT NOT NULL,
    issued_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, peer, contribution_id)
);

-- Their sums for each peer: the leaderboard is read off the index.
CREATE TABLE contributors (
    run_id TEXT NOT NULL,
    peer TEXT NOT NULL,
    n_contributions BIGINT NOT NULL,
    n_samples BIGINT NOT NULL,
    n_bytes BIGINT NOT NULL,
    milliseconds BIGINT NOT NULL,
    last_epoch BIGINT NOT NULL,
    PRIMARY KEY (run_id, peer)
);

CREATE INDEX contributors_by_samples ON contributors (run_id, n_samples DESC, peer);

-- And for each run.
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    n_contributors BIGINT NOT NULL,
    n_contributions BIGINT NOT NULL,
    n_samples BIGINT NOT NULL,
    n_bytes BIGINT NOT NULL,
    milliseconds BIGINT NOT NULL
);

-- Who averaged for the others.
CREATE TABLE aggregators (
    run_id TEXT NOT NULL,
    peer TEXT NOT NULL,
    n_steps BIGINT NOT NULL,
    n_bytes BIGINT NOT NULL,
    microseconds BIGINT NOT NULL,
    -- All contributions of earlier epochs in this peer's journal are in this database.
    recorded_before BIGINT NOT NULL,
    PRIMARY KEY (run_id, peer)
);

CREATE TABLE refusals (
    run_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (run_id, reason)
);
