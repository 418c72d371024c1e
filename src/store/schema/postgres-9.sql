-- Which database this is, whatever address it is reached by: what is kept outside of it for the account, such as its rate
-- window in Redis, is filed under this. A copy of the database has the same identity.
CREATE TABLE database_identity (
  id text NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', ''), -- 32 hexadecimal digits
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);
COMMENT ON TABLE database_identity IS 'One row, made by formgate migrate and never changed.';
INSERT INTO database_identity DEFAULT VALUES;
-- It is no secret, and a role that does not own the tables needs it to serve.
GRANT SELECT ON database_identity TO PUBLIC;
