-- End a freeze with another mark: the decision that a namespace belongs to another store, that it is an import again, or that a
-- tenant leaves or comes.
-- KEYS: as in park.lua.  ARGV: freeze, state, move, address, content
-- Answers 1, also if it was done before; 0 if the freeze has ended.

local meta = KEYS[#KEYS - 1]
local found = redis.call('HMGET', meta, 'part_state', 'part_move')
if found[1] == ARGV[2] and found[2] == ARGV[3] then return 1 end
if found[1] ~= 'frozen' or found[2] ~= ARGV[1] then return 0 end
redis.call('HSET', meta, 'part_state', ARGV[2], 'part_move', ARGV[3], 'part_other', ARGV[4], 'part_content', ARGV[5],
  'part_at', '0')
if ARGV[2] == 'importing' then redis.call('HSET', meta, 'part_whole', '1') end
return 1
