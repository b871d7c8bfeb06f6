-- uses: store kinds rows
-- Lines: ready rows, scheduled rows and doomed rows.
--
--   ready     kind(4) / priority(4, inverted) place(6) n(6)
--   ring      who has ready rows, and whose turn it is, by type, so that a claim meets no other types:
--             'Y' / type(4) text     'Q' type / turn(6) queue(4)     'T' type queue / turn tenant
--             'L' type queue tenant / turn lane kind(4)
--   turns     the turn of each: 'Q' type queue, 'T' type queue tenant, 'K' kind
--   due       queue tenant / due_at(8) n(6)        due_first  queue tenant, scored by its first due_at
--   doomed    type queue tenant / n(6)
--   lanes     type tenant lane -> n of the row that holds a strict lane; lanes_ready: n, scored by the order in
--             which they became ready

local Lines = {}

do
  local touched = {} -- kinds by k
  local in_order = {} -- the same, the first one that was touched first: it is served first
  local due_touched = {} -- by queue and tenant

  local function place_of(row)
    return row.priority .. struct.pack('>I6', row.place) .. row.n
  end

  -- Ready rows --------------------------------------------------------------------------------------------

  local function touch(kind)
    local change = touched[kind.k]
    if not change then
      change = {kind = kind}
      touched[kind.k] = change
      in_order[#in_order + 1] = change
    end
    return change
  end

  -- Rows of a kind become ready that are not in the overlay.
  Lines.touch = touch

  function Lines.add_ready(row)
    Store.insert(K.ready, row.kind.k, place_of(row))
    touch(row.kind)
    if row.holds_lane then Store.score(K.lanes_ready, row.n, Store.next(K.seq)) end
  end

  function Lines.remove_ready(row)
    Store.remove(K.ready, row.kind.k, place_of(row))
    touch(row.kind).removed = true
    if row.holds_lane then Store.score(K.lanes_ready, row.n) end
  end

  local function enter_ring(node, prefix, child)
    if Store.get(K.turns, node) then return false end
    local turn = struct.pack('>I6', Store.next(K.served))
    Store.set(K.turns, node, turn)
    Store.insert(K.ring, prefix, turn .. child)
    return true
  end

  -- True if nothing else is left there.
  local function leave_ring(node, prefix, child)
    Store.remove(K.ring, prefix, Store.get(K.turns, node) .. child)
    Store.set(K.turns, node)
    return #Store.list(K.ring, prefix, 1) == 0
  end

  -- A kind has its first ready row, and is served after all that wait now.
  function Lines.enter(kind)
    local type, queue, tenant = kind.type, kind.queue, kind.tenant
    if enter_ring('K' .. kind.k, 'L' .. type .. queue .. tenant, kind.lane .. kind.k)
      and enter_ring('T' .. type .. queue .. tenant, 'T' .. type .. queue, tenant)
      and enter_ring('Q' .. type .. queue, 'Q' .. type, queue) then
      Store.insert(K.ring, 'Y', type .. kind.names.type)
    end
  end

  -- A kind has no ready row any more.
  function Lines.leave(kind)
    if not Store.get(K.turns, 'K' .. kind.k) then return end
    local type, queue, tenant = kind.type, kind.queue, kind.tenant
    if leave_ring('K' .. kind.k, 'L' .. type .. queue .. tenant, kind.lane .. kind.k)
      and leave_ring('T' .. type .. queue .. tenant, 'T' .. type .. queue, tenant)
      and leave_ring('Q' .. type .. queue, 'Q' .. type, queue) then
      Store.remove(K.ring, 'Y', type .. kind.names.type)
    end
  end

  -- Scheduled rows ----------------------------------------------------------------------------------------

  local function due_rest(row)
    return struct.pack('>d', math.max(row.due_at, 0)) .. row.n
  end

  function Lines.add_due(row)
    local owner = row.kind.queue .. row.kind.tenant
    Store.insert(K.due, owner, due_rest(row))
    due_touched[owner] = true
  end

  function Lines.remove_due(row)
    local owner = row.kind.queue .. row.kind.tenant
    Store.remove(K.due, owner, due_rest(row))
    due_touched[owner] = true
  end

  -- Doomed rows -------------------------------------------------------------------------------------------

  function Lines.add_doomed(row)
    Store.insert(K.doomed, row.kind.type .. row.kind.queue .. row.kind.tenant, row.n)
  end

  function Lines.remove_doomed(row)
    Store.remove(K.doomed, row.kind.type .. row.kind.queue .. row.kind.tenant, row.n)
  end

  -- Strict lanes ------------------------------------------------------------------------------------------

  local function lane_of(row) return row.kind.type .. row.kind.tenant .. row.kind.lane end

  -- The number of the row that holds the strict lane of a kind, or false.
  function Lines.lane_holder(kind)
    return Store.get(K.lanes, kind.type .. kind.tenant .. kind.lane)
  end

  -- The row was handed out: it holds its lane until it has ended.
  function Lines.hold_lane(row)
    row.holds_lane = true
    Store.set(K.lanes, lane_of(row), row.n)
    Store.score(K.lanes_ready, row.n)
    Rows.save(row)
  end

  -- The row has ended, moves, or is gone.
  function Lines.free_lane(row)
    if not row.holds_lane then return end
    row.holds_lane = false
    Store.set(K.lanes, lane_of(row))
    Store.score(K.lanes_ready, row.n)
    Rows.save(row)
  end

  Store.before_flush[#Store.before_flush + 1] = function()
    for _, change in ipairs(in_order) do
      if not change.removed or #Store.list(K.ready, change.kind.k, 1) > 0 then
        Lines.enter(change.kind)
      else
        Lines.leave(change.kind)
      end
    end
    for owner in pairs(due_touched) do
      local first = Store.list(K.due, owner, 1)[1]
      Store.score(K.due_first, owner, first and struct.unpack('>d', first))
    end
  end
end
