-- What makes a search cost the same however many submissions there are: counts, labels in the order of the pages, and a
-- way to the keywords of two characters. Kept by triggers that never rest, and written by nobody else.

-- 1. Counts ----------------------------------------------------------------------------------------------------------

-- How many submissions are returned by themselves: by form and status, by the day of each instant, by label. A count
-- may be 0.
CREATE TABLE submission_counts (
  counted TEXT NOT NULL CHECK (counted IN ('form', 'created', 'updated', 'label', 'shared label')),
  key INTEGER NOT NULL, -- a form's or a label's id, or days since 1970-01-01 in UTC
  status TEXT NOT NULL, -- where forms are counted, else empty
  listed INTEGER NOT NULL,
  PRIMARY KEY (counted, key, status)
) STRICT, WITHOUT ROWID;

-- A day has 86,400,000,000 microseconds; the remainder is made positive first, so that 1969 is counted too.
CREATE TRIGGER submissions_inserted AFTER INSERT ON submissions WHEN NOT NEW.draft AND NEW.child_of IS NULL BEGIN
  INSERT INTO submission_counts VALUES
    ('form', NEW.form_id, NEW.status, 1),
    ('created', (NEW.created_at - (NEW.created_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', 1),
    ('updated', (NEW.updated_at - (NEW.updated_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', 1)
    ON CONFLICT DO UPDATE SET listed = listed + 1;
END;
CREATE TRIGGER submissions_deleted AFTER DELETE ON submissions WHEN NOT OLD.draft AND OLD.child_of IS NULL BEGIN
  INSERT INTO submission_counts VALUES
    ('form', OLD.form_id, OLD.status, -1),
    ('created', (OLD.created_at - (OLD.created_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', -1),
    ('updated', (OLD.updated_at - (OLD.updated_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', -1)
    ON CONFLICT DO UPDATE SET listed = listed - 1;
END;
CREATE TRIGGER submissions_updated AFTER UPDATE OF form_id, status, draft, child_of, created_at, updated_at ON submissions
WHEN (NEW.form_id, NEW.status, NEW.draft, NEW.created_at, NEW.updated_at)
    <> (OLD.form_id, OLD.status, OLD.draft, OLD.created_at, OLD.updated_at)
  OR NEW.child_of IS NOT OLD.child_of BEGIN
  INSERT INTO submission_counts SELECT * FROM (VALUES
    ('form', OLD.form_id, OLD.status, -1),
    ('created', (OLD.created_at - (OLD.created_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', -1),
    ('updated', (OLD.updated_at - (OLD.updated_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', -1))
    WHERE NOT OLD.draft AND OLD.child_of IS NULL
    ON CONFLICT DO UPDATE SET listed = listed - 1;
  INSERT INTO submission_counts SELECT * FROM (VALUES
    ('form', NEW.form_id, NEW.status, 1),
    ('created', (NEW.created_at - (NEW.created_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', 1),
    ('updated', (NEW.updated_at - (NEW.updated_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', 1))
    WHERE NOT NEW.draft AND NEW.child_of IS NULL
    ON CONFLICT DO UPDATE SET listed = listed + 1;
END;
-- 2. Labels ----------------------------------------------------------------------------------------------------------

-- submission_labels of the submissions that are returned by themselves, in the order of the pages.
CREATE TABLE listed_labels (
  label_id INTEGER NOT NULL,
  shared INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  submission_id INTEGER NOT NULL,
  PRIMARY KEY (label_id, shared, updated_at, submission_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX listed_labels_submission ON listed_labels (submission_id, label_id, shared);

CREATE TRIGGER listed_labels_inserted AFTER INSERT ON listed_labels BEGIN
  INSERT INTO submission_counts VALUES (iif(NEW.shared, 'shared label', 'label'), NEW.label_id, '', 1)
    ON CONFLICT DO UPDATE SET listed = listed + 1;
END;
CREATE TRIGGER listed_labels_deleted AFTER DELETE ON listed_labels BEGIN
  INSERT INTO submission_counts VALUES (iif(OLD.shared, 'shared label', 'label'), OLD.label_id, '', -1)
    ON CONFLICT DO UPDATE SET listed = listed - 1;
END;
CREATE TRIGGER submission_labels_inserted AFTER INSERT ON submission_labels BEGIN
  DELETE FROM listed_labels
    WHERE submission_id = NEW.submission_id AND label_id = NEW.label_id AND shared = NEW.shared;
  INSERT INTO listed_labels
    SELECT NEW.label_id, NEW.shared, updated_at, id FROM submissions
    WHERE id = NEW.submission_id AND NOT draft AND child_of IS NULL;
END;
CREATE TRIGGER submission_labels_deleted AFTER DELETE ON submission_labels BEGIN
  DELETE FROM listed_labels
    WHERE submission_id = OLD.submission_id AND label_id = OLD.label_id AND shared = OLD.shared;
END;
CREATE TRIGGER submission_labels_updated AFTER UPDATE ON submission_labels BEGIN
  DELETE FROM listed_labels
    WHERE submission_id = OLD.submission_id AND label_id = OLD.label_id AND shared = OLD.shared;
  INSERT INTO listed_labels
    SELECT NEW.label_id, NEW.shared, updated_at, id FROM submissions
    WHERE id = NEW.submission_id AND NOT draft AND child_of IS NULL;
END;
-- What stands in the table now counts, not what this statement saw: another trigger may have set child_of since.
CREATE TRIGGER submissions_relabelled AFTER UPDATE OF draft, child_of, updated_at ON submissions
WHEN ((NEW.draft, NEW.updated_at) <> (OLD.draft, OLD.updated_at) OR NEW.child_of IS NOT OLD.child_of)
  AND EXISTS (SELECT 1 FROM submission_labels WHERE submission_id = NEW.id) BEGIN
  DELETE FROM listed_labels WHERE submission_id = NEW.id;
  INSERT INTO listed_labels
    SELECT l.label_id, l.shared, s.updated_at, s.id
    FROM submissions s JOIN submission_labels l ON l.submission_id = s.id
    WHERE s.id = NEW.id AND NOT s.draft AND s.child_of IS NULL;
END;
-- What stands in the two tables, made anew.
CREATE VIEW listed_labels_anew AS
  SELECT l.submission_id, l.label_id, l.shared, s.updated_at
  FROM submission_labels l JOIN submissions s ON s.id = l.submission_id
  WHERE NOT s.draft AND s.child_of IS NULL;
CREATE VIEW submission_counts_anew AS
  SELECT 'form' AS counted, form_id AS key, status, count(*) AS listed
  FROM submissions WHERE NOT draft AND child_of IS NULL GROUP BY form_id, status
  UNION ALL
  SELECT 'created', (created_at - (created_at % 86400000000 + 86400000000) % 86400000000) / 86400000000 AS day, '', count(*)
  FROM submissions WHERE NOT draft AND child_of IS NULL GROUP BY day
  UNION ALL
  SELECT 'updated', (updated_at - (updated_at % 86400000000 + 86400000000) % 86400000000) / 86400000000 AS day, '', count(*)
  FROM submissions WHERE NOT draft AND child_of IS NULL GROUP BY day
  UNION ALL
  SELECT iif(shared, 'shared label', 'label') AS counted, label_id, '', count(*)
  FROM listed_labels_anew GROUP BY counted, label_id;

INSERT INTO listed_labels (submission_id, label_id, shared, updated_at)
  SELECT submission_id, label_id, shared, updated_at FROM listed_labels_anew;
DELETE FROM submission_counts;
INSERT INTO submission_counts (counted, key, status, listed)
  SELECT counted, key, status, listed FROM submission_counts_anew;

-- 3. Indexes ---------------------------------------------------------------------------------------------------------

-- Forms and statuses together, in the order of the pages.
CREATE INDEX submissions_form_status_updated ON submissions (form_id, status, updated_at, id)
  WHERE NOT draft AND child_of IS NULL;

-- Two characters stand in a document where they begin one of its trigrams, or where they end it.
CREATE VIRTUAL TABLE submission_trigram_terms USING fts5vocab ('submission_trigrams', 'row');
CREATE INDEX submission_documents_end ON submission_documents (substr(document, -2));
