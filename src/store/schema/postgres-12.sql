-- How many forms, groups, users and members there are, so that no list counts rows: src/store/totals.rs.

-- 1. The counts --------------------------------------------------------------------------------------------------------

CREATE TABLE listed_totals (
  counted text NOT NULL CHECK (counted IN ('forms', 'groups', 'managed groups', 'users', 'members')),
  key bigint NOT NULL,
  listed bigint NOT NULL,
  PRIMARY KEY (counted, key)
) WITH (fillfactor = 50);
CREATE INDEX listed_totals_empty ON listed_totals (counted) WHERE listed = 0;
COMMENT ON TABLE listed_totals IS 'How many active forms that are no sub-forms, groups, users, and members of each group there are.';
COMMENT ON COLUMN listed_totals.key IS 'The group whose members are counted; 0 for users; for the others a block of 1,024 ids (id >> 10), or -1 for all.';

CREATE TABLE listed_total_changes (
  counted text NOT NULL,
  key bigint NOT NULL,
  listed bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE listed_total_changes IS 'What was added to the counts since. Writers append, so none waits for another; formgate adds it to listed_totals. Without an index, so that appending costs little.';

-- 2. What appends ------------------------------------------------------------------------------------------------------

-- Once per statement and not per row: a group of 50,000 members is one change. Logical replication fires row triggers only,
-- so there are some that fire for nothing else (ENABLE REPLICA). The functions run as their owner and name its schema, as
-- those of the intake do.
CREATE FUNCTION formgate_count_forms() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT 'forms', id >> 10, count(*) FROM after_rows WHERE NOT disabled AND parent_id IS NULL GROUP BY 2;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT 'forms', id >> 10, -count(*) FROM before_rows WHERE NOT disabled AND parent_id IS NULL GROUP BY 2;
  ELSE
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT 'forms', id >> 10, sum(n) FROM (
        SELECT id, 1 AS n FROM after_rows WHERE NOT disabled AND parent_id IS NULL
        UNION ALL SELECT id, -1 FROM before_rows WHERE NOT disabled AND parent_id IS NULL) AS changed
      GROUP BY 2 HAVING sum(n) <> 0;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_count_forms IS 'Appends how many forms a statement listed, or ceased to list.';

CREATE FUNCTION formgate_count_groups() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT 'groups', id >> 10, count(*) FROM after_rows GROUP BY 2
      UNION ALL SELECT 'managed groups', id >> 10, count(*) FROM after_rows WHERE managed GROUP BY 2;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT 'groups', id >> 10, -count(*) FROM before_rows GROUP BY 2
      UNION ALL SELECT 'managed groups', id >> 10, -count(*) FROM before_rows WHERE managed GROUP BY 2;
  ELSE
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT counted, id >> 10, sum(n) FROM (
        SELECT 'groups' AS counted, id, 1 AS n FROM after_rows
        UNION ALL SELECT 'groups', id, -1 FROM before_rows
        UNION ALL SELECT 'managed groups', id, 1 FROM after_rows WHERE managed
        UNION ALL SELECT 'managed groups', id, -1 FROM before_rows WHERE managed) AS changed
      GROUP BY 1, 2 HAVING sum(n) <> 0;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_count_groups IS 'Appends how many groups a statement created, deleted or changed.';

CREATE FUNCTION formgate_count_users() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT 'users', 0, count(*) FROM after_rows HAVING count(*) > 0;
  ELSE
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT 'users', 0, -count(*) FROM before_rows HAVING count(*) > 0;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_count_users IS 'Appends how many users a statement created or deleted.';

-- Most writes of a group find its members as they should be, and change no row.
CREATE FUNCTION formgate_count_members() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF EXISTS (SELECT FROM after_rows) THEN
      INSERT INTO listed_total_changes (counted, key, listed)
        SELECT 'members', group_id, count(*) FROM after_rows GROUP BY 2;
    END IF;
  ELSIF TG_OP = 'DELETE' THEN
    IF EXISTS (SELECT FROM before_rows) THEN
      INSERT INTO listed_total_changes (counted, key, listed)
        SELECT 'members', group_id, -count(*) FROM before_rows GROUP BY 2;
    END IF;
  ELSE
    INSERT INTO listed_total_changes (counted, key, listed)
      SELECT 'members', group_id, sum(n) FROM (
        SELECT group_id, 1 AS n FROM after_rows UNION ALL SELECT group_id, -1 FROM before_rows) AS changed
      GROUP BY 2 HAVING sum(n) <> 0;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_count_members IS 'Appends how many members a statement added to each group, or removed.';

CREATE FUNCTION formgate_count_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  gone jsonb := CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE to_jsonb(OLD) END;
  come jsonb := CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE to_jsonb(NEW) END;
BEGIN
  INSERT INTO listed_total_changes (counted, key, listed)
    SELECT counted, key, sum(n) FROM (
      SELECT c.counted, c.key, r.n
      FROM (VALUES (come, 1), (gone, -1)) AS r (item, n)
      CROSS JOIN LATERAL (
        SELECT 'forms' AS counted, (r.item->>'id')::bigint >> 10 AS key
          WHERE TG_TABLE_NAME = 'forms' AND NOT (r.item->>'disabled')::boolean AND r.item->>'parent_id' IS NULL
        UNION ALL SELECT 'groups', (r.item->>'id')::bigint >> 10 WHERE TG_TABLE_NAME = 'groups'
        UNION ALL SELECT 'managed groups', (r.item->>'id')::bigint >> 10
          WHERE TG_TABLE_NAME = 'groups' AND (r.item->>'managed')::boolean
        UNION ALL SELECT 'users', 0 WHERE TG_TABLE_NAME = 'users'
        UNION ALL SELECT 'members', (r.item->>'group_id')::bigint WHERE TG_TABLE_NAME = 'group_members'
      ) AS c
      WHERE r.item IS NOT NULL) AS changed
    GROUP BY 1, 2 HAVING sum(n) <> 0;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_count_row IS 'Appends what a replicated row changes of the counts.';

CREATE FUNCTION formgate_count_none() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  DELETE FROM listed_total_changes WHERE counted = ANY (TG_ARGV);
  DELETE FROM listed_totals WHERE counted = ANY (TG_ARGV);
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_count_none IS 'Counts none of what an emptied table held.';

DO $$
DECLARE
  name text;
  source text;
BEGIN
  FOREACH name IN ARRAY ARRAY['forms', 'groups', 'users', 'members', 'row', 'none'] LOOP
    EXECUTE format('ALTER FUNCTION formgate_count_%s() SET search_path = %I, pg_temp', name, current_schema());
  END LOOP;
  FOREACH source IN ARRAY ARRAY['forms', 'groups', 'users', 'group_members'] LOOP
    name := CASE source WHEN 'group_members' THEN 'members' ELSE source END;
    EXECUTE format('CREATE TRIGGER %I AFTER INSERT ON %I REFERENCING NEW TABLE AS after_rows '
      'FOR EACH STATEMENT EXECUTE FUNCTION formgate_count_%s()', source || '_counted_insert', source, name);
    EXECUTE format('CREATE TRIGGER %I AFTER DELETE ON %I REFERENCING OLD TABLE AS before_rows '
      'FOR EACH STATEMENT EXECUTE FUNCTION formgate_count_%s()', source || '_counted_delete', source, name);
    IF source <> 'users' THEN
      EXECUTE format('CREATE TRIGGER %I AFTER UPDATE ON %I REFERENCING OLD TABLE AS before_rows NEW TABLE AS after_rows '
        'FOR EACH STATEMENT EXECUTE FUNCTION formgate_count_%s()', source || '_counted_update', source, name);
    END IF;
    EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR DELETE OR UPDATE ON %I '
      'FOR EACH ROW EXECUTE FUNCTION formgate_count_row()', source || '_counted_row', source);
    EXECUTE format('ALTER TABLE %I ENABLE REPLICA TRIGGER %I', source, source || '_counted_row');
    EXECUTE format('CREATE TRIGGER %I AFTER TRUNCATE ON %I FOR EACH STATEMENT EXECUTE FUNCTION formgate_count_none(%s)',
      source || '_counted_none', source,
      CASE source WHEN 'groups' THEN '''groups'', ''managed groups''' ELSE quote_literal(name) END);
    EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', source, source || '_counted_none');
  END LOOP;
