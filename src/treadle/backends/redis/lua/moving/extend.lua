-- Put off the end of a freeze. KEYS: as in park.lua.  ARGV: freeze, seconds from now, 1: only if its time has passed
-- Answers 0 if it has ended, or its time has not passed.

local meta = KEYS[#KEYS - 1]
local found = redis.call('HMGET', meta, 'part_state', 'part_move', 'part_until')
if found[1] == 'moved' or found[1] == 'importing' or found[2] ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
if ARGV[3] == '1' and time[1] + time[2] / 1000000 < tonumber(found[3]) then return 0 end
redis.call('HSET', meta, 'part_until', string.format('%.6f', time[1] + time[2] / 1000000 + ARGV[2]))
return 1
