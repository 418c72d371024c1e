-- The database of one account on SQLite. Instants are whole microseconds since 1970-01-01T00:00:00Z.
--
-- First the plain tables, which a forms product writes, and the rules that they obey. Then what formgate owns: its tables,
-- and the triggers on the plain tables that fill them. postgres.sql has the same areas in the same order, so that the two
-- can be read side by side.
--
-- Until the first release this script is edited in place, and `formgate migrate` refuses a database of an earlier edit. A
-- released script never changes.
--
-- Writers set `PRAGMA foreign_keys = ON`. The triggers run in the writer's SQLite, so they use only what version 3.38 has.

-- Plain tables

-- 1. Users

-- People who submit, act on submissions, or are members of groups. E-mail addresses are unique, ignoring case.
CREATE TABLE users (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  email TEXT NOT NULL CHECK (length(email) BETWEEN 1 AND 320),
  name TEXT NOT NULL DEFAULT '',
  email_folded TEXT, -- the address in lower case, written by triggers and by formgate
  -- whether the user may be a member of groups: when it becomes 0, the memberships move to inactive_members, and back when it
  -- becomes 1
  active INTEGER NOT NULL DEFAULT 1 CHECK (active IN (0, 1))
) STRICT;
CREATE UNIQUE INDEX users_email ON users (email_folded);

-- 2. Forms and labels

-- A form with a parent_id is a sub-form, at any depth. A submission of a graduated form shows the answers of its children,
-- which are then not listed themselves.
CREATE TABLE forms (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  name TEXT NOT NULL,
  anonymous INTEGER NOT NULL DEFAULT 0 CHECK (anonymous IN (0, 1)),
  disabled INTEGER NOT NULL DEFAULT 0 CHECK (disabled IN (0, 1)),
  graduated INTEGER NOT NULL DEFAULT 0 CHECK (graduated IN (0, 1)),
  parent_id INTEGER REFERENCES forms CHECK (parent_id <> id)
) STRICT;
CREATE INDEX forms_parent ON forms (parent_id) WHERE parent_id IS NOT NULL;
-- The order of lists.
CREATE INDEX forms_listed ON forms (id) WHERE NOT disabled AND parent_id IS NULL;

-- The fields of a form, in the order of position.
CREATE TABLE elements (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  form_id INTEGER NOT NULL REFERENCES forms ON DELETE CASCADE,
  position INTEGER NOT NULL,
  gid TEXT NOT NULL, -- the UUID by which API callers know the field
  name TEXT NOT NULL,
  type TEXT NOT NULL
) STRICT;
CREATE INDEX elements_form ON elements (form_id, position, id);

-- Labels that submissions can have.
CREATE TABLE labels (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  name TEXT NOT NULL,
  shared INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1))
) STRICT;

-- 3. Groups and workflow steps

-- Groups of users. The built-in group contains every active user, without rows in group_members. AUTOINCREMENT keeps the highest id that
-- a group has had, so that formgate assigns none twice; that of the built-in group does not count.
CREATE TABLE groups (
  id INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id > 0),
  name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 255),
  external_id TEXT CHECK (length(external_id) BETWEEN 1 AND 255), -- its identifier in a directory
  managed INTEGER NOT NULL DEFAULT 0 CHECK (managed IN (0, 1)), -- whether a directory maintains it through the API
  built_in INTEGER NOT NULL DEFAULT 0 CHECK (built_in IN (0, 1))
) STRICT;
CREATE UNIQUE INDEX groups_external_id ON groups (external_id) WHERE external_id IS NOT NULL;
CREATE UNIQUE INDEX groups_built_in ON groups (built_in) WHERE built_in;
CREATE INDEX groups_name ON groups (name);
-- The order of lists.
CREATE INDEX groups_managed ON groups (id) WHERE managed;
-- 2^53 - 1 is the largest integer that every JSON parser reads exactly, and far above the ids that a product assigns.
INSERT INTO groups (id, name, built_in) VALUES (9007199254740991, 'All Users', 1);
UPDATE sqlite_sequence SET seq = 0 WHERE name = 'groups';

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

-- The groups that a step asks. Such a group can't be deleted.
CREATE TABLE flow_step_groups (
  flow_step_id INTEGER NOT NULL REFERENCES flow_steps ON DELETE CASCADE,
  group_id INTEGER NOT NULL REFERENCES groups ON UPDATE CASCADE,
  PRIMARY KEY (flow_step_id, group_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_step_groups_group ON flow_step_groups (group_id);

-- 4. Submissions

-- Submitted forms. Neither drafts nor children of submissions of graduated forms are listed. The name of the constraint is
-- what SQLite reports: a writer may have written seconds, milliseconds or nanoseconds.
CREATE TABLE submissions (
  id INTEGER PRIMARY KEY CHECK (id > 0),
  form_id INTEGER NOT NULL REFERENCES forms,
  parent_id INTEGER REFERENCES submissions CHECK (parent_id <> id),
  status TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'denied', 'back', 'info', 'escalate')),
  draft INTEGER NOT NULL DEFAULT 0 CHECK (draft IN (0, 1)),
  submitter_id INTEGER REFERENCES users,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  CONSTRAINT "an instant is microseconds since 1970, in the years 1 to 9999" CHECK (
    created_at BETWEEN -62135596800000000 AND 253402207200000000
    AND updated_at BETWEEN -62135596800000000 AND 253402207200000000)
) STRICT;
CREATE INDEX submissions_submitter ON submissions (submitter_id);
CREATE INDEX submissions_parent ON submissions (parent_id) WHERE parent_id IS NOT NULL;

