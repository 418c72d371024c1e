-- A candidate, not in use: the window as a ring that is written in place, so that admitting costs the same whatever the
-- limit. Decides like src/quota/window.lua, with the same arguments and the same answer.
--
-- Left out is what that one does after its clock was set back: here a stamp from the future only counts as new.
--
-- KEYS[1]  a head of 16 bytes: the slot of the oldest request, how many requests there are, how many slots, the instant
--          of the oldest; then the slots, 8 bytes each as in the packed log
local time = redis.call('TIME')
local now = (time[1] * 1000 + math.floor(time[2] / 1000)) % 4294967296
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local first, used, slots, oldest = 0, 0, limit, 0
local head = redis.call('GETRANGE', KEYS[1], 0, 15)
if #head == 16 then first, used, slots, oldest = struct.unpack('>I4I4I4I4', head) end

local function age(stamp)
  local passed = (now - stamp) % 4294967296
  return passed < 2147483648 and passed or 0
end

-- The instant of a request, counted from the oldest.
local function stamp(nth)
  local at = 16 + (first + nth) % slots * 8
  return (struct.unpack('>I4', redis.call('GETRANGE', KEYS[1], at, at + 3)))
end

local function log()
  local ring = redis.call('GETRANGE', KEYS[1], 16, -1)
  return string.sub(string.sub(ring, first * 8 + 1) .. string.sub(ring, 1, first * 8), 1, used * 8)
end

while used > 0 and age(oldest) > window do
  first, used = (first + 1) % slots, used - 1
  if used > 0 then oldest = stamp(0) end
end
if used >= limit then
  return {0, 0, window - age(used > limit and stamp(used - limit) or oldest) + 1, log()}
end
if ARGV[3] == 'look' then
  return {1, limit - used, 0, log()}
end
if slots ~= limit then
  -- The limit was changed: the ring is laid out anew, once. Zeros fill it up as it grows.
  local entries = log()
  first, slots = 0, limit
  redis.call('SET', KEYS[1], struct.pack('>I4I4I4I4', first, used, slots, oldest) .. entries)
end
if used == 0 then oldest = now end
redis.call('SETRANGE', KEYS[1], 16 + (first + used) % slots * 8, struct.pack('>I4I4', now, ARGV[4]))
used = used + 1
redis.call('SETRANGE', KEYS[1], 0, struct.pack('>I4I4I4I4', first, used, slots, oldest))
redis.call('PEXPIRE', KEYS[1], window + 1000)
return {1, limit - used, 0, ARGV[3] == 'tell' and log() or ''}
