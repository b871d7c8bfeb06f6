-- Bring the keys of a namespace back, and remove the mark. See moving.py.
-- KEYS: as in park.lua.  ARGV: state and move of the mark; 1: only if its time has passed
-- Answers 1 if the keys came back.

local half = (#KEYS - 2) / 2
local meta = KEYS[#KEYS - 1]
local found = redis.call('HMGET', meta, 'part_state', 'part_move', 'part_until')
if found[1] ~= ARGV[1] or found[2] ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
if ARGV[3] == '1' and time[1] + time[2] / 1000000 < tonumber(found[3]) then return 0 end
for i = 1, half do
  redis.call('DEL', KEYS[i])
  if redis.call('EXISTS', KEYS[half + i]) == 1 then redis.call('RENAME', KEYS[half + i], KEYS[i]) end
end
redis.call('HDEL', meta, 'part_state', 'part_move', 'part_other', 'part_until', 'part_whole', 'part_content',
  'part_at')
redis.call('HSET', meta, 'part_thawed', string.format('%.6f', time[1] + time[2] / 1000000))
return 1
