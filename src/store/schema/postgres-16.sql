-- The administration area: src/administration.rs.

-- 1. Tokens that expire, that replace others, and who created them -----------------------------------------------------

ALTER TABLE tokens
  ADD COLUMN expires_at timestamptz,
  ADD COLUMN created_by text,
  ADD COLUMN replaces bigint REFERENCES tokens,
  ADD COLUMN last_used_route text,
  ADD COLUMN last_used_network text,
  ADD COLUMN form_key text UNIQUE;
COMMENT ON COLUMN tokens.expires_at IS 'From this instant on it is refused like a revoked one. Null: never.';
COMMENT ON COLUMN tokens.created_by IS 'The e-mail address of an administrator, or the system user of a command.';
COMMENT ON COLUMN tokens.replaces IS 'The token that this one was created to replace.';
COMMENT ON COLUMN tokens.last_used_route IS 'Of the request of last_used_at, as metrics name it.';
COMMENT ON COLUMN tokens.last_used_network IS 'Of the caller then: an IPv4 /24 or an IPv6 /48.';
COMMENT ON COLUMN tokens.form_key IS 'Identifies the form that created it: sending a form again creates no second token.';

-- 2. Signing in --------------------------------------------------------------------------------------------------------

CREATE TABLE admin_links (
  digest bytea PRIMARY KEY,
  email text NOT NULL,
  name text,
  role text NOT NULL CHECK (role IN ('admin', 'viewer')),
  issuer text,
  subject text,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL
);
COMMENT ON TABLE admin_links IS 'One-time links into the administration area that were not used yet.';
COMMENT ON COLUMN admin_links.digest IS 'SHA-256 of the secret in the link.';
COMMENT ON COLUMN admin_links.issuer IS 'The OpenID provider that identified the administrator, by subject. Null: a command made the link.';

CREATE TABLE admin_sessions (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  digest bytea NOT NULL UNIQUE,
  email text NOT NULL,
  name text,
  role text NOT NULL CHECK (role IN ('admin', 'viewer')),
  issuer text,
  subject text,
  created_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  network text NOT NULL,
  user_agent text NOT NULL
);
COMMENT ON TABLE admin_sessions IS 'Who is signed in to the administration area. Signing out deletes the row.';
COMMENT ON COLUMN admin_sessions.digest IS 'SHA-256 of the cookie.';
COMMENT ON COLUMN admin_sessions.issuer IS 'The OpenID provider that identified the administrator, by subject. Null: a link did.';
COMMENT ON COLUMN admin_sessions.expires_at IS 'When it ends however much it is used.';

-- 3. The audit log -----------------------------------------------------------------------------------------------------

CREATE TABLE audit_log (
  id bigint PRIMARY KEY,
  at timestamptz NOT NULL,
  actor text NOT NULL,
  source text NOT NULL,
  network text,
  action text NOT NULL,
  subject text NOT NULL,
  details text NOT NULL,
  digest bytea NOT NULL
);
COMMENT ON TABLE audit_log IS 'Every change that administrators and commands made. Rows are only added.';
COMMENT ON COLUMN audit_log.source IS 'Through what: administration, command, operator.';
COMMENT ON COLUMN audit_log.details IS 'A JSON object.';
COMMENT ON COLUMN audit_log.digest IS 'SHA-256 of the digest of the row before and of this row.';
CREATE INDEX audit_log_at ON audit_log (at);

CREATE TABLE audit_state (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  last_id bigint NOT NULL,
  digest bytea NOT NULL
);
COMMENT ON TABLE audit_state IS 'The end of audit_log, so that rows missing there are noticed. Locked while a row is added.';
INSERT INTO audit_state (last_id, digest) VALUES (0, '\x');

CREATE FUNCTION formgate_refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'rows of audit_log are only added';
END
$$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_refuse_audit_change();

-- 4. Group syncs -------------------------------------------------------------------------------------------------------

CREATE TABLE group_syncs (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  at timestamptz NOT NULL,
  group_id bigint NOT NULL,
  group_name text NOT NULL,
  is_new boolean NOT NULL,
  actor text NOT NULL,
  token_id bigint,
  undoes bigint REFERENCES group_syncs ON DELETE SET NULL,
  attached text NOT NULL,
  detached text NOT NULL,
  attached_count bigint NOT NULL,
  detached_count bigint NOT NULL
);
COMMENT ON TABLE group_syncs IS 'Every write of a group through the API that changed something, for 90 days.';
COMMENT ON COLUMN group_syncs.actor IS 'The name of the token, or the administrator who undid a sync.';
COMMENT ON COLUMN group_syncs.attached IS 'A JSON array of the ids of users who became members.';
COMMENT ON COLUMN group_syncs.detached IS 'A JSON array of the ids of users who stopped being members.';
CREATE INDEX group_syncs_group ON group_syncs (group_id, id);
CREATE INDEX group_syncs_at ON group_syncs (at);
CREATE INDEX group_syncs_undoes ON group_syncs (undoes) WHERE undoes IS NOT NULL;

