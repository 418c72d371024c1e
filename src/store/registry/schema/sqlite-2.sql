-- Domains and their certificates: src/store/registry/domains.rs.

-- Hosts of a tenant that are not in its table: a JSON array. Each is claimed, like those of the table.
ALTER TABLE registry_tenants ADD COLUMN domains TEXT NOT NULL DEFAULT '[]';

-- The life of every host that no file gives a certificate. Tenants of files have rows here too, so there is no reference.
-- A host has one row for its owner, which has the claim, and one for each tenant that contests it.
CREATE TABLE registry_domains (
  host TEXT NOT NULL,
  slug TEXT NOT NULL,
  is_added INTEGER NOT NULL, -- it came through `domain add`, so its owner has to prove it
  proof TEXT NOT NULL, -- what a TXT record has to be
  proved_since INTEGER, -- since when each look saw a proof
  state TEXT NOT NULL CHECK (state IN ('claimed', 'dns', 'verified', 'queued', 'issuing', 'live', 'failing', 'removed')),
  reason TEXT NOT NULL, -- a JSON object: what is wrong, or {}
  since INTEGER NOT NULL, -- of the state
  created_at INTEGER NOT NULL,
  checked_at INTEGER, -- when DNS was asked last
  next_at INTEGER NOT NULL, -- when a node looks at it next
  failures INTEGER NOT NULL, -- orders that failed in a row
  renew_at INTEGER, -- when the certificate is renewed
  is_late INTEGER NOT NULL, -- the event for a late renewal was written
  pending TEXT, -- the order under way: a JSON object whose key is sealed
  leased_by TEXT, -- the node that works on it
  leased_until INTEGER,
  fence INTEGER NOT NULL, -- grows with each lease: a node whose lease ran out writes nothing
  PRIMARY KEY (host, slug)
) STRICT;
CREATE INDEX registry_domains_due ON registry_domains (next_at);
CREATE INDEX registry_domains_slug ON registry_domains (slug, host);

-- The certificates, which every node takes over like a tenant. One that is gone stays as a row without a chain.
CREATE TABLE registry_certificates (
  host TEXT PRIMARY KEY,
  slug TEXT NOT NULL, -- served for this tenant only
  revision INTEGER NOT NULL UNIQUE,
  chain TEXT, -- PEM, leaf first
  key TEXT, -- PEM, sealed
  authority TEXT NOT NULL,
  not_before INTEGER NOT NULL,
  not_after INTEGER NOT NULL
) STRICT;

-- What happens without a call of the operator API: for its change feed.
CREATE TABLE registry_events (
  revision INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  slug TEXT NOT NULL,
  host TEXT NOT NULL,
  detail TEXT NOT NULL, -- a JSON object
  at INTEGER NOT NULL
) STRICT;

-- The budgets of the authorities, over all nodes: token buckets, each by the instant at which it is full again.
CREATE TABLE registry_budgets (
  name TEXT PRIMARY KEY,
  full_at INTEGER NOT NULL
) STRICT;

-- The key of the accounts at the authorities, sealed.
CREATE TABLE registry_acme_account (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  key TEXT NOT NULL
) STRICT;
