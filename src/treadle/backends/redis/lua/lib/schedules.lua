-- uses: clock store
-- Schedules: recurring work. record_bytes.py has the same formats for Python.
--
--   schedules      name -> flags(1: paused, 2: has next_at, 4: has last_at) next_at(8) last_at(8) seen_at(8) spec
--   removed_schedules  name -> when it was removed(8)
--   schedule_runs  name -> the last runs: at(8) fired_at(8) length(2) tenant length(2) id length(2) error each.
--                  The id is empty for a run that submitted nothing, the error for one that did not fail.

local Schedules = {}

do
  local PAUSED, HAS_NEXT, HAS_LAST = 1, 2, 4
  local KEPT_RUNS, KEPT_REMOVALS = 50, 30 * 86400 -- as in treadle.records

  local function has(flags, bit) return math.floor(flags / bit) % 2 == 1 end

  -- The row of a schedule, or false.
  function Schedules.get(name)
    return Store.get(K.schedules, name)
  end

  local function seen_now(row)
    return sub(row, 1, 17) .. now8 .. sub(row, 26)
  end

  -- Store a schedule, unless it has no next occurrence and no stored one has its spec. Returns what is stored now,
  -- or false. `again`: it was stored before. It is not stored if it was removed since, or if another one is there.
  function Schedules.put(name, row, again)
    local known = Schedules.get(name)
    if known and sub(known, 26) == sub(row, 26) then
      row = seen_now(known)
    elseif again and (known or Store.get(K.removed_schedules, name)) then
      return known
    elseif has(row:byte(1), HAS_NEXT) then
      row = seen_now(row)
    else
      return known
    end
    Store.set(K.schedules, name, row)
    if not known then Store.set(K.removed_schedules, name) end
    return row
  end

  -- Forget that schedules were removed, after a while.
  function Schedules.prune()
    local removed = call('HGETALL', K.removed_schedules)
    for i = 1, #removed, 2 do
      if struct.unpack('>d', removed[i + 1]) < now - KEPT_REMOVALS then Store.set(K.removed_schedules, removed[i]) end
    end
  end

  -- False: it does not exist.
  function Schedules.pause(name, paused)
    local row = Schedules.get(name)
    if not row then return false end
    local flags = row:byte(1)
    if has(flags, PAUSED) ~= paused then flags = flags + (paused and PAUSED or -PAUSED) end
    Store.set(K.schedules, name, string.char(flags) .. sub(row, 2))
    return true
  end

  -- False: it does not exist.
  function Schedules.drop(name)
    Store.set(K.removed_schedules, name, now8)
    if not Schedules.get(name) then return false end
    Store.set(K.schedules, name)
    Store.set(K.schedule_runs, name)
    return true
  end

  -- Whether an occurrence (its instant as eight bytes) is the next one of a schedule that runs.
  function Schedules.is_next(name, at)
    local row = Schedules.get(name)
    if not row then return false end
    local flags = row:byte(1)
    return not has(flags, PAUSED) and has(flags, HAS_NEXT)
      and struct.unpack('>d', row, 2) == struct.unpack('>d', at)
  end

  -- Move on to the next occurrence, which is empty if there is none.
  function Schedules.move_on(name, at, next_at)
    local row = Schedules.get(name)
    local flags = HAS_LAST + (next_at ~= '' and HAS_NEXT or 0)
    if next_at == '' then next_at = struct.pack('>d', 0) end
    Store.set(K.schedules, name, string.char(flags) .. next_at .. at .. sub(row, 18))
  end

  -- Keep a run. `tenant`, `id`: of the first item that it submitted, empty if there is none.
  function Schedules.record_run(name, at, tenant, id, error)
    local runs, place, oldest = {}, 1, nil
    local stored = Store.get(K.schedule_runs, name) or ''
    while place <= #stored do
      local first = place
      place = place + 16
      for _ = 1, 3 do place = place + 2 + struct.unpack('>I2', stored, place) end
      local run = sub(stored, first, place - 1)
      if sub(run, 1, 8) ~= at then runs[#runs + 1] = run end
    end
    runs[#runs + 1] = at .. now8 .. struct.pack('>I2', #tenant) .. tenant .. struct.pack('>I2', #id) .. id
      .. struct.pack('>I2', #error) .. error
    if #runs > KEPT_RUNS then
      for i = 1, #runs do
        if not oldest or struct.unpack('>d', runs[i]) < struct.unpack('>d', runs[oldest]) then oldest = i end
      end
      table.remove(runs, oldest)
    end
    Store.set(K.schedule_runs, name, concat(runs))
  end
end
