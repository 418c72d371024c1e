-- A candidate, not in use: the window as a list. Decides like src/quota/window.lua, with the same arguments and the same
-- answer.
--
-- Left out is what that one does after its clock was set back: here a stamp from the future only counts as new.
--
-- KEYS[1]  the log, oldest first, an element a request: its instant in ms modulo 2^32 and its token, 4 bytes each
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])

local function age(entry)
  local passed = (now - struct.unpack('>I4', entry)) % 4294967296
  return passed < 2147483648 and passed or 0
end

local oldest = redis.call('LINDEX', KEYS[1], 0)
while oldest and age(oldest) > window do
  redis.call('LPOP', KEYS[1])
  oldest = redis.call('LINDEX', KEYS[1], 0)
end
local used = redis.call('LLEN', KEYS[1])
if used >= limit then
  local log = redis.call('LRANGE', KEYS[1], 0, -1)
  return {0, 0, window - age(log[used - limit + 1]) + 1, table.concat(log)}
end
if ARGV[3] == 'look' then
  return {1, limit - used, 0, table.concat(redis.call('LRANGE', KEYS[1], 0, -1))}
end
redis.call('RPUSH', KEYS[1], struct.pack('>I4I4', now, ARGV[4]))
redis.call('PEXPIRE', KEYS[1], window + 1000)
return {1, limit - used - 1, 0, ARGV[3] == 'tell' and table.concat(redis.call('LRANGE', KEYS[1], 0, -1)) or ''}
