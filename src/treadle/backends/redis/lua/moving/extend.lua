-- Put off the end of a freeze. KEYS: as in park.lua.  ARGV: move, seconds from now
-- Answers 0 if it has ended.

local meta = KEYS[#KEYS - 1]
local found = redis.call('HMGET', meta, 'part_state', 'part_move')
if found[1] ~= 'frozen' or found[2] ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
redis.call('HSET', meta, 'part_until', string.format('%.6f', time[1] + time[2] / 1000000 + ARGV[2]))
return 1
