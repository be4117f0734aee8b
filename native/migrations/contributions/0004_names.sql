-- How contributors want to be called. Anybody may call themselves anything.
CREATE TABLE names (
    run_id TEXT NOT NULL,
    peer TEXT NOT NULL,
    name TEXT NOT NULL,
    changed_at BIGINT NOT NULL,
    -- An operator who sets this to 1 hides the name for good, whatever the peer calls itself from then on.
    is_hidden BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, peer)
);
