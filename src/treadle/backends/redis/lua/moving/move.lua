-- The decision: a frozen namespace belongs to another store. KEYS: as in park.lua.  ARGV: freeze, move, address
-- Answers 1, also if it was done before; 0 if the freeze has ended.

local meta = KEYS[#KEYS - 1]
local found = redis.call('HMGET', meta, 'part_state', 'part_move')
if found[1] == 'moved' and found[2] == ARGV[2] then return 1 end
if found[1] ~= 'frozen' or found[2] ~= ARGV[1] then return 0 end
redis.call('HSET', meta, 'part_state', 'moved', 'part_move', ARGV[2], 'part_other', ARGV[3])
return 1
