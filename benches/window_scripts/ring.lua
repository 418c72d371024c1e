-- A candidate, not in use: the window as a ring that is written in place, so that admitting costs the same whatever the
-- limit. Decides like src/quota/window.lua, with the same arguments and the same answer.
--
-- KEYS[1]  12 bytes: the slot of the oldest request, how many requests there are, how many slots; then the slots, 8 bytes
--          each as in the packed log
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local first, used, slots = 0, 0, limit
local head = redis.call('GETRANGE', KEYS[1], 0, 11)
if #head == 12 then first, used, slots = struct.unpack('>I4I4I4', head) end

-- The age of a request, counted from the oldest.
local function age(nth)
  local at = 12 + (first + nth) % slots * 8
  local passed = (now - struct.unpack('>I4', redis.call('GETRANGE', KEYS[1], at, at + 3))) % 4294967296
  return passed < 2147483648 and passed or 0
end

local function log()
  local ring = redis.call('GETRANGE', KEYS[1], 12, -1)
  return string.sub(string.sub(ring, first * 8 + 1) .. string.sub(ring, 1, first * 8), 1, used * 8)
end

local oldest = 0
while used > 0 do
  oldest = age(0)
  if oldest <= window then break end
  first, used = (first + 1) % slots, used - 1
end
if used >= limit then
  return {0, 0, window - (used > limit and age(used - limit) or oldest) + 1, log()}
end
if ARGV[3] == 'look' then
  return {1, limit - used, 0, log()}
end
if slots ~= limit then
  -- The limit was changed: the ring is laid out anew, once. Zeros fill it up as it grows.
  local entries = log()
  first, slots = 0, limit
  redis.call('SET', KEYS[1], struct.pack('>I4I4I4', first, used, slots) .. entries)
end
redis.call('SETRANGE', KEYS[1], 12 + (first + used) % slots * 8, struct.pack('>I4I4', now, ARGV[4]))
used = used + 1
redis.call('SETRANGE', KEYS[1], 0, struct.pack('>I4I4I4', first, used, slots))
redis.call('PEXPIRE', KEYS[1], window + 1)
return {1, limit - used, 0, ARGV[3] == 'tell' and log() or ''}
