-- The change log: which submissions changed, in the order in which formgate noticed it: src/store/changes.rs.

-- 1. When something was noted ------------------------------------------------------------------------------------------

-- SQLite can't add a column whose default is the time, so the table is created again.
CREATE TABLE intake_before AS SELECT submission_id, children, form_id FROM intake;
DROP TABLE intake;
-- What was written and not yet derived from. Writers append, formgate takes out.
CREATE TABLE intake (
  submission_id INTEGER, -- a submission that changed, or a part of it; NULL with form_id NULL: everything
  children INTEGER NOT NULL DEFAULT 0, -- whether those whose parent it is may have become its children, or ceased to be
  form_id INTEGER, -- a form that became graduated, or ceased to be
  -- When it was written, in microseconds. Libraries of writers may be too old for other ways to read the clock.
  at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
) STRICT;
INSERT INTO intake (submission_id, children, form_id) SELECT submission_id, children, form_id FROM intake_before;
DROP TABLE intake_before;

-- Labels are noted already; these decide which filters a submission matches, too.
CREATE TRIGGER pending_noted_insert AFTER INSERT ON submission_pending BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER pending_noted_update AFTER UPDATE ON submission_pending BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id), (OLD.submission_id);
END;
CREATE TRIGGER pending_noted_delete AFTER DELETE ON submission_pending BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;
CREATE TRIGGER participants_noted_insert AFTER INSERT ON submission_participants BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER participants_noted_update AFTER UPDATE ON submission_participants BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id), (OLD.submission_id);
END;
CREATE TRIGGER participants_noted_delete AFTER DELETE ON submission_participants BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;
CREATE TRIGGER flow_steps_noted_insert AFTER INSERT ON submission_flow_steps BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER flow_steps_noted_update AFTER UPDATE ON submission_flow_steps BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id), (OLD.submission_id);
END;
CREATE TRIGGER flow_steps_noted_delete AFTER DELETE ON submission_flow_steps BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;

-- 2. The log -----------------------------------------------------------------------------------------------------------

-- One row for each submission that is no draft, or was listed and is no longer: what it showed when formgate last looked, and
-- the numbers of its newest changes. A number is taken when a change is noticed.
CREATE TABLE submission_changes (
  submission_id INTEGER PRIMARY KEY,
  shown_in INTEGER NOT NULL, -- the submission that shows it: itself, or its parent if that is of a graduated form
  form_id INTEGER NOT NULL,
  shown INTEGER, -- a digest of what the API shows of it; NULL: not yet known
  matched INTEGER, -- a digest of what only filters see: submitter, labels, pending users, participants, flow steps
  deleted INTEGER NOT NULL DEFAULT 0,
  seq INTEGER, -- of the newest change, by which the feed is ordered; NULL for a child of a submission of a graduated form
  listed_seq INTEGER, -- with which it was listed
  created_event INTEGER, -- of the newest change of each kind that webhooks are sent; NULL: there was none, or a quiet one
  updated_event INTEGER,
  deleted_event INTEGER,
  burst_at INTEGER NOT NULL, -- when the first of the changes happened that followed each other closely
  changed_at INTEGER NOT NULL -- when the newest change happened
) STRICT;
CREATE UNIQUE INDEX submission_changes_seq ON submission_changes (seq) WHERE seq IS NOT NULL;
CREATE INDEX submission_changes_form ON submission_changes (form_id, seq) WHERE seq IS NOT NULL;
CREATE INDEX submission_changes_created ON submission_changes (created_event) WHERE created_event IS NOT NULL;
CREATE INDEX submission_changes_updated ON submission_changes (updated_event) WHERE updated_event IS NOT NULL;
CREATE INDEX submission_changes_deleted ON submission_changes (deleted_event) WHERE deleted_event IS NOT NULL;
CREATE INDEX submission_changes_expiry ON submission_changes (changed_at) WHERE deleted;

-- The forms that submissions left for another one: the feed of some forms has to say so.
CREATE TABLE submission_moves (
  submission_id INTEGER NOT NULL,
  form_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  changed_at INTEGER NOT NULL,
  PRIMARY KEY (submission_id, form_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_moves_seq ON submission_moves (seq);

CREATE TABLE change_state (
  single INTEGER PRIMARY KEY DEFAULT 1 CHECK (single = 1),
  epoch TEXT NOT NULL, -- another one after the log was begun again: cursors of the one before lead nowhere
  last_seq INTEGER NOT NULL, -- the last number that was given
  forgotten_seq INTEGER NOT NULL DEFAULT 0, -- the last number of a deletion that is no longer kept
  numbering INTEGER NOT NULL DEFAULT 0 -- only ever 1 within the transaction that takes notes and numbers what changed
) STRICT;

-- 3. Notes that a node of the version before took: it derives from them and numbers nothing ----------------------------

CREATE TABLE intake_unnumbered (
  submission_id INTEGER,
  children INTEGER NOT NULL,
  form_id INTEGER,
  at INTEGER NOT NULL
) STRICT;
CREATE TRIGGER intake_taken AFTER DELETE ON intake WHEN NOT (SELECT numbering FROM change_state) BEGIN
  INSERT INTO intake_unnumbered VALUES (OLD.submission_id, OLD.children, OLD.form_id, OLD.at);
END;

-- 4. What is there already ---------------------------------------------------------------------------------------------

INSERT INTO submission_changes (submission_id, shown_in, form_id, seq, listed_seq, burst_at, changed_at)
  SELECT id, id, form_id, row_number() OVER (ORDER BY id), row_number() OVER (ORDER BY id),
    CAST(strftime('%s', 'now') AS INTEGER) * 1000000, CAST(strftime('%s', 'now') AS INTEGER) * 1000000
  FROM listed_submissions;
INSERT OR IGNORE INTO submission_changes (submission_id, shown_in, form_id, burst_at, changed_at)
  SELECT c.id, c.parent_id, c.form_id,
    CAST(strftime('%s', 'now') AS INTEGER) * 1000000, CAST(strftime('%s', 'now') AS INTEGER) * 1000000
  FROM submissions c JOIN submissions p ON p.id = c.parent_id JOIN forms f ON f.id = p.form_id
  WHERE f.graduated AND NOT c.draft;
INSERT INTO change_state (epoch, last_seq)
  SELECT lower(hex(randomblob(16))), coalesce(max(seq), 0) FROM submission_changes;
