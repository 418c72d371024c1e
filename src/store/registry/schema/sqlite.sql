-- The registry of tenants on SQLite: src/store/registry.rs. Only formgate writes it. postgres.sql has the same tables in the
-- same order. Instants are whole microseconds since 1970-01-01T00:00:00Z.
--
-- Until the first release this script is edited in place, and formgate refuses a registry of an earlier edit. A released
-- script never changes.

-- Tenants

-- Every write locks this row first, and takes the next revision. So revisions are in the order of the commits.
CREATE TABLE registry_head (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  epoch TEXT NOT NULL, -- changes when the registry is restored: nodes then read everything again
  revision INTEGER NOT NULL
) STRICT;
INSERT INTO registry_head VALUES (1, lower(hex(randomblob(16))), 0);

-- The history of the revisions: a random stamp for each value that the head has had. A registry that was restored gives the
-- same revisions again, with other stamps, and a restored copy is byte for byte the old one. So whoever keeps a revision keeps
-- its stamp too: another one, or none, is another history. Kept for 30 days.
CREATE TABLE registry_stamps (
  revision INTEGER PRIMARY KEY,
  stamp INTEGER NOT NULL,
  at INTEGER NOT NULL
) STRICT;
CREATE INDEX registry_stamps_at ON registry_stamps (at);

