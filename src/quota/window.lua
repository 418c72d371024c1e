-- The sliding windows of accounts, exact. One call decides several requests, one after the other.
--
-- A window is a log: for each admitted request 8 bytes, oldest first: its stamp and its token, 4 bytes each, big-endian.
-- Stamps are milliseconds modulo 2^32 by this server's clock, so the gateways need not agree on the time. A stamp is
-- truncated to whole milliseconds and counts until its age is more than the window, so two requests that are less than a
-- window apart always count together.
--
-- A short log is read whole by every request. A long one is never: beside it, a tally holds what an answer needs, so that a
-- request costs the same whether the window holds six hundred requests or a hundred thousand.
--
-- KEYS     of each request the log of its account; a long log is followed by the key of its tally. A key may come more
--          than once
-- ARGV[1]  window in ms
-- ARGV[2]  expiry in ms of a log that is written whole. After each request a log is kept for at least half of it, which is
--          more than the window
-- ARGV[3]  9 bytes per request. Limit: 4 bytes, big-endian. Operation: "l" looks, "s" spends, "t" spends and reports the
--          usage; in upper case if the log is long. Token: 4 bytes, as in the log
-- Returns  texts. The first has 12 bytes per request, three big-endian numbers: what remains; the ms to wait until a
--          request can be admitted, or 0; and what is reported: -1 nothing, -2 a tally, else a log, of which this many bytes
--          have left the window. A look, "t" and a refusal report. The logs and tallies follow, in order. A log is as it was
--          before its request; a tally includes it, and has 8 bytes per token: the token and its requests. If a key holds
--          something else, -1 remains, and the log is a message. (Numbers would cost both sides more than all of the rest.)
--
-- The clock may be set back, and a key may hold another program's value. A stamp from the future counts as new; it is
-- replaced by the current one before a request is added, so that a log stays in the order of its stamps. If a stamp is out of
-- order where a request must leave before another is admitted, the whole log is stamped with the current time. So neither
-- admits more than the limit, and neither keeps an account out for longer than one window.
--
-- Numbers are passed as texts where possible: Redis formats a number at some cost. Lua hashes each text that it creates, byte
-- for byte, so texts are few: expired requests stay at the head of a log for a while, a request is appended, and logs are not
-- joined for the reply.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local stamp = pack('>I4', now)
local window, expiry = tonumber(ARGV[1]), ARGV[2]
-- The age of a stamp from the future is at least this: half of the range.
local future = 2147483648
-- The first request in each part of the time checks the expiry, for the whole part.
local kept = expiry / 2
local part = kept / 8
local this_part = math.floor(now / part)

