-- Nothing: what version 6 adds on Postgres lets writes of groups share their turn, and here there is one writer at a time.
SELECT 1;
