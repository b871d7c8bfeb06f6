-- uses: demand
-- Only line: the order in which a claim takes rows if there is one type, queue, tenant and lane. This is often so,
-- and much quicker than fair_order.lua, which has the same functions.

-- `members`: the whole ring. Nil if it has more, or rows of strict lanes.
local function only_line(members)
  if #members ~= 4 then return nil end
  local leaf, text = members[1], sub(members[4], 6)
  if demand.strict[text] then return nil end
  local queue, tenant, lane, k = sub(leaf, 6, 9), sub(leaf, 10, 13), sub(leaf, 20, 23), sub(leaf, 24)
  local left = demand.room and (demand.room[text] or 0) or math.huge
  local shared, avoid, paused = demand.shared[text], demand.avoid[text], demand.paused
  if shared then left = math.min(left, shared.left) end
  local avoided = avoid and avoid[tenant]
  if not is_listed(demand.queues, queue) or not is_listed(demand.tenants, tenant)
    or (avoided and (avoided == true or avoided[lane])) or (paused and (paused[queue] or paused[queue .. tenant] or paused['*' .. tenant])) then
    left = 0
  end

  local kind = {
    k = k, path = queue .. tenant, lane = lane,
    type = {number = sub(leaf, 2, 5), text = text, letter = demand.buffered[text] and 'q' or 'p'},
  }
  local taken, rest = {}, {} -- rows
  local complete = false

  local order = {cut_short = false}

  function order.take(most, rows, kinds)
    most = math.min(most, left)
    if most < 1 or complete then return end
    local from = #taken > 0 and '(' .. taken[#taken] or '[' .. k
    rest = call('ZRANGEBYLEX', K.ready, from, '[' .. k .. HIGHEST, 'LIMIT', 0, most + 1)
    if #rest + #taken == 0 then error(LOST) end
    complete = #rest <= most
    for i = 1, math.min(most, #rest) do
      taken[#taken + 1] = rest[i]
      rows[i], kinds[i] = rest[i], kind
    end
    left = left - #rows
  end

  -- A row was taken, and cannot be handed out.
  function order.give_back()
    left = left + 1
  end

  function order.finish() end

  function order.write()
    if #taken > 8 then
      send('ZREMRANGEBYLEX', K.ready, {'[' .. taken[1], '[' .. taken[#taken]})
    else
      send('ZREM', K.ready, taken)
    end
    if complete and #taken > 0 then
      send('ZREM', K.ring, members)
      send('HDEL', K.turns, {'K' .. k, sub(members[2], 1, 5) .. queue, sub(members[3], 1, 9) .. tenant})
    end
  end

  return order
end
