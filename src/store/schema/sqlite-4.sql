-- Nothing: what version 4 mends on Postgres comes of writers at once, and here there is one at a time.
SELECT 1;
