-- Who may also host experts. Each is 0 or 1.

ALTER TABLE allowlist ADD COLUMN may_host BIGINT NOT NULL DEFAULT 0;
ALTER TABLE invitations ADD COLUMN may_host BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN may_host BIGINT NOT NULL DEFAULT 0;
