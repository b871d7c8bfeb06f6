-- uses: clock store kinds rows lines transitions demand
-- Strict lanes: rows that hold their lanes, and are ready again, are handed out before all others.

local StrictLanes = {}

do
  local function is_wanted(kind)
    local paused, avoid = demand.paused, demand.avoid[kind.names.type]
    local lanes = avoid and avoid[kind.tenant]
    return is_listed(demand.queues, kind.queue)
      and is_listed(demand.tenants, kind.tenant)
      and not (paused and (paused[kind.queue] or paused[kind.queue .. kind.tenant] or paused['*' .. kind.tenant]))
      and not (lanes and (lanes == true or lanes[kind.lane]))
  end

  local function use_room(type)
    local room, shared = demand.room, demand.shared[type]
    if not room then return true end
    if (room[type] or 0) < 1 or (shared and shared.left < 1) then return false end
    room[type] = room[type] - 1
    if shared then shared.left = shared.left - 1 end
    return true
  end

  -- Lease up to `left` rows. Returns them.
  function StrictLanes.lease_holders(worker, left)
    local leased = {}
    local numbers = next(demand.strict) and Store.by_score(K.lanes_ready) or {}
    Rows.load(numbers)
    for i = 1, #numbers do
      local row = Rows.get(numbers[i])
      if not row or row.status ~= 'r' or row.verdict ~= 0 then
        Store.score(K.lanes_ready, numbers[i])
      elseif #leased < left and demand.strict[row.kind.names.type] and is_wanted(row.kind) then
        if row.deadline and row.deadline <= now then
          Transitions.doom(row, EXPIRED)
        elseif use_room(row.kind.names.type) then
          Transitions.leave_line(row)
          Transitions.lease(row, worker.name, worker.number, Transitions.token(demand.random), demand.buffered[row.kind.names.type])
          Lines.hold_lane(row)
          leased[#leased + 1] = row
        end
      end
    end
    return leased
  end
end
