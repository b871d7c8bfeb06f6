-- reads
-- Answers all of `counts`: see kinds.lua.

return redis.call('HGETALL', K.counts)
