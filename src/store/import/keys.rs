//! Foreign keys of submissions that a first load takes away, and puts back at its end.
//!
//! Postgres checks them row by row, which takes a quarter to a third of a load, and those of all rows at once in a
//! fiftieth. But once one was taken away, nobody else can use its tables until the transaction ends. So it is done where
//! the database holds no answers yet and nobody else is connected to it. The load itself needs none of these keys: what
//! refers to nothing is refused before it is written, and nothing is deleted that they would delete more for. To put one
//! back looks at every row all the same.

use super::run;
use crate::store::StoreError;
use crate::store::engine::Transaction;

/// Where somebody else comes first and does not let go of the tables, or owns them, the keys stay. A worker of the server
/// itself, which has no user, gives way.
const DROP_KEYS: &str = "DO $$
DECLARE
  key record;
  restore text := '';
  previous_timeout text := current_setting('lock_timeout');
BEGIN
  IF EXISTS (
    SELECT FROM pg_stat_activity a JOIN pg_database d ON d.oid = a.datid
    WHERE d.datname = current_database() AND a.usesysid IS NOT NULL AND a.pid <> pg_backend_pid()
  ) THEN
    RETURN;
  END IF;
  BEGIN
    PERFORM set_config('lock_timeout', '2s', true);
    FOR key IN
      SELECT conrelid::regclass AS of, conname AS name, pg_get_constraintdef(oid) AS definition
      FROM pg_constraint
      WHERE contype = 'f' AND conrelid IN ('submissions'::regclass, 'answers'::regclass, 'submission_labels'::regclass,
        'submission_pending'::regclass, 'submission_participants'::regclass, 'submission_flow_steps'::regclass)
    LOOP
      EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', key.of, key.name);
      restore := restore || format('ALTER TABLE %s ADD CONSTRAINT %I %s;', key.of, key.name, key.definition);
    END LOOP;
  EXCEPTION WHEN lock_not_available OR deadlock_detected OR insufficient_privilege THEN
    restore := '';
  END;
  PERFORM set_config('lock_timeout', previous_timeout, true);
  PERFORM set_config('formgate.keys', restore, true);
END
$$";

/// Whole tables are read for that, and read best one row after the other.
const RESTORE_KEYS: &str = "DO $$
BEGIN
  PERFORM set_config('enable_seqscan', 'on', true);
  EXECUTE coalesce(current_setting('formgate.keys', true), '');
END
$$";

/// Takes the keys away where nobody minds.
pub(super) async fn drop_keys(transaction: &mut Transaction) -> Result<(), StoreError> {
    run(transaction, DROP_KEYS).await
}

/// Puts back what was taken away.
pub(super) async fn restore_keys(transaction: &mut Transaction) -> Result<(), StoreError> {
    run(transaction, RESTORE_KEYS).await
}
