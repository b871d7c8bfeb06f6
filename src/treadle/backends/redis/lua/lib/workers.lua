-- uses: clock store
-- Workers: which have a lease, and which types they have. worker_removal.lua removes them.
--
--   workers         name -> until(8) number(4) flags(1: drain, 2: not every type) lease(8: seconds for which a
--                   heartbeat renews it) types, with zero bytes between
--   workers_until   names, scored by when their leases lapse
--   worker_info     name -> what it says about itself
--   worker_release  name -> its release, if it has one
--   releases        release -> when its first worker began(8). The newest hundred
--   worker_numbers  the last number that was given to a worker
--   known_types     type -> how many workers have it. '' for those that have every type.
--   unknown_since   type -> when the last worker that had it was gone(8). '' likewise.
--   held            n of a leased row -> the number of its worker(4), and 'd' if it is leased with a verdict.
--                   The row 0, which is none, has a long value: see `FILLER`.
--
-- A worker is a table: name, number (four bytes, new for each registration), until_, lease, drain, types (a list;
-- nil: every type), packed (the types as stored; nil likewise).

local Workers = {}

do
  local DRAIN, SOME_TYPES = 1, 2
  local EVERY_TYPE = ''
  -- The server looks through a small hash of short values field by field: adding 250 leases took 2.4 us for each
  -- instead of 0.4. One long value makes it a hash table for ever.
  local FILLER = string.rep('\0', 65)

  local function split(packed)
    local types = {}
    for type in string.gmatch(packed, '[^%z]+') do types[#types + 1] = type end
    return types
  end

  -- The worker with a name, or false.
  function Workers.get(name)
    local row = Store.get(K.workers, name)
    if not row then return false end
    local until_, number, flags, lease, at = struct.unpack('>dc4Bd', row)
    local worker = {name = name, until_ = until_, number = number, lease = lease, drain = flags % 2 == DRAIN}
    if flags >= SOME_TYPES then
      worker.packed = sub(row, at)
      worker.types = split(worker.packed)
    end
    return worker
  end

  -- A worker that was not known. `packed`: its types as stored, nil for every type.
  function Workers.add(name, packed)
    local number = struct.pack('>I4', Store.next(K.worker_numbers))
    local worker = {name = name, number = number, drain = false}
    Workers.set_types(worker, packed, true)
    Store.set(K.held, sub(FILLER, 1, 6), FILLER)
    return worker
  end

  function Workers.save(worker)
    local flags = (worker.drain and DRAIN or 0) + (worker.packed and SOME_TYPES or 0)
    Store.set(K.workers, worker.name,
      struct.pack('>dc4Bd', worker.until_, worker.number, flags, worker.lease) .. (worker.packed or ''))
    Store.score(K.workers_until, worker.name, worker.until_)
  end

  local KEPT_RELEASES = 100 -- as in treadle.item_facts

  -- Note the release of a new worker, and when the first worker of the release began.
  function Workers.note_release(name, release)
    if release == '' then return end
    Store.set(K.worker_release, name, release)
    if Store.get(K.releases, release) then return end
    Store.set(K.releases, release, now8)
    local known, oldest, first = call('HGETALL', K.releases), nil, nil
    for i = 1, #known, 2 do
      local began = struct.unpack('>d', known[i + 1])
      if not first or began < first then oldest, first = known[i], began end
    end
    if #known >= 2 * KEPT_RELEASES then Store.set(K.releases, oldest) end
  end

  -- Types -------------------------------------------------------------------------------------------------

  local function add_type(type, amount)
    local count = tonumber(Store.get(K.known_types, type) or 0) + amount
    Store.set(K.known_types, type, count > 0 and string.format('%d', count))
    if count <= 0 then Store.set(K.unknown_since, type, now8) end
  end

  local function add_types(types, amount)
    if not types then return add_type(EVERY_TYPE, amount) end
    for i = 1, #types do add_type(types[i], amount) end
  end

  -- Give a worker types. `fresh`: it has none yet.
  function Workers.set_types(worker, packed, fresh)
    local types = packed and split(packed)
    add_types(types, 1)
    if not fresh then Workers.forget_types(worker) end
    worker.types, worker.packed = types or nil, packed
  end

  -- One worker less has these types.
  function Workers.forget_types(worker)
    add_types(worker.types, -1)
  end

  -- Whether a worker that was not removed has every type.
  function Workers.any_has_every_type()
    return Store.get(K.known_types, EVERY_TYPE) and true or false
  end

  -- Whether a worker that was not removed has a type.
  function Workers.is_known(type)
    return Workers.any_has_every_type() or (Store.get(K.known_types, type) and true or false)
  end

  -- When the last worker that had a type was gone, for a type that is not known now. nil: none ever had it.
  function Workers.unknown_since(type)
    local latest
    for _, name in ipairs({type, EVERY_TYPE}) do
      local at = Store.get(K.unknown_since, name)
      at = at and struct.unpack('>d', at)
      if at and (not latest or at > latest) then latest = at end
    end
    return latest
  end

  -- Forget since when types are unknown of which no item is stored.
  function Workers.prune()
    local types = call('HKEYS', K.unknown_since)
    if #types == 0 then return end
    Store.load(K.text, types)
    for i = 1, #types do
      local used = Store.get(K.text, types[i])
      if types[i] == EVERY_TYPE then used = call('HLEN', K.text) > 0 end
      if not used then Store.set(K.unknown_since, types[i]) end
    end
  end

  -- Leases ------------------------------------------------------------------------------------------------

  local held -- all leases, by the number of the worker: the numbers of the rows

  -- The numbers of the rows that a worker holds, as they were before this call.
  function Workers.held(worker)
    if not held then
      held = {}
      local found = call('HGETALL', K.held)
      for i = 1, #found, 2 do
        local number = sub(found[i + 1], 1, 4)
        local rows = held[number]
        if not rows then
          rows = {}
          held[number] = rows
        end
        rows[#rows + 1] = found[i]
      end
    end
    return held[worker.number] or {}
  end
end
