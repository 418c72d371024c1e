// What a team would build in place of the gateway: Fastify, pg and ioredis, a worker for each of two cores, prepared
// statements, the JSON of submissions written by Postgres and passed on as it is (cheaper than building it here), response
// schemas for the rest, and the usual sorted set in Redis as the window, which the workers share and whose calls share their
// packets. Its answers have the shape of the gateway's.
//
// Environment: PORT, ACCOUNTS (a file: [{host, token, database}]), CERTIFICATE and PRIVATE_KEY (without them plain HTTP/1.1),
// REDIS, LIMIT and WINDOW_MS (without them no limit), POOLS (at most as many pools of one connection are open, the least
// recently used one is closed; without it a pool of 4 connections for each database).
'use strict';
const cluster = require('node:cluster');
const crypto = require('node:crypto');
const fs = require('node:fs');

const env = process.env;
const WORKERS = 2;
const MAX_POOLS = env.POOLS ? Math.ceil(Number(env.POOLS) / WORKERS) : Infinity; // of each worker
const POOL = env.POOLS ? { max: 1, idleTimeoutMillis: 0 } : { max: 4 }; // of each worker for each database

if (cluster.isPrimary) {
  for (let n = 0; n < WORKERS; n++) cluster.fork();
  process.on('SIGTERM', () => {
    for (const worker of Object.values(cluster.workers)) worker.process.kill();
    process.exit(0);
  });
} else {
  serve();
}

