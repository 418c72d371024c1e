-- The sliding windows of some accounts, exact: of each a packed log of the instants at which requests were admitted.
--
-- KEYS     of each request the log of its account, oldest first: 8 bytes a request, its instant and the token that made
--          it, both 4 bytes, big-endian; instants in milliseconds modulo 2^32. A key may come more than once: the
--          requests are decided one after the other
-- ARGV[1]  window in ms   ARGV[2]  expiry in ms of a log that is written anew. After each request a log is kept for half of
--          that, which is more than the window
-- ARGV[3]  9 bytes of each request: limit, 4 bytes, big-endian; what to do: "l" to look, "s" to spend, "t" to spend and be
--          told the log; the token, as in the log
-- Returns  texts. The first has 12 bytes of each request: what remains, the ms to wait until a request can be admitted, 0
--          where this one was, or could be, and how many bytes at the head of its log have left the window, -1 where it
--          has no log, 4 bytes each, big-endian. Then come the logs, as they were before their requests: of who looks,
--          of who asked for it, of who is refused. Where something that is no log stands at the key, -1 remains, and the
--          log is a message. A number for each would cost both sides more than all of the rest.
--
-- The clock is this server's, so the gateways need not agree on the time. Stamps are cut to whole milliseconds; a stamp
-- counts until its age is more than the window: two instants that are less than a window apart are then never told apart.
--
-- The clock may be set back, and the value may be somebody else's. A stamp from the future counts as new; when one stands
-- where a request has to leave before another is admitted, all that is counted is stamped anew. So neither can admit more
-- than the limit, and neither keeps an account out for longer than one window.
--
-- Numbers are handed over as texts wherever they can be: a call that is given a number writes it out at some cost. Lua
-- hashes every text that it makes, byte for byte, so a log is a text as seldom as can be: what has left stays at its head
-- for a while, a request is appended, and logs are not joined for the answer.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local stamp = pack('>I4', now)
local window, expiry = tonumber(ARGV[1]), ARGV[2]
-- An expiry is looked at by the first request in a part of the time, for all of that part.
local kept = expiry / 2
local part = kept / 8
local this_part = math.floor(now / part)

local heads, told = {}, {''}
local function answer(remaining, wait, log, left)
  heads[#heads + 1] = pack('>i4I4i4', remaining, wait, log and left or -1)
  if log then told[#told + 1] = log end
end

local function decide(key, limit, what, token)
  local log = redis.pcall('GET', key) or ''
  if type(log) == 'table' then return answer(-1, 0, log.err, 0) end
  -- Half of a log is none.
  if #log % 8 ~= 0 then log = '' end
  local left = 0
  while left < #log do
    local passed = (now - unpack('>I4', log, left + 1)) % 4294967296
    -- Since a stamp from the future, more than half of the range has passed.
    if passed <= window or passed >= 2147483648 then break end
    left = left + 8
  end
  local used = (#log - left) / 8
  if used >= limit then
    local passed = (now - unpack('>I4', log, #log - limit * 8 + 1)) % 4294967296
    if passed > window then
      log = string.gsub(string.sub(log, left + 1), '....(....)', function(token) return stamp .. token end)
      call('SET', key, log, 'PX', expiry)
      left, passed = 0, 0
    end
    return answer(0, window - passed + 1, log, left)
  end
  if what == 'l' then return answer(limit - used, 0, log, left) end
  if log == '' or left > 128 or left * 16 > #log then
    call('SET', key, string.sub(log, left + 1) .. stamp .. token, 'PX', expiry)
  else
    call('APPEND', key, stamp .. token)
    local is_first = math.floor(unpack('>I4', log, #log - 7) / part) ~= this_part
    if is_first and call('PTTL', key) < kept + part then call('PEXPIRE', key, expiry) end
  end
  return answer(limit - used - 1, 0, what == 't' and log, left)
end

for at, key in ipairs(KEYS) do
  local limit, what, token = unpack('>I4c1c4', ARGV[3], 9 * at - 8)
  decide(key, limit, what, token)
end
told[1] = table.concat(heads)
return told
