-- The administration area: src/administration.rs.

-- 1. Tokens that expire, that replace others, and who created them -----------------------------------------------------

ALTER TABLE tokens ADD COLUMN expires_at INTEGER; -- from this instant on it is refused like a revoked one; NULL: never
ALTER TABLE tokens ADD COLUMN created_by TEXT; -- the e-mail address of an administrator, or the system user of a command
ALTER TABLE tokens ADD COLUMN replaces INTEGER REFERENCES tokens; -- the token that this one was created to replace
ALTER TABLE tokens ADD COLUMN last_used_route TEXT; -- of the request of last_used_at, as metrics name it
ALTER TABLE tokens ADD COLUMN last_used_network TEXT; -- of the caller then: an IPv4 /24 or an IPv6 /48
ALTER TABLE tokens ADD COLUMN form_key TEXT; -- identifies the form that created it: sending a form again creates no second token
CREATE UNIQUE INDEX tokens_form_key ON tokens (form_key) WHERE form_key IS NOT NULL;

-- 2. Signing in --------------------------------------------------------------------------------------------------------

-- One-time links into the administration area that were not used yet.
CREATE TABLE admin_links (
  digest BLOB PRIMARY KEY, -- SHA-256 of the secret in the link
  email TEXT NOT NULL,
  name TEXT,
  role TEXT NOT NULL CHECK (role IN ('admin', 'viewer')),
  issuer TEXT, -- the OpenID provider that identified the administrator, by subject; NULL: a command made the link
  subject TEXT,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who is signed in to the administration area. Signing out deletes the row.
CREATE TABLE admin_sessions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  digest BLOB NOT NULL UNIQUE, -- SHA-256 of the cookie
  email TEXT NOT NULL,
  name TEXT,
  role TEXT NOT NULL CHECK (role IN ('admin', 'viewer')),
  issuer TEXT, -- the OpenID provider that identified the administrator, by subject; NULL: a link did
  subject TEXT,
  created_at INTEGER NOT NULL,
  last_seen_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL, -- when it ends however much it is used
  network TEXT NOT NULL,
  user_agent TEXT NOT NULL
) STRICT;

-- 3. The audit log -----------------------------------------------------------------------------------------------------

-- Every change that administrators and commands made. Rows are only added.
CREATE TABLE audit_log (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  actor TEXT NOT NULL,
  source TEXT NOT NULL, -- through what: administration, command, operator
  network TEXT,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  details TEXT NOT NULL, -- a JSON object
  digest BLOB NOT NULL -- SHA-256 of the digest of the row before and of this row
) STRICT;
CREATE INDEX audit_log_at ON audit_log (at);

-- The end of audit_log, so that rows missing there are noticed.
CREATE TABLE audit_state (
  singleton INTEGER PRIMARY KEY DEFAULT 1 CHECK (singleton = 1),
  last_id INTEGER NOT NULL,
  digest BLOB NOT NULL
) STRICT;
INSERT INTO audit_state (last_id, digest) VALUES (0, X'');

CREATE TRIGGER audit_log_is_not_updated BEFORE UPDATE ON audit_log
BEGIN
  SELECT RAISE(ABORT, 'rows of audit_log are only added');
END;
CREATE TRIGGER audit_log_is_not_deleted_from BEFORE DELETE ON audit_log
BEGIN
  SELECT RAISE(ABORT, 'rows of audit_log are only added');
END;

-- 4. Group syncs -------------------------------------------------------------------------------------------------------

-- Every write of a group through the API that changed something, for 90 days.
CREATE TABLE group_syncs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  group_id INTEGER NOT NULL,
  group_name TEXT NOT NULL,
  is_new INTEGER NOT NULL,
  actor TEXT NOT NULL, -- the name of the token, or the administrator who undid a sync
  token_id INTEGER,
  undoes INTEGER REFERENCES group_syncs ON DELETE SET NULL,
  attached TEXT NOT NULL, -- a JSON array of the ids of users who became members
  detached TEXT NOT NULL, -- a JSON array of the ids of users who stopped being members
  attached_count INTEGER NOT NULL,
  detached_count INTEGER NOT NULL
) STRICT;
CREATE INDEX group_syncs_group ON group_syncs (group_id, id);
CREATE INDEX group_syncs_at ON group_syncs (at);
CREATE INDEX group_syncs_undoes ON group_syncs (undoes) WHERE undoes IS NOT NULL;

-- 5. Usage -------------------------------------------------------------------------------------------------------------

-- Requests of each token in each hour that had any, written behind.
CREATE TABLE token_hours (
  hour INTEGER NOT NULL,
  token_id INTEGER NOT NULL REFERENCES tokens ON DELETE CASCADE,
  admitted INTEGER NOT NULL,
  refused INTEGER NOT NULL, -- by the rate limit
  PRIMARY KEY (hour, token_id)
) STRICT, WITHOUT ROWID;
