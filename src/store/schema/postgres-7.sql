-- Groups that stand are written with less. One that its identifier tells is written by one call whatever others have its name:
-- until version 6, one of the same name sent the write step by step, which is alone and takes three times as long. And users
-- are made by a statement of their own.

CREATE OR REPLACE FUNCTION formgate_replace_members(
  of_group bigint, folded_emails text[], emails text[], names text[],
  OUT members_before bigint, OUT attached bigint, OUT detached bigint, OUT created bigint
) LANGUAGE plpgsql AS $$
DECLARE
  new_emails text[];
  new_names text[];
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
  ), come AS (
    INSERT INTO group_members (group_id, user_id)
      SELECT of_group, id FROM wanted WHERE id IS NOT NULL AND id NOT IN (SELECT user_id FROM before)
      ON CONFLICT DO NOTHING
      RETURNING user_id
  )
  SELECT (SELECT count(*) FROM before), (SELECT count(*) FROM come), (SELECT count(*) FROM gone), new.emails, new.names
    INTO members_before, attached, detached, new_emails, new_names
    FROM (SELECT array_agg(email) AS emails, array_agg(name) AS names FROM wanted WHERE id IS NULL) AS new;
  created := coalesce(cardinality(new_emails), 0);
  -- Apart, since most often nobody is new: how an address is folded is planned anew by each statement that could make a user,
  -- which took a twelfth of the call.
  IF created > 0 THEN
    WITH made AS (
      INSERT INTO users (email, name) SELECT w.email, w.name FROM unnest(new_emails, new_names) AS w (email, name) RETURNING id
    )
    INSERT INTO group_members (group_id, user_id) SELECT of_group, id FROM made;
    attached := attached + created;
  END IF;
END
$$;

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
  -- The one with the identifier, or else the only one with the name. The built-in group's name is nobody's.
  SELECT
      min(g.id) FILTER (WHERE g.meant), min(g.external_id) FILTER (WHERE g.meant),
      count(*) FILTER (WHERE g.meant) = 1
        AND bool_and(g.managed AND g.name = wanted_name) FILTER (WHERE g.meant)
        AND NOT bool_or(g.built_in)
    INTO group_id, group_external_id, stands
    FROM (
      SELECT *, wanted_external_id IS NULL OR external_id = wanted_external_id AS meant
      FROM groups WHERE name = wanted_name OR external_id = wanted_external_id
    ) AS g;
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
