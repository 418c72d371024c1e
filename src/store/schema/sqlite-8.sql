-- Nothing: what version 8 makes Postgres do, SQLite always does.
SELECT 1;
