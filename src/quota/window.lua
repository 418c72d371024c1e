-- The sliding windows of accounts, exact. One call decides several requests, one after the other.
--
-- A window is a log: for each admitted request 8 bytes, oldest first: its stamp and its token, 4 bytes each, big-endian.
-- Stamps are milliseconds modulo 2^32 by this server's clock, so the gateways need not agree on the time. A stamp is
-- truncated to whole milliseconds and counts until its age is more than the window, so two requests that are less than a
-- window apart always count together.
--
-- A short log is read whole by every request. A long one is never: next to it, a tally holds what an answer needs, so that a
-- request costs the same whether the window holds six hundred requests or a hundred thousand.
--
-- A request of a token that has a budget of its own asks for two windows, its own and then its account's, and takes a place
-- in both or in neither.
--
-- KEYS     of each window its log; a long log is followed by its tally. A key may come more than once
-- ARGV[1]  window in ms
-- ARGV[2]  expiry in ms of a log that is written whole. After each request a log is kept for at least half of it, which is
--          more than the window
-- ARGV[3]  11 bytes per window. Limit: 4 bytes, big-endian. Operation: "l" looks, "s" spends, "r" spends and reports the
--          usage, "m" spends more for a request that has spent one, "o" spends if the next window, which is the account's, can
--          spend too; in upper case if the log is long. Token: 4 bytes, as in the log. How many places are taken: 2 bytes, 1 but
--          for "m" and its "o". If there are fewer, none is taken, and "m" gives back the place that the request has
-- Returns  texts. The first has 12 bytes per window, three big-endian numbers: what remains; the ms to wait until a
--          request can be admitted, or 0; and what is reported: -1 nothing, -2 a tally, else a log, of which this many bytes
--          have left the window. A look, "r" and a refusal report; so does an account's window that was only looked at,
--          since the token's own is full. The logs and tallies follow, in order. A log is as it was
--          before its request. A tally includes it, and has 8 bytes per share: a token, and a number of its requests; the
--          shares of a token add up, and may be negative. If a key holds something else, -1 remains, and the log is a
--          message. (Numbers would cost both sides more than all of the rest.)
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

