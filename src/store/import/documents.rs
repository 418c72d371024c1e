//! When a load makes the documents of submissions that are new to a Postgres database.
//!
//! A keyword index that takes documents in one by one takes twice as long as one that is built from them, and becomes
//! twice as large. So where there are no documents yet, a load leaves them to its end, when it takes the keyword indexes
//! away, makes all documents and builds the indexes again. Nobody else can use the documents meanwhile, which is keyword
//! searches and whoever writes answers; where somebody does not let go of them, the indexes stay and take the documents in.

use crate::store::StoreError;
use crate::store::database::Transaction;
use crate::store::sql::Dialect;

/// When the documents of new submissions are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Documents {
    WithEachBatch,
    AtTheEnd,
}

const NONE_YET: &str = "SELECT NOT EXISTS (SELECT FROM submission_documents)";

const LINES: &str = "INSERT INTO answer_lines (element_id, line, submission_id) \
    SELECT a.element_id, l.line, a.submission_id \
    FROM answers a, LATERAL unnest(string_to_array(a.folded, chr(10))) AS l (line) \
    WHERE strpos(a.folded, chr(10)) > 0 AND a.submission_id";

/// Submissions that the load wrote a second time have their documents by the triggers, as have those of other writers.
///
/// Only an owner can take an index away.
const MAKE: &str = "DO $$
DECLARE
  away record;
  definitions text[] := '{}';
  patience text := current_setting('lock_timeout');
BEGIN
  BEGIN
    PERFORM set_config('lock_timeout', '2s', true);
    LOCK TABLE submission_documents IN ACCESS EXCLUSIVE MODE;
    FOR away IN
      SELECT indexrelid::regclass AS name, pg_get_indexdef(indexrelid) AS definition
      FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
      WHERE indrelid = 'submission_documents'::regclass AND amname = 'gin'
    LOOP
      EXECUTE format('DROP INDEX %s', away.name);
      definitions := definitions || away.definition;
    END LOOP;
  EXCEPTION WHEN lock_not_available OR deadlock_detected OR insufficient_privilege THEN
    definitions := '{}';
  END;
  PERFORM set_config('lock_timeout', patience, true);
  INSERT INTO submission_documents (submission_id, document)
    SELECT submission_id, string_agg(folded, chr(31) ORDER BY element_id)
    FROM answers a
    WHERE NOT EXISTS (SELECT FROM submission_documents d WHERE d.submission_id = a.submission_id)
    GROUP BY submission_id;
  FOR i IN 1 .. cardinality(definitions) LOOP
    EXECUTE definitions[i];
  END LOOP;
END
$$";

impl Documents {
    /// What suits a database before the first line.
    pub(super) async fn for_load(transaction: &mut Transaction) -> Result<Self, StoreError> {
        if transaction.dialect() == Dialect::Sqlite {
            return Ok(Self::WithEachBatch);
        }
        let mut sql = transaction.sql();
        sql.push(NONE_YET);
        let rows = transaction.fetch_all(sql).await?;
        let none_yet = rows.first().map(|row| row.get(0)).transpose()?.unwrap_or(false);
        Ok(if none_yet { Self::AtTheEnd } else { Self::WithEachBatch })
    }

    /// Makes what is due with a batch for its new submissions.
    pub(super) async fn make_for(self, transaction: &mut Transaction, new: &[i64]) -> Result<(), StoreError> {
        let mut sql = transaction.sql();
        match self {
            Self::WithEachBatch => sql.push("SELECT formgate_rebuild_documents(").bind(new.to_vec()).push(")"),
            Self::AtTheEnd => sql.push(LINES).in_ids(new),
        };
        transaction.execute(sql).await?;
        Ok(())
    }

    /// Makes what is due at the end.
    pub(super) async fn make_all(self, transaction: &mut Transaction) -> Result<(), StoreError> {
        if self == Self::AtTheEnd {
            let mut sql = transaction.sql();
            sql.push(MAKE);
            transaction.execute(sql).await?;
        }
        Ok(())
    }
}
