-- One account's database, for SQLite. Instants are whole microseconds since 1970-01-01T00:00:00Z.
--
-- A program that writes forms and submissions by SQL writes the plain tables of the first two parts, with
-- `PRAGMA foreign_keys = ON`. The third part is kept by triggers in the same transaction, and is written by nobody else.
-- The triggers run inside the writer's own SQLite, so they keep to what version 3.38 knows. They fold only ASCII
-- letters, which is all that SQLite's lower() does: after writing other text by SQL, run `formgate reindex`.

-- 1. People, forms, groups -------------------------------------------------------------------------------------------

-- Who submits, who acts, who is in a group. E-mail addresses are unique, compared case-insensitively.
CREATE TABLE users (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  email TEXT NOT NULL CHECK (length(email) BETWEEN 1 AND 320),
  name TEXT NOT NULL DEFAULT '',
  email_folded TEXT -- kept by a trigger where the writer leaves it out
) STRICT;
CREATE UNIQUE INDEX users_email ON users (email_folded);
CREATE TRIGGER users_inserted AFTER INSERT ON users WHEN NEW.email_folded IS NULL BEGIN
  UPDATE users SET email_folded = lower(NEW.email) WHERE id = NEW.id;
END;
CREATE TRIGGER users_updated AFTER UPDATE OF email ON users
WHEN NEW.email IS NOT OLD.email AND NEW.email_folded IS OLD.email_folded AND (SELECT NOT resting FROM upkeep) BEGIN
  UPDATE users SET email_folded = lower(NEW.email) WHERE id = NEW.id;
END;

-- A form with a parent_id is a sub-form, at any depth.
CREATE TABLE forms (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  name TEXT NOT NULL,
  anonymous INTEGER NOT NULL DEFAULT 0 CHECK (anonymous IN (0, 1)),
  disabled INTEGER NOT NULL DEFAULT 0 CHECK (disabled IN (0, 1)),
  -- The answers of submissions below one of this form stand in that submission, and nowhere else.
  graduated INTEGER NOT NULL DEFAULT 0 CHECK (graduated IN (0, 1)),
  parent_id INTEGER REFERENCES forms CHECK (parent_id <> id)
) STRICT;
CREATE INDEX forms_parent ON forms (parent_id) WHERE parent_id IS NOT NULL;

-- The fields of a form, in the order of position.
CREATE TABLE elements (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  form_id INTEGER NOT NULL REFERENCES forms ON DELETE CASCADE,
  position INTEGER NOT NULL,
  gid TEXT NOT NULL, -- the UUID that API callers know the field by
  name TEXT NOT NULL,
  type TEXT NOT NULL
) STRICT;
CREATE INDEX elements_form ON elements (form_id, position, id);

-- Labels that can be put on submissions.
CREATE TABLE labels (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  name TEXT NOT NULL,
  shared INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1))
) STRICT;

-- Groups of users. The built-in one has every user as a member, without rows in group_members.
CREATE TABLE groups (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 255),
  external_id TEXT CHECK (length(external_id) BETWEEN 1 AND 255),
  managed INTEGER NOT NULL DEFAULT 0 CHECK (managed IN (0, 1)), -- kept in step with a directory through the API
  built_in INTEGER NOT NULL DEFAULT 0 CHECK (built_in IN (0, 1))
) STRICT;
CREATE UNIQUE INDEX groups_external_id ON groups (external_id) WHERE external_id IS NOT NULL;
CREATE UNIQUE INDEX groups_built_in ON groups (built_in) WHERE built_in;
CREATE INDEX groups_name ON groups (name);
-- 2^53 - 1: the largest integer that every reader of JSON holds exactly, out of the way of the ids that a product gives.
INSERT INTO groups (id, name, built_in) VALUES (9007199254740991, 'All Users', 1);

