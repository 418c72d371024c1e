-- Domains and their certificates: src/store/registry/domains.rs.

-- Hosts of a tenant that are not in its table: a JSON array. Each is claimed, like those of the table.
ALTER TABLE registry_tenants ADD COLUMN domains text NOT NULL DEFAULT '[]';

-- The life of every host that no file gives a certificate. Tenants of files have rows here too, so there is no reference.
-- A host has one row for its owner, which has the claim, and one for each tenant that contests it.
CREATE TABLE registry_domains (
  host text NOT NULL,
  slug text NOT NULL,
  is_added boolean NOT NULL, -- it came through `domain add`, so its owner has to prove it
  proof text NOT NULL, -- what a TXT record has to be
  proved_since timestamptz, -- since when each look saw a proof
  state text NOT NULL CHECK (state IN ('claimed', 'dns', 'verified', 'queued', 'issuing', 'live', 'failing', 'removed')),
  reason text NOT NULL, -- a JSON object: what is wrong, or {}
  since timestamptz NOT NULL, -- of the state
  created_at timestamptz NOT NULL,
  checked_at timestamptz, -- when DNS was asked last
  next_at timestamptz NOT NULL, -- when a node looks at it next
  failures bigint NOT NULL, -- orders that failed in a row
  renew_at timestamptz, -- when the certificate is renewed
  is_late boolean NOT NULL, -- the event for a late renewal was written
  pending text, -- the order under way: a JSON object whose key is sealed
  leased_by text, -- the node that works on it
  leased_until timestamptz,
  fence bigint NOT NULL, -- grows with each lease: a node whose lease ran out writes nothing
  PRIMARY KEY (host, slug)
);
CREATE INDEX registry_domains_due ON registry_domains (next_at);
CREATE INDEX registry_domains_slug ON registry_domains (slug, host);

-- The certificates, which every node takes over like a tenant. One that is gone stays as a row without a chain.
CREATE TABLE registry_certificates (
  host text PRIMARY KEY,
  slug text NOT NULL, -- served for this tenant only
  revision bigint NOT NULL UNIQUE,
  chain text, -- PEM, leaf first
  key text, -- PEM, sealed
  authority text NOT NULL,
  not_before timestamptz NOT NULL,
  not_after timestamptz NOT NULL
);

-- What happens without a call of the operator API: for its change feed.
CREATE TABLE registry_events (
  revision bigint PRIMARY KEY,
  kind text NOT NULL,
  slug text NOT NULL,
  host text NOT NULL,
  detail text NOT NULL, -- a JSON object
  at timestamptz NOT NULL
);

-- The budgets of the authorities, over all nodes: token buckets, each by the instant at which it is full again.
CREATE TABLE registry_budgets (
  name text PRIMARY KEY,
  full_at timestamptz NOT NULL
);

-- The key of the accounts at the authorities, sealed.
CREATE TABLE registry_acme_account (
  id integer PRIMARY KEY CHECK (id = 1),
  key text NOT NULL
);
