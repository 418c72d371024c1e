-- The registry of tenants: src/store/registry.rs.

-- What every write locks first: the number of the last change. So numbers are in the order of the commits.
CREATE TABLE registry_head (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  epoch TEXT NOT NULL, -- another one after a restore: nodes then read everything again
  revision INTEGER NOT NULL
) STRICT;
INSERT INTO registry_head VALUES (1, lower(hex(randomblob(16))), 0);

-- One row is one [[tenant]] table.
CREATE TABLE registry_tenants (
  slug TEXT PRIMARY KEY,
  position INTEGER NOT NULL, -- the revision that created it: the order of lists and exports
  toml TEXT, -- NULL: it was removed
  revision INTEGER NOT NULL UNIQUE, -- of its last change
  changed_at INTEGER NOT NULL,
  changed_by TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX registry_tenants_listed ON registry_tenants (position) WHERE toml IS NOT NULL;

-- What only one tenant may have: hosts, and databases by their identity.
CREATE TABLE registry_claims (
  kind TEXT NOT NULL CHECK (kind IN ('host', 'database')),
  value TEXT NOT NULL,
  slug TEXT NOT NULL REFERENCES registry_tenants,
  PRIMARY KEY (kind, value)
) STRICT, WITHOUT ROWID;
CREATE INDEX registry_claims_slug ON registry_claims (slug);

-- The nodes, and how far each has got.
CREATE TABLE registry_nodes (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  version TEXT NOT NULL,
  revision INTEGER NOT NULL,
  refused TEXT NOT NULL, -- a JSON array of the tenants that it can't read
  beat TEXT NOT NULL, -- what the node wrote last; something else is there after a restore
  started_at INTEGER NOT NULL,
  seen_at INTEGER NOT NULL
) STRICT;

-- Tokens of the operator API.
CREATE TABLE operator_tokens (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  prefix TEXT NOT NULL,
  digest BLOB NOT NULL UNIQUE,
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  expires_at INTEGER,
  last_used_at INTEGER,
  revoked_at INTEGER
) STRICT;