CREATE TABLE group_members (
  group_id INTEGER NOT NULL REFERENCES groups ON UPDATE CASCADE ON DELETE CASCADE,
  user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
  PRIMARY KEY (group_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX group_members_user ON group_members (user_id);

-- The steps of a form's workflow.
CREATE TABLE flow_steps (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  form_id INTEGER NOT NULL REFERENCES forms ON DELETE CASCADE,
  name TEXT NOT NULL
) STRICT;
CREATE INDEX flow_steps_form ON flow_steps (form_id);

-- The groups that a step asks. A group that stands here can't be deleted.
CREATE TABLE flow_step_groups (
  flow_step_id INTEGER NOT NULL REFERENCES flow_steps ON DELETE CASCADE,
  group_id INTEGER NOT NULL REFERENCES groups ON UPDATE CASCADE,
  PRIMARY KEY (flow_step_id, group_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_step_groups_group ON flow_step_groups (group_id);

-- API tokens of the account, made and revoked by formgate alone: a digest and a prefix to tell them apart by, never the
-- token.
CREATE TABLE tokens (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 255),
  prefix TEXT NOT NULL,
  digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
  created_at INTEGER NOT NULL,
  last_used_at INTEGER,
  revoked_at INTEGER
) STRICT;

-- 2. Submissions -----------------------------------------------------------------------------------------------------

-- What people handed in. Drafts, and children of submissions of graduated forms, are never returned by themselves.
CREATE TABLE submissions (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  form_id INTEGER NOT NULL REFERENCES forms,
  parent_id INTEGER REFERENCES submissions CHECK (parent_id <> id),
  status TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'denied', 'back', 'info', 'escalate')),
  draft INTEGER NOT NULL DEFAULT 0 CHECK (draft IN (0, 1)),
  submitter_id INTEGER REFERENCES users,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  child_of INTEGER -- parent_id where the parent's form is graduated, else null; kept by triggers
) STRICT;
-- The pages of the API: only what is returned by itself, in the two orders that it offers.
CREATE INDEX submissions_updated ON submissions (updated_at, id) WHERE NOT draft AND child_of IS NULL;
CREATE INDEX submissions_created ON submissions (created_at, id) WHERE NOT draft AND child_of IS NULL;
CREATE INDEX submissions_form_updated ON submissions (form_id, updated_at, id) WHERE NOT draft AND child_of IS NULL;
CREATE INDEX submissions_status_updated ON submissions (status, updated_at, id) WHERE NOT draft AND child_of IS NULL;
CREATE INDEX submissions_submitter ON submissions (submitter_id);
CREATE INDEX submissions_parent ON submissions (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX submissions_child ON submissions (child_of, id) WHERE child_of IS NOT NULL;

-- One row a field that was answered.
CREATE TABLE answers (
  submission_id INTEGER NOT NULL REFERENCES submissions ON DELETE CASCADE,
  element_id INTEGER NOT NULL REFERENCES elements,
  value TEXT NOT NULL, -- several choices one per line; the files' URLs joined by commas
  files TEXT CHECK (files IS NULL OR json_valid(files) AND json_type(files) = 'array'), -- [{"name", "url", "size", "mime_type"}]
  updated_at INTEGER NOT NULL,
  folded TEXT, -- the value in lower case; kept by triggers
  PRIMARY KEY (submission_id, element_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX answers_folded ON answers (element_id, substr(folded, 1, 64));

CREATE TABLE submission_labels (
  submission_id INTEGER NOT NULL REFERENCES submissions ON DELETE CASCADE,
  label_id INTEGER NOT NULL REFERENCES labels ON DELETE CASCADE,
  -- Put on as a shared label: the filter sharedLabels looks here, labels at the others.
  shared INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1)),
  PRIMARY KEY (submission_id, label_id, shared)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_labels_label ON submission_labels (label_id, shared, submission_id);

-- Whom a submission waits for.
CREATE TABLE submission_pending (
  submission_id INTEGER NOT NULL REFERENCES submissions ON DELETE CASCADE,
  user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
  PRIMARY KEY (submission_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_pending_user ON submission_pending (user_id, submission_id);

-- Who acted on a submission.
CREATE TABLE submission_participants (
  submission_id INTEGER NOT NULL REFERENCES submissions ON DELETE CASCADE,
  user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
  PRIMARY KEY (submission_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_participants_user ON submission_participants (user_id, submission_id);

-- The workflow steps that a submission is at.
CREATE TABLE submission_flow_steps (
  submission_id INTEGER NOT NULL REFERENCES submissions ON DELETE CASCADE,
  flow_step_id INTEGER NOT NULL REFERENCES flow_steps ON DELETE CASCADE,
  PRIMARY KEY (submission_id, flow_step_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_flow_steps_step ON submission_flow_steps (flow_step_id, submission_id);

-- 3. Kept by the database --------------------------------------------------------------------------------------------

-- One row: formgate's own import folds and indexes by itself, and rests the triggers inside its transaction.
CREATE TABLE upkeep (resting INTEGER NOT NULL CHECK (resting IN (0, 1))) STRICT;
INSERT INTO upkeep VALUES (0);

-- Every submission's own answers, folded and joined by U+001F, for the keyword search.
CREATE TABLE submission_documents (
  submission_id INTEGER PRIMARY KEY,
  document TEXT NOT NULL
) STRICT;
-- Its trigrams. The index reads the documents from the table above and holds no text itself.
CREATE VIRTUAL TABLE submission_trigrams USING fts5 (
  document, content = 'submission_documents', content_rowid = 'submission_id', columnsize = 0,
  tokenize = 'trigram case_sensitive 1'
);
CREATE TRIGGER submission_documents_inserted AFTER INSERT ON submission_documents BEGIN
  INSERT INTO submission_trigrams (rowid, document) VALUES (NEW.submission_id, NEW.document);
END;
CREATE TRIGGER submission_documents_deleted AFTER DELETE ON submission_documents BEGIN
  INSERT INTO submission_trigrams (submission_trigrams, rowid, document) VALUES ('delete', OLD.submission_id, OLD.document);
END;
CREATE TRIGGER submission_documents_updated AFTER UPDATE ON submission_documents
WHEN NEW.document IS NOT OLD.document BEGIN
  INSERT INTO submission_trigrams (submission_trigrams, rowid, document) VALUES ('delete', OLD.submission_id, OLD.document);
  INSERT INTO submission_trigrams (rowid, document) VALUES (NEW.submission_id, NEW.document);
END;

-- The folded lines of answers with several choices, for the terms filter.
CREATE TABLE answer_lines (
  submission_id INTEGER NOT NULL,
  element_id INTEGER NOT NULL,
  line TEXT NOT NULL
) STRICT;
CREATE INDEX answer_lines_line ON answer_lines (element_id, substr(line, 1, 64));
CREATE INDEX answer_lines_answer ON answer_lines (submission_id, element_id);

CREATE TRIGGER answers_inserted AFTER INSERT ON answers WHEN (SELECT NOT resting FROM upkeep) BEGIN
  UPDATE answers SET folded = lower(NEW.value)
    WHERE submission_id = NEW.submission_id AND element_id = NEW.element_id;
END;
CREATE TRIGGER answers_updated AFTER UPDATE OF value ON answers
WHEN NEW.value IS NOT OLD.value AND (SELECT NOT resting FROM upkeep) BEGIN
  UPDATE answers SET folded = lower(NEW.value)
    WHERE submission_id = NEW.submission_id AND element_id = NEW.element_id;
END;
-- Everything else follows from folded. A line break can't be split at in a trigger but by way of JSON; U+FFFF is no
-- character, so no text has it.
CREATE TRIGGER answers_folded_updated AFTER UPDATE OF folded ON answers
WHEN NEW.folded IS NOT OLD.folded AND (SELECT NOT resting FROM upkeep) BEGIN
  DELETE FROM answer_lines WHERE submission_id = NEW.submission_id AND element_id = NEW.element_id;
  INSERT INTO answer_lines (submission_id, element_id, line)
    SELECT NEW.submission_id, NEW.element_id, line.value
    FROM json_each('[' || replace(json_quote(replace(NEW.folded, char(10), char(65535))), char(65535), '","') || ']') AS line
    WHERE instr(NEW.folded, char(10)) > 0;
  INSERT INTO submission_documents (submission_id, document)
    SELECT NEW.submission_id, group_concat(folded, char(31))
    FROM (SELECT folded FROM answers WHERE submission_id = NEW.submission_id ORDER BY element_id)
    WHERE true
    ON CONFLICT (submission_id) DO UPDATE SET document = excluded.document;
END;
CREATE TRIGGER answers_deleted AFTER DELETE ON answers WHEN (SELECT NOT resting FROM upkeep) BEGIN
  DELETE FROM answer_lines WHERE submission_id = OLD.submission_id AND element_id = OLD.element_id;
  DELETE FROM submission_documents WHERE submission_id = OLD.submission_id
    AND NOT EXISTS (SELECT 1 FROM answers WHERE submission_id = OLD.submission_id);
  UPDATE submission_documents SET document = (
      SELECT group_concat(folded, char(31))
      FROM (SELECT folded FROM answers WHERE submission_id = OLD.submission_id ORDER BY element_id))
    WHERE submission_id = OLD.submission_id;
END;

-- child_of, and the rule that there is one level: a child's parent has no parent.
CREATE TRIGGER submissions_placed AFTER INSERT ON submissions
WHEN NEW.parent_id IS NOT NULL OR NEW.child_of IS NOT NULL BEGIN
  UPDATE submissions SET child_of = (
      SELECT p.id FROM submissions p JOIN forms f ON f.id = p.form_id WHERE p.id = NEW.parent_id AND f.graduated)
    WHERE id = NEW.id;
END;
CREATE TRIGGER submissions_moved AFTER UPDATE OF parent_id ON submissions
WHEN NEW.parent_id IS NOT OLD.parent_id BEGIN
  UPDATE submissions SET child_of = (
      SELECT p.id FROM submissions p JOIN forms f ON f.id = p.form_id WHERE p.id = NEW.parent_id AND f.graduated)
    WHERE id = NEW.id;
  SELECT raise(ABORT, 'a submission with child submissions can have no parent')
    WHERE NEW.parent_id IS NOT NULL AND EXISTS (SELECT 1 FROM submissions c WHERE c.child_of = NEW.id);
END;
CREATE TRIGGER submissions_child_of AFTER UPDATE OF child_of ON submissions WHEN NEW.child_of IS NOT NULL BEGIN
  SELECT raise(ABORT, 'the parent of a child submission has no parent itself')
    FROM submissions p WHERE p.id = NEW.child_of AND p.parent_id IS NOT NULL;
END;
CREATE TRIGGER submissions_reformed AFTER UPDATE OF form_id ON submissions WHEN NEW.form_id <> OLD.form_id BEGIN
  UPDATE submissions SET child_of = iif((SELECT graduated FROM forms WHERE id = NEW.form_id), parent_id, NULL)
    WHERE parent_id = NEW.id;
END;
CREATE TRIGGER forms_graduated AFTER UPDATE OF graduated ON forms WHEN NEW.graduated <> OLD.graduated BEGIN
  UPDATE submissions SET child_of = iif(NEW.graduated, parent_id, NULL)
    WHERE parent_id IN (SELECT id FROM submissions WHERE form_id = NEW.id);
END;