-- In the statement that takes a revision, whoever writes it.
CREATE TRIGGER registry_head_moved AFTER UPDATE OF revision ON registry_head WHEN NEW.revision <> OLD.revision BEGIN
  INSERT INTO registry_stamps
    VALUES (NEW.revision, random(), CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
    ON CONFLICT (revision) DO UPDATE SET stamp = excluded.stamp, at = excluded.at;
END;

-- A row is one [[tenant]] table. That of a removed tenant remains, with what it has again if it comes back.
CREATE TABLE registry_tenants (
  slug TEXT PRIMARY KEY,
  position INTEGER NOT NULL, -- the revision that created it, which orders lists and exports
  toml TEXT, -- NULL: the tenant was removed
  domains TEXT NOT NULL DEFAULT '[]', -- a JSON array of the domains that it has proved
  identity TEXT, -- of its database, if it is known: domains belong to a slug and a database
  label_proves INTEGER NOT NULL DEFAULT 1, -- no other database had the slug before, for which aliases to its label may remain
  revision INTEGER NOT NULL UNIQUE, -- of its last change
  changed_at INTEGER NOT NULL,
  changed_by TEXT NOT NULL,
  erasing TEXT, -- the table of a tenant that is being erased: nobody serves it, and its database may still be there
  erasing_database TEXT, -- which database that is, as in registry_databases
  is_erased INTEGER NOT NULL DEFAULT 0 -- nothing of it is kept: nodes drop its certificates too
) STRICT;
CREATE UNIQUE INDEX registry_tenants_listed ON registry_tenants (position) WHERE toml IS NOT NULL;
CREATE INDEX registry_tenants_erased ON registry_tenants (slug) WHERE is_erased;

-- What only one tenant may have: hosts, and databases by their addresses. Two addresses may lead to one database: see
-- registry_databases.
CREATE TABLE registry_claims (
  kind TEXT NOT NULL CHECK (kind IN ('host', 'database')),
  value TEXT NOT NULL,
  slug TEXT NOT NULL REFERENCES registry_tenants,
  PRIMARY KEY (kind, value)
) STRICT, WITHOUT ROWID;
CREATE INDEX registry_claims_slug ON registry_claims (slug);

-- Which database each tenant has, as whoever opened it found. Of several tenants with one database, the one that was found first
-- has it; nodes do not serve the others.
CREATE TABLE registry_databases (
  slug TEXT PRIMARY KEY,
  address TEXT NOT NULL, -- as in registry_claims: with another one there, the row says nothing
  database TEXT NOT NULL, -- a hash of its identity, and of where it is on its server
  since INTEGER NOT NULL UNIQUE, -- which tenant was found first
  owner TEXT -- the tenant that has this database; NULL: this one
) STRICT;
CREATE INDEX registry_databases_database ON registry_databases (database, since);
CREATE INDEX registry_databases_owner ON registry_databases (owner) WHERE owner IS NOT NULL;

-- Nodes and operators

-- The nodes, and up to which revision each of them has read.
CREATE TABLE registry_nodes (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  version TEXT NOT NULL,
  revision INTEGER NOT NULL,
  stamp INTEGER NOT NULL, -- of the revision: without it in registry_stamps, the node follows another history
  refused TEXT NOT NULL, -- a JSON array of the first tenants that it can't read, in alphabetical order
  reasons TEXT NOT NULL, -- a JSON array: why it can't read each of these
  refused_count INTEGER NOT NULL, -- how many tenants it can't read
  seal_keys TEXT, -- a JSON array of the ids of its keys, first the one that seals
  beat TEXT NOT NULL, -- what the node wrote last; another value shows that the registry was restored
  started_at INTEGER NOT NULL,
  seen_at INTEGER NOT NULL,
  unable TEXT, -- a JSON array of the tenants that it can't look after; NULL: it looks after none
  unable_mark TEXT, -- another one whenever that changes
  closing TEXT NOT NULL DEFAULT '[]' -- a JSON array of tenants that were removed, whose databases it has still open
) STRICT;

-- Which tenants have subscriptions, for nodes that start: without it they would have to open every database. Each row is as
-- it was when its number was taken; one that is TRUE without a subscription costs little, so it is set first and cleared late.
CREATE TABLE registry_subscribed (
  slug TEXT PRIMARY KEY,
  place TEXT NOT NULL, -- a hash of where the database is: with another one, nothing is known
  is_subscribed INTEGER NOT NULL,
  number INTEGER NOT NULL UNIQUE, -- in the order of the commits
  changed_at INTEGER NOT NULL
) STRICT;

-- Moves of accounts to other databases, for 400 days after their end. One that is open has work for a node: to move the account,
-- or to remove what that needed.
CREATE TABLE registry_moves (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  slug TEXT NOT NULL,
  state TEXT NOT NULL, -- copying, catching_up, holding, done, cancelled or failed
  reason TEXT, -- why it failed, or what it waits for
  source TEXT NOT NULL, -- the database that the account leaves, without a password
  target TEXT NOT NULL, -- the one to which it moves, without a password
  old_database TEXT NOT NULL, -- the same as the table of the tenant had it before
  database TEXT NOT NULL, -- and as it has it afterwards
  place TEXT NOT NULL, -- its address, as registry_claims has it afterwards
  identity TEXT NOT NULL, -- of the account's database
  host TEXT, -- the only host whose nodes have the files; NULL: any
  hold INTEGER NOT NULL DEFAULT 0, -- how often nodes were asked to have the account's requests wait
  held_ms INTEGER, -- how long they waited in the end
  asked_by TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  is_open INTEGER NOT NULL DEFAULT TRUE,
  is_switching INTEGER NOT NULL DEFAULT FALSE, -- it can't be cancelled any more
  leased_by TEXT, -- the node that carries it out
  leased_until INTEGER,
  fence INTEGER NOT NULL DEFAULT 0 -- grows with each lease
) STRICT;
CREATE UNIQUE INDEX registry_moves_open ON registry_moves (slug) WHERE is_open;

-- The nodes that have the requests of an account wait.
CREATE TABLE registry_holds (
  move_id INTEGER NOT NULL REFERENCES registry_moves ON DELETE CASCADE,
  node TEXT NOT NULL,
  hold INTEGER NOT NULL, -- as in registry_moves
  PRIMARY KEY (move_id, node)
) STRICT, WITHOUT ROWID;

-- Tokens of the operator API. A token is stored nowhere: digest is its SHA-256, and prefix is its beginning, to recognize it
-- by.
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

-- Domains and certificates

-- The state of every host without a certificate from a file. Tenants of files have rows too, so slug has no foreign key. A
-- host has one row for its owner, and one for each tenant that has not proved it. The owner alone has the host in
-- registry_claims: by its table, or by the first proof.
CREATE TABLE registry_domains (
  host TEXT NOT NULL,
  slug TEXT NOT NULL,
  is_added INTEGER NOT NULL, -- it was added as a domain, so its owner has to prove it
  by_account INTEGER NOT NULL DEFAULT 0, -- an administrator of the account added it
  proof TEXT NOT NULL, -- what a TXT record has to contain
  proved_since INTEGER, -- of the owner: when it was proved; of others: since when each check has found a proof
  proved_by TEXT CHECK (proved_by IN ('own_label', 'txt')), -- the proof that the last check found
  state TEXT NOT NULL CHECK (state IN ('claimed', 'dns', 'verified', 'queued', 'issuing', 'live', 'failing',
    'gone', 'removed')),
  reason TEXT NOT NULL, -- a JSON object: what is wrong, or {}
  since INTEGER NOT NULL, -- when it got into this state
  created_at INTEGER NOT NULL,
  checked_at INTEGER, -- when DNS was last queried
  next_at INTEGER NOT NULL, -- when a node checks it next
  failures INTEGER NOT NULL, -- how many orders have failed in a row
  renew_at INTEGER, -- when the certificate is renewed
  is_late INTEGER NOT NULL, -- whether the event for a late renewal was written
  pending TEXT, -- the order under way: a JSON object with a sealed key
  leased_by TEXT, -- the node that works on it
  leased_until INTEGER,
  fence INTEGER NOT NULL, -- grows with each lease: a node whose lease has expired writes nothing
  asked INTEGER NOT NULL DEFAULT 0, -- the fence of the lease for which somebody waits, or did
  asked_at INTEGER, -- since when
  PRIMARY KEY (host, slug)
) STRICT;
CREATE INDEX registry_domains_due ON registry_domains (next_at);
CREATE INDEX registry_domains_asked ON registry_domains (asked_at) WHERE asked > fence;
CREATE INDEX registry_domains_slug ON registry_domains (slug, host);
CREATE INDEX registry_domains_state ON registry_domains (state, host, slug) WHERE state <> 'live';
CREATE INDEX registry_domains_late ON registry_domains (host) WHERE is_late;

-- Certificates, which every node takes over like tenants. The row of a deleted one remains, without a chain.
CREATE TABLE registry_certificates (
  host TEXT PRIMARY KEY,
  slug TEXT NOT NULL, -- served for this tenant only
  revision INTEGER NOT NULL, -- not unique in the snapshot of a node, which may have some of before a restore
  chain TEXT, -- PEM, leaf first
  key TEXT, -- PEM, sealed
  authority TEXT NOT NULL,
  not_before INTEGER NOT NULL,
  not_after INTEGER NOT NULL
) STRICT;
CREATE INDEX registry_certificates_revision ON registry_certificates (revision);
CREATE INDEX registry_certificates_ending ON registry_certificates (not_after) WHERE chain IS NOT NULL;

-- Changes without a call of the operator API, for its change feed.
CREATE TABLE registry_events (
  revision INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  slug TEXT NOT NULL,
  host TEXT NOT NULL,
  detail TEXT NOT NULL, -- a JSON object
  at INTEGER NOT NULL
) STRICT;
CREATE INDEX registry_events_at ON registry_events (at);

-- What all nodes together may order from each CA: token buckets, by the instant at which each is full again.
CREATE TABLE registry_budgets (
  name TEXT PRIMARY KEY,
  full_at INTEGER NOT NULL
) STRICT;

-- The sealed key of the accounts at the CAs.
CREATE TABLE registry_acme_account (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  key TEXT NOT NULL
) STRICT;

-- What one node has counted for all of them, since it costs more with each domain. In the snapshot of a node: up to where it
-- has all certificates.
CREATE TABLE registry_counts (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  counts TEXT NOT NULL, -- a JSON object
  next_at INTEGER NOT NULL, -- when they are counted again
  leased_until INTEGER -- a node counts
) STRICT;
INSERT INTO registry_counts VALUES (1, '{}', 0, NULL);
