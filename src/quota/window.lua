-- The sliding windows of some accounts, exact: of each a packed log of the instants at which requests were admitted.
--
-- KEYS     of each request the log of its account, oldest first: 8 bytes a request, its instant and the token that made
--          it, both 4 bytes, big-endian; instants in milliseconds modulo 2^32. A key may come more than once: the
--          requests are decided one after the other
-- ARGV[1]  window in ms   ARGV[2]  expiry in ms of a log that is written anew. After each request a log is kept for half of
--          that, which is more than the window
-- ARGV[3]  9 bytes of each request: limit, 4 bytes, big-endian; what to do: "l" to look, "s" to spend, "S" to spend where
--          the log may be long, "t" to spend and be told the log; the token, as in the log
-- Returns  texts. The first has 12 bytes of each request: what remains, the ms to wait until a request can be admitted, 0
--          where this one was, or could be, and how many bytes at the head of its log have left the window, -1 where it
--          has no log, 4 bytes each, big-endian. Then come the logs, as they were before their requests: of who looks,
--          of who asked for it, of who is refused. Where something that is no log stands at the key, -1 remains, and the
--          log is a message. A number for each would cost both sides more than all of the rest.
--
-- The clock is this server's, so the gateways need not agree on the time. Stamps are cut to whole milliseconds; a stamp
-- counts until its age is more than the window: two instants that are less than a window apart are then never told apart.
--
-- The clock may be set back, and the value may be somebody else's. A stamp from the future counts as new, and is made one
-- of now before a request is added: a log is in the order of its stamps. When one stands where a request has to leave before
-- another is admitted, all that is counted is stamped anew. So neither can admit more than the limit, and neither keeps an
-- account out for longer than one window.
--
-- Numbers are handed over as texts wherever they can be: a call that is given a number writes it out at some cost. Lua
-- hashes every text that it makes, byte for byte, so a log is a text as seldom as can be: what has left stays at its head
-- for a while, a request is appended, and logs are not joined for the answer.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local stamp = pack('>I4', now)
local window, expiry = tonumber(ARGV[1]), ARGV[2]
-- Since a stamp from the future, so much has passed, or more: half of the range.
local future = 2147483648
-- An expiry is looked at by the first request in a part of the time, for all of that part.
local kept = expiry / 2
local part = kept / 8
local this_part = math.floor(now / part)

local heads, told = {}, {''}
local function answer(remaining, wait, log, left)
  heads[#heads + 1] = pack('>i4I4i4', remaining, wait, log and left or -1)
  if log then told[#told + 1] = log end
end

-- What the request needs to know of a log that may be long, if it is admitted: its bytes, how many of them have left, and
-- how long ago its newest stamp was. No more of it is read than it takes to tell. Nothing where all of it has to be read.
local function read_parts(key, limit)
  local length = redis.pcall('STRLEN', key)
  if type(length) == 'table' or length == 0 or length % 8 ~= 0 then return end
  local function read(from, to)
    return call('GETRANGE', key, string.format('%d', from * 8), string.format('%d', to * 8 - 1))
  end
  local function passed_since(log, place)
    return (now - unpack('>I4', log, place)) % 4294967296
  end
  local count = length / 8
  local newest = passed_since(read(count - 1, count), 1)
  if newest >= future then return end
  -- Those before `low` have left, and the one at `high` has not. Mostly, no more than a sixteenth of a log has.
  local low, high, at = 0, count, math.floor(count / 16)
  while high - low > 32 do
    if passed_since(read(at, at + 1), 1) > window then low = at + 1 else high = at end
    at = math.floor((low + high) / 2)
  end
  local from, between = low, low < high and read(low, high)
  while low < high and passed_since(between, (low - from) * 8 + 1) > window do low = low + 1 end
  if count - low < limit then return length, low * 8, newest end
end

-- What most requests take is written out, not shared with the above: a call of a function costs more than what it would do.
local function decide(key, limit, what, token)
  local log, length, left, newest
  if what == 'S' then length, left, newest = read_parts(key, limit) end
  if not length then
    log = redis.pcall('GET', key) or ''
    if type(log) == 'table' then return answer(-1, 0, log.err, 0) end
    -- Half of a log is none.
    if #log % 8 ~= 0 then log = '' end
    length, left = #log, 0
    while left < length do
      local passed = (now - unpack('>I4', log, left + 1)) % 4294967296
      if passed <= window or passed >= future then break end
      left = left + 8
    end
    newest = length > 0 and (now - unpack('>I4', log, length - 7)) % 4294967296 or 0
  end
  local used = (length - left) / 8
  if used >= limit then
    local passed = (now - unpack('>I4', log, length - limit * 8 + 1)) % 4294967296
    if passed > window then
      log = string.gsub(string.sub(log, left + 1), '....(....)', function(token) return stamp .. token end)
      call('SET', key, log, 'PX', expiry)
      left, passed = 0, 0
    end
    return answer(0, window - passed + 1, log, left)
  end
  if what == 'l' then return answer(limit - used, 0, log, left) end
  if length == 0 or left * 16 > length or left > 128 and log or newest >= future then
    local counted = log and string.sub(log, left + 1) or call('GETRANGE', key, left, '-1')
    if newest >= future then
      counted = string.gsub(counted, '(....)(....)', function(at, token)
        return (now - unpack('>I4', at)) % 4294967296 >= future and stamp .. token
      end)
    end
    call('SET', key, counted .. stamp .. token, 'PX', expiry)
  else
    call('APPEND', key, stamp .. token)
    local is_first = math.floor((now - newest) % 4294967296 / part) ~= this_part
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
