-- The change log: which submissions changed, in the order in which formgate noticed it: src/store/changes.rs.

-- 1. When something was noted ------------------------------------------------------------------------------------------

ALTER TABLE intake ADD COLUMN at timestamptz NOT NULL DEFAULT clock_timestamp();
COMMENT ON COLUMN intake.at IS 'When it was written, by the clock of the server; its transaction may end much later.';

-- Labels are noted already; these decide which filters a submission matches, too.
CREATE TRIGGER pending_noted AFTER INSERT OR DELETE OR UPDATE ON submission_pending
  FOR EACH ROW EXECUTE FUNCTION formgate_note_part();
CREATE TRIGGER participants_noted AFTER INSERT OR DELETE OR UPDATE ON submission_participants
  FOR EACH ROW EXECUTE FUNCTION formgate_note_part();
CREATE TRIGGER flow_steps_noted AFTER INSERT OR DELETE OR UPDATE ON submission_flow_steps
  FOR EACH ROW EXECUTE FUNCTION formgate_note_part();
CREATE TRIGGER pending_emptied AFTER TRUNCATE ON submission_pending
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_note_everything();
CREATE TRIGGER participants_emptied AFTER TRUNCATE ON submission_participants
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_note_everything();
CREATE TRIGGER flow_steps_emptied AFTER TRUNCATE ON submission_flow_steps
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_note_everything();
ALTER TABLE submission_pending ENABLE ALWAYS TRIGGER pending_noted, ENABLE ALWAYS TRIGGER pending_emptied;
ALTER TABLE submission_participants ENABLE ALWAYS TRIGGER participants_noted, ENABLE ALWAYS TRIGGER participants_emptied;
ALTER TABLE submission_flow_steps ENABLE ALWAYS TRIGGER flow_steps_noted, ENABLE ALWAYS TRIGGER flow_steps_emptied;

-- 2. The log -----------------------------------------------------------------------------------------------------------

CREATE TABLE submission_changes (
  submission_id bigint PRIMARY KEY,
  shown_in bigint NOT NULL,
  form_id bigint NOT NULL,
  shown bigint,
  matched bigint,
  deleted boolean NOT NULL DEFAULT false,
  seq bigint,
  listed_seq bigint,
  created_event bigint,
  updated_event bigint,
  deleted_event bigint,
  burst_at timestamptz NOT NULL,
  changed_at timestamptz NOT NULL
) WITH (fillfactor = 80);
COMMENT ON TABLE submission_changes IS 'One row for each submission that is no draft, or was listed and is no longer: what it showed when formgate last looked, and the numbers of its newest changes. A number is taken when a change is noticed, so a transaction that ends late gets a late one.';
COMMENT ON COLUMN submission_changes.shown_in IS 'The submission that shows it: itself, or its parent if that is of a graduated form.';
COMMENT ON COLUMN submission_changes.shown IS 'A digest of what the API shows of it. Null: not yet known.';
COMMENT ON COLUMN submission_changes.matched IS 'A digest of what only filters see: submitter, labels, pending users, participants, flow steps.';
COMMENT ON COLUMN submission_changes.seq IS 'The number of the newest change, by which the feed is ordered. Null for a child of a submission of a graduated form.';
COMMENT ON COLUMN submission_changes.listed_seq IS 'The number with which it was listed.';
COMMENT ON COLUMN submission_changes.created_event IS 'The number of the newest change of each kind that webhooks are sent; null if there was none, or a quiet one.';
COMMENT ON COLUMN submission_changes.burst_at IS 'When the first of the changes happened that followed each other closely.';
COMMENT ON COLUMN submission_changes.changed_at IS 'When the newest change happened.';
CREATE UNIQUE INDEX submission_changes_seq ON submission_changes (seq) WHERE seq IS NOT NULL;
CREATE INDEX submission_changes_form ON submission_changes (form_id, seq) WHERE seq IS NOT NULL;
CREATE INDEX submission_changes_created ON submission_changes (created_event) WHERE created_event IS NOT NULL;
CREATE INDEX submission_changes_updated ON submission_changes (updated_event) WHERE updated_event IS NOT NULL;
CREATE INDEX submission_changes_deleted ON submission_changes (deleted_event) WHERE deleted_event IS NOT NULL;
CREATE INDEX submission_changes_expiry ON submission_changes (changed_at) WHERE deleted;

