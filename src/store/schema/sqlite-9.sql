-- Which database this is, whatever path it is reached by: what is kept outside of it for the account, such as its rate
-- window in Redis, is filed under this. A copy of the file has the same identity.
CREATE TABLE database_identity (
  id TEXT NOT NULL, -- 32 hexadecimal digits
  only_row INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_row = 1)
) STRICT;
INSERT INTO database_identity (id) VALUES (lower(hex(randomblob(16))));
