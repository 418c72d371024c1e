-- The first list of a directory makes many users where there were few. Postgres keeps the plan by which a session looks whether
-- a member's user is there, and made where there are few it reads all of them: 25,000 new members took 27 seconds, and 50,000
-- more than a minute. By an index it takes as long as ever.
ALTER FUNCTION formgate_replace_members(bigint, text[], text[], text[]) SET enable_seqscan = off;
