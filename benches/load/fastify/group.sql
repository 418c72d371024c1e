WITH g AS (
  INSERT INTO groups (external_id, name, managed) VALUES ($1, $2, true)
  ON CONFLICT (external_id) DO UPDATE SET name = excluded.name RETURNING id),
wanted AS (SELECT * FROM unnest($3::text[], $4::text[]) AS m (email, name)),
made AS (
  INSERT INTO users (email, name) SELECT email, name FROM wanted ON CONFLICT (lower(email)) DO NOTHING RETURNING id),
people AS (SELECT u.id FROM wanted w JOIN users u ON lower(u.email) = lower(w.email) UNION ALL SELECT id FROM made),
gone AS (
  DELETE FROM group_members m USING g WHERE m.group_id = g.id AND m.user_id NOT IN (SELECT id FROM people) RETURNING 1),
put AS (INSERT INTO group_members SELECT g.id, p.id FROM g, people p ON CONFLICT DO NOTHING RETURNING 1)
SELECT g.id, (SELECT count(*) FROM put)::int AS attached, (SELECT count(*) FROM gone)::int AS detached,
  (SELECT count(*) FROM made)::int AS created FROM g
