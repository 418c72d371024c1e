-- What is derived of submissions is no longer made by triggers in the writers' transactions. Writers only note in `intake`
-- what they touched. formgate derives from what is committed, in one place for both databases: src/store/settle.rs.
--
-- What the triggers before this version keep stays until migration 11, for nodes of the version before.

-- 1. The intake ------------------------------------------------------------------------------------------------------

-- What was written and not yet derived from. Writers append, formgate takes out.
CREATE TABLE intake (
  submission_id INTEGER, -- a submission that changed, or an answer or a label of it; NULL with form_id NULL: everything
  children INTEGER NOT NULL DEFAULT 0, -- whether those whose parent it is may have become its children, or ceased to be
  form_id INTEGER -- a form that became graduated, or ceased to be
) STRICT;

CREATE TRIGGER submissions_noted_insert AFTER INSERT ON submissions BEGIN
  INSERT INTO intake (submission_id, children) VALUES (NEW.id, 1);
END;
CREATE TRIGGER submissions_noted_update AFTER UPDATE ON submissions BEGIN
  INSERT INTO intake (submission_id, children) VALUES (NEW.id, NEW.form_id <> OLD.form_id OR NEW.id <> OLD.id);
END;
CREATE TRIGGER submissions_noted_renumber AFTER UPDATE OF id ON submissions WHEN NEW.id <> OLD.id BEGIN
  INSERT INTO intake (submission_id, children) VALUES (OLD.id, 1);
END;
CREATE TRIGGER submissions_noted_delete AFTER DELETE ON submissions BEGIN
  INSERT INTO intake (submission_id, children) VALUES (OLD.id, 1);
END;
CREATE TRIGGER answers_noted_insert AFTER INSERT ON answers BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER answers_noted_update AFTER UPDATE ON answers BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER answers_noted_move AFTER UPDATE OF submission_id ON answers
WHEN NEW.submission_id <> OLD.submission_id BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;
CREATE TRIGGER answers_noted_delete AFTER DELETE ON answers BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;
CREATE TRIGGER labels_noted_insert AFTER INSERT ON submission_labels BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER labels_noted_update AFTER UPDATE ON submission_labels BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER labels_noted_move AFTER UPDATE OF submission_id ON submission_labels
WHEN NEW.submission_id <> OLD.submission_id BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;
CREATE TRIGGER labels_noted_delete AFTER DELETE ON submission_labels BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;
CREATE TRIGGER forms_noted AFTER UPDATE OF graduated ON forms WHEN NEW.graduated <> OLD.graduated BEGIN
  INSERT INTO intake (form_id) VALUES (NEW.id);
END;

-- 2. What is derived -------------------------------------------------------------------------------------------------

