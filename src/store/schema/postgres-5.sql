-- Members of a group by one call. What a directory sends most is a group that stands as it is, with other members.

CREATE FUNCTION formgate_replace_members(
  of_group bigint, folded_emails text[], emails text[], names text[],
  OUT members_before bigint, OUT attached bigint, OUT detached bigint, OUT created bigint
) LANGUAGE plpgsql AS $$
BEGIN
  -- One statement reads the wanted members once, and those that there were: for a few dozen, half of what three cost.
  WITH wanted AS MATERIALIZED (
    SELECT w.email, w.name, u.id
    FROM unnest(folded_emails, emails, names) AS w (folded, email, name) LEFT JOIN users u ON u.email_folded = w.folded
  ), before AS MATERIALIZED (
    SELECT user_id FROM group_members WHERE group_id = of_group
  ), gone AS (
    DELETE FROM group_members
    WHERE group_id = of_group AND user_id NOT IN (SELECT id FROM wanted WHERE id IS NOT NULL)
    RETURNING user_id
  ), made AS (
    INSERT INTO users (email, name) SELECT email, name FROM wanted WHERE id IS NULL RETURNING id
  ), come AS (
    INSERT INTO group_members (group_id, user_id)
      SELECT of_group, id FROM (
        SELECT id FROM wanted WHERE id IS NOT NULL AND id NOT IN (SELECT user_id FROM before)
        UNION ALL
        SELECT id FROM made
      ) AS members
      ON CONFLICT DO NOTHING
      RETURNING user_id
  )
  SELECT (SELECT count(*) FROM before), (SELECT count(*) FROM come), (SELECT count(*) FROM gone), (SELECT count(*) FROM made)
    INTO members_before, attached, detached, created;
END
$$;
COMMENT ON FUNCTION formgate_replace_members IS 'Makes the members of a group those who are listed, and users of those who are none yet. Each address stands once in the lists.';

-- Tells nothing, having done nothing, where there is more to it: another turn under way, a group to be made, named or
-- chosen, a collision. The caller then goes step by step.
CREATE FUNCTION formgate_write_members(
  wanted_name text, wanted_external_id text, folded_emails text[], emails text[], names text[],
  OUT group_id bigint, OUT group_external_id text, OUT attached bigint, OUT detached bigint, OUT created bigint
) LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
  stands boolean;
  members_before bigint;
BEGIN
  -- The lock by which the writes of groups take turns.
  IF NOT pg_try_advisory_xact_lock(7310577365311121506) THEN
    RETURN;
  END IF;
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
  SELECT * FROM formgate_replace_members(group_id, folded_emails, emails, names)
    INTO members_before, attached, detached, created;
EXCEPTION
  WHEN lock_not_available OR deadlock_detected OR serialization_failure OR unique_violation OR foreign_key_violation THEN
    group_id := NULL;
END
$$;
COMMENT ON FUNCTION formgate_write_members IS 'Makes the members of a group that stands under this name, and this identifier where one is told, those who are listed.';
