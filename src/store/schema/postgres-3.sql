-- What makes a search cost the same however many submissions there are: counts, labels in the order of the pages, and
-- the two-character parts of the documents. Kept by triggers, like all of the third part, and written by nobody else.

-- 1. Counts ----------------------------------------------------------------------------------------------------------

CREATE TABLE submission_counts (
  slot bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  counted text NOT NULL CHECK (counted IN ('form', 'created', 'updated', 'label', 'shared label')),
  key bigint NOT NULL,
  status text NOT NULL,
  listed bigint NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX submission_counts_key ON submission_counts (counted, key, status);
COMMENT ON TABLE submission_counts IS 'How many submissions are returned by themselves, by form and status, by day, by label. A count is the sum of its rows.';
COMMENT ON COLUMN submission_counts.slot IS 'Writers at once add to different rows of a count, so that none waits for another.';
COMMENT ON COLUMN submission_counts.key IS 'A form''s or a label''s id, or days since 1970-01-01 in UTC.';
COMMENT ON COLUMN submission_counts.status IS 'The status where forms are counted, else empty.';

-- Adds to counts; each count at most once. A row that another transaction holds is left to it. A transaction that must
-- not see what others do meanwhile could fail on any row, so it only appends; `formgate reindex` joins what it left.
CREATE FUNCTION formgate_add_counts(changes submission_counts[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    INSERT INTO submission_counts (counted, key, status, listed) SELECT counted, key, status, listed FROM unnest(changes);
    RETURN;
  END IF;
  WITH change AS MATERIALIZED (
    SELECT n.counted, n.key, n.status, n.listed, (
      SELECT c.slot FROM submission_counts c WHERE c.counted = n.counted AND c.key = n.key AND c.status = n.status
      LIMIT 1 FOR UPDATE SKIP LOCKED) AS free
    FROM unnest(changes) AS n
  ), added AS (
    UPDATE submission_counts c SET listed = c.listed + change.listed FROM change WHERE c.slot = change.free
  )
  INSERT INTO submission_counts (counted, key, status, listed)
    SELECT counted, key, status, listed FROM change WHERE free IS NULL;
END
$$;

-- The counts that a submission stands in.
CREATE FUNCTION formgate_counts_of(form_id bigint, status text, created_at timestamptz, updated_at timestamptz)
RETURNS TABLE (counted text, key bigint, status text) LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  VALUES ('form', form_id, status),
    ('created', floor(extract(epoch FROM created_at) / 86400)::bigint, ''),
    ('updated', floor(extract(epoch FROM updated_at) / 86400)::bigint, '')
$$;

CREATE FUNCTION formgate_submissions_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM formgate_add_counts(array_agg((NULL, counted, key, status, listed)::submission_counts)) FROM (
    SELECT c.counted, c.key, c.status, count(*) AS listed
    FROM after_rows s, formgate_counts_of(s.form_id, s.status, s.created_at, s.updated_at) AS c
    WHERE NOT s.draft AND s.child_of IS NULL GROUP BY 1, 2, 3) AS changed
  HAVING count(*) > 0;
  RETURN NULL;
END
$$;
CREATE FUNCTION formgate_submissions_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM formgate_add_counts(array_agg((NULL, counted, key, status, listed)::submission_counts)) FROM (
    SELECT c.counted, c.key, c.status, -count(*) AS listed
    FROM before_rows s, formgate_counts_of(s.form_id, s.status, s.created_at, s.updated_at) AS c
    WHERE NOT s.draft AND s.child_of IS NULL GROUP BY 1, 2, 3) AS changed
  HAVING count(*) > 0;
  RETURN NULL;
END
$$;
CREATE FUNCTION formgate_submissions_updated() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  moved bigint[];
BEGIN
  PERFORM formgate_add_counts(array_agg((NULL, counted, key, status, listed)::submission_counts)) FROM (
    SELECT c.counted, c.key, c.status, sum(s.n)::bigint AS listed
    FROM (
      SELECT *, 1 AS n FROM after_rows UNION ALL SELECT *, -1 FROM before_rows
    ) AS s, formgate_counts_of(s.form_id, s.status, s.created_at, s.updated_at) AS c
    WHERE NOT s.draft AND s.child_of IS NULL GROUP BY 1, 2, 3 HAVING sum(s.n) <> 0) AS changed
  HAVING count(*) > 0;

  -- A submission's place among those of its labels follows its last change and whether it is returned by itself.
  moved := ARRAY (
    SELECT id FROM (
      (SELECT id, updated_at, draft, child_of FROM after_rows EXCEPT SELECT id, updated_at, draft, child_of FROM before_rows)
      UNION ALL
      (SELECT id, updated_at, draft, child_of FROM before_rows EXCEPT SELECT id, updated_at, draft, child_of FROM after_rows)
    ) AS changed);
  IF EXISTS (SELECT FROM submission_labels WHERE submission_id = ANY (moved)) THEN
    PERFORM formgate_list_labels(moved);
  END IF;
  RETURN NULL;
END
$$;

-- 2. Labels ----------------------------------------------------------------------------------------------------------

CREATE TABLE listed_labels (
  submission_id bigint NOT NULL,
  label_id bigint NOT NULL,
  shared boolean NOT NULL,
  updated_at timestamptz NOT NULL,
  PRIMARY KEY (submission_id, label_id, shared)
);
CREATE INDEX listed_labels_page ON listed_labels (label_id, shared, updated_at, submission_id);
COMMENT ON TABLE listed_labels IS 'submission_labels of the submissions that are returned by themselves, in the order of the pages.';

CREATE FUNCTION formgate_list_labels(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM listed_labels WHERE submission_id = ANY (ids);
  INSERT INTO listed_labels (submission_id, label_id, shared, updated_at)
    SELECT l.submission_id, l.label_id, l.shared, s.updated_at
    FROM submission_labels l JOIN submissions s ON s.id = l.submission_id
    WHERE l.submission_id = ANY (ids) AND NOT s.draft AND s.child_of IS NULL;
END
$$;
COMMENT ON FUNCTION formgate_list_labels IS 'Makes the rows of listed_labels of these submissions anew.';

CREATE FUNCTION formgate_labels_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  ids bigint[] := ARRAY (SELECT DISTINCT submission_id FROM after_rows);
BEGIN
  -- Who changes the submission at the same time would not see the label, nor be seen here: one waits for the other.
  PERFORM FROM submissions WHERE id = ANY (ids) ORDER BY id FOR NO KEY UPDATE;
  PERFORM formgate_list_labels(ids);
  RETURN NULL;
END
$$;
CREATE FUNCTION formgate_labels_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM listed_labels l USING before_rows b
    WHERE l.submission_id = b.submission_id AND l.label_id = b.label_id AND l.shared = b.shared;
  RETURN NULL;
END
$$;
CREATE FUNCTION formgate_labels_updated() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  ids bigint[] := ARRAY (SELECT submission_id FROM after_rows UNION SELECT submission_id FROM before_rows);
BEGIN
  PERFORM FROM submissions WHERE id = ANY (ids) ORDER BY id FOR NO KEY UPDATE;
  PERFORM formgate_list_labels(ids);
  RETURN NULL;
END
$$;

CREATE FUNCTION formgate_listed_labels_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM formgate_add_counts(array_agg((NULL, counted, key, '', listed)::submission_counts)) FROM (
    SELECT CASE WHEN shared THEN 'shared label' ELSE 'label' END AS counted, label_id AS key, count(*) AS listed
    FROM after_rows GROUP BY 1, 2) AS changed
  HAVING count(*) > 0;
  RETURN NULL;
END
$$;
CREATE FUNCTION formgate_listed_labels_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM formgate_add_counts(array_agg((NULL, counted, key, '', listed)::submission_counts)) FROM (
    SELECT CASE WHEN shared THEN 'shared label' ELSE 'label' END AS counted, label_id AS key, -count(*) AS listed
    FROM before_rows GROUP BY 1, 2) AS changed
  HAVING count(*) > 0;
  RETURN NULL;
END
$$;

-- 3. The triggers, and what they would have kept of what is there ------------------------------------------------------

CREATE TRIGGER submissions_inserted AFTER INSERT ON submissions
  REFERENCING NEW TABLE AS after_rows FOR EACH STATEMENT EXECUTE FUNCTION formgate_submissions_inserted();
CREATE TRIGGER submissions_deleted AFTER DELETE ON submissions
  REFERENCING OLD TABLE AS before_rows FOR EACH STATEMENT EXECUTE FUNCTION formgate_submissions_deleted();
CREATE TRIGGER submissions_updated AFTER UPDATE ON submissions
  REFERENCING OLD TABLE AS before_rows NEW TABLE AS after_rows
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_submissions_updated();

CREATE TRIGGER submission_labels_inserted AFTER INSERT ON submission_labels
  REFERENCING NEW TABLE AS after_rows FOR EACH STATEMENT EXECUTE FUNCTION formgate_labels_inserted();
CREATE TRIGGER submission_labels_deleted AFTER DELETE ON submission_labels
  REFERENCING OLD TABLE AS before_rows FOR EACH STATEMENT EXECUTE FUNCTION formgate_labels_deleted();
CREATE TRIGGER submission_labels_updated AFTER UPDATE ON submission_labels
  REFERENCING OLD TABLE AS before_rows NEW TABLE AS after_rows
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_labels_updated();

CREATE TRIGGER listed_labels_inserted AFTER INSERT ON listed_labels
  REFERENCING NEW TABLE AS after_rows FOR EACH STATEMENT EXECUTE FUNCTION formgate_listed_labels_inserted();
CREATE TRIGGER listed_labels_deleted AFTER DELETE ON listed_labels
  REFERENCING OLD TABLE AS before_rows FOR EACH STATEMENT EXECUTE FUNCTION formgate_listed_labels_deleted();

CREATE FUNCTION formgate_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM formgate_recount();
  RETURN NULL;
END
$$;
CREATE TRIGGER submissions_truncated AFTER TRUNCATE ON submissions
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_truncated();
CREATE TRIGGER submission_labels_truncated AFTER TRUNCATE ON submission_labels
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_truncated();

-- What stands in the two tables, made anew.
CREATE VIEW listed_labels_anew AS
  SELECT l.submission_id, l.label_id, l.shared, s.updated_at
  FROM submission_labels l JOIN submissions s ON s.id = l.submission_id
  WHERE NOT s.draft AND s.child_of IS NULL;
CREATE VIEW submission_counts_anew AS
  SELECT c.counted, c.key, c.status, count(*) AS listed
  FROM submissions s, formgate_counts_of(s.form_id, s.status, s.created_at, s.updated_at) AS c
  WHERE NOT s.draft AND s.child_of IS NULL GROUP BY 1, 2, 3
  UNION ALL
  SELECT CASE WHEN shared THEN 'shared label' ELSE 'label' END, label_id, '', count(*)
  FROM listed_labels_anew GROUP BY 1, 2;

-- Writers wait meanwhile.
CREATE FUNCTION formgate_recount() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOCK TABLE submissions, submission_labels, submission_counts IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM listed_labels; -- and not TRUNCATE: readers with an older snapshot would find nothing there
  INSERT INTO listed_labels (submission_id, label_id, shared, updated_at)
    SELECT submission_id, label_id, shared, updated_at FROM listed_labels_anew;
  DELETE FROM submission_counts;
  INSERT INTO submission_counts (counted, key, status, listed)
    SELECT counted, key, status, listed FROM submission_counts_anew;
END
$$;
COMMENT ON FUNCTION formgate_recount IS 'Makes submission_counts and listed_labels anew from what they are kept of.';
SELECT formgate_recount();
ANALYZE submission_counts, listed_labels;

-- 4. Indexes ---------------------------------------------------------------------------------------------------------

-- Forms and statuses together, in the order of the pages.
CREATE INDEX submissions_form_status_updated ON submissions (form_id, status, updated_at, id)
  WHERE NOT draft AND child_of IS NULL;

-- Every two characters that stand side by side in a document, for the keywords that are too short for a trigram. They
-- are cut out of the text twice, from its first and from its second character: three times as fast as character by
-- character. What stands beside a separator is in no keyword. A tsvector holds one megabyte, so a document that could
-- have more says only that it is long, and is read. In PL/pgSQL and not in SQL, whose body would take the place of the
-- call and hide what it costs: a search of common characters would work it out for every document.
CREATE FUNCTION formgate_bigrams(document text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
  IF length(document) > 100000 THEN
    RETURN array_to_tsvector(ARRAY['long']);
  END IF;
  RETURN array_to_tsvector(array_remove(
    string_to_array(regexp_replace(document, '(..)', '\1' || chr(31), 'g'), chr(31))
    || string_to_array(regexp_replace(substr(document, 2), '(..)', '\1' || chr(31), 'g'), chr(31)), ''));
END
$$;
COMMENT ON FUNCTION formgate_bigrams IS 'The two-character parts of a document, as the keyword search looks them up.';
-- What was taken in last lies in a list that each search reads whole: a short one.
CREATE INDEX submission_documents_bigrams ON submission_documents USING gin (formgate_bigrams(document))
  WITH (gin_pending_list_limit = 256);
ALTER INDEX IF EXISTS submission_documents_trigrams SET (gin_pending_list_limit = 256);
ANALYZE submission_documents;
