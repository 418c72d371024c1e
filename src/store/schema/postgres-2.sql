-- Subscriptions of automation tools: what the delivery of webhooks will need.
CREATE TABLE subscriptions (
  id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  target_url text NOT NULL CHECK (length(target_url) BETWEEN 1 AND 2048),
  event text NOT NULL CHECK (event IN ('submission.created', 'submission.updated')),
  form_id bigint REFERENCES forms ON DELETE CASCADE,
  secret text NOT NULL,
  created_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX subscriptions_triple ON subscriptions (target_url, event, coalesce(form_id, 0));
CREATE INDEX subscriptions_form ON subscriptions (form_id) WHERE form_id IS NOT NULL;
COMMENT ON TABLE subscriptions IS 'Who is told of which event; without a form, of every form. Made and deleted through the API alone.';
COMMENT ON COLUMN subscriptions.secret IS 'Signs what is delivered; shown once, when the subscription is made.';
