-- uses: clock store worker_list
-- reads
-- Overview: what a call knows at once of how the store stands. Answers now(8), since when types are unknown
-- (type and instant(8), one after the other), all workers, the releases (name and instant(8), one after the other),
-- how many rows are doomed; and what else is read, if it is little: counts and kinds.

local LITTLE = 200 -- more is read by commands: a script copies it once more
local is_little = call('HLEN', K.counts) <= LITTLE and call('HLEN', K.kinds) <= LITTLE
local counts = is_little and call('HGETALL', K.counts)
local kinds = is_little and call('HGETALL', K.kinds)
return {now8, call('HGETALL', K.unknown_since), Workers.list(), call('HGETALL', K.releases), call('ZCARD', K.doomed), counts, kinds}
