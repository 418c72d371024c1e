-- The sliding window of one account, exact: a packed log of the instants at which requests were admitted.
--
-- KEYS[1]  the log, oldest first: 8 bytes a request, its instant and the token that made it, both 4 bytes, big-endian;
--          instants in milliseconds modulo 2^32
-- ARGV[1]  limit   ARGV[2]  window in ms   ARGV[3]  what to do: "look", "spend", or "tell", which spends and tells the log
-- ARGV[4]  the number of the token
-- Returns  {admitted, remaining, wait, log}: wait is the ms until a request can be admitted, 0 where one can be now; the
--          log is told where it was asked for and where the request is refused, else it is empty.
--
-- The clock is this server's, so the gateways need not agree on the time. Stamps are cut to whole milliseconds; a stamp
-- counts until its age is more than the window: two instants that are less than a window apart are then never told apart.
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local log = redis.call('GET', KEYS[1]) or ''
-- Something else's value, or half of one, is no log.
if #log % 8 ~= 0 then log = '' end

local function age(at)
  local passed = (now - struct.unpack('>I4', log, at)) % 4294967296
  -- More than half of the range is a stamp from the future: the clock was set back. It counts as new.
  return passed < 2147483648 and passed or 0
end

local head = 1
while head <= #log and age(head) > window do
  head = head + 8
end
local used = (#log - head + 1) / 8
if used >= limit then
  return {0, 0, window - age(head + (used - limit) * 8) + 1, string.sub(log, head)}
end
if ARGV[3] == 'look' then
  return {1, limit - used, 0, string.sub(log, head)}
end
log = string.sub(log, head) .. struct.pack('>I4I4', now, ARGV[4])
redis.call('SET', KEYS[1], log, 'PX', window + 1)
return {1, limit - used - 1, 0, ARGV[3] == 'tell' and log or ''}