local heads, reports = {}, {''}
local function answer(remaining, wait, report, left)
  heads[#heads + 1] = pack('>i4I4i4', remaining, wait, report and left or -1)
  if report then reports[#reports + 1] = report end
end

local function age(log, place)
  return (now - unpack('>I4', log, place)) % 4294967296
end

-- A short log. Calls of functions would cost more than what they do, so little is shared with the long one.
local function decide(key, limit, operation, token)
  local log = redis.pcall('GET', key) or ''
  if type(log) == 'table' then return answer(-1, 0, log.err, 0) end
  -- A log has whole entries only.
  if #log % 8 ~= 0 then log = '' end
  local length, left = #log, 0
  while left < length do
    local passed = (now - unpack('>I4', log, left + 1)) % 4294967296
    if passed <= window or passed >= future then break end
    left = left + 8
  end
  local newest = length > 0 and (now - unpack('>I4', log, length - 7)) % 4294967296 or 0
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
  if operation == 'l' then return answer(limit - used, 0, log, left) end
  if length == 0 or left * 16 > length or left > 128 or newest >= future then
    local counted = string.sub(log, left + 1)
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
  return answer(limit - used - 1, 0, operation == 't' and log, left)
end

-- A part of a log, from one byte up to another.
local function read(key, from, to)
  if from >= to then return '' end
  return call('GETRANGE', key, string.format('%d', from), string.format('%d', to - 1))
end

-- Where the requests begin that have not left a log; those before `from` have. Usually few more have.
local function find_left(key, from, length)
  local low, high, at = from, length, math.min(from + 248, length - 8)
  while high - low > 256 do
    if age(read(key, at, at + 8), 1) > window then low = at + 8 else high = at end
    at = low + math.floor((high - low) / 16) * 8
  end
  local between = read(key, low, high)
  while low < high and age(between, #between - (high - low) + 1) > window do low = low + 8 end
  return low
end

local function count(counts, log, each)
  for token in string.gmatch(log, '....(....)') do counts[token] = (counts[token] or 0) + each end
end

-- A long log. Its tally is a hash: the requests of each token in a part of the log, and under the empty name which part that
-- is and the log's first entry. Each request counts what has come and gone since, so all in all each entry is counted twice.
-- Gateways that see a short log there, as with another limit, add to the log alone; if they have shortened it, its first
-- entry is another one, and all is counted again.
local function decide_long(key, tally, limit, operation, token)
  local part_counted = redis.pcall('HGET', tally, '')
  local first = redis.pcall('GETRANGE', key, '0', '7')
  for _, value in ipairs({part_counted, first}) do
    if type(value) == 'table' then return answer(-1, 0, value.err, 0) end
  end
  -- If the log is out of order, or is none.
  local function decide_by_whole_log()
    call('DEL', tally)
    return decide(key, limit, string.lower(operation), token)
  end

  local from, to, first_counted = 0, 0, first
  if part_counted then from, to, first_counted = unpack('>I4I4c8', part_counted) end
  local is_counted = part_counted and first == first_counted
  local length = call('STRLEN', key)
  if length < to then is_counted = false end
  if length % 8 ~= 0 then return decide_by_whole_log() end
  if not is_counted then from, to = 0, 0 end
  local newest = length > 0 and age(read(key, length - 8, length), 1) or 0
  if newest >= future then return decide_by_whole_log() end
  local left = find_left(key, from, length)
  local used = (length - left) / 8
  local passed = used >= limit and age(read(key, length - limit * 8, length), 1)
  if passed and passed > window then return decide_by_whole_log() end

  -- What has left is subtracted, unless it is more than what has not.
  if not is_counted or left - from > length - left then
    call('DEL', tally)
    is_counted, from, to = false, left, left
  end
  local counts = {}
  count(counts, read(key, from, math.min(left, to)), -1)
  count(counts, read(key, math.max(left, to), length), 1)
  from, to = left, length

  local spends = not passed and operation ~= 'L'
  if spends then
    counts[token] = (counts[token] or 0) + 1
    if left * 16 > length or length == 0 then
      local log = read(key, left, length) .. stamp .. token
      call('SET', key, log, 'PX', expiry)
      first, from, to = string.sub(log, 1, 8), 0, #log
      call('PEXPIRE', tally, expiry)
    else
      to = call('APPEND', key, stamp .. token)
      local is_first = math.floor((now - newest) % 4294967296 / part) ~= this_part
      if is_first and call('PTTL', key) < kept + part then
        call('PEXPIRE', key, expiry)
        call('PEXPIRE', tally, expiry)
      end
    end
  end
  for token, change in pairs(counts) do
    if change ~= 0 and call('HINCRBY', tally, token, change) <= 0 then call('HDEL', tally, token) end
  end
  if to > 0 then call('HSET', tally, '', pack('>I4I4c8', from, to, first)) end
  if not is_counted then call('PEXPIRE', tally, expiry) end

  local report
  if passed or operation ~= 'S' then
    local shares, fields = {}, call('HGETALL', tally)
    for at = 1, #fields, 2 do
      if fields[at] ~= '' then shares[#shares + 1] = fields[at] .. pack('>I4', tonumber(fields[at + 1])) end
    end
    report = table.concat(shares)
  end
  return answer(passed and 0 or limit - used - (spends and 1 or 0), passed and window - passed + 1 or 0, report, -2)
end

local at = 1
for place = 1, #ARGV[3], 9 do
  local limit, operation, token = unpack('>I4c1c4', ARGV[3], place)
  if operation < 'a' then
    decide_long(KEYS[at], KEYS[at + 1], limit, operation, token)
    at = at + 2
  else
    decide(KEYS[at], limit, operation, token)
    at = at + 1
  end
end
reports[1] = table.concat(heads)
return reports