-- The submissions that are returned by themselves: neither drafts nor children of submissions of graduated forms.
CREATE TABLE listed_submissions (
  id INTEGER PRIMARY KEY,
  form_id INTEGER NOT NULL,
  status TEXT NOT NULL,
  submitter_id INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX listed_updated ON listed_submissions (updated_at, id);
CREATE INDEX listed_created ON listed_submissions (created_at, id);
CREATE INDEX listed_form_updated ON listed_submissions (form_id, updated_at, id);
CREATE INDEX listed_status_updated ON listed_submissions (status, updated_at, id);
CREATE INDEX listed_form_status_updated ON listed_submissions (form_id, status, updated_at, id);
CREATE INDEX listed_submitter ON listed_submissions (submitter_id);

-- The folded answers of a submission, joined by U+FDD0, for the keyword search. They are shown in the submission itself, or
-- in the parent of a child.
CREATE TABLE listed_documents (
  submission_id INTEGER PRIMARY KEY,
  shown_in INTEGER NOT NULL,
  document TEXT NOT NULL
) STRICT;
CREATE INDEX listed_documents_shown_in ON listed_documents (shown_in);
-- Their trigrams. The index reads the documents from the table above and holds no text itself.
CREATE VIRTUAL TABLE listed_trigrams USING fts5 (
  document, content = 'listed_documents', content_rowid = 'submission_id', columnsize = 0,
  tokenize = 'trigram case_sensitive 1'
);
-- A document contains two characters if they begin one of its trigrams or end the document.
CREATE VIRTUAL TABLE listed_trigram_terms USING fts5vocab ('listed_trigrams', 'row');
CREATE INDEX listed_documents_end ON listed_documents (substr(document, -2));

-- The folded answers and their lines as digests with the element, for the terms filter.
CREATE TABLE listed_terms (
  term INTEGER NOT NULL,
  shown_in INTEGER NOT NULL,
  submission_id INTEGER NOT NULL,
  PRIMARY KEY (term, shown_in, submission_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX listed_terms_submission ON listed_terms (submission_id);

-- The labels of the listed submissions, in the order of the pages.
CREATE TABLE listed_by_label (
  label_id INTEGER NOT NULL,
  shared INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  submission_id INTEGER NOT NULL,
  PRIMARY KEY (label_id, shared, updated_at, submission_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX listed_by_label_submission ON listed_by_label (submission_id);

-- How many submissions are listed: by form and status, by the day of each instant, by label. A count may be 0.
CREATE TABLE listed_counts (
  counted TEXT NOT NULL CHECK (counted IN ('form', 'created', 'updated', 'label', 'shared label')),
  key INTEGER NOT NULL, -- the id of a form or a label, or days since 1970-01-01 in UTC
  status TEXT NOT NULL, -- where forms are counted, else empty
  listed INTEGER NOT NULL,
  PRIMARY KEY (counted, key, status)
) STRICT, WITHOUT ROWID;

-- What is there already has to be derived from.
INSERT INTO intake DEFAULT VALUES;

-- 3. Instants and addresses ------------------------------------------------------------------------------------------

-- Instants that the API can show: the years 1 to 9999 in microseconds, and not in nanoseconds. formgate shows those that
-- are there already as the nearest one that it can.
CREATE TRIGGER submissions_instants_inserted BEFORE INSERT ON submissions
WHEN NEW.created_at NOT BETWEEN -62135596800000000 AND 253402207200000000
  OR NEW.updated_at NOT BETWEEN -62135596800000000 AND 253402207200000000 BEGIN
  SELECT raise(ABORT, 'an instant is microseconds since 1970, in the years 1 to 9999');
END;
CREATE TRIGGER submissions_instants_updated BEFORE UPDATE OF created_at, updated_at ON submissions
WHEN NEW.created_at NOT BETWEEN -62135596800000000 AND 253402207200000000
  OR NEW.updated_at NOT BETWEEN -62135596800000000 AND 253402207200000000 BEGIN
  SELECT raise(ABORT, 'an instant is microseconds since 1970, in the years 1 to 9999');
END;
CREATE TRIGGER answers_instants_inserted BEFORE INSERT ON answers
WHEN NEW.updated_at NOT BETWEEN -62135596800000000 AND 253402207200000000 BEGIN
  SELECT raise(ABORT, 'an instant is microseconds since 1970, in the years 1 to 9999');
END;
CREATE TRIGGER answers_instants_updated BEFORE UPDATE OF updated_at ON answers
WHEN NEW.updated_at NOT BETWEEN -62135596800000000 AND 253402207200000000 BEGIN
  SELECT raise(ABORT, 'an instant is microseconds since 1970, in the years 1 to 9999');
END;

-- SQLite's lower() folds ASCII only. Addresses with other letters are left to formgate, which folds them before it looks
-- for a user.
DROP TRIGGER users_inserted;
DROP TRIGGER users_updated;
CREATE TRIGGER users_inserted AFTER INSERT ON users WHEN NEW.email_folded IS NULL BEGIN
  UPDATE users SET email_folded = iif(NEW.email GLOB '*[^ -~]*', NULL, lower(NEW.email)) WHERE id = NEW.id;
END;
CREATE TRIGGER users_updated AFTER UPDATE OF email ON users
WHEN NEW.email IS NOT OLD.email AND NEW.email_folded IS OLD.email_folded BEGIN
  UPDATE users SET email_folded = iif(NEW.email GLOB '*[^ -~]*', NULL, lower(NEW.email)) WHERE id = NEW.id;
END;
UPDATE users SET email_folded = NULL WHERE email GLOB '*[^ -~]*';
CREATE INDEX users_unfolded ON users (id) WHERE email_folded IS NULL;
