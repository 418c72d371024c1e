-- Nothing: what version 5 adds on Postgres saves round trips, and here there are none.
SELECT 1;
