-- Remove what an import has stored. KEYS: as in park.lua.  ARGV: move

local half = (#KEYS - 2) / 2
local found = redis.call('HMGET', KEYS[#KEYS - 1], 'part_state', 'part_move')
if found[1] ~= 'importing' or found[2] ~= ARGV[1] then return 0 end
for i = 1, half do redis.call('UNLINK', KEYS[half + i]) end
return 1