-- One row for each field that was answered.
CREATE TABLE answers (
  submission_id INTEGER NOT NULL REFERENCES submissions ON DELETE CASCADE,
  element_id INTEGER NOT NULL REFERENCES elements,
  value TEXT NOT NULL, -- several choices are separated by line breaks, the URLs of several files by commas
  files TEXT CHECK (files IS NULL OR json_valid(files) AND json_type(files) = 'array'), -- [{"name", "url", "size", "mime_type"}]
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (submission_id, element_id),
  CONSTRAINT "an instant is microseconds since 1970, in the years 1 to 9999" CHECK (
    updated_at BETWEEN -62135596800000000 AND 253402207200000000)
) STRICT, WITHOUT ROWID;
-- For the foreign key: an element that was answered can't be deleted.
CREATE INDEX answers_element ON answers (element_id);

-- The filter sharedLabels finds the rows with shared, the filter labels the others.
CREATE TABLE submission_labels (
  submission_id INTEGER NOT NULL REFERENCES submissions ON DELETE CASCADE,
  label_id INTEGER NOT NULL REFERENCES labels ON DELETE CASCADE,
  shared INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1)),
  PRIMARY KEY (submission_id, label_id, shared)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_labels_label ON submission_labels (label_id, shared, submission_id);

-- The users that a submission waits for.
CREATE TABLE submission_pending (
  submission_id INTEGER NOT NULL REFERENCES submissions ON DELETE CASCADE,
  user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
  PRIMARY KEY (submission_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_pending_user ON submission_pending (user_id, submission_id);

-- The users that have acted on a submission.
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

-- What formgate owns

-- Only formgate writes these tables, so they have no CHECK constraints as on Postgres: opening a file takes about 5 µs for each.

-- 5. The identity of the database

-- Identifies the database at any path, in what is stored outside of it, such as rate windows in Redis. A copy has the same
-- identity.
CREATE TABLE database_identity (
  id TEXT NOT NULL, -- 32 hexadecimal digits
  only_row INTEGER PRIMARY KEY DEFAULT 1
) STRICT;
INSERT INTO database_identity (id) VALUES (lower(hex(randomblob(16))));

-- 6. Tokens and their usage

-- API tokens of the account. A token is stored nowhere: digest is its SHA-256, and prefix is its beginning, to recognize it by.
CREATE TABLE tokens (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  prefix TEXT NOT NULL,
  digest BLOB NOT NULL UNIQUE,
  created_at INTEGER NOT NULL,
  created_by TEXT, -- the e-mail address of an administrator, or the system user of a command
  expires_at INTEGER, -- from this instant on it is refused like a revoked token; NULL: never
  revoked_at INTEGER,
  replaces INTEGER REFERENCES tokens, -- the token that this one was created to replace
  last_used_at INTEGER,
  last_used_route TEXT, -- the route of the request at last_used_at, as metrics name it
  last_used_network TEXT, -- the network of its caller: an IPv4 /24 or an IPv6 /48
  form_key TEXT, -- of the HTML form that created it, so that sending it again creates no second token
  scopes TEXT, -- what it may do: names of scopes, separated by blanks; NULL: everything
  forms TEXT, -- what it reaches: ids of forms, separated by blanks, which include their sub-forms; NULL: all
  networks TEXT, -- from where it is accepted: networks, separated by blanks; NULL: from everywhere
  requests_per_minute INTEGER -- its own budget, within that of the account; NULL: that of the account alone
) STRICT;
CREATE UNIQUE INDEX tokens_form_key ON tokens (form_key) WHERE form_key IS NOT NULL;
-- Everything that the overview of the administration area needs to count tokens.
CREATE INDEX tokens_overview ON tokens (expires_at, last_used_at, created_at) WHERE revoked_at IS NULL;

-- The requests of the tokens in each hour that had any. Written with a delay.
CREATE TABLE token_hours (
  hour INTEGER PRIMARY KEY,
  counts TEXT NOT NULL -- a JSON array with [token, admitted, refused] for each; refused: by the rate limit
) STRICT;

-- The last requests to the API of the account, without their bodies and queries. Written with a delay.
CREATE TABLE request_log (
  at INTEGER NOT NULL,
  number INTEGER NOT NULL, -- distinguishes requests of the same instant: a random number of the node, and a counter
  id TEXT NOT NULL, -- the X-Request-Id of the response; callers choose it, so it may occur twice
  token INTEGER,
  prefix TEXT, -- the beginning of what was sent as a token, if it was refused and had the form of one
  method TEXT NOT NULL,
  route TEXT, -- the path of the endpoint in the OpenAPI document; NULL: there is none
  status INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL,
  row_count INTEGER, -- how many rows the response had
  network TEXT, -- of the caller: an IPv4 /24 or an IPv6 /48
  agent TEXT,
  reason TEXT, -- why it was refused; NULL: it was not
  counted INTEGER, -- refusals of the same token and reason within a minute; all else is of the first; NULL: it is one request
  PRIMARY KEY (at, number)
) STRICT, WITHOUT ROWID;

-- The days of the ledger of reads.
CREATE TABLE read_days (
  day INTEGER PRIMARY KEY, -- days since 1970-01-01, in the time zone of the account: date(day * 86400, 'unixepoch')
  seals INTEGER NOT NULL -- how often the day was sealed in audit_log
) STRICT;

-- Which submissions the responses to a token contained on a day. Written with a delay.
CREATE TABLE submission_reads (
  day INTEGER NOT NULL,
  token_id INTEGER NOT NULL,
  chunk INTEGER NOT NULL, -- the ids of submissions from chunk * 65536 on
  bitmap BLOB NOT NULL, -- a Roaring bitmap of these ids, less chunk * 65536, in the portable format
  forms TEXT NOT NULL, -- ids of the forms of these submissions, separated by blanks
  PRIMARY KEY (day, token_id, chunk)
) STRICT;
CREATE INDEX submission_reads_chunk ON submission_reads (chunk);

-- The nodes that may hold reads which they have not written. A node that stops removes its row.
CREATE TABLE read_nodes (
  node TEXT PRIMARY KEY,
  host TEXT NOT NULL,
  process TEXT NOT NULL, -- the boot of the machine, the namespace of process ids, the id, and when it started
  written_until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- When reads may be missing, because a node crashed.
CREATE TABLE read_gaps (
  day INTEGER NOT NULL, -- the day on which this was recorded, as in read_days
  began INTEGER NOT NULL,
  node TEXT NOT NULL,
  ended INTEGER NOT NULL,
  PRIMARY KEY (day, began, node)
) STRICT, WITHOUT ROWID;

-- 7. The administration area

-- One-time sign-in links that have not been used.
CREATE TABLE admin_links (
  digest BLOB PRIMARY KEY, -- SHA-256 of the secret in the link
  email TEXT NOT NULL,
  name TEXT,
  role TEXT NOT NULL, -- admin or viewer
  issuer TEXT, -- the OpenID provider that identified the administrator, by subject; NULL: a command created the link
  subject TEXT,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Administrators who are signed in. Signing out deletes the row.
CREATE TABLE admin_sessions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  digest BLOB NOT NULL UNIQUE, -- SHA-256 of the cookie
  email TEXT NOT NULL,
  name TEXT,
  role TEXT NOT NULL, -- admin or viewer
  issuer TEXT, -- the OpenID provider that identified the administrator, by subject; NULL: signed in by a link
  subject TEXT,
  created_at INTEGER NOT NULL,
  last_seen_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL, -- when the session ends, however recently it was used
  network TEXT NOT NULL,
  user_agent TEXT NOT NULL,
  export TEXT -- what the administrator chose to export and the key of the link to it, as JSON; NULL: nothing, or the link was used
) STRICT;

-- 8. The audit log

-- Changes by administrators and commands. Rows are only added.
CREATE TABLE audit_log (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  actor TEXT NOT NULL,
  source TEXT NOT NULL, -- administration, command, operator or gateway
  network TEXT,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  details TEXT NOT NULL, -- a JSON object
  digest BLOB NOT NULL, -- SHA-256 of the digest of the previous row and of this row
  actor_salt BLOB NOT NULL DEFAULT X'', -- 16 bytes; SHA-256 of them and the value if the value was erased
  network_salt BLOB NOT NULL DEFAULT X'', -- empty without a network
  subject_salt BLOB NOT NULL DEFAULT X'',
  details_salt BLOB NOT NULL DEFAULT X''
) STRICT;

-- The last row of audit_log, which shows whether rows are missing at its end.
CREATE TABLE audit_state (
  singleton INTEGER PRIMARY KEY DEFAULT 1,
  last_id INTEGER NOT NULL,
  digest BLOB NOT NULL
) STRICT;
INSERT INTO audit_state (last_id, digest) VALUES (0, X'');

CREATE TRIGGER audit_log_is_not_updated BEFORE UPDATE ON audit_log
BEGIN
  SELECT RAISE(ABORT, 'rows of audit_log are only added');
END;
CREATE TRIGGER audit_log_is_not_deleted_from BEFORE DELETE ON audit_log
BEGIN
  SELECT RAISE(ABORT, 'rows of audit_log are only added');
END;
-- A row that REPLACE removes is no DELETE.
CREATE TRIGGER audit_log_is_not_replaced BEFORE INSERT ON audit_log
WHEN EXISTS (SELECT 1 FROM audit_log WHERE id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'rows of audit_log are only added');
END;

-- 9. Group syncs

-- Writes of groups through the API that changed something, for 90 days. The changes of a group by one directory are one row, while
-- they follow each other.
CREATE TABLE group_syncs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  group_id INTEGER NOT NULL,
  group_name TEXT NOT NULL,
  is_new INTEGER NOT NULL,
  actor TEXT NOT NULL, -- the name of the token, or the administrator who undid a sync
  token_id INTEGER,
  undoes INTEGER REFERENCES group_syncs ON DELETE SET NULL,
  attached TEXT NOT NULL, -- a JSON array of the ids of users who became members
  detached TEXT NOT NULL, -- a JSON array of the ids of users who ceased to be members
  attached_count INTEGER NOT NULL,
  detached_count INTEGER NOT NULL,
  changed_at INTEGER -- when a directory last changed the group in this row; NULL: the row is of a single write
) STRICT;
CREATE INDEX group_syncs_group ON group_syncs (group_id, id);
CREATE INDEX group_syncs_at ON group_syncs (at);
CREATE INDEX group_syncs_token ON group_syncs (token_id, changed_at) WHERE changed_at IS NOT NULL;
CREATE INDEX group_syncs_undoes ON group_syncs (undoes) WHERE undoes IS NOT NULL;

-- 10. Notes of what was written

-- Writers only add notes, and formgate derives from committed rows later: src/store/derived/settle.rs, src/store/derived/totals.rs.

-- Submissions, and forms whose graduated changed. The SQLite of a writer may be too old for other ways to read the clock.
CREATE TABLE intake (
  submission_id INTEGER, -- that was written, or a part of it; NULL, with a NULL form_id: anything may have changed
  children INTEGER NOT NULL DEFAULT 0, -- whether its children may have to be listed, or no longer
  form_id INTEGER, -- a form whose graduated changed
  at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
) STRICT;

-- Forms that were inserted, deleted, or moved in the tree, for readers of single forms: src/store/derived/settle/placing.rs.
CREATE TABLE form_notes (
  form_id INTEGER -- NULL: any form may have been
) STRICT;

-- Counts of listed_counts that may be wrong. A list counts these itself, until formgate has counted them again. So a note that
-- was not necessary, or is there twice, changes nothing.
CREATE TABLE stale_counts (
  counted TEXT NOT NULL, -- forms, groups (the managed ones too), users, or members
  key INTEGER NOT NULL -- the group of members, otherwise a block of 1,024 ids (id >> 10); -1: all of them
) STRICT;

-- The triggers of the plain tables. Opening a file takes about 15 µs for each, so there is one for each table and event. Rows
-- that REPLACE removes fire none, and SQLite does not say that a statement is a REPLACE. So where a row can be removed by another
-- key than its id, a trigger before the event notes the rows that would be removed, and one after it the row itself: only then
-- its id is known. None names the column id, because an UPDATE may set it as rowid.

-- SQLite's lower() folds ASCII only. formgate folds other addresses before it looks for a user. The UPDATE has the conflict
-- clause of the statement that fired the trigger, and can replace users too.
CREATE TRIGGER users_inserting BEFORE INSERT ON users WHEN NEW.email_folded IS NOT NULL BEGIN
  INSERT INTO stale_counts SELECT 'users', id >> 10 FROM users WHERE email_folded = NEW.email_folded;
END;
CREATE TRIGGER users_inserted AFTER INSERT ON users BEGIN
  UPDATE users SET email_folded = iif(NEW.email GLOB '*[^ -~]*', NULL, lower(NEW.email))
    WHERE NEW.email_folded IS NULL AND id = NEW.id;
  INSERT INTO stale_counts VALUES ('users', NEW.id >> 10);
END;
CREATE TRIGGER users_updating BEFORE UPDATE ON users BEGIN
  INSERT INTO stale_counts SELECT 'users', id >> 10 FROM users WHERE email_folded = NEW.email_folded;
  INSERT INTO stale_counts VALUES ('users', NEW.id >> 10), ('users', OLD.id >> 10);
END;
CREATE TRIGGER users_updated AFTER UPDATE OF email ON users
WHEN NEW.email IS NOT OLD.email AND NEW.email_folded IS OLD.email_folded BEGIN
  UPDATE users SET email_folded = iif(NEW.email GLOB '*[^ -~]*', NULL, lower(NEW.email)) WHERE id = NEW.id;
END;
CREATE TRIGGER users_activated AFTER UPDATE OF active ON users WHEN NEW.active <> OLD.active BEGIN
  INSERT INTO inactive_members (group_id, user_id) SELECT group_id, NEW.id FROM group_members
    WHERE user_id = NEW.id AND NOT NEW.active
      AND group_id NOT IN (SELECT group_id FROM inactive_members WHERE user_id = NEW.id);
  DELETE FROM group_members WHERE user_id = NEW.id AND NOT NEW.active;
  INSERT INTO group_members (group_id, user_id) SELECT group_id, NEW.id FROM inactive_members
    WHERE user_id = NEW.id AND NEW.active
      AND group_id NOT IN (SELECT group_id FROM group_members WHERE user_id = NEW.id);
  DELETE FROM inactive_members WHERE user_id = NEW.id AND NEW.active;
END;
CREATE TRIGGER users_deleted AFTER DELETE ON users BEGIN
  INSERT INTO stale_counts VALUES ('users', OLD.id >> 10);
END;

-- Without foreign keys, there can be submissions of a form that is missing, which shows no children.
CREATE TRIGGER forms_inserting BEFORE INSERT ON forms BEGIN
  SELECT raise(ABORT, 'a submission of the form has a parent and children')
    FROM forms f JOIN submissions p ON p.form_id = f.id JOIN submissions c ON c.parent_id = p.id
    WHERE f.id = NEW.id AND NEW.graduated > f.graduated AND p.parent_id IS NOT NULL;
  INSERT INTO intake (form_id) SELECT NEW.id
    WHERE NEW.graduated <> coalesce((SELECT graduated FROM forms WHERE id = NEW.id), 0);
END;
CREATE TRIGGER forms_inserted AFTER INSERT ON forms BEGIN
  INSERT INTO form_notes VALUES (NEW.id);
  INSERT INTO stale_counts VALUES ('forms', NEW.id >> 10);
END;
CREATE TRIGGER forms_updated AFTER UPDATE ON forms BEGIN
  SELECT raise(ABORT, 'a submission of the form has a parent and children')
    FROM submissions c JOIN submissions p ON p.id = c.parent_id
    WHERE NEW.graduated AND (NOT OLD.graduated OR NEW.id <> OLD.id) AND p.form_id = NEW.id AND p.parent_id IS NOT NULL;
  INSERT INTO intake (form_id) SELECT NEW.id WHERE NEW.graduated <> OLD.graduated OR NEW.id <> OLD.id;
  INSERT INTO intake (form_id) SELECT OLD.id WHERE NEW.id <> OLD.id;
  INSERT INTO form_notes SELECT NEW.id WHERE NEW.parent_id IS NOT OLD.parent_id OR NEW.id <> OLD.id;
  INSERT INTO form_notes SELECT OLD.id WHERE NEW.id <> OLD.id;
  INSERT INTO stale_counts VALUES ('forms', NEW.id >> 10), ('forms', OLD.id >> 10);
END;
CREATE TRIGGER forms_deleted AFTER DELETE ON forms BEGIN
  INSERT INTO intake (form_id) SELECT OLD.id WHERE OLD.graduated;
  INSERT INTO form_notes VALUES (OLD.id);
  INSERT INTO stale_counts VALUES ('forms', OLD.id >> 10);
END;

CREATE TRIGGER groups_inserting BEFORE INSERT ON groups BEGIN
  INSERT INTO stale_counts SELECT 'groups', id >> 10 FROM groups WHERE external_id = NEW.external_id;
  INSERT INTO stale_counts SELECT 'groups', -1 WHERE NEW.built_in;
END;
CREATE TRIGGER groups_inserted AFTER INSERT ON groups BEGIN
  INSERT INTO stale_counts VALUES ('groups', NEW.id >> 10);
END;
CREATE TRIGGER groups_updating BEFORE UPDATE ON groups BEGIN
  INSERT INTO stale_counts SELECT 'groups', id >> 10 FROM groups WHERE external_id = NEW.external_id;
  INSERT INTO stale_counts SELECT 'groups', -1 WHERE NEW.built_in;
  INSERT INTO stale_counts VALUES ('groups', NEW.id >> 10), ('groups', OLD.id >> 10);
END;
CREATE TRIGGER groups_deleted AFTER DELETE ON groups BEGIN
  INSERT INTO stale_counts VALUES ('groups', OLD.id >> 10), ('members', OLD.id);
END;

-- Members that are inactive are hidden, whoever adds them.
CREATE TRIGGER members_inserted AFTER INSERT ON group_members BEGIN
  INSERT INTO stale_counts VALUES ('members', NEW.group_id);
  INSERT INTO inactive_members (group_id, user_id) SELECT NEW.group_id, u.id FROM users u
    WHERE u.id = NEW.user_id AND NOT u.active
      AND NOT EXISTS (SELECT 1 FROM inactive_members WHERE group_id = NEW.group_id AND user_id = NEW.user_id);
  DELETE FROM group_members WHERE group_id = NEW.group_id AND user_id = NEW.user_id
    AND EXISTS (SELECT 1 FROM users WHERE id = NEW.user_id AND NOT active);
END;
CREATE TRIGGER members_updated AFTER UPDATE ON group_members BEGIN
  INSERT INTO stale_counts VALUES ('members', NEW.group_id), ('members', OLD.group_id);
END;
CREATE TRIGGER members_deleted AFTER DELETE ON group_members BEGIN
  INSERT INTO stale_counts VALUES ('members', OLD.group_id);
END;

-- A child has one level above it: neither may the parent that shows it have a parent, nor it children that it shows.
CREATE TRIGGER submissions_inserted AFTER INSERT ON submissions BEGIN
  SELECT raise(ABORT, 'the parent of a child submission has no parent itself')
    FROM submissions p JOIN forms f ON f.id = p.form_id
    WHERE p.id = NEW.parent_id AND f.graduated AND p.parent_id IS NOT NULL;
  SELECT raise(ABORT, 'a submission with child submissions can have no parent')
    FROM forms
    WHERE NEW.parent_id IS NOT NULL AND id = NEW.form_id AND graduated
      AND EXISTS (SELECT 1 FROM submissions WHERE parent_id = NEW.id);
  INSERT INTO intake (submission_id, children) VALUES (NEW.id, 1);
END;
CREATE TRIGGER submissions_updated AFTER UPDATE ON submissions BEGIN
  SELECT raise(ABORT, 'the parent of a child submission has no parent itself')
    FROM submissions p JOIN forms f ON f.id = p.form_id
    WHERE (NEW.parent_id IS NOT OLD.parent_id OR NEW.form_id <> OLD.form_id)
      AND p.id = NEW.parent_id AND f.graduated AND p.parent_id IS NOT NULL;
  SELECT raise(ABORT, 'a submission with child submissions can have no parent')
    FROM forms
    WHERE (NEW.parent_id IS NOT OLD.parent_id OR NEW.form_id <> OLD.form_id OR NEW.id <> OLD.id)
      AND NEW.parent_id IS NOT NULL AND id = NEW.form_id AND graduated
      AND EXISTS (SELECT 1 FROM submissions WHERE parent_id = NEW.id);
  INSERT INTO intake (submission_id, children) VALUES (NEW.id, NEW.form_id <> OLD.form_id OR NEW.id <> OLD.id);
  INSERT INTO intake (submission_id, children) SELECT OLD.id, 1 WHERE NEW.id <> OLD.id;
END;
CREATE TRIGGER submissions_deleted AFTER DELETE ON submissions BEGIN
  INSERT INTO intake (submission_id, children) VALUES (OLD.id, 1);
END;

CREATE TRIGGER answers_inserted AFTER INSERT ON answers BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER answers_updated AFTER UPDATE ON answers BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id), (OLD.submission_id);
END;
CREATE TRIGGER answers_deleted AFTER DELETE ON answers BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;

CREATE TRIGGER labels_inserted AFTER INSERT ON submission_labels BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER labels_updated AFTER UPDATE ON submission_labels BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id), (OLD.submission_id);
END;
CREATE TRIGGER labels_deleted AFTER DELETE ON submission_labels BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;

