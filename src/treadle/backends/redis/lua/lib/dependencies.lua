-- uses: clock store kinds rows groups retention
-- Dependencies: which items wait for which others, and for which groups.
--
--   waiters   name / n: the open rows that name an item in `after`. The item need not exist.
--   tolerant  name / n: the ended rows that name an item in `after` and tolerate its death.
--   unmet     name / n: the rows that died unsatisfiable and name an item, or a group, in `after`.
--   gates     n -> met(4) open(4), then for each of `after` '1' if it is open, else '0'
--
-- A name is tenant(4) length(2) and the id of an item, or \30 and the id of a group.

local GROUP_MARK = '\30'

local Dependencies = {}

do
  local OPEN = string.byte('1')

  local gates = {} -- by n
  local changed = {}

  local function name_of(tenant, name)
    return tenant .. struct.pack('>I2', #name) .. name
  end

  Dependencies.name = name_of

  local function tolerates(row)
    local extra = Rows.extra(row)
    return extra.d or (extra.n or 0) < #(extra.a or {})
  end

  -- Whether an end counts as met for a row that waits.
  function Dependencies.counts(row, ended)
    return ended == 'S' or Rows.extra(row).d
  end

  -- The status (S, D or C) of an item, or of a whole group, that has ended; else nil. `tenant`: its number.
  function Dependencies.ended(tenant, name)
    if sub(name, 1, 1) == GROUP_MARK then
      local found = Groups.find(tenant, sub(name, 2))
      if not found or not found.ended_at then return nil end
      local failed
      if found.n then
        failed = found.failed_group or found.status == 'C'
      else
        failed = found.failed > 0 or found.cancellations > 0
      end
      return failed and 'D' or 'S'
    end
    local row = Rows.find(tenant, name)
    return row and row.ended_at and row.status or nil
  end

  -- Whether an item, or a group, is stored.
  function Dependencies.exists(tenant, name)
    if sub(name, 1, 1) == GROUP_MARK then return Groups.find(tenant, sub(name, 2)) and true or false end
    return Rows.find(tenant, name) and true or false
  end

  -- The gate of an open row with prerequisites, or nil: need, met, open and pending (by name: how often).
  function Dependencies.gate(row)
    local gate = gates[row.n]
    if gate == nil then
      gate = false
      local data = row.has_extra and Rows.extra(row).a and Store.get(K.gates, row.n)
      if data then
        local met, open = struct.unpack('>I4I4', data)
        local pending, after = {}, Rows.extra(row).a
        gate = {row = row, need = Rows.extra(row).n or 0, met = met, open = open, pending = pending}
        for i = 1, #after do
          local name = after[i]
          if data:byte(8 + i) == OPEN then pending[name] = (pending[name] or 0) + 1 end
        end
      end
      gates[row.n] = gate
    end
    return gate or nil
  end

  -- 'released', 'doomed' or 'waiting'.
  function Dependencies.state(gate)
    if gate.met >= gate.need then return 'released' end
    return gate.met + gate.open < gate.need and 'doomed' or 'waiting'
  end

  -- The gate of a row if it waits from now on. `ended(name)`: how a prerequisite has ended, or nil.
  function Dependencies.count_all(extra, ended)
    local gate = {need = extra.n or 0, met = 0, open = 0, pending = {}}
    for _, name in ipairs(extra.a) do
      local status = ended(name)
      if not status then
        gate.pending[name] = (gate.pending[name] or 0) + 1
        gate.open = gate.open + 1
      elseif extra.d or status == 'S' then
        gate.met = gate.met + 1
      end
    end
    return gate
  end

  -- Register an open row with its prerequisites. Some of them may have ended already: `ended` says how. `beside`: by
  -- id, those that are stored in this call, and are not in the overlay.
  function Dependencies.start_waiting(row, ended, beside)
    local tenant, extra = row.kind.tenant, Rows.extra(row)
    ended, beside = ended or Dependencies.ended, beside or {}
    local gate = Dependencies.count_all(extra, function(name) return not beside[name] and ended(tenant, name) end)
    gate.row = row
    gates[row.n], changed[row.n] = gate, gate
    local after, new = extra.a, {}
    for i = 1, #after do
      local name = after[i]
      if beside[name] then
        new[#new + 1] = 0
        new[#new + 1] = name_of(tenant, name) .. row.n
      else
        Store.insert(K.waiters, name_of(tenant, name), row.n)
      end
    end
    Store.write('ZADD', K.waiters, new)
    return gate
  end

  -- An open row that is imported: its gate, as stored, and what it waits for.
  function Dependencies.restore(row, gate)
    Store.set(K.gates, row.n, gate)
    for _, name in ipairs(Rows.extra(row).a) do Store.insert(K.waiters, name_of(row.kind.tenant, name), row.n) end
  end

  -- An ended row that is imported: it counts among those that have waited.
  function Dependencies.was_waiting(row)
    local tenant, tolerant, unmet = row.kind.tenant, tolerates(row), row.reason == 5
    for _, name in ipairs(Rows.extra(row).a) do
      if tolerant then Store.insert(K.tolerant, name_of(tenant, name), row.n) end
      if unmet then Store.insert(K.unmet, name_of(tenant, name), row.n) end
    end
  end

  -- Count the end of a prerequisite, once. False: it was counted before.
  function Dependencies.count(gate, name, ended)
    local times = gate.pending[name]
    if not times then return false end
    gate.pending[name] = nil
    gate.open = gate.open - times
    if Dependencies.counts(gate.row, ended) then gate.met = gate.met + times end
    changed[gate.row.n] = gate
    return true
  end

  -- A prerequisite that ended without counting is open again. False: it was open.
  function Dependencies.reopen(gate, name)
    if gate.pending[name] then return false end
    local times = 0
    for _, other in ipairs(Rows.extra(gate.row).a) do
      if other == name then times = times + 1 end
    end
    gate.pending[name] = times
    gate.open = gate.open + times
    changed[gate.row.n] = gate
    return true
  end

  -- The rows that wait for an item or a group by its name.
  function Dependencies.waiters(tenant, name)
    if not Store.any(K.waiters) then return {} end
    local numbers = Store.list(K.waiters, name_of(tenant, name))
    if #numbers > 1 then Rows.load(numbers) end
    local rows = {}
    for i, n in ipairs(numbers) do rows[i] = Rows.get(n) end
    return rows
  end

  -- Whether an item that names this row in `after` runs, or ran, although this one dies.
  function Dependencies.is_tolerated(row)
    local tenant = row.kind.tenant
    if Store.any(K.tolerant) and not Store.is_empty(K.tolerant, name_of(tenant, row.id)) then return true end
    for _, waiter in ipairs(Dependencies.waiters(tenant, row.id)) do
      if tolerates(waiter) then return true end
    end
    return false
  end

  local function number_of(tenant, id)
    local places = Store.get(K.id, id) or ''
    for at = 1, #places, 10 do
      if sub(places, at + 6, at + 9) == tenant then return sub(places, at, at + 5) end
    end
    return nil
  end

  -- The row with a number if it is to be pruned as soon as no item waits for it, or nil. Few are, so rows that
  -- this call has not read yet are not read for this.
  local function prune_pending(n)
    local row = Rows.seen(n)
    if row == nil and RowBytes.is_prune_pending(Store.get(K.state, n)) then row = Rows.get(n) end
    return row and row.prune_pending and row or nil
  end

  local function prune_now(row)
    row.prune_pending = false
    Rows.save(row)
    Retention.add(row, 0)
  end

  local function prune_group(key, tenant, name)
    if not Store.is_empty(key, name_of(tenant, name)) then return end
    local numbers = Groups.members(Groups.find(tenant, sub(name, 2)))
    Store.load(K.state, numbers)
    for _, n in ipairs(numbers) do
      local row = prune_pending(n)
      if row then prune_now(row) end
    end
  end

  -- A row does not wait for these names any more: it has left the set of a key. Prune what would have been
  -- pruned before, had no item waited for it.
  local function prune_unawaited(key, tenant, names)
    local ids, numbers = {}, {}
    for _, name in ipairs(names) do
      if sub(name, 1, 1) == GROUP_MARK then
        prune_group(key, tenant, name)
      else
        ids[#ids + 1] = name
      end
    end
    Store.load(K.id, ids)
    for _, id in ipairs(ids) do numbers[#numbers + 1] = number_of(tenant, id) end
    Store.load(K.state, numbers)
    for _, n in ipairs(numbers) do
      local row = prune_pending(n)
      if row and Store.is_empty(key, name_of(tenant, row.id)) then prune_now(row) end
    end
  end

  -- The row ends, or is removed. Its reason is set already.
  function Dependencies.stop_waiting(row)
    local extra = Rows.extra(row)
    if not extra.a or not Dependencies.gate(row) then return end
    gates[row.n], changed[row.n] = false, nil
    Store.set(K.gates, row.n)
    local tenant = row.kind.tenant
    Dependencies.was_waiting(row)
    for _, name in ipairs(extra.a) do Store.remove(K.waiters, name_of(tenant, name), row.n) end
    prune_unawaited(K.waiters, tenant, extra.a)
  end

  -- An ended row is open again, or is removed: it does not count among those that have waited.
  function Dependencies.forget_waiting(row)
    local tenant, names = row.kind.tenant, Rows.extra(row).a or {}
    local unmet = #names > 0 and Store.any(K.unmet)
    for _, name in ipairs(names) do
      Store.remove(K.tolerant, name_of(tenant, name), row.n)
      if unmet then Store.remove(K.unmet, name_of(tenant, name), row.n) end
    end
    if unmet then prune_unawaited(K.unmet, tenant, names) end
  end

  -- Whether an item waits for an item or for its group, or would wait again after a repair. `group`: its id.
  function Dependencies.is_awaited(tenant, id, group)
    for _, key in ipairs({K.waiters, K.unmet}) do
      if Store.any(key) and not (Store.is_empty(key, name_of(tenant, id))
        and Store.is_empty(key, name_of(tenant, GROUP_MARK .. group))) then
        return true
      end
    end
    return false
  end

  function Dependencies.is_needed(row)
    return Dependencies.is_awaited(row.kind.tenant, row.id, Rows.extra(row).g or row.id)
  end

  Store.before_flush[#Store.before_flush + 1] = function()
    for n, gate in pairs(changed) do
      local open, after, pending = {}, Rows.extra(gate.row).a, gate.pending
      for i = 1, #after do open[i] = pending[after[i]] and '1' or '0' end
      Store.set(K.gates, n, struct.pack('>I4I4', gate.met, gate.open) .. concat(open))
    end
  end
end
