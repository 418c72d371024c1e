-- The overview of the administration area: src/administration/overview.rs.

-- The rows of `token_hours`, an hour in one row: `token admitted refused`, separated by blanks, for each token. The overview
-- reads 30 days of them, which are tens of thousands of rows of that table. Written in the same transaction.
CREATE TABLE token_hour_lists (
  hour INTEGER PRIMARY KEY,
  counts TEXT NOT NULL
) STRICT;
INSERT INTO token_hour_lists (hour, counts)
SELECT hour, group_concat(token_id || ' ' || admitted || ' ' || refused, ' ') FROM token_hours GROUP BY hour;

-- All that the overview needs to count tokens.
CREATE INDEX tokens_overview ON tokens (expires_at, last_used_at, created_at) WHERE revoked_at IS NULL;
