-- Another import begins where one was not finished, or not owned. KEYS: as in park.lua.  ARGV: move, its source
-- Answers 0 if what is there may be the only copy: see StoreMark.gives_way.

local meta = KEYS[#KEYS - 1]
local found = redis.call('HMGET', meta, 'part_state', 'part_other', 'part_whole')
if found[1] ~= 'importing' then return 0 end
if found[3] and found[2] ~= '' and found[2] ~= ARGV[2] then return 0 end
redis.call('HDEL', meta, 'part_whole')
redis.call('HSET', meta, 'part_move', ARGV[1], 'part_other', ARGV[2])
return 1
