-- How many forms, groups, users and members there are, so that no list counts rows: src/store/totals.rs.

-- 1. The counts --------------------------------------------------------------------------------------------------------

-- Active forms that are no sub-forms, groups, users, and the members of each group.
CREATE TABLE listed_totals (
  counted TEXT NOT NULL CHECK (counted IN ('forms', 'groups', 'managed groups', 'users', 'members')),
  key INTEGER NOT NULL, -- the group of members; 0 for users; for the others a block of 1,024 ids (id >> 10), or -1 for all
  listed INTEGER NOT NULL,
  PRIMARY KEY (counted, key)
) STRICT, WITHOUT ROWID;

-- One writer at a time needs no list of changes, as Postgres has it: a change is added at once.
CREATE VIEW listed_total_changes AS SELECT counted, key, listed FROM listed_totals WHERE false;
CREATE TRIGGER listed_totals_changed INSTEAD OF INSERT ON listed_total_changes BEGIN
  INSERT INTO listed_totals (counted, key, listed) VALUES (NEW.counted, NEW.key, NEW.listed)
    ON CONFLICT (counted, key) DO UPDATE SET listed = listed + excluded.listed;
  INSERT INTO listed_totals (counted, key, listed)
    SELECT NEW.counted, -1, NEW.listed WHERE NEW.counted IN ('forms', 'groups', 'managed groups')
    ON CONFLICT (counted, key) DO UPDATE SET listed = listed + excluded.listed;
END;

-- What a row that is about to be inserted would replace. SQLite fires no trigger for rows that INSERT OR REPLACE removes,
-- and does not say how an INSERT resolves conflicts: if the row was inserted nevertheless, these were replaced.
CREATE TABLE listed_replaced (counted TEXT NOT NULL, key INTEGER NOT NULL) STRICT;

-- 2. What changes them -------------------------------------------------------------------------------------------------

CREATE TRIGGER forms_replacing BEFORE INSERT ON forms BEGIN
  DELETE FROM listed_replaced WHERE counted = 'forms';
  INSERT INTO listed_replaced SELECT 'forms', id >> 10 FROM forms WHERE id = NEW.id AND NOT disabled AND parent_id IS NULL;
END;
CREATE TRIGGER forms_counted_insert AFTER INSERT ON forms BEGIN
  INSERT INTO listed_total_changes SELECT 'forms', NEW.id >> 10, 1 WHERE NOT NEW.disabled AND NEW.parent_id IS NULL;
  INSERT INTO listed_total_changes SELECT counted, key, -1 FROM listed_replaced WHERE counted = 'forms';
END;
CREATE TRIGGER forms_counted_delete AFTER DELETE ON forms WHEN NOT OLD.disabled AND OLD.parent_id IS NULL BEGIN
  INSERT INTO listed_total_changes SELECT 'forms', OLD.id >> 10, -1;
END;
CREATE TRIGGER forms_counted_update AFTER UPDATE OF id, disabled, parent_id ON forms BEGIN
  INSERT INTO listed_total_changes SELECT 'forms', NEW.id >> 10, 1 WHERE NOT NEW.disabled AND NEW.parent_id IS NULL;
  INSERT INTO listed_total_changes SELECT 'forms', OLD.id >> 10, -1 WHERE NOT OLD.disabled AND OLD.parent_id IS NULL;
END;

CREATE TRIGGER groups_replacing BEFORE INSERT ON groups BEGIN
  DELETE FROM listed_replaced WHERE counted LIKE '%groups';
  INSERT INTO listed_replaced SELECT kind.value, g.id >> 10
    FROM groups g JOIN json_each('["groups", "managed groups"]') AS kind ON kind.value = 'groups' OR g.managed
    WHERE g.id IN (SELECT NEW.id UNION SELECT id FROM groups WHERE external_id = NEW.external_id
      UNION SELECT id FROM groups WHERE built_in AND NEW.built_in);
END;
CREATE TRIGGER groups_counted_insert AFTER INSERT ON groups BEGIN
  INSERT INTO listed_total_changes SELECT 'groups', NEW.id >> 10, 1;
  INSERT INTO listed_total_changes SELECT 'managed groups', NEW.id >> 10, 1 WHERE NEW.managed;
  INSERT INTO listed_total_changes SELECT counted, key, -1 FROM listed_replaced WHERE counted LIKE '%groups';
END;
CREATE TRIGGER groups_counted_delete AFTER DELETE ON groups BEGIN
  INSERT INTO listed_total_changes SELECT 'groups', OLD.id >> 10, -1;
  INSERT INTO listed_total_changes SELECT 'managed groups', OLD.id >> 10, -1 WHERE OLD.managed;
  DELETE FROM listed_totals WHERE counted = 'members' AND key = OLD.id AND listed = 0;
END;
CREATE TRIGGER groups_counted_update AFTER UPDATE OF id, managed ON groups BEGIN
  INSERT INTO listed_total_changes SELECT 'groups', NEW.id >> 10, 1;
  INSERT INTO listed_total_changes SELECT 'groups', OLD.id >> 10, -1;
  INSERT INTO listed_total_changes SELECT 'managed groups', NEW.id >> 10, 1 WHERE NEW.managed;
  INSERT INTO listed_total_changes SELECT 'managed groups', OLD.id >> 10, -1 WHERE OLD.managed;
