-- Who contributed something else than the gradient of the samples that it signed for: not on the leaderboard.
CREATE TABLE convictions (
    run_id TEXT NOT NULL,
    peer TEXT NOT NULL,
    -- Of the contribution.
    epoch BIGINT NOT NULL,
    PRIMARY KEY (run_id, peer)
);
