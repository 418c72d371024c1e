-- What writers pay for the counts, and for what they wait: nobody. Replaces how the third part of the schema is kept, not
-- what it says.
LOCK TABLE submissions, submission_labels, submission_counts, listed_labels IN SHARE ROW EXCLUSIVE MODE;

-- 1. Counts ----------------------------------------------------------------------------------------------------------

ALTER TABLE submission_counts RENAME TO counts_before;

CREATE TABLE settled_counts (
  counted text NOT NULL CHECK (counted IN ('form', 'created', 'updated', 'label', 'shared label')),
  key bigint NOT NULL,
  status text NOT NULL,
  listed bigint NOT NULL,
  PRIMARY KEY (counted, key, status)
) WITH (fillfactor = 50);
COMMENT ON TABLE settled_counts IS 'What the counts of submission_counts were when they were last settled.';

CREATE TABLE count_changes (
  counted text NOT NULL,
  key bigint NOT NULL,
  status text NOT NULL,
  listed bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
COMMENT ON TABLE count_changes IS 'What was added to the counts since. Writers only append, so none waits for another; without an index, since every count reads it whole and it is short.';

INSERT INTO settled_counts (counted, key, status, listed)
  SELECT counted, key, status, sum(listed) FROM counts_before GROUP BY 1, 2, 3 HAVING sum(listed) <> 0;
DROP FUNCTION formgate_add_counts;
DROP TABLE counts_before;

CREATE VIEW submission_counts AS
  SELECT counted, key, status, listed FROM settled_counts
  UNION ALL
  SELECT counted, key, status, listed FROM count_changes;
COMMENT ON VIEW submission_counts IS 'How many submissions are returned by themselves, by form and status, by day, by label. A count is the sum of its rows.';
COMMENT ON COLUMN submission_counts.key IS 'A form''s or a label''s id, or days since 1970-01-01 in UTC.';
COMMENT ON COLUMN submission_counts.status IS 'The status where forms are counted, else empty.';

-- One transaction at a time settles, and nobody waits for it: what another one is about to settle is only appended to. A
-- transaction that must not see what others do meanwhile would fail on what they settled, so it leaves that to others.
CREATE FUNCTION formgate_settle_counts() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
    -- Any number does that nothing else in the account's own database uses.
    OR NOT pg_try_advisory_xact_lock(7310577365311121507) THEN
    RETURN;
  END IF;
  WITH change AS (DELETE FROM count_changes RETURNING counted, key, status, listed)
  INSERT INTO settled_counts AS settled (counted, key, status, listed)
    SELECT counted, key, status, sum(listed) FROM change GROUP BY 1, 2, 3 HAVING sum(listed) <> 0
    ON CONFLICT (counted, key, status) DO UPDATE SET listed = settled.listed + excluded.listed;
END
$$;
COMMENT ON FUNCTION formgate_settle_counts IS 'Adds count_changes to settled_counts.';

-- Once in a transaction: what it leaves behind can't be used again before it ends, and every count would read that too.
CREATE FUNCTION formgate_settle_counts_once() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('formgate.settled', true) IS DISTINCT FROM 'yes' THEN
    PERFORM set_config('formgate.settled', 'yes', true);
    PERFORM formgate_settle_counts();
  END IF;
END
$$;

-- About every 128th change settles. With fewer, every count would read more; with more, writers would settle much of the
-- time. Its body stands in place of the call.
CREATE FUNCTION formgate_draws_settling(changes bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT random() * 128 < changes
$$;
COMMENT ON FUNCTION formgate_draws_settling IS 'Whether who made so many changes of counts is to settle them.';

CREATE OR REPLACE FUNCTION formgate_submissions_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  changes bigint;
BEGIN
  INSERT INTO count_changes (counted, key, status, listed)
    SELECT c.counted, c.key, c.status, count(*)
    FROM after_rows s, formgate_counts_of(s.form_id, s.status, s.created_at, s.updated_at) AS c
    WHERE NOT s.draft AND s.child_of IS NULL GROUP BY 1, 2, 3;
  GET DIAGNOSTICS changes = ROW_COUNT;
  IF formgate_draws_settling(changes) THEN
    PERFORM formgate_settle_counts_once();
  END IF;
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION formgate_submissions_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  changes bigint;
BEGIN
  INSERT INTO count_changes (counted, key, status, listed)
    SELECT c.counted, c.key, c.status, -count(*)
    FROM before_rows s, formgate_counts_of(s.form_id, s.status, s.created_at, s.updated_at) AS c
    WHERE NOT s.draft AND s.child_of IS NULL GROUP BY 1, 2, 3;
  GET DIAGNOSTICS changes = ROW_COUNT;
  IF formgate_draws_settling(changes) THEN
    PERFORM formgate_settle_counts_once();
  END IF;
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION formgate_submissions_updated() RETURNS trigger LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  changes bigint;
  moved bigint[];
BEGIN
  INSERT INTO count_changes (counted, key, status, listed)
    SELECT c.counted, c.key, c.status, sum(s.n)
    FROM (
      SELECT *, 1 AS n FROM after_rows UNION ALL SELECT *, -1 FROM before_rows
    ) AS s, formgate_counts_of(s.form_id, s.status, s.created_at, s.updated_at) AS c
    WHERE NOT s.draft AND s.child_of IS NULL GROUP BY 1, 2, 3 HAVING sum(s.n) <> 0;
  GET DIAGNOSTICS changes = ROW_COUNT;
  IF formgate_draws_settling(changes) THEN
    PERFORM formgate_settle_counts_once();
  END IF;

  -- A submission's place among those of its labels follows its last change and whether it is returned by itself. One
  -- with labels keeps its id.
  moved := ARRAY (
    SELECT a.id FROM after_rows a JOIN before_rows b ON b.id = a.id
    WHERE (a.updated_at, a.draft) <> (b.updated_at, b.draft) OR a.child_of IS DISTINCT FROM b.child_of);
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
    OR EXISTS (SELECT FROM submission_labels WHERE submission_id = ANY (moved)) THEN
    PERFORM formgate_list_labels(moved);
  END IF;
  RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION formgate_listed_labels_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  changes bigint;
BEGIN
  INSERT INTO count_changes (counted, key, status, listed)
    SELECT CASE WHEN shared THEN 'shared label' ELSE 'label' END, label_id, '', count(*) FROM after_rows GROUP BY 1, 2;
  GET DIAGNOSTICS changes = ROW_COUNT;
  IF formgate_draws_settling(changes) THEN
    PERFORM formgate_settle_counts_once();
  END IF;
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION formgate_listed_labels_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  changes bigint;
BEGIN
  INSERT INTO count_changes (counted, key, status, listed)
    SELECT CASE WHEN shared THEN 'shared label' ELSE 'label' END, label_id, '', -count(*) FROM before_rows GROUP BY 1, 2;
  GET DIAGNOSTICS changes = ROW_COUNT;
  IF formgate_draws_settling(changes) THEN
    PERFORM formgate_settle_counts_once();
  END IF;
  RETURN NULL;
END
$$;

-- 2. Labels ----------------------------------------------------------------------------------------------------------

CREATE TABLE unsettled_labels (
  submission_id bigint NOT NULL
);
CREATE INDEX unsettled_labels_submission ON unsettled_labels (submission_id);
COMMENT ON TABLE unsettled_labels IS 'Submissions of which listed_labels may say something else than submission_labels: searches look them up. Who changes such a submission next settles it.';

-- Whoever lists a submission's labels holds the submission, so that nobody else changes it or its labels unseen. Where
-- another one holds it, waiting could be waiting for each other: it is left unsettled. So it is in a transaction that does
-- not see what others did meanwhile.
--
-- Planned once for all lists of ids, and so that the plan is right for all: each id is looked up in some indexes. Planning
-- took ten times as long as that.
CREATE OR REPLACE FUNCTION formgate_list_labels(ids bigint[]) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  held bigint[];
  others bigint[];
BEGIN
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    INSERT INTO unsettled_labels (submission_id) SELECT unnest(ids);
    RETURN;
  END IF;
  held := ARRAY (SELECT id FROM submissions WHERE id = ANY (ids) FOR NO KEY UPDATE SKIP LOCKED);
  IF cardinality(held) < cardinality(ids) THEN
    others := ARRAY (SELECT id FROM submissions WHERE id = ANY (ids) AND id <> ALL (held));
    INSERT INTO unsettled_labels (submission_id) SELECT unnest(others);
    -- The rest is gone, by this transaction.
    held := ARRAY (SELECT id FROM unnest(ids) AS given (id) WHERE id <> ALL (others));
  END IF;
  -- First: whatever is unsettled from here on is seen by what follows.
  DELETE FROM unsettled_labels u USING unnest(held) AS given (id) WHERE u.submission_id = given.id;
  DELETE FROM listed_labels l USING unnest(held) AS given (id) WHERE l.submission_id = given.id AND NOT EXISTS (
    SELECT FROM listed_labels_anew a
    WHERE a.submission_id = l.submission_id AND a.label_id = l.label_id AND a.shared = l.shared);
  INSERT INTO listed_labels AS l (submission_id, label_id, shared, updated_at)
    SELECT a.submission_id, a.label_id, a.shared, a.updated_at
    FROM unnest(held) AS given (id) JOIN listed_labels_anew a ON a.submission_id = given.id
    ON CONFLICT (submission_id, label_id, shared) DO UPDATE SET updated_at = excluded.updated_at
      WHERE l.updated_at <> excluded.updated_at;
END
$$;

CREATE OR REPLACE FUNCTION formgate_labels_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM formgate_list_labels(ARRAY (SELECT DISTINCT submission_id FROM after_rows));
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION formgate_labels_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM formgate_list_labels(ARRAY (SELECT DISTINCT submission_id FROM before_rows));
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION formgate_labels_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM formgate_list_labels(ARRAY (SELECT submission_id FROM after_rows UNION SELECT submission_id FROM before_rows));
  RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION formgate_recount() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOCK TABLE submissions, submission_labels, listed_labels, count_changes IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM unsettled_labels;
  DELETE FROM listed_labels; -- and not TRUNCATE: readers with an older snapshot would find nothing there
  INSERT INTO listed_labels (submission_id, label_id, shared, updated_at)
    SELECT submission_id, label_id, shared, updated_at FROM listed_labels_anew;
  DELETE FROM count_changes;
  DELETE FROM settled_counts;
  INSERT INTO settled_counts (counted, key, status, listed)
    SELECT counted, key, status, listed FROM submission_counts_anew;
END
$$;

-- 3. Documents -------------------------------------------------------------------------------------------------------

-- How long the list may be of what an index took in last, which each search reads whole, is now the writer's setting and
-- no longer the index's: an import makes the documents by itself, with a longer list. With a list of 256 kB, most of what
-- a load took was to empty it, every thirty submissions.
ALTER INDEX submission_documents_bigrams RESET (gin_pending_list_limit);
ALTER INDEX IF EXISTS submission_documents_trigrams RESET (gin_pending_list_limit);

CREATE OR REPLACE FUNCTION formgate_answers_inserted() RETURNS trigger LANGUAGE plpgsql
SET gin_pending_list_limit = '256kB' AS $$
BEGIN
  IF current_setting('formgate.resting', true) IS DISTINCT FROM 'on' THEN
    PERFORM formgate_rebuild_documents(ARRAY (SELECT DISTINCT submission_id FROM after_rows));
  END IF;
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION formgate_answers_deleted() RETURNS trigger LANGUAGE plpgsql
SET gin_pending_list_limit = '256kB' AS $$
BEGIN
  IF current_setting('formgate.resting', true) IS DISTINCT FROM 'on' THEN
    PERFORM formgate_rebuild_documents(ARRAY (SELECT DISTINCT submission_id FROM before_rows));
  END IF;
  RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION formgate_answers_updated() RETURNS trigger LANGUAGE plpgsql
SET gin_pending_list_limit = '256kB' AS $$
BEGIN
  IF current_setting('formgate.resting', true) IS DISTINCT FROM 'on' THEN
    PERFORM formgate_rebuild_documents(ARRAY (
      SELECT submission_id FROM (
        (SELECT submission_id, element_id, folded FROM after_rows EXCEPT SELECT submission_id, element_id, folded FROM before_rows)
        UNION
        (SELECT submission_id, element_id, folded FROM before_rows EXCEPT SELECT submission_id, element_id, folded FROM after_rows)
      ) AS changed));
  END IF;
  RETURN NULL;
END
$$;

-- 4. Privileges ------------------------------------------------------------------------------------------------------

-- The triggers run as the writer: whoever else may write submissions may write what is kept of them.
DO $$
DECLARE
  writer text;
BEGIN
  FOR writer IN
    SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
    FROM pg_class, aclexplode(relacl)
    WHERE oid = 'submissions'::regclass AND privilege_type IN ('INSERT', 'UPDATE', 'DELETE') AND grantee <> relowner
  LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON settled_counts, count_changes, listed_labels, unsettled_labels TO %s', writer);
    EXECUTE format('GRANT SELECT ON submission_counts, submission_counts_anew, listed_labels_anew TO %s', writer);
  END LOOP;
END
$$;
