-- Through whom contributions came that came by circuits, as the backbones that took them saw it.
CREATE TABLE relays (
    run_id TEXT NOT NULL,
    peer TEXT NOT NULL,
    n_contributions BIGINT NOT NULL,
    n_bytes BIGINT NOT NULL,
    microseconds BIGINT NOT NULL,
    PRIMARY KEY (run_id, peer)
);