function serve() {
  const Redis = require('ioredis');
  const pg = require('pg');
  pg.types.setTypeParser(pg.types.builtins.JSON, (value) => value); // stays text
  pg.types.setTypeParser(pg.types.builtins.INT8, Number);

  const pools = new Map(); // by database, the least recently used one first
  function poolOf(database) {
    const pool = pools.get(database) || new pg.Pool({ ...POOL, connectionString: database });
    pools.delete(database);
    pools.set(database, pool);
    for (const [other, unused] of pools) {
      if (pools.size <= MAX_POOLS || unused === pool) break;
      // A pool that is ended answers no query that waits for it.
      if (unused.waitingCount || unused.idleCount < unused.totalCount) continue;
      pools.delete(other);
      unused.end();
    }
    return pool;
  }

  const [LIMIT, WINDOW] = [Number(env.LIMIT), Number(env.WINDOW_MS)];
  const accounts = new Map();
  for (const { host, token, database } of JSON.parse(fs.readFileSync(env.ACCOUNTS))) {
    const digest = crypto.createHash('sha256').update(token).digest('hex');
    accounts.set(host, { key: `peer:${host}`, digest, seen: null, get pool() { return poolOf(database); } });
  }

  const https = env.CERTIFICATE &&
    { key: fs.readFileSync(env.PRIVATE_KEY), cert: fs.readFileSync(env.CERTIFICATE), allowHTTP1: true };
  const app = require('fastify')({ ...(https && { https, http2: true }), logger: false });

  const redis = env.REDIS && new Redis(env.REDIS, { enableAutoPipelining: true });
  const lua = fs.readFileSync(`${__dirname}/sorted_set.lua`, 'utf8');
  redis && redis.defineCommand('admit', { numberOfKeys: 1, lua });

  app.decorateRequest('account', null);
  app.addHook('onRequest', async (request, reply) => {
    const authority = request.headers[':authority'] || request.headers.host || '';
    const account = accounts.get(authority.split(':')[0]);
    if (!account) return reply.code(404).send({ message: 'Account not found' });
    const authorization = request.headers.authorization;
    if (authorization === undefined || authorization !== account.seen) {
      const token = authorization?.startsWith('Bearer ') ? authorization.slice(7) : '';
      const digest = crypto.createHash('sha256').update(token).digest('hex');
      if (digest !== account.digest) return reply.code(401).send({ message: 'Unauthenticated.' });
      account.seen = authorization;
    }
    request.account = account;
    if (!redis) return;
    const [admitted, remaining, wait] = await redis.admit(account.key, LIMIT, WINDOW, 'spend', 1);
    reply.header('x-ratelimit-limit', LIMIT).header('x-ratelimit-remaining', remaining);
    if (!admitted) {
      const message = 'Too Many Attempts.';
      return reply.code(429).header('retry-after', Math.ceil(wait / 1000)).send({ message });
    }
  });

  const [text, whole, truth, maybe] = ['string', 'integer', 'boolean', ['string', 'null']].map((type) => ({ type }));
  const object = (properties) => ({ type: 'object', properties });
  const links = object({ first: text, last: text, prev: maybe, next: maybe });
  const place = { current_page: whole, last_page: whole, per_page: whole };
  const meta = object({ ...place, total: whole, from: whole, to: whole, path: text });
  const list = (items) => ({ response: { 200: object({ data: { type: 'array', items }, links, meta }) } });

  function envelope(request, page, size, total, shown) {
    const path = `https://${request.headers[':authority'] || request.headers.host}${request.url.split('?')[0]}`;
    const last = Math.max(1, Math.ceil(total / size)), link = (n) => (n < 1 || n > last ? null : `${path}?page=${n}`);
    const from = shown ? (page - 1) * size + 1 : null;
    const to = shown ? from + shown - 1 : null;
    return {
      links: { first: link(1), last: link(last), prev: link(page - 1), next: link(page + 1) },
      meta: { current_page: page, last_page: last, per_page: size, total, from, to, path },
    };
  }

  app.get('/api/v1/me', async (request) => ({ message: 'You are authenticated.', account: { id: request.account.key } }));

  const form = object({ id: text, name: text, anonymous: truth });
  app.get('/api/v1/form', { schema: list(form) }, async (request) => {
    const page = Number(request.query.page) || 1;
    const { rows } = await request.account.pool.query({
      name: 'forms',
      text: `SELECT 'for_' || id AS id, name, anonymous, count(*) OVER () AS total FROM forms
             WHERE NOT disabled AND parent_id IS NULL ORDER BY forms.id LIMIT 100 OFFSET $1`,
      values: [(page - 1) * 100],
    });
    return { data: rows, ...envelope(request, page, 100, rows[0]?.total || 0, rows.length) };
  });

  const SUBMISSION = fs.readFileSync(`${__dirname}/submission.sql`, 'utf8').trim();
  app.get('/api/v1/submission/:id', async (request, reply) => {
    const { rows } = await request.account.pool.query({
      name: 'submission',
      text: `SELECT ${SUBMISSION} FROM submissions s WHERE s.id = $1 AND NOT s.draft`,
      values: [request.params.id.replace(/^sub_/, '')],
      rowMode: 'array',
    });
    if (!rows.length) return reply.code(404).send({ message: 'Submission not found' });
    reply.header('content-type', 'application/json');
    return `{"data":${rows[0][0]}}`;
  });

  app.post('/api/v1/submission', async (request, reply) => {
    const page = Number(request.query.page) || 1, { search } = request.body || {};
    const values = search ? [`%${search.replace(/[\\%_]/g, (c) => '\\' + c)}%`] : [];
    const within = 'AND s.id IN (SELECT a.submission_id FROM answers a WHERE a.value ILIKE $1)';
    const matching = `NOT s.draft ${search ? within : ''}`;
    const [found, counted] = await Promise.all([
      request.account.pool.query({
        name: search ? 'keyword' : 'page',
        text: `WITH page AS MATERIALIZED (SELECT s.id FROM submissions s WHERE ${matching}
                 ORDER BY s.updated_at DESC, s.id DESC LIMIT 20 OFFSET $${values.length + 1})
               SELECT coalesce(json_agg(${SUBMISSION} ORDER BY s.updated_at DESC, s.id DESC), '[]'), count(*)
               FROM page JOIN submissions s ON s.id = page.id`,
        values: [...values, (page - 1) * 20],
        rowMode: 'array',
      }),
      request.account.pool.query({
        name: search ? 'keyword count' : 'count',
        text: `SELECT count(*) FROM submissions s WHERE ${matching}`,
        values,
        rowMode: 'array',
      }),
    ]);
    const [data, shown] = found.rows[0];
    reply.header('content-type', 'application/json');
    return `{"data":${data},${JSON.stringify(envelope(request, page, 20, counted.rows[0][0], shown)).slice(1)}`;
  });

  const GROUP = fs.readFileSync(`${__dirname}/group.sql`, 'utf8').trim();
  const member = { ...object({ email: text, name: text }), required: ['email'] };
  const members = { type: 'array', items: member };
  const counts = object({ attached: whole, detached: whole, created: whole });
  const written = object({ id: text, name: text, external_id: text, members_count: whole });
  const schema = {
    body: { ...object({ external_id: text, name: text, members }), required: ['external_id', 'name', 'members'] },
    response: { 200: object({ data: written, members: counts }) },
  };
  app.put('/api/v1/group', { schema }, async (request) => {
    const { external_id, name, members } = request.body;
    const values = [external_id, name, members.map((one) => one.email), members.map((one) => one.name || '')];
    const { rows } = await request.account.pool.query({ name: 'group', text: GROUP, values });
    const { id, ...counted } = rows[0];
    return { data: { id: `grp_${id}`, name, external_id, members_count: members.length }, members: counted };
  });

  app.listen({ port: Number(env.PORT), host: '127.0.0.1' }).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
