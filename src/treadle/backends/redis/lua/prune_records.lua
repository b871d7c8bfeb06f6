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

-- Orders whose time has passed: see order.lua.
local function prune_orders()
  local function prune(key, first)
    local found = call('HGETALL', key)
    for i = 1, #found, 2 do
      local ends = found[i + 1]:sub(first, first + 7)
      if found[i] ~= '' and #ends == 8 and struct.unpack('>d', ends) <= now then Store.set(key, found[i]) end
    end
  end
  prune(K.paused, 1)
  prune(K.orders, 9)
end

prune_orders()
Audits.prune(most)
Schedules.prune()
Stats.prune(most)
Limits.prune(most)
Workers.prune()
prune_searches()
Store.flush()
return 0