CREATE TRIGGER pending_inserted AFTER INSERT ON submission_pending BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER pending_updated AFTER UPDATE ON submission_pending BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id), (OLD.submission_id);
END;
CREATE TRIGGER pending_deleted AFTER DELETE ON submission_pending BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;

CREATE TRIGGER participants_inserted AFTER INSERT ON submission_participants BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER participants_updated AFTER UPDATE ON submission_participants BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id), (OLD.submission_id);
END;
CREATE TRIGGER participants_deleted AFTER DELETE ON submission_participants BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;

CREATE TRIGGER flow_steps_inserted AFTER INSERT ON submission_flow_steps BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id);
END;
CREATE TRIGGER flow_steps_updated AFTER UPDATE ON submission_flow_steps BEGIN
  INSERT INTO intake (submission_id) VALUES (NEW.submission_id), (OLD.submission_id);
END;
CREATE TRIGGER flow_steps_deleted AFTER DELETE ON submission_flow_steps BEGIN
  INSERT INTO intake (submission_id) VALUES (OLD.submission_id);
END;

-- 11. Search tables, which formgate derives from the plain tables: src/store/derived/settle.rs

-- The submissions that the API lists: neither drafts nor children of submissions of graduated forms.
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

-- The folded answers of each submission, joined by U+FDD0, for the keyword search.
CREATE TABLE listed_documents (
  submission_id INTEGER PRIMARY KEY,
  shown_in INTEGER NOT NULL, -- the submission that shows the answers: itself, or the parent of a child
  document TEXT NOT NULL
) STRICT;
CREATE INDEX listed_documents_shown_in ON listed_documents (shown_in);
-- The trigrams of the documents. The index reads them from the table above and stores no text.
CREATE VIRTUAL TABLE listed_trigrams USING fts5 (
  document, content = 'listed_documents', content_rowid = 'submission_id', columnsize = 0,
  tokenize = 'trigram case_sensitive 1'
);
-- For keywords of two characters: a document contains them if they begin one of its trigrams or end the document.
CREATE VIRTUAL TABLE listed_trigram_terms USING fts5vocab ('listed_trigrams', 'row');
CREATE INDEX listed_documents_end ON listed_documents (substr(document, -2));

