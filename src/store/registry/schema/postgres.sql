-- The registry of tenants on Postgres: src/store/registry.rs. Only formgate writes it. sqlite.sql has the same tables in the
-- same order.
--
-- Until the first release this script is edited in place, and formgate refuses a registry of an earlier edit. A released
-- script never changes.

-- Tenants

-- Every write locks this row first, and takes the next revision. So revisions are in the order of the commits.
CREATE TABLE registry_head (
  id integer PRIMARY KEY CHECK (id = 1),
  epoch text NOT NULL, -- changes when the registry is restored: nodes then read everything again
  revision bigint NOT NULL
);
INSERT INTO registry_head VALUES (1, gen_random_uuid()::text, 0);

-- The history of the revisions: a random stamp for each value that the head has had. A registry that was restored gives the
-- same revisions again, with other stamps, and a restored copy is byte for byte the old one. So whoever keeps a revision keeps
-- its stamp too: another one, or none, is another history. Kept for 30 days.
CREATE TABLE registry_stamps (
  revision bigint PRIMARY KEY,
  stamp bigint NOT NULL,
  at timestamptz NOT NULL
);
CREATE INDEX registry_stamps_at ON registry_stamps (at);

-- In the statement that takes a revision, whoever writes it. As the owner, so that a role that takes revisions needs no more.
CREATE FUNCTION registry_stamp() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('INSERT INTO %I.registry_stamps VALUES ($1, $2, clock_timestamp()) '
    'ON CONFLICT (revision) DO UPDATE SET stamp = excluded.stamp, at = excluded.at', TG_TABLE_SCHEMA)
    USING NEW.revision, ('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
  RETURN NULL;
END
$$;
CREATE TRIGGER registry_head_moved AFTER UPDATE OF revision ON registry_head
  FOR EACH ROW WHEN (NEW.revision <> OLD.revision) EXECUTE FUNCTION registry_stamp();

-- A row is one [[tenant]] table. That of a removed tenant remains, with what it has again if it comes back.
CREATE TABLE registry_tenants (
  slug text PRIMARY KEY,
  position bigint NOT NULL, -- the revision that created it, which orders lists and exports
  toml text, -- NULL: the tenant was removed
  domains text NOT NULL DEFAULT '[]', -- a JSON array of the domains that it has proved
  identity text, -- of its database, if it is known: domains belong to a slug and a database
  label_proves boolean NOT NULL DEFAULT TRUE, -- no other database had the slug before, for which aliases to its label may remain
  revision bigint NOT NULL UNIQUE, -- of its last change
  changed_at timestamptz NOT NULL,
  changed_by text NOT NULL,
  erasing text, -- the table of a tenant that is being erased: nobody serves it, and its database may still be there
  erasing_database text, -- which database that is, as in registry_databases
  is_erased boolean NOT NULL DEFAULT FALSE -- nothing of it is kept: nodes drop its certificates too
);
CREATE UNIQUE INDEX registry_tenants_listed ON registry_tenants (position) WHERE toml IS NOT NULL;
CREATE INDEX registry_tenants_erased ON registry_tenants (slug) WHERE is_erased;

-- What only one tenant may have: hosts, and databases by their addresses. Two addresses may lead to one database: see
-- registry_databases.
CREATE TABLE registry_claims (
  kind text NOT NULL CHECK (kind IN ('host', 'database')),
  value text NOT NULL,
  slug text NOT NULL REFERENCES registry_tenants,
  PRIMARY KEY (kind, value)
);
CREATE INDEX registry_claims_slug ON registry_claims (slug);

-- Which database each tenant has, as whoever opened it found. Of several tenants with one database, the one that was found first
-- has it; nodes do not serve the others.
CREATE TABLE registry_databases (
  slug text PRIMARY KEY,
  address text NOT NULL, -- as in registry_claims: with another one there, the row says nothing
  database text NOT NULL, -- a hash of its identity, and of where it is on its server
  since bigint NOT NULL UNIQUE, -- which tenant was found first
  owner text -- the tenant that has this database; NULL: this one
);
CREATE INDEX registry_databases_database ON registry_databases (database, since);
CREATE INDEX registry_databases_owner ON registry_databases (owner) WHERE owner IS NOT NULL;

-- Nodes and operators

-- The nodes, and up to which revision each of them has read.
CREATE TABLE registry_nodes (
  id text PRIMARY KEY,
  name text NOT NULL,
  version text NOT NULL,
  revision bigint NOT NULL,
  stamp bigint NOT NULL, -- of the revision: without it in registry_stamps, the node follows another history
  refused text NOT NULL, -- a JSON array of the first tenants that it can't read, in alphabetical order
  reasons text NOT NULL, -- a JSON array: why it can't read each of these
  refused_count bigint NOT NULL, -- how many tenants it can't read
  seal_keys text, -- a JSON array of the ids of its keys, first the one that seals
  beat text NOT NULL, -- what the node wrote last; another value shows that the registry was restored
  started_at timestamptz NOT NULL,
  seen_at timestamptz NOT NULL,
  unable text, -- a JSON array of the tenants that it can't look after; NULL: it looks after none
  unable_mark text, -- another one whenever that changes
  closing text NOT NULL DEFAULT '[]' -- a JSON array of tenants that were removed, whose databases it has still open
);

-- Which tenants have subscriptions, for nodes that start: without it they would have to open every database. Each row is as
-- it was when its number was taken; one that is TRUE without a subscription costs little, so it is set first and cleared late.
CREATE TABLE registry_subscribed (
  slug text PRIMARY KEY,
  place text NOT NULL, -- a hash of where the database is: with another one, nothing is known
  is_subscribed boolean NOT NULL,
  number bigint NOT NULL UNIQUE, -- in the order of the commits
  changed_at timestamptz NOT NULL
);

-- Moves of accounts to other databases, for 400 days after their end. One that is open has work for a node: to move the account,
-- or to remove what that needed.
CREATE TABLE registry_moves (
  id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  slug text NOT NULL,
  state text NOT NULL CHECK (state IN ('copying', 'catching_up', 'holding', 'done', 'cancelled', 'failed')),
  reason text, -- why it failed, or what it waits for
  source text NOT NULL, -- the database that the account leaves, without a password
  target text NOT NULL, -- the one to which it moves, without a password
  old_database text NOT NULL, -- the same as the table of the tenant had it before
  database text NOT NULL, -- and as it has it afterwards
  place text NOT NULL, -- its address, as registry_claims has it afterwards
  identity text NOT NULL, -- of the account's database
  host text, -- the only host whose nodes have the files; NULL: any
  hold bigint NOT NULL DEFAULT 0, -- how often nodes were asked to have the account's requests wait
  held_ms bigint, -- how long they waited in the end
  asked_by text NOT NULL,
  created_at timestamptz NOT NULL,
  is_open boolean NOT NULL DEFAULT TRUE,
  is_switching boolean NOT NULL DEFAULT FALSE, -- it can't be cancelled any more
  leased_by text, -- the node that carries it out
  leased_until timestamptz,
  fence bigint NOT NULL DEFAULT 0 -- grows with each lease
);
CREATE UNIQUE INDEX registry_moves_open ON registry_moves (slug) WHERE is_open;

-- The nodes that have the requests of an account wait.
CREATE TABLE registry_holds (
  move_id bigint NOT NULL REFERENCES registry_moves ON DELETE CASCADE,
  node text NOT NULL,
  hold bigint NOT NULL, -- as in registry_moves
  PRIMARY KEY (move_id, node)
);

-- Tokens of the operator API. A token is stored nowhere: digest is its SHA-256, and prefix is its beginning, to recognize it
-- by.
CREATE TABLE operator_tokens (
  id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  name text NOT NULL,
  prefix text NOT NULL,
  digest bytea NOT NULL UNIQUE,
  created_at timestamptz NOT NULL,
  created_by text NOT NULL,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz
);

-- Domains and certificates

-- The state of every host without a certificate from a file. Tenants of files have rows too, so slug has no foreign key. A
-- host has one row for its owner, and one for each tenant that has not proved it. The owner alone has the host in
-- registry_claims: by its table, or by the first proof.
CREATE TABLE registry_domains (
  host text NOT NULL,
  slug text NOT NULL,
  is_added boolean NOT NULL, -- it was added as a domain, so its owner has to prove it
  by_account boolean NOT NULL DEFAULT FALSE, -- an administrator of the account added it
  proof text NOT NULL, -- what a TXT record has to contain
  proved_since timestamptz, -- of the owner: when it was proved; of others: since when each check has found a proof
  proved_by text CHECK (proved_by IN ('own_label', 'txt')), -- the proof that the last check found
  state text NOT NULL CHECK (state IN ('claimed', 'dns', 'verified', 'queued', 'issuing', 'live', 'failing',
    'gone', 'removed')),
  reason text NOT NULL, -- a JSON object: what is wrong, or {}
  since timestamptz NOT NULL, -- when it got into this state
  created_at timestamptz NOT NULL,
  checked_at timestamptz, -- when DNS was last queried
  next_at timestamptz NOT NULL, -- when a node checks it next
  failures bigint NOT NULL, -- how many orders have failed in a row
  renew_at timestamptz, -- when the certificate is renewed
  is_late boolean NOT NULL, -- whether the event for a late renewal was written
  pending text, -- the order under way: a JSON object with a sealed key
  leased_by text, -- the node that works on it
  leased_until timestamptz,
  fence bigint NOT NULL, -- grows with each lease: a node whose lease has expired writes nothing
  asked bigint NOT NULL DEFAULT 0, -- the fence of the lease for which somebody waits, or did
  asked_at timestamptz, -- since when
  PRIMARY KEY (host, slug)
);
CREATE INDEX registry_domains_due ON registry_domains (next_at);
CREATE INDEX registry_domains_asked ON registry_domains (asked_at) WHERE asked > fence;
CREATE INDEX registry_domains_slug ON registry_domains (slug, host);
CREATE INDEX registry_domains_state ON registry_domains (state, host, slug) WHERE state <> 'live';
CREATE INDEX registry_domains_late ON registry_domains (host) WHERE is_late;

-- Certificates, which every node takes over like tenants. The row of a deleted one remains, without a chain.
CREATE TABLE registry_certificates (
  host text PRIMARY KEY,
  slug text NOT NULL, -- served for this tenant only
  revision bigint NOT NULL, -- not unique in the snapshot of a node, which may have some of before a restore
  chain text, -- PEM, leaf first
  key text, -- PEM, sealed
  authority text NOT NULL,
  not_before timestamptz NOT NULL,
  not_after timestamptz NOT NULL
);
CREATE INDEX registry_certificates_revision ON registry_certificates (revision);
CREATE INDEX registry_certificates_ending ON registry_certificates (not_after) WHERE chain IS NOT NULL;

-- Changes without a call of the operator API, for its change feed.
CREATE TABLE registry_events (
  revision bigint PRIMARY KEY,
  kind text NOT NULL,
  slug text NOT NULL,
  host text NOT NULL,
  detail text NOT NULL, -- a JSON object
  at timestamptz NOT NULL
);
CREATE INDEX registry_events_at ON registry_events (at);

-- What all nodes together may order from each CA: token buckets, by the instant at which each is full again.
CREATE TABLE registry_budgets (
  name text PRIMARY KEY,
  full_at timestamptz NOT NULL
);

-- The sealed key of the accounts at the CAs.
CREATE TABLE registry_acme_account (
  id integer PRIMARY KEY CHECK (id = 1),
  key text NOT NULL
);

-- What one node has counted for all of them, since it costs more with each domain. In the snapshot of a node: up to where it
-- has all certificates.
CREATE TABLE registry_counts (
  id integer PRIMARY KEY CHECK (id = 1),
  counts text NOT NULL, -- a JSON object
  next_at timestamptz NOT NULL, -- when they are counted again
  leased_until timestamptz -- a node counts
);
INSERT INTO registry_counts VALUES (1, '{}', now(), NULL);
