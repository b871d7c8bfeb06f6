-- uses: clock store worker_list
-- reads
-- Overview: what a call knows at once of how the store stands. Answers now(8), since when types are unknown
-- (type and instant(8), one after the other), all workers, the releases (name and instant(8), one after the other),
-- how many rows are doomed.

return {now8, call('HGETALL', K.unknown_since), Workers.list(), call('HGETALL', K.releases), call('ZCARD', K.doomed)}