END;

CREATE TRIGGER users_replacing BEFORE INSERT ON users
WHEN EXISTS (SELECT 1 FROM users WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM users WHERE email_folded = NEW.email_folded)
  OR EXISTS (SELECT 1 FROM listed_replaced WHERE counted = 'users') BEGIN
  DELETE FROM listed_replaced WHERE counted = 'users';
  -- Not with OR: by statistics from a time with few users, SQLite would read all of them.
  INSERT INTO listed_replaced SELECT 'users', 0 FROM (
    SELECT id FROM users WHERE id = NEW.id UNION SELECT id FROM users WHERE email_folded = NEW.email_folded);
END;
CREATE TRIGGER users_counted_insert AFTER INSERT ON users BEGIN
  UPDATE listed_totals SET listed = listed + 1 - (SELECT count(*) FROM listed_replaced WHERE counted = 'users')
    WHERE counted = 'users' AND key = 0;
END;
CREATE TRIGGER users_counted_delete AFTER DELETE ON users BEGIN
  UPDATE listed_totals SET listed = listed - 1 WHERE counted = 'users' AND key = 0;
END;
-- The folded address of an inserted user is set by a trigger, under the conflict clause of the INSERT.
CREATE TRIGGER users_replacing_update BEFORE UPDATE OF email_folded ON users
WHEN EXISTS (SELECT 1 FROM users WHERE email_folded = NEW.email_folded AND id <> OLD.id)
  OR EXISTS (SELECT 1 FROM listed_replaced WHERE counted = 'addresses') BEGIN
  DELETE FROM listed_replaced WHERE counted = 'addresses';
  INSERT INTO listed_replaced SELECT 'addresses', 0 FROM users WHERE email_folded = NEW.email_folded AND id <> OLD.id;
END;
CREATE TRIGGER users_counted_update AFTER UPDATE OF email_folded ON users
WHEN EXISTS (SELECT 1 FROM listed_replaced WHERE counted = 'addresses') BEGIN
  UPDATE listed_totals SET listed = listed - (SELECT count(*) FROM listed_replaced WHERE counted = 'addresses')
    WHERE counted = 'users' AND key = 0;
  DELETE FROM listed_replaced WHERE counted = 'addresses';
END;

CREATE TRIGGER members_replacing BEFORE INSERT ON group_members
WHEN EXISTS (SELECT 1 FROM group_members WHERE group_id = NEW.group_id AND user_id = NEW.user_id)
  OR EXISTS (SELECT 1 FROM listed_replaced WHERE counted = 'members') BEGIN
  DELETE FROM listed_replaced WHERE counted = 'members';
  INSERT INTO listed_replaced SELECT 'members', group_id FROM group_members
    WHERE group_id = NEW.group_id AND user_id = NEW.user_id;
END;
CREATE TRIGGER members_counted_insert AFTER INSERT ON group_members
WHEN NOT EXISTS (SELECT 1 FROM listed_replaced WHERE counted = 'members') BEGIN
  INSERT INTO listed_totals (counted, key, listed) VALUES ('members', NEW.group_id, 1)
    ON CONFLICT (counted, key) DO UPDATE SET listed = listed + 1;
END;
CREATE TRIGGER members_counted_delete AFTER DELETE ON group_members BEGIN
  UPDATE listed_totals SET listed = listed - 1 WHERE counted = 'members' AND key = OLD.group_id;
END;
CREATE TRIGGER members_counted_update AFTER UPDATE OF group_id ON group_members WHEN NEW.group_id <> OLD.group_id BEGIN
  INSERT INTO listed_total_changes VALUES ('members', OLD.group_id, -1);
  INSERT INTO listed_total_changes VALUES ('members', NEW.group_id, 1);
END;

-- 3. What is there already ---------------------------------------------------------------------------------------------

INSERT INTO listed_totals (counted, key, listed)
  WITH blocks (counted, key, listed) AS (
    SELECT 'forms', id >> 10, count(*) FROM forms WHERE NOT disabled AND parent_id IS NULL GROUP BY 2
    UNION ALL SELECT 'groups', id >> 10, count(*) FROM groups GROUP BY 2
    UNION ALL SELECT 'managed groups', id >> 10, count(*) FROM groups WHERE managed GROUP BY 2)
  SELECT counted, key, listed FROM blocks
  UNION ALL SELECT counted, -1, sum(listed) FROM blocks GROUP BY 1
  UNION ALL SELECT 'users', 0, count(*) FROM users
  UNION ALL SELECT 'members', group_id, count(*) FROM group_members GROUP BY 2;

-- 4. The order of the pages --------------------------------------------------------------------------------------------

CREATE INDEX forms_listed ON forms (id) WHERE NOT disabled AND parent_id IS NULL;
CREATE INDEX groups_managed ON groups (id) WHERE managed;