local heads, reports, admits = {}, {''}, true
local function answer(remaining, wait, report, left)
  admits = wait == 0 and remaining >= 0
  heads[#heads + 1] = pack('>i4I4i4', remaining, wait, report and left or -1)
  if report then reports[#reports + 1] = report end
end

local function age(log, place)
  return (now - unpack('>I4', log, place)) % 4294967296
end

-- A short log. Calls of functions would cost more than what they do, so little is shared with the long one.
local function decide(key, limit, operation, token, places)
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
  local used, most = (length - left) / 8, limit - places
  if used > most then
    local passed = (now - unpack('>I4', log, length - most * 8 - 7)) % 4294967296
    if passed > window then
      log = string.gsub(string.sub(log, left + 1), '....(....)', function(token) return stamp .. token end)
      call('SET', key, log, 'PX', expiry)
      left, passed = 0, 0
    end
    return answer(math.max(limit - used, 0), window - passed + 1, log, left)
  end
  if operation == 'l' then return answer(limit - used, 0, log, left) end
  if operation == 'o' then return answer(limit - used, 0) end
  local entry = stamp .. token
  if places > 1 then entry = string.rep(entry, places) end
  if length == 0 or left * 16 > length or left > 128 or newest >= future then
    local counted = string.sub(log, left + 1)
    if newest >= future then
      counted = string.gsub(counted, '(....)(....)', function(at, token)
        return (now - unpack('>I4', at)) % 4294967296 >= future and stamp .. token
      end)
    end
    call('SET', key, counted .. entry, 'PX', expiry)
  else
    call('APPEND', key, entry)
    local is_first = math.floor((now - newest) % 4294967296 / part) ~= this_part
    if is_first and call('PTTL', key) < kept + part then call('PEXPIRE', key, expiry) end
  end
  return answer(most - used, 0, operation == 'r' and log, left)
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

-- Adds `each` to the count of the token of each entry. Entries are unpacked sixteen at a time, which takes half as long as
-- one at a time.
local sixteen = string.rep('xxxxc4', 16)
local function count(counts, log, each)
  local at, length = 1, #log
  while at <= length do
    local tokens
    if length - at >= 127 then tokens = {unpack(sixteen, log, at)} else tokens = {unpack('xxxxc4', log, at)} end
    for place = 1, #tokens - 1 do counts[tokens[place]] = (counts[tokens[place]] or 0) + each end
    at = tokens[#tokens]
  end
  return counts
end

-- A tally: which part of the log it covers, the log's first entry, and 8 bytes per token in that part.
local function write_tally(tally, from, to, first, counts)
  local shares = {}
  for token, requests in pairs(counts) do
    if requests > 0 then shares[#shares + 1] = pack('>c4i4', token, requests) end
  end
  shares = table.concat(shares)
  call('SET', tally, pack('>I4I4c8', from, to, first) .. shares, 'PX', expiry)
  return shares
end

-- A long log. What has come and gone since the tally was written is few entries, which are read where they are needed: to
-- report, and to write the tally, every 256 changes.
--
-- Gateways to which a log is short, as after a start, only write the log. If they have cut off its head, its first entry
-- is another one, and all is counted again.
local function decide_long(key, tally, limit, operation, token, places)
  local stored
  local reports_nothing = operation == 'S' or operation == 'O' or operation == 'M'
  if reports_nothing then stored = redis.pcall('GETRANGE', tally, '0', '15') else stored = redis.pcall('GET', tally) or '' end
  local first = redis.pcall('GETRANGE', key, '0', '7')
  if type(first) == 'table' then return answer(-1, 0, first.err, 0) end
  if type(stored) == 'table' then return answer(-1, 0, stored.err, 0) end
  local from, to, first_tallied = 0, 0, nil
  if #stored >= 16 then from, to, first_tallied = unpack('>I4I4c8', stored) end
  local before = math.max(to - 8, 0)
  local ending = first == first_tallied and call('GETRANGE', key, string.format('%d', before), '-1') or ''
  local is_tallied = #ending >= 8
  if not is_tallied then
    from, to, before = 0, 0, 0
    ending = call('GETRANGE', key, '0', '-1')
  end
  local length = before + #ending
  local is_log = length % 8 == 0
  local newest = is_log and length > 0 and age(ending, #ending - 7) or 0
  local is_ordered = newest < future
  local left, passed = 0, false
  if is_log and is_ordered then
    left = find_left(key, from, length)
    local last = length - (limit - places) * 8 - 8
    if last >= left then
      passed = age(read(key, last, last + 8), 1)
      is_ordered = passed <= window
    end
  end
  if not is_log or not is_ordered then
    -- What is written then starts with another entry, or has the same tokens in the same places.
    return decide(key, limit, string.lower(operation), token, places)
  end
  local used = (length - left) / 8

  -- What has left is subtracted, unless it is more than what has not: then that is counted.
  if left - from > length - left then is_tallied = false end
  if not is_tallied then from, to = left, left end
  local changed = math.min(left, to) - from + length - math.max(left, to)
  local function count_changes(counts)
    local start = math.max(left, to)
    count(counts, read(key, from, math.min(left, to)), -1)
    count(counts, start < before and read(key, start, length) or string.sub(ending, start - before + 1), 1)
    return counts
  end

  local report
  if not is_tallied or changed >= 256 then
    local counts = {}
    if is_tallied then
      if reports_nothing then stored = call('GET', tally) end
      for place = 17, #stored, 8 do
        local token, requests = unpack('>c4i4', stored, place)
        counts[token] = requests
      end
    end
    report = length > 0 and write_tally(tally, left, length, first, count_changes(counts)) or ''
  elseif passed or not reports_nothing then
    if reports_nothing then stored = call('GET', tally) end
    local changes = {string.sub(stored, 17)}
    for token, change in pairs(count_changes({})) do changes[#changes + 1] = pack('>c4i4', token, change) end
    report = table.concat(changes)
  end
  if passed then return answer(math.max(limit - used, 0), window - passed + 1, report, -2) end
  if operation == 'L' then return answer(limit - used, 0, report, -2) end
  if operation == 'O' then return answer(limit - used, 0) end

  local entry = string.rep(stamp .. token, places)
  if left == length or left > 256 and left * 16 > length then
    local counted = read(key, left, length)
    call('SET', key, counted .. entry, 'PX', expiry)
    write_tally(tally, 0, #counted, string.sub(counted .. entry, 1, 8), count({}, counted, 1))
  else
    call('APPEND', key, entry)
    local is_first = math.floor((now - newest) % 4294967296 / part) ~= this_part
    if is_first and call('PTTL', key) < kept + part then call('PEXPIRE', key, expiry) end
  end
  return answer(limit - used - places, 0, operation == 'R' and report .. token .. '\0\0\0\1', -2)
end

-- Gives back a place of a token: the oldest, so that no span counts fewer requests than were admitted in it. What the tally
-- covers has changed then, so it is written again.
local function give_back(key, tally, token)
  local log = redis.pcall('GET', key) or ''
  if type(log) == 'table' or #log % 8 ~= 0 then return end
  for at = 1, #log, 8 do
    local passed = age(log, at)
    if string.sub(log, at + 4, at + 7) == token and (passed <= window or passed >= future) then
      call('SET', key, string.sub(log, 1, at - 1) .. string.sub(log, at + 8), 'PX', expiry)
      if tally then call('SET', tally, '', 'PX', expiry) end
      return
    end
  end
end

-- `own` is the token's own window while that of its account is decided.
local at, own = 1, nil
for place = 1, #ARGV[3], 11 do
  local limit, operation, token, places = unpack('>I4c1c4I2', ARGV[3], place)
  local is_long = operation < 'a'
  local is_more = operation == 'm' or operation == 'M'
  if own and not own.admits then operation, places = is_long and 'L' or 'l', 1 end
  if is_long then
    decide_long(KEYS[at], KEYS[at + 1], limit, operation, token, places)
  else
    decide(KEYS[at], limit, operation, token, places)
  end
  if is_more and not (admits and (not own or own.admits)) then
    give_back(KEYS[at], is_long and KEYS[at + 1], token)
    if own then give_back(KEYS[own.at], own.is_long and KEYS[own.at + 1], token) end
  end
  if own then
    if own.admits and admits then
      if own.is_long then
        decide_long(KEYS[own.at], KEYS[own.at + 1], own.limit, 'S', token, places)
      else
        decide(KEYS[own.at], own.limit, 's', token, places)
      end
      -- What was answered before it spent.
      local spent = table.remove(heads)
      heads[#heads - 1] = spent
    end
    own = nil
  elseif operation == 'o' or operation == 'O' then
    own = {at = at, limit = limit, is_long = is_long, admits = admits}
  end
  at = at + (is_long and 2 or 1)
end
reports[1] = table.concat(heads)
return reports
