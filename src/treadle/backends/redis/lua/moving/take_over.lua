-- Another import begins where one was not finished. KEYS: as in park.lua.  ARGV: move
redis.call('HSET', KEYS[#KEYS - 1], 'part_move', ARGV[1])
return 1
