-- Bring the keys of a whole import back, and remove its mark. KEYS: as in park.lua.  ARGV: move
-- Answers 1, also if it was done before; 0 if the namespace does not hold this move.

local half = (#KEYS - 2) / 2
local meta = KEYS[#KEYS - 1]
local found = redis.call('HMGET', meta, 'part_state', 'part_move', 'part_whole', 'part_owned')
if not found[1] then return found[4] == ARGV[1] and 1 or 0 end
if found[1] ~= 'importing' or found[2] ~= ARGV[1] or not found[3] then return 0 end
for i = 1, half do
  redis.call('DEL', KEYS[i])
  if redis.call('EXISTS', KEYS[half + i]) == 1 then redis.call('RENAME', KEYS[half + i], KEYS[i]) end
end
redis.call('HDEL', meta, 'part_state', 'part_move', 'part_other', 'part_until', 'part_whole', 'part_content',
  'part_at')
redis.call('HSET', meta, 'part_owned', ARGV[1])
return 1
