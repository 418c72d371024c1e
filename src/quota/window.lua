-- The sliding window of one account, exact: a packed log of the instants at which requests were admitted.
--
-- KEYS[1]  the log: 4-byte big-endian stamps, oldest first, in milliseconds modulo 2^32
-- ARGV[1]  limit   ARGV[2]  window in ms   ARGV[3]  "1" to spend a request, "0" to look only
-- Returns  {admitted, remaining, wait}: wait is the ms until a request can be admitted, 0 where one can be now.
--
-- The clock is this server's, so the gateways need not agree on the time. Stamps are cut to whole milliseconds; a stamp
-- counts until its age is more than the window, so that two instants less than a window apart never both count as apart.
-- A packed log costs one read and one write an admission, where a sorted set costs four commands and four times the
-- memory.
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local log = redis.call('GET', KEYS[1]) or ''

local function age(at)
  local passed = (now - struct.unpack('>I4', log, at)) % 4294967296
  -- More than half of the range is a stamp from the future: the clock was set back. It counts as new.
  return passed < 2147483648 and passed or 0
end

local head = 1
while head <= #log and age(head) > window do
  head = head + 4
end
local used = (#log - head + 1) / 4
if used >= limit then
  return {0, 0, window - age(head + (used - limit) * 4) + 1}
end
if ARGV[3] == '0' then
  return {1, limit - used, 0}
end
redis.call('SET', KEYS[1], string.sub(log, head) .. struct.pack('>I4', now), 'PX', window + 1)
return {1, limit - used - 1, 0}
