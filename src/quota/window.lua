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
--
-- The clock may be set back, and the value may be somebody else's. A stamp from the future counts as new; when one stands
-- where a request has to leave before another is admitted, all that is counted is stamped anew. So neither can admit more
-- than the limit, and neither keeps an account out for longer than one window.
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local log = redis.call('GET', KEYS[1]) or ''
-- Something else's value, or half of one, is no log.
if #log % 8 ~= 0 then log = '' end

-- Negative is the future: more than half of the range has passed.
local function age(at)
  local passed = (now - struct.unpack('>I4', log, at)) % 4294967296
  return passed < 2147483648 and passed or passed - 4294967296
end

-- The expiry counts from when the script began, the stamps from when it asked for the time: a little later, or a lot on a
-- busy machine. A second more keeps the log as long as it is needed.
local expiry = window + 1000

local head = 1
while head <= #log and age(head) > window do
  head = head + 8
end
-- A whole substring is a copy, too.
if head > 1 then log = string.sub(log, head) end
local used = #log / 8
if used >= limit then
  local leaves = age((used - limit) * 8 + 1)
  if leaves < 0 or leaves > window then
    local stamp = struct.pack('>I4', now)
    log = string.gsub(log, '....(....)', function(token) return stamp .. token end)
    redis.call('SET', KEYS[1], log, 'PX', expiry)
    leaves = 0
  end
  return {0, 0, window - leaves + 1, log}
end
if ARGV[3] == 'look' then
  return {1, limit - used, 0, log}
end
log = log .. struct.pack('>I4I4', now, ARGV[4])
redis.call('SET', KEYS[1], log, 'PX', expiry)
return {1, limit - used - 1, 0, ARGV[3] == 'tell' and log or ''}
