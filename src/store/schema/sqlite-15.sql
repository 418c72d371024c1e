-- The delivery of webhooks: src/webhooks.rs.

-- 1. Subscriptions, with how far each has got --------------------------------------------------------------------------

-- SQLite can't change the condition on a column, so the table is created again.
ALTER TABLE subscriptions RENAME TO subscriptions_before;
DROP INDEX subscriptions_triple;
DROP INDEX subscriptions_form;
-- Receivers of events. Created and deleted through the API only.
CREATE TABLE subscriptions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  target_url TEXT NOT NULL CHECK (length(target_url) BETWEEN 1 AND 2048),
  event TEXT NOT NULL CHECK (event IN ('submission.created', 'submission.updated', 'submission.deleted')),
  form_id INTEGER REFERENCES forms ON DELETE CASCADE, -- NULL: every form
  secret TEXT NOT NULL, -- signs what is delivered; shown once, when the subscription is created
  created_at INTEGER NOT NULL,
  state TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'failing', 'disabled', 'gone')),
  reason TEXT, -- why it is in this state, unless it is active
  previous_secret TEXT,
  previous_secret_until INTEGER,
  position INTEGER, -- every event up to this number was delivered or set aside; NULL: begins with what happens from now on
  done_beyond TEXT NOT NULL DEFAULT '[]', -- a JSON array of the numbers beyond the position that were delivered or set aside
  failures INTEGER NOT NULL DEFAULT 0, -- how many attempts to reach the receiver failed since the last success
  failing_since INTEGER,
  next_attempt_at INTEGER,
  last_success_at INTEGER,
  leased_by TEXT, -- which sender delivers now: only it may write how far the subscription has got
  leased_until INTEGER
) STRICT;
-- What happened before is not delivered.
INSERT INTO subscriptions (id, target_url, event, form_id, secret, created_at, position)
  SELECT id, target_url, event, form_id, secret, created_at, (SELECT last_seq FROM change_state) FROM subscriptions_before;
-- No id is given twice.
DELETE FROM sqlite_sequence WHERE name = 'subscriptions';
INSERT INTO sqlite_sequence (name, seq) SELECT 'subscriptions', seq FROM sqlite_sequence WHERE name = 'subscriptions_before';
DROP TABLE subscriptions_before;
CREATE UNIQUE INDEX subscriptions_triple ON subscriptions (target_url, event, coalesce(form_id, 0));
CREATE INDEX subscriptions_form ON subscriptions (form_id) WHERE form_id IS NOT NULL;

-- 2. Events that were not delivered in their turn ----------------------------------------------------------------------

-- Events whose attempts failed, or that are to be sent again. Every attempt of one id has the same body.
CREATE TABLE webhook_events (
  subscription_id INTEGER NOT NULL REFERENCES subscriptions ON DELETE CASCADE,
  seq INTEGER NOT NULL,
  submission_id INTEGER NOT NULL,
  event_id TEXT,
  attempts INTEGER NOT NULL DEFAULT 0,
  failed_at INTEGER, -- when the first attempt failed
  next_attempt_at INTEGER, -- when it is sent, whatever the position; NULL: in its turn, or never if it was given up
  given_up INTEGER NOT NULL DEFAULT 0,
  body TEXT, -- what was sent; NULL: nothing yet; last, so that the others are read without it
  PRIMARY KEY (subscription_id, seq)
) STRICT, WITHOUT ROWID;

-- 3. The delivery log --------------------------------------------------------------------------------------------------

-- The latest attempts of each subscription, bounded by age and number.
CREATE TABLE webhook_attempts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  subscription_id INTEGER NOT NULL REFERENCES subscriptions ON DELETE CASCADE,
  event_id TEXT NOT NULL,
  event TEXT NOT NULL,
  submission_id INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  at INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL,
  accepted INTEGER NOT NULL,
  status INTEGER,
  error TEXT, -- why there was no answer
  response TEXT -- the beginning of the answer
) STRICT;
CREATE INDEX webhook_attempts_subscription ON webhook_attempts (subscription_id, id);
