-- A row for each webhook, written in the transaction of what it is about.
CREATE TABLE outbox (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  target integer NOT NULL,
  body text NOT NULL,
  queued_at timestamptz,
  delivered_at timestamptz
);
CREATE INDEX outbox_waiting ON outbox (id) WHERE queued_at IS NULL;
