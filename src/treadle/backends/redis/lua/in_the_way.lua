-- uses: clock calls
-- reads
-- What keeps a namespace from being filled by an import: empty if nothing does.

local until_ = call('ZREVRANGE', K.workers_until, 0, 0, 'WITHSCORES')[2]
if call('HLEN', K.item) > 0 or call('HLEN', K.groups) > 0 then return 'items' end
if until_ and tonumber(until_) > now then return 'live workers' end
if call('HLEN', K.schedules) > 0 or call('HLEN', K.removed_schedules) > 0 then return 'schedules' end
if call('HLEN', K.orders) > 1 then return 'orders' end
if call('HLEN', K.audits) > 0 then return 'audit entries' end
if call('HLEN', K.stats) > 0 then return 'statistics' end
if call('HLEN', K.claimed) > 0 then return 'claimed keys' end
return ''
