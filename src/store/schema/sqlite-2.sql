-- Subscriptions of automation tools: what the delivery of webhooks will need. Made and deleted through the API alone.
CREATE TABLE subscriptions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  target_url TEXT NOT NULL CHECK (length(target_url) BETWEEN 1 AND 2048),
  event TEXT NOT NULL CHECK (event IN ('submission.created', 'submission.updated')),
  form_id INTEGER REFERENCES forms ON DELETE CASCADE, -- NULL: every form
  secret TEXT NOT NULL, -- signs what is delivered; shown once, when the subscription is made
  created_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX subscriptions_triple ON subscriptions (target_url, event, coalesce(form_id, 0));
CREATE INDEX subscriptions_form ON subscriptions (form_id) WHERE form_id IS NOT NULL;

-- The highest id that a group has had, so that none is given twice. The built-in group's doesn't count.
CREATE TABLE group_ids (last INTEGER NOT NULL) STRICT;
INSERT INTO group_ids SELECT coalesce(max(id), 0) FROM groups WHERE NOT built_in;
CREATE TRIGGER groups_inserted AFTER INSERT ON groups WHEN NOT NEW.built_in BEGIN
  UPDATE group_ids SET last = NEW.id WHERE last < NEW.id;
END;
