-- uses: clock demand
-- Next due: when the next scheduled row of a demand's queues and tenants is due. lines.lua has the layout.

-- The instant, or nil. `first`: that of all scheduled rows, nil if there is none.
local function next_due(first)
  if not first or not (demand.queues or demand.tenants) then return first end
  local MOST, PAGE = 2000, 100 -- queues with a tenant that are looked at

  if demand.queues and demand.tenants then
    local owners, found = {}, nil
    for i = 1, #demand.queues do
      for j = 1, #demand.tenants do owners[#owners + 1] = demand.queues[i] .. demand.tenants[j] end
    end
    for from = 1, #owners, 4000 do
      local scores = call('ZMSCORE', K.due_first, unpack(owners, from, math.min(from + 3999, #owners)))
      for i = 1, #scores do
        local at = scores[i] and tonumber(scores[i])
        if at and (not found or at < found) then found = at end
      end
    end
    return found
  end

  -- The first that matches. If none of many does: a time at which none is due yet.
  local wanted = {}
  for _, number in ipairs(demand.queues or demand.tenants) do wanted[number] = true end
  local place = demand.queues and 1 or 5
  local last
  for from = 0, MOST - 1, PAGE do
    local found = call('ZRANGE', K.due_first, from, from + PAGE - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      last = tonumber(found[i + 1])
      if wanted[sub(found[i], place, place + 3)] then return last end
    end
    if #found < 2 * PAGE then return nil end
  end
  return last
end

-- When the first of all scheduled rows is due, or nil.
local function first_due()
  local found = call('ZRANGE', K.due_first, 0, 0, 'WITHSCORES')
  return found[2] and tonumber(found[2])
end
