-- uses: clock
-- reads
-- Who has claimed a key: see claim_key.lua. ARGV: tenant and key with a zero byte between. Answers nothing if it is free.

local known = redis.call('HGET', K.claimed, ARGV[1])
return known and now < struct.unpack('>d', known) and string.sub(known, 9)
