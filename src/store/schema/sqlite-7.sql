-- Nothing: what version 7 makes cheaper on Postgres is one call, which there is not here.
SELECT 1;