-- Digests of each element with its folded answer, and with each line of it, for the terms filter.
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

-- How many submissions are listed, by form and status, by day, and by label; and how many active forms that are no sub-forms,
-- groups, managed groups, users, and members of each group there are, if stale_counts does not say otherwise.
CREATE TABLE listed_counts (
  counted TEXT NOT NULL, -- form, created, updated, label, shared label; forms, groups, managed groups, users, members
  key INTEGER NOT NULL, -- of submissions: the id of a form or a label, or days since 1970-01-01 in UTC; see stale_counts for others
  status TEXT NOT NULL, -- in counts of forms, otherwise empty
  listed INTEGER NOT NULL,
  PRIMARY KEY (counted, key, status)
) STRICT, WITHOUT ROWID;

-- The built-in group.
INSERT INTO stale_counts VALUES ('groups', 9007199254740991 >> 10);

-- 12. The change log: src/store/derived/changes.rs

CREATE TABLE change_state (
  single INTEGER PRIMARY KEY DEFAULT 1,
  epoch TEXT NOT NULL, -- changes when the log begins again: older cursors then lead nowhere
  last_seq INTEGER NOT NULL, -- the last number that was given
  released_seq INTEGER NOT NULL DEFAULT 0, -- up to this number, events may have been sent; none beyond it was
  forgotten_seq INTEGER NOT NULL DEFAULT 0, -- the last number of a deletion that is no longer kept
  unstamped_seq INTEGER NOT NULL DEFAULT 0 -- stamps of settlings with a lower last number are no longer kept
) STRICT;
INSERT INTO change_state (epoch, last_seq) VALUES (lower(hex(randomblob(16))), 0);