END
$$;

-- 3. What is there already ---------------------------------------------------------------------------------------------

-- The triggers have locked the tables against writers until this commits.
INSERT INTO listed_totals (counted, key, listed)
  WITH blocks AS (
    SELECT 'forms' AS counted, id >> 10 AS key, count(*) AS listed
      FROM forms WHERE NOT disabled AND parent_id IS NULL GROUP BY 2
    UNION ALL SELECT 'groups', id >> 10, count(*) FROM groups GROUP BY 2
    UNION ALL SELECT 'managed groups', id >> 10, count(*) FROM groups WHERE managed GROUP BY 2)
  SELECT counted, key, listed FROM blocks
  UNION ALL SELECT counted, -1, sum(listed) FROM blocks GROUP BY 1
  UNION ALL SELECT 'users', 0, count(*) FROM users
  UNION ALL SELECT 'members', group_id, count(*) FROM group_members GROUP BY 2;

-- A dump has the counts as well as what is counted. In a restore of data only, the triggers above count again, so rows that
-- neither formgate nor a trigger inserts are dropped.
CREATE FUNCTION formgate_counted_already() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_counted_already IS 'Drops the counts of a dump.';
CREATE TRIGGER listed_totals_restored BEFORE INSERT ON listed_totals FOR EACH ROW
  WHEN (pg_trigger_depth() = 0 AND current_setting('formgate.adds_up', true) IS DISTINCT FROM 'on')
  EXECUTE FUNCTION formgate_counted_already();
CREATE TRIGGER listed_total_changes_restored BEFORE INSERT ON listed_total_changes FOR EACH ROW
  WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION formgate_counted_already();

-- 4. The order of the pages --------------------------------------------------------------------------------------------

CREATE INDEX forms_listed ON forms (id) WHERE NOT disabled AND parent_id IS NULL;
CREATE INDEX groups_managed ON groups (id) WHERE managed;
CREATE INDEX users_by_address ON users (email_folded COLLATE "C", id);
-- Children are read in batches, by id.
CREATE INDEX submissions_children ON submissions (parent_id, id) WHERE parent_id IS NOT NULL;
DROP INDEX submissions_parent;

-- The roles that formgate serves as add up the changes. They are the ones that may update tokens.
DO $$
DECLARE
  server text;
BEGIN
  FOR server IN
    SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
    FROM pg_class, aclexplode(relacl)
    WHERE oid = 'tokens'::regclass AND privilege_type = 'UPDATE' AND grantee <> relowner
  LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON listed_totals, listed_total_changes TO %s', server);
  END LOOP;
END
$$;
