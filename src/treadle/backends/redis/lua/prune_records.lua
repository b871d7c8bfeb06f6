-- uses: clock store audits workers limits stats schedules
-- flags: allow-oom
-- Remove old records, expired keys and limits, and what is known of types of which no item is stored.
-- ARGV: how many of each may be removed

local most = tonumber(ARGV[1])

-- Searches of types without ready items: see unknown_types.lua.
local function prune_searches()
  for _, type in ipairs(call('HKEYS', K.unknown_searches)) do
    if #Store.list(K.ring, 'Y' .. type, 1) == 0 then Store.set(K.unknown_searches, type) end
  end
end

Audits.prune(most)
Schedules.prune()
Stats.prune(most)
Limits.prune(most)
Workers.prune()
prune_searches()
Store.flush()
return 0
