-- Takes away how submissions were derived from until version 9: no node of that version can serve any more.

-- 1. Triggers and tables ---------------------------------------------------------------------------------------------

DROP TRIGGER submissions_placed;
DROP TRIGGER submissions_moved;
DROP TRIGGER submissions_child_of;
DROP TRIGGER submissions_reformed;
DROP TRIGGER submissions_inserted;
DROP TRIGGER submissions_deleted;
DROP TRIGGER submissions_updated;
DROP TRIGGER submissions_relabelled;
DROP TRIGGER forms_graduated;
DROP TRIGGER answers_inserted;
DROP TRIGGER answers_updated;
DROP TRIGGER answers_folded_updated;
DROP TRIGGER answers_deleted;
DROP TRIGGER submission_labels_inserted;
DROP TRIGGER submission_labels_deleted;
DROP TRIGGER submission_labels_updated;
DROP VIEW submission_counts_anew;
DROP VIEW listed_labels_anew;
DROP TABLE submission_counts;
DROP TABLE listed_labels;
DROP TABLE submission_trigram_terms;
DROP TABLE submission_trigrams;
DROP TABLE submission_documents;
DROP TABLE answer_lines;
DROP TABLE upkeep;

-- 2. Columns and indexes ---------------------------------------------------------------------------------------------

DROP INDEX submissions_updated;
DROP INDEX submissions_created;
DROP INDEX submissions_form_updated;
DROP INDEX submissions_status_updated;
DROP INDEX submissions_form_status_updated;
DROP INDEX submissions_child;
DROP INDEX answers_folded;
ALTER TABLE submissions DROP COLUMN child_of;
ALTER TABLE answers DROP COLUMN folded;
-- An element that was answered can't be deleted.
CREATE INDEX answers_element ON answers (element_id);

-- 3. One level of children -------------------------------------------------------------------------------------------

CREATE TRIGGER submissions_below_inserted AFTER INSERT ON submissions WHEN NEW.parent_id IS NOT NULL BEGIN
  SELECT raise(ABORT, 'the parent of a child submission has no parent itself')
    FROM submissions p JOIN forms f ON f.id = p.form_id
    WHERE p.id = NEW.parent_id AND f.graduated AND p.parent_id IS NOT NULL;
END;
CREATE TRIGGER submissions_below_updated AFTER UPDATE OF parent_id, form_id ON submissions WHEN NEW.parent_id IS NOT NULL BEGIN
  SELECT raise(ABORT, 'the parent of a child submission has no parent itself')
    FROM submissions p JOIN forms f ON f.id = p.form_id
    WHERE p.id = NEW.parent_id AND f.graduated AND p.parent_id IS NOT NULL;
  SELECT raise(ABORT, 'a submission with child submissions can have no parent')
    FROM forms WHERE id = NEW.form_id AND graduated AND EXISTS (SELECT 1 FROM submissions WHERE parent_id = NEW.id);
END;
CREATE TRIGGER forms_graduating AFTER UPDATE OF graduated ON forms WHEN NEW.graduated BEGIN
  SELECT raise(ABORT, 'a submission of the form has a parent and children')
    FROM submissions c JOIN submissions p ON p.id = c.parent_id
    WHERE p.form_id = NEW.id AND p.parent_id IS NOT NULL;
END;
