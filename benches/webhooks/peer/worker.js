// What a team would build to deliver webhooks: a relay that takes rows of an outbox table to a queue in Redis, and a BullMQ
// worker that signs each body as Standard Webhooks says, posts it with undici over connections that are kept, and marks its
// row. Bodies are in the rows and in the jobs, so that no row is read again; formgate builds its bodies from the tables.
//
// Environment: DATABASE (a URL), REDIS_PORT, TARGETS (URLs, by the number in `outbox.target`), CONCURRENCY (requests at once,
// divided among the targets), AUTHORITY (a PEM file).
'use strict';
const { createHmac } = require('node:crypto');
const { readFileSync } = require('node:fs');
const { setTimeout: sleep } = require('node:timers/promises');
const { Queue, Worker } = require('bullmq');
const { Pool: Database } = require('pg');
const { Pool } = require('undici');

const env = process.env;
const concurrency = Number(env.CONCURRENCY);
const connection = { host: '127.0.0.1', port: Number(env.REDIS_PORT), maxRetriesPerRequest: null };
const database = new Database({ connectionString: env.DATABASE, max: 10 });
const secret = Buffer.from('MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'base64');

const urls = env.TARGETS.split(',').map((url) => new URL(url));
const targets = urls.map((url) => ({
  path: url.pathname,
  pool: new Pool(url.origin, {
    connections: concurrency / urls.length,
    pipelining: 1,
    connect: { ca: readFileSync(env.AUTHORITY) },
    headersTimeout: 15_000,
    bodyTimeout: 15_000,
  }),
}));

// As many rows at once as one transaction and one call of `addBulk` take without holding up the worker.
const BATCH = 500;
const PAUSE = 500;

const queue = new Queue('webhooks', { connection });

async function relay() {
  for (;;) {
    const client = await database.connect();
    let rows;
    try {
      await client.query('BEGIN');
      ({ rows } = await client.query({
        name: 'take',
        text: 'SELECT id, target, body FROM outbox WHERE queued_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED',
        values: [BATCH],
      }));
      if (rows.length > 0) {
        await queue.addBulk(
          rows.map((row) => ({
            name: 'deliver',
            data: row,
            opts: {
              jobId: `evt-${row.id}`, // a row that is relayed twice is one job
              attempts: 20,
              backoff: { type: 'exponential', delay: 5_000 },
              removeOnComplete: true,
            },
          })),
        );
        await client.query({
          name: 'queued',
          text: 'UPDATE outbox SET queued_at = now() WHERE id = ANY($1)',
          values: [rows.map((row) => row.id)],
        });
      }
      await client.query('COMMIT');
    } finally {
      client.release();
    }
    if (rows.length < BATCH) await sleep(PAUSE);
  }
}

async function deliver({ data: { id, target, body } }) {
  const webhook = `evt_${id}`;
  const timestamp = Math.floor(Date.now() / 1000);
  const signature = createHmac('sha256', secret).update(`${webhook}.${timestamp}.${body}`).digest('base64');
  const { pool, path } = targets[target];
  const answer = await pool.request({
    method: 'POST',
    path,
    headers: {
      'content-type': 'application/json',
      'user-agent': 'peer/0',
      'webhook-id': webhook,
      'webhook-timestamp': String(timestamp),
      'webhook-signature': `v1,${signature}`,
    },
    body,
  });
  await answer.body.dump();
  if (answer.statusCode < 200 || answer.statusCode > 299) throw new Error(`status ${answer.statusCode}`);
  await database.query({
    name: 'delivered',
    text: 'UPDATE outbox SET delivered_at = now() WHERE id = $1',
    values: [id],
  });
}

process.stdout.write('ready\n');
const worker = new Worker('webhooks', deliver, { connection, concurrency });
// Jobs that run are completed, so that none runs again in the next round.
process.on('SIGTERM', () => worker.close().then(() => process.exit(0)));
worker.on('failed', (job, error) => console.error(`${job?.id}: ${error.message}`));
relay().catch((error) => {
  console.error(error);
  process.exit(1);
});
