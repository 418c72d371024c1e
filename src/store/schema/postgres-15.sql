-- The delivery of webhooks: src/webhooks.rs.

-- 1. Subscriptions, with how far each has got --------------------------------------------------------------------------

ALTER TABLE subscriptions
  DROP CONSTRAINT subscriptions_event_check,
  ADD CONSTRAINT subscriptions_event_check
    CHECK (event IN ('submission.created', 'submission.updated', 'submission.deleted')),
  ADD COLUMN state text NOT NULL DEFAULT 'active'
    CHECK (state IN ('active', 'paused', 'failing', 'disabled', 'gone')),
  ADD COLUMN reason text,
  ADD COLUMN previous_secret text,
  ADD COLUMN previous_secret_until timestamptz,
  ADD COLUMN position bigint,
  ADD COLUMN done_beyond text NOT NULL DEFAULT '[]',
  ADD COLUMN failures bigint NOT NULL DEFAULT 0,
  ADD COLUMN failing_since timestamptz,
  ADD COLUMN next_attempt_at timestamptz,
  ADD COLUMN last_success_at timestamptz,
  ADD COLUMN leased_by text,
  ADD COLUMN leased_until timestamptz,
  SET (fillfactor = 70);
COMMENT ON TABLE subscriptions IS 'Receivers of events; without a form, of every form. Created and deleted through the API only.';
COMMENT ON COLUMN subscriptions.secret IS 'Signs what is delivered; shown once, when the subscription is created.';
COMMENT ON COLUMN subscriptions.reason IS 'Why it is in this state, unless it is active.';
COMMENT ON COLUMN subscriptions.position IS 'Every event up to this number was delivered or set aside. Null: begins with what happens from now on.';
COMMENT ON COLUMN subscriptions.done_beyond IS 'A JSON array of the numbers beyond the position that were delivered or set aside.';
COMMENT ON COLUMN subscriptions.failures IS 'How many attempts to reach the receiver failed since the last success.';
COMMENT ON COLUMN subscriptions.leased_by IS 'Which sender delivers now, until leased_until. Only it may write how far the subscription has got.';
-- What happened before is not delivered.
UPDATE subscriptions SET position = (SELECT last_seq FROM change_state);

-- 2. Events that were not delivered in their turn ----------------------------------------------------------------------

CREATE TABLE webhook_events (
  subscription_id bigint NOT NULL REFERENCES subscriptions ON DELETE CASCADE,
  seq bigint NOT NULL,
  submission_id bigint NOT NULL,
  event_id text,
  attempts bigint NOT NULL DEFAULT 0,
  failed_at timestamptz,
  next_attempt_at timestamptz,
  given_up boolean NOT NULL DEFAULT false,
  body text,
  PRIMARY KEY (subscription_id, seq)
);
COMMENT ON TABLE webhook_events IS 'Events whose attempts failed, or that are to be sent again. Every attempt of one id has the same body.';
COMMENT ON COLUMN webhook_events.body IS 'What was sent. Null: nothing yet.';
COMMENT ON COLUMN webhook_events.failed_at IS 'When the first attempt failed.';
COMMENT ON COLUMN webhook_events.next_attempt_at IS 'When it is sent, whatever the position. Null: in its turn, or never if it was given up.';

-- 3. The delivery log --------------------------------------------------------------------------------------------------

CREATE TABLE webhook_attempts (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  subscription_id bigint NOT NULL REFERENCES subscriptions ON DELETE CASCADE,
  event_id text NOT NULL,
  event text NOT NULL,
  submission_id bigint NOT NULL,
  attempt bigint NOT NULL,
  at timestamptz NOT NULL,
  duration_ms bigint NOT NULL,
  accepted boolean NOT NULL,
  status bigint,
  error text,
  response text
);
COMMENT ON TABLE webhook_attempts IS 'The latest attempts of each subscription, bounded by age and number.';
COMMENT ON COLUMN webhook_attempts.error IS 'Why there was no answer.';
COMMENT ON COLUMN webhook_attempts.response IS 'The beginning of the answer.';
CREATE INDEX webhook_attempts_subscription ON webhook_attempts (subscription_id, id);

-- 4. Hints that something was written ----------------------------------------------------------------------------------

-- Senders watch the counters of the server, which a session reports a second late at the earliest, and up to ten if it
-- reads and then writes. A function of Postgres 15 brings that to the end of the transaction. It is only a hint: without it,
-- events are later.
DO $$
DECLARE
  name text;
BEGIN
  IF current_setting('server_version_num')::int < 150000 THEN
    RETURN;
  END IF;
  FOREACH name IN ARRAY ARRAY['submission', 'part', 'form', 'everything'] LOOP
    EXECUTE replace(pg_get_functiondef(format('formgate_note_%s()', name)::regprocedure), '  RETURN NULL;',
      '  PERFORM pg_stat_force_next_flush();' || E'\n  RETURN NULL;');
  END LOOP;
END
$$;

-- The roles that formgate serves as deliver. They are the ones that may update tokens.
DO $$
DECLARE
  server text;
BEGIN
  FOR server IN
    SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
    FROM pg_class, aclexplode(relacl)
    WHERE oid = 'tokens'::regclass AND privilege_type = 'UPDATE' AND grantee <> relowner
  LOOP
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON subscriptions, webhook_events, webhook_attempts TO %s', server);
  END LOOP;
END
$$;
