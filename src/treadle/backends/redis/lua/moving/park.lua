-- Take the keys of a namespace out of sight, and say why. See moving.py.
-- KEYS: all keys, then the names that they have meanwhile; `meta`, `stages`.  ARGV: state, move, seconds of a freeze,
-- the address of the store that an import comes from
-- Answers 1, also if it was done before; 2 if a large submission must be unfolded before; 0 if another mark is there.

local half = (#KEYS - 2) / 2
local meta, stages = KEYS[#KEYS - 1], KEYS[#KEYS]
local found = redis.call('HMGET', meta, 'part_state', 'part_move')
if found[1] then return found[1] == ARGV[1] and found[2] == ARGV[2] and 1 or 0 end
-- A script that is refused a command has done the ones before it.
for _, name in ipairs({'RENAME', 'RPUSH', 'DEL', 'UNLINK', 'HSET', 'HDEL'}) do
  if not redis.acl_check_cmd(name, KEYS[1], KEYS[half + 1]) then
    return redis.error_reply('NOPERM this user may not run +' .. string.lower(name))
  end
end
if redis.call('HEXISTS', stages, 'unfolding') == 1 then return 2 end
for i = 1, half do
  if redis.call('EXISTS', KEYS[i]) == 1 then redis.call('RENAME', KEYS[i], KEYS[half + i]) end
  redis.call('RPUSH', KEYS[i], 'see meta')
end
local time = redis.call('TIME')
redis.call('HSET', meta, 'part_state', ARGV[1], 'part_move', ARGV[2], 'part_other', ARGV[4],
  'part_until', string.format('%.6f', time[1] + time[2] / 1000000 + ARGV[3]))
return 1