-- Like formgate_replace_members, which nodes of the version before call, and returns who came and who went.
CREATE FUNCTION formgate_sync_members(
  of_group bigint, folded_emails text[], emails text[], names text[],
  OUT members_before bigint, OUT attached bigint[], OUT detached bigint[], OUT created bigint
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  new_emails text[];
  new_names text[];
  new_ids bigint[];
BEGIN
  -- One statement reads the wanted members once, and those that there were: for a few dozen, half of what three cost.
  WITH wanted AS MATERIALIZED (
    SELECT w.email, w.name, u.id
    FROM unnest(folded_emails, emails, names) AS w (folded, email, name) LEFT JOIN users u ON u.email_folded = w.folded
  ), before AS MATERIALIZED (
    SELECT user_id FROM group_members WHERE group_id = of_group
  ), gone AS (
    DELETE FROM group_members
    WHERE group_id = of_group AND user_id NOT IN (SELECT id FROM wanted WHERE id IS NOT NULL)
    RETURNING user_id
  ), come AS (
    INSERT INTO group_members (group_id, user_id)
      SELECT of_group, id FROM wanted WHERE id IS NOT NULL AND id NOT IN (SELECT user_id FROM before)
      ON CONFLICT DO NOTHING
      RETURNING user_id
  )
  SELECT (SELECT count(*) FROM before), ARRAY(SELECT user_id FROM come), ARRAY(SELECT user_id FROM gone), new.emails, new.names
    INTO members_before, attached, detached, new_emails, new_names
    FROM (SELECT array_agg(email) AS emails, array_agg(name) AS names FROM wanted WHERE id IS NULL) AS new;
  created := coalesce(cardinality(new_emails), 0);
  -- A statement of its own, since most often no user is new: it folds the addresses, which takes a while to plan.
  IF created > 0 THEN
    WITH made AS (
      INSERT INTO users (email, name) SELECT w.email, w.name FROM unnest(new_emails, new_names) AS w (email, name) RETURNING id
    ), come AS (
      INSERT INTO group_members (group_id, user_id) SELECT of_group, id FROM made RETURNING user_id
    )
    SELECT array_agg(user_id) INTO new_ids FROM come;
    attached := attached || new_ids;
  END IF;
END
$$;

-- Replaces the members, and keeps a sync that changed something.
CREATE FUNCTION formgate_sync_and_keep(
  of_group bigint, folded_emails text[], emails text[], names text[],
  group_name text, is_new boolean, is_renamed boolean, actor text, of_token bigint,
  OUT members_before bigint, OUT attached bigint, OUT detached bigint, OUT created bigint
) LANGUAGE plpgsql AS $$
DECLARE
  come bigint[];
  gone bigint[];
BEGIN
  SELECT m.members_before, m.attached, m.detached, m.created INTO members_before, come, gone, created
    FROM formgate_sync_members(of_group, folded_emails, emails, names) AS m;
  attached := cardinality(come);
  detached := cardinality(gone);
  IF is_new OR is_renamed OR attached > 0 OR detached > 0 THEN
    INSERT INTO group_syncs (at, group_id, group_name, is_new, actor, token_id, attached, detached, attached_count, detached_count)
      VALUES (now(), of_group, group_name, is_new, actor, of_token, array_to_json(come), array_to_json(gone), attached, detached);
    DELETE FROM group_syncs WHERE at < now() - interval '90 days';
  END IF;
END
$$;

-- Like formgate_write_members, which nodes of the version before call, and keeps the sync.
CREATE FUNCTION formgate_sync_group(
  wanted_name text, wanted_external_id text, folded_emails text[], emails text[], names text[], actor text, of_token bigint,
  OUT group_id bigint, OUT group_external_id text, OUT attached bigint, OUT detached bigint, OUT created bigint
) LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
  stands boolean;
  members_before bigint;
BEGIN
  -- Writers that create, rename or delete a group hold this lock exclusively.
  PERFORM pg_advisory_xact_lock_shared(7310577365311121506);
  -- The group with the identifier, or else the only one with the name.
  SELECT
      min(g.id) FILTER (WHERE g.meant), min(g.external_id) FILTER (WHERE g.meant),
      count(*) FILTER (WHERE g.meant) = 1
        AND bool_and(g.managed AND g.name = wanted_name) FILTER (WHERE g.meant)
        AND NOT bool_or(g.built_in)
    INTO group_id, group_external_id, stands
    FROM (
      SELECT *, wanted_external_id IS NULL OR external_id = wanted_external_id AS meant
      FROM groups WHERE name = wanted_name OR external_id = wanted_external_id
    ) AS g;
  IF NOT coalesce(stands, false) THEN
    group_id := NULL;
    RETURN;
  END IF;
  -- Statements after this lock see what another write of this group committed.
  PERFORM pg_advisory_xact_lock(731057736, hashint8(group_id));
  SELECT s.members_before, s.attached, s.detached, s.created INTO members_before, attached, detached, created
    FROM formgate_sync_and_keep(group_id, folded_emails, emails, names, wanted_name, false, false, actor, of_token) AS s;
EXCEPTION
  WHEN lock_not_available OR deadlock_detected OR serialization_failure OR unique_violation OR foreign_key_violation THEN
    group_id := NULL;
END
$$;

-- 5. Usage -------------------------------------------------------------------------------------------------------------

CREATE TABLE token_hours (
  hour timestamptz NOT NULL,
  token_id bigint NOT NULL REFERENCES tokens ON DELETE CASCADE,
  admitted bigint NOT NULL,
  refused bigint NOT NULL,
  PRIMARY KEY (hour, token_id)
);
COMMENT ON TABLE token_hours IS 'Requests of each token in each hour that had any, written behind.';
COMMENT ON COLUMN token_hours.refused IS 'By the rate limit.';

-- 6. The roles that formgate serves as. They are the ones that may update tokens ----------------------------------------

DO $$
DECLARE
  server text;
BEGIN
  FOR server IN
    SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
    FROM pg_class, aclexplode(relacl)
    WHERE oid = 'tokens'::regclass AND privilege_type = 'UPDATE' AND grantee <> relowner
  LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON admin_links, admin_sessions, group_syncs, token_hours TO %s', server);
    EXECUTE format('GRANT SELECT, INSERT ON audit_log, tokens TO %s', server);
    EXECUTE format('GRANT SELECT, UPDATE ON audit_state TO %s', server);
  END LOOP;
END
$$;
