//! Drops the foreign keys of submissions during a first load on Postgres, and restores them at its end.
//!
//! Checking them row by row takes a quarter to a third of a load; checking all rows at once takes a fiftieth. But
//! dropping one locks its tables until the transaction ends, so the keys are dropped only if the database has no
//! answers yet and no other session is connected to it. The load itself does not need these keys: records with missing
//! references are refused before they are written, and no delete of a load has to cascade. Restoring a key still
//! checks every row.

use super::run;
use crate::store::StoreError;
use crate::store::engine::Transaction;

/// The keys stay if another session holds a lock on the tables, or another role owns them. Background workers of the
/// server, which have no user, don't count as sessions.
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

/// Restoring reads whole tables, so sequential scans are turned on again.
const RESTORE_KEYS: &str = "DO $$
BEGIN
  PERFORM set_config('enable_seqscan', 'on', true);
  EXECUTE coalesce(current_setting('formgate.keys', true), '');
END
$$";

/// Drops the keys if no other session is connected.
pub(super) async fn drop_keys(transaction: &mut Transaction) -> Result<(), StoreError> {
    run(transaction, DROP_KEYS).await
}

/// Restores the dropped keys.
pub(super) async fn restore_keys(transaction: &mut Transaction) -> Result<(), StoreError> {
    run(transaction, RESTORE_KEYS).await
}
