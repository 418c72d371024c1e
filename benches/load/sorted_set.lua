-- The usual rate limiter, to compare with: the window as a sorted set. The gateway does not use it: plain hyper and
-- Fastify limit with it.
--
-- It decides like src/quota/window.lua, with the same arguments and the same answer, except that an entry of the log has
-- 10 bytes, and that it does not handle a clock that is set back: a stamp from the future counts as new.
--
-- KEYS[1]  scores are instants in ms; a member is its instant, its token, and a number that makes it unique
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - window)
local used = redis.call('ZCARD', KEYS[1])
if used >= limit then
  local log = redis.call('ZRANGE', KEYS[1], 0, -1)
  local passed = (now - struct.unpack('>I4', log[used - limit + 1])) % 4294967296
  local age = passed < 2147483648 and passed or 0
  return {0, 0, window - age + 1, table.concat(log)}
end
if ARGV[3] == 'look' then
  return {1, limit - used, 0, table.concat(redis.call('ZRANGE', KEYS[1], 0, -1))}
end
local same = 0
while redis.call('ZADD', KEYS[1], 'NX', now, struct.pack('>I4I4I2', now % 4294967296, ARGV[4], same)) == 0 do
  same = same + 1
end
redis.call('PEXPIRE', KEYS[1], window + 1000)
return {1, limit - used - 1, 0, ARGV[3] == 'report' and table.concat(redis.call('ZRANGE', KEYS[1], 0, -1)) or ''}
