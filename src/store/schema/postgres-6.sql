-- Writes of groups that stand share their turn, but for those of one group. In version 5 each was alone, and waited for the
-- disk alone.

-- Tells nothing, having done nothing, where there is more to it: a long turn under way, a group to be made, named or chosen, a
-- user whom another write is making, a collision. The caller then goes step by step.
CREATE OR REPLACE FUNCTION formgate_write_members(
  wanted_name text, wanted_external_id text, folded_emails text[], emails text[], names text[],
  OUT group_id bigint, OUT group_external_id text, OUT attached bigint, OUT detached bigint, OUT created bigint
) LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
  stands boolean;
  members_before bigint;
BEGIN
  -- The lock by which the writes of groups take turns: who makes, renames or deletes a group holds it alone.
  PERFORM pg_advisory_xact_lock_shared(7310577365311121506);
  SELECT
      min(g.id), min(g.external_id),
      count(*) = 1 AND bool_and(
        g.managed AND NOT g.built_in AND g.name = wanted_name
        AND (wanted_external_id IS NULL OR g.external_id IS NOT DISTINCT FROM wanted_external_id)
      )
    INTO group_id, group_external_id, stands
    FROM groups g WHERE g.name = wanted_name OR g.external_id = wanted_external_id;
  IF NOT coalesce(stands, false) THEN
    group_id := NULL;
    RETURN;
  END IF;
  -- What another write made of this group is seen by the statements after it. Locks of two numbers are apart from those of one.
  PERFORM pg_advisory_xact_lock(731057736, hashint8(group_id));
  SELECT * FROM formgate_replace_members(group_id, folded_emails, emails, names)
    INTO members_before, attached, detached, created;
EXCEPTION
  WHEN lock_not_available OR deadlock_detected OR serialization_failure OR unique_violation OR foreign_key_violation THEN
    group_id := NULL;
END
$$;
COMMENT ON FUNCTION formgate_write_members IS 'Makes the members of a group that stands under this name, and this identifier where one is told, those who are listed.';