-- The last number of each settling that gave numbers, and a random stamp. A database that has lost its newest commits gives the
-- same numbers again, with other stamps.
CREATE TABLE change_stamps (
  seq INTEGER PRIMARY KEY,
  stamp INTEGER NOT NULL,
  at INTEGER NOT NULL
) STRICT;

-- Where each form is in the tree, as formgate last saw it, and where it was since cursors are accepted.
CREATE TABLE form_placements (
  form_id INTEGER NOT NULL,
  seq INTEGER NOT NULL, -- from this number on, it is below parent_id, or deleted
  parent_id INTEGER,
  deleted INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (form_id, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX form_placements_seq ON form_placements (seq);

-- What each submission showed when formgate last looked, and the numbers of its newest changes. Has a row for each submission
-- that is no draft, and for deleted ones that were listed.
CREATE TABLE submission_changes (
  submission_id INTEGER PRIMARY KEY,
  shown_in INTEGER NOT NULL, -- the submission that shows it: itself, or its parent if that is of a graduated form
  form_id INTEGER NOT NULL,
  shown INTEGER, -- a digest of what the API shows of it; NULL: not known yet
  matched INTEGER, -- a digest of what only filters use: submitter, labels, pending users, participants, workflow steps
  deleted INTEGER NOT NULL DEFAULT 0,
  seq INTEGER, -- of the newest change, which orders the feed; NULL for children of submissions of graduated forms
  listed_seq INTEGER, -- with which it was listed
  created_event INTEGER, -- of the newest change of this kind that webhooks send; NULL: none, or a quiet one; 0: receivers know the deleted submission
  updated_event INTEGER,
  deleted_event INTEGER,
  burst_at INTEGER NOT NULL, -- when the first of a burst of changes happened
  changed_at INTEGER NOT NULL -- when the newest change happened
) STRICT;
CREATE UNIQUE INDEX submission_changes_seq ON submission_changes (seq) WHERE seq IS NOT NULL;
CREATE INDEX submission_changes_form ON submission_changes (form_id, seq) WHERE seq IS NOT NULL;
CREATE INDEX submission_changes_created ON submission_changes (created_event) WHERE created_event IS NOT NULL;
CREATE INDEX submission_changes_updated ON submission_changes (updated_event) WHERE updated_event IS NOT NULL;
CREATE INDEX submission_changes_deleted ON submission_changes (deleted_event) WHERE deleted_event IS NOT NULL;
CREATE INDEX submission_changes_expiry ON submission_changes (changed_at) WHERE deleted;

-- The forms that submissions were moved away from, and the numbers of these changes. The feed of a single form reports them.
CREATE TABLE submission_moves (
  submission_id INTEGER NOT NULL,
  form_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  changed_at INTEGER NOT NULL,
  PRIMARY KEY (submission_id, form_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_moves_seq ON submission_moves (seq);

-- 13. Webhooks: src/webhooks.rs

-- Receivers of events. Created and deleted through the API only.
CREATE TABLE subscriptions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  target_url TEXT NOT NULL,
  event TEXT NOT NULL, -- submission.created, submission.updated or submission.deleted
  form_id INTEGER REFERENCES forms ON DELETE CASCADE, -- NULL: events of every form
  secret TEXT NOT NULL, -- signs what is delivered; shown once, when the subscription is created
  created_at INTEGER NOT NULL,
  state TEXT NOT NULL DEFAULT 'active', -- or paused, failing, disabled, gone
  reason TEXT, -- why it is in this state, unless it is active: a code and its arguments, as a JSON object
  previous_secret TEXT,
  previous_secret_until INTEGER,
  position INTEGER, -- every event up to this number was delivered or set aside; NULL: it begins with the next event
  done_beyond TEXT NOT NULL DEFAULT '[]', -- a JSON array of the numbers beyond the position that were delivered or set aside
  failures INTEGER NOT NULL DEFAULT 0, -- how many attempts to reach the receiver have failed since the last success
  failing_since INTEGER,
  next_attempt_at INTEGER,
  last_success_at INTEGER,
  leased_by TEXT, -- the sender that delivers until leased_until: only it may write how far the subscription has got
  leased_until INTEGER,
  lost_deletions INTEGER NOT NULL DEFAULT 0, -- how many deletions were not delivered while the log kept them
  lost_until INTEGER, -- when the newest of these happened
  token_id INTEGER REFERENCES tokens, -- the token that made it; what is sent is limited to what its forms reach now; NULL: none, and no limit
  bound INTEGER NOT NULL DEFAULT FALSE -- whether it ends with that token: then it reads as paused, whatever its state
) STRICT;
CREATE UNIQUE INDEX subscriptions_triple ON subscriptions (target_url, event, coalesce(form_id, 0), coalesce(token_id, 0));

-- Events that failed, or that are to be sent again. Every attempt of an event_id has the same body.
CREATE TABLE webhook_events (
  subscription_id INTEGER NOT NULL REFERENCES subscriptions ON DELETE CASCADE,
  seq INTEGER NOT NULL,
  submission_id INTEGER NOT NULL,
  event_id TEXT,
  attempts INTEGER NOT NULL DEFAULT 0,
  failed_at INTEGER, -- when the first attempt failed
  next_attempt_at INTEGER, -- when it is sent, whatever the position; NULL: in its turn, or never if it was given up
  given_up INTEGER NOT NULL DEFAULT 0,
  body TEXT, -- that was sent; NULL: none yet; last, so that the other columns are read without it
  PRIMARY KEY (subscription_id, seq)
) STRICT, WITHOUT ROWID;

-- The delivery log: the latest attempts of each subscription, limited by age and number.
CREATE TABLE webhook_attempts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  subscription_id INTEGER NOT NULL REFERENCES subscriptions ON DELETE CASCADE,
  event_id TEXT NOT NULL,
  event TEXT NOT NULL,
  submission_id INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  at INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL,
  accepted INTEGER NOT NULL,
  status INTEGER,
  error TEXT, -- why there was no response
  response TEXT -- the beginning of the response
) STRICT;
CREATE INDEX webhook_attempts_subscription ON webhook_attempts (subscription_id, id);

-- 14. What a directory provisions by SCIM

-- The memberships of inactive users, which nothing shows and no product reads. They return when the users become active.
CREATE TABLE inactive_members (
  group_id INTEGER NOT NULL REFERENCES groups ON UPDATE CASCADE ON DELETE CASCADE,
  user_id INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE ON DELETE CASCADE,
  PRIMARY KEY (group_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX inactive_members_user ON inactive_members (user_id);

-- What a directory said about users, beyond the columns of users. A user without a row has the address as userName.
CREATE TABLE directory_users (
  user_id INTEGER PRIMARY KEY REFERENCES users ON UPDATE CASCADE ON DELETE CASCADE,
  user_name TEXT NOT NULL,
  user_name_folded TEXT NOT NULL, -- the user name in lower case, written by formgate
  external_id TEXT,
  given_name TEXT,
  family_name TEXT,
  formatted_name TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX directory_users_name ON directory_users (user_name_folded);
CREATE UNIQUE INDEX directory_users_external_id ON directory_users (external_id) WHERE external_id IS NOT NULL;

-- The groups that belong to SCIM: PUT /group refuses to write them.
CREATE TABLE directory_groups (
  group_id INTEGER PRIMARY KEY REFERENCES groups ON UPDATE CASCADE ON DELETE CASCADE,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  diverged INTEGER NOT NULL DEFAULT 0 -- whether an administrator decided against the directory, which has not written all members since
) STRICT;

-- The members that directories removed in the current ten minutes of a group, for the guard. Those who are members again do not
-- count. Users who became inactive or were deleted are members of the built-in group that were removed.
CREATE TABLE directory_removals (
  group_id INTEGER NOT NULL REFERENCES groups ON UPDATE CASCADE ON DELETE CASCADE,
  user_id INTEGER NOT NULL,
  ends_at INTEGER NOT NULL, -- when the ten minutes end, the same in all rows of a group
  PRIMARY KEY (group_id, user_id)
) STRICT, WITHOUT ROWID;

-- Removals that the guard keeps from being applied, until an administrator or the directory decides otherwise.
CREATE TABLE directory_held (
  group_id INTEGER NOT NULL REFERENCES groups ON UPDATE CASCADE ON DELETE CASCADE, -- the group whose guard it is
  user_id INTEGER NOT NULL REFERENCES users ON UPDATE CASCADE ON DELETE CASCADE,
  kind TEXT NOT NULL, -- removed: from the group; deactivated or deleted: from the account
  at INTEGER NOT NULL,
  actor TEXT NOT NULL, -- the name of the token
  token_id INTEGER,
  PRIMARY KEY (group_id, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX directory_held_user ON directory_held (user_id);
