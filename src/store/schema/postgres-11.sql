-- Takes away how submissions were derived from until version 9: no node of that version can serve any more.

-- 1. Triggers, functions and tables ----------------------------------------------------------------------------------

DROP TRIGGER submissions_placed ON submissions;
DROP TRIGGER submissions_moved ON submissions;
DROP TRIGGER submissions_reformed ON submissions;
DROP TRIGGER submissions_inserted ON submissions;
DROP TRIGGER submissions_deleted ON submissions;
DROP TRIGGER submissions_updated ON submissions;
DROP TRIGGER submissions_truncated ON submissions;
DROP TRIGGER forms_graduated ON forms;
DROP TRIGGER answers_inserted ON answers;
DROP TRIGGER answers_deleted ON answers;
DROP TRIGGER answers_updated ON answers;
DROP TRIGGER submission_labels_inserted ON submission_labels;
DROP TRIGGER submission_labels_deleted ON submission_labels;
DROP TRIGGER submission_labels_updated ON submission_labels;
DROP TRIGGER submission_labels_truncated ON submission_labels;
DROP VIEW submission_counts, submission_counts_anew, listed_labels_anew;
DROP TABLE settled_counts, count_changes, listed_labels, unsettled_labels, submission_documents, answer_lines;
DROP FUNCTION formgate_place_submission, formgate_place_children, formgate_submissions_inserted,
  formgate_submissions_deleted, formgate_submissions_updated, formgate_answers_inserted, formgate_answers_deleted,
  formgate_answers_updated, formgate_rebuild_documents, formgate_labels_inserted, formgate_labels_deleted,
  formgate_labels_updated, formgate_listed_labels_inserted, formgate_listed_labels_deleted, formgate_list_labels,
  formgate_truncated, formgate_recount, formgate_settle_counts, formgate_settle_counts_once, formgate_draws_settling,
  formgate_counts_of, formgate_bigrams;

-- 2. Columns and indexes ---------------------------------------------------------------------------------------------

DROP INDEX submissions_updated, submissions_created, submissions_form_updated, submissions_status_updated,
  submissions_form_status_updated, submissions_child, answers_folded;
ALTER TABLE submissions DROP COLUMN child_of;
ALTER TABLE answers DROP COLUMN folded;
-- An element that was answered can't be deleted.
CREATE INDEX answers_element ON answers (element_id);

-- 3. One level of children -------------------------------------------------------------------------------------------

-- Two transactions at once can pass these checks together. Then the lower submission is shown nowhere.
CREATE FUNCTION formgate_check_parent() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF EXISTS (
    SELECT FROM submissions p JOIN forms f ON f.id = p.form_id
    WHERE p.id = NEW.parent_id AND f.graduated AND p.parent_id IS NOT NULL
  ) THEN
    RAISE check_violation USING MESSAGE = format('submission %s: the parent of a child submission has no parent itself', NEW.id);
  END IF;
  IF EXISTS (SELECT FROM forms WHERE id = NEW.form_id AND graduated)
    AND EXISTS (SELECT FROM submissions WHERE parent_id = NEW.id) THEN
    RAISE check_violation USING MESSAGE = format('submission %s: it has child submissions, so it can have no parent', NEW.id);
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_check_parent IS 'Refuses a child submission whose parent has a parent.';
CREATE FUNCTION formgate_check_graduation() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF EXISTS (
    SELECT FROM submissions c JOIN submissions p ON p.id = c.parent_id
    WHERE p.form_id = NEW.id AND p.parent_id IS NOT NULL
  ) THEN
    RAISE check_violation USING MESSAGE = format('form %s: a submission of it has a parent and children', NEW.id);
  END IF;
  RETURN NULL;
END
$$;
COMMENT ON FUNCTION formgate_check_graduation IS 'Refuses to graduate a form whose submissions have both a parent and children.';
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['parent', 'graduation'] LOOP
    EXECUTE format('ALTER FUNCTION formgate_check_%s() SET search_path = %I, pg_temp', name, current_schema());
  END LOOP;
END
$$;
CREATE TRIGGER submissions_below AFTER INSERT OR UPDATE OF parent_id, form_id ON submissions
  FOR EACH ROW WHEN (NEW.parent_id IS NOT NULL) EXECUTE FUNCTION formgate_check_parent();
CREATE TRIGGER forms_graduating AFTER INSERT OR UPDATE OF graduated ON forms
  FOR EACH ROW WHEN (NEW.graduated) EXECUTE FUNCTION formgate_check_graduation();
