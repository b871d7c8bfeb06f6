-- uses: clock calls elsewhere
-- Claim a key for a time.
--   claimed        tenant 0 key -> until(8) owner
--   claimed_until  the same, scored by when they expire
-- ARGV: tenant and key with a zero byte between, owner, seconds. Answers 1 if the owner has it.

local known = call('HGET', K.claimed, ARGV[1])
if known and now < struct.unpack('>d', known) then return string.sub(known, 9) == ARGV[2] and 1 or 0 end
check_tenant(string.match(ARGV[1], '^[^%z]*'))
local until_ = now + tonumber(ARGV[3])
call('HSET', K.claimed, ARGV[1], struct.pack('>d', until_) .. ARGV[2])
call('ZADD', K.claimed_until, string.format('%.17g', until_), ARGV[1])
return 1