-- The feed of some forms has to say that a submission went to another one.
CREATE TABLE submission_moves (
  submission_id bigint NOT NULL,
  form_id bigint NOT NULL,
  seq bigint NOT NULL,
  changed_at timestamptz NOT NULL,
  PRIMARY KEY (submission_id, form_id)
);
COMMENT ON TABLE submission_moves IS 'The forms that submissions left for another one, and the numbers of these changes.';
CREATE INDEX submission_moves_seq ON submission_moves (seq);

CREATE TABLE change_state (
  epoch text NOT NULL,
  last_seq bigint NOT NULL,
  forgotten_seq bigint NOT NULL DEFAULT 0,
  numbering boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX change_state_single ON change_state ((true));
COMMENT ON COLUMN change_state.epoch IS '32 hexadecimal digits. Others after the log has begun again: cursors of the one before lead nowhere.';
COMMENT ON COLUMN change_state.last_seq IS 'The last number that was given.';
COMMENT ON COLUMN change_state.forgotten_seq IS 'The last number of a deletion that is no longer kept.';
COMMENT ON COLUMN change_state.numbering IS 'Only ever true within the transaction that takes notes and numbers what changed.';

-- 3. Notes that a node of the version before took: it derives from them and numbers nothing ----------------------------

CREATE TABLE intake_unnumbered (
  submission_id bigint,
  children boolean NOT NULL,
  form_id bigint,
  at timestamptz NOT NULL
);
COMMENT ON TABLE intake_unnumbered IS 'Notes that are derived from, and whose changes have no number yet.';
CREATE FUNCTION formgate_keep_unnumbered() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF NOT (SELECT numbering FROM change_state) THEN
    INSERT INTO intake_unnumbered (submission_id, children, form_id, at) SELECT submission_id, children, form_id, at FROM taken;
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_keep_unnumbered IS 'Keeps notes that are taken without numbering what changed.';
DO $$
BEGIN
  EXECUTE format('ALTER FUNCTION formgate_keep_unnumbered() SET search_path = %I, pg_temp', current_schema());
END
$$;
CREATE TRIGGER intake_taken AFTER DELETE ON intake REFERENCING OLD TABLE AS taken
  FOR EACH STATEMENT EXECUTE FUNCTION formgate_keep_unnumbered();

-- 4. What is there already ---------------------------------------------------------------------------------------------

-- The triggers have locked some of the tables. What is noted and not yet derived from is numbered after this.
INSERT INTO submission_changes (submission_id, shown_in, form_id, seq, listed_seq, burst_at, changed_at)
  SELECT id, id, form_id, row_number() OVER (ORDER BY id), row_number() OVER (ORDER BY id), now(), now()
  FROM listed_submissions;
INSERT INTO submission_changes (submission_id, shown_in, form_id, burst_at, changed_at)
  SELECT c.id, c.parent_id, c.form_id, now(), now()
  FROM submissions c JOIN submissions p ON p.id = c.parent_id JOIN forms f ON f.id = p.form_id
  WHERE f.graduated AND NOT c.draft ON CONFLICT DO NOTHING;
INSERT INTO change_state (epoch, last_seq)
  SELECT replace(gen_random_uuid()::text, '-', ''), coalesce(max(seq), 0) FROM submission_changes;

-- A dump has the log as well as what it is about. In a restore of data only, the triggers note the submissions again, and this
-- database numbers them itself, so rows that formgate does not insert are dropped.
CREATE TRIGGER submission_changes_restored BEFORE INSERT ON submission_changes FOR EACH ROW
  WHEN (current_setting('formgate.numbers', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION formgate_counted_already();
CREATE TRIGGER submission_moves_restored BEFORE INSERT ON submission_moves FOR EACH ROW
  WHEN (current_setting('formgate.numbers', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION formgate_counted_already();
CREATE TRIGGER change_state_restored BEFORE INSERT ON change_state FOR EACH ROW
  EXECUTE FUNCTION formgate_counted_already();

-- The roles that formgate serves as number the changes. They are the ones that may update tokens.
DO $$
DECLARE
  server text;
BEGIN
  FOR server IN
    SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
    FROM pg_class, aclexplode(relacl)
    WHERE oid = 'tokens'::regclass AND privilege_type = 'UPDATE' AND grantee <> relowner
  LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON submission_changes, submission_moves, change_state, '
      'intake_unnumbered TO %s', server);
  END LOOP;
END
$$;
