-- All of an import was written. KEYS: as in park.lua.  ARGV: move
-- Answers 0 if another one has begun.

local meta = KEYS[#KEYS - 1]
local found = redis.call('HMGET', meta, 'part_state', 'part_move')
if found[1] ~= 'importing' or found[2] ~= ARGV[1] then return 0 end
redis.call('HSET', meta, 'part_whole', '1')
return 1
