-- uses: clock store kinds rows groups new_items refs unstarted holds
-- Key holders: the items that hold keys, and answer for new items with the same key, or take over what these have.
--
--   changers  n -> the ids of the last submitted items of which it took over what they have

local KeyHolders = {}

do
  local KEPT_CHANGES = 20 -- as in treadle.store.rules.submission

  local function group_open(row)
    local group = Groups.get(row.group)
    if group then return group.open > 0 end
    return not row.ended_at
  end

  local function key_answers(scope, row)
    if not scope or scope == 'open' then return group_open(row) end
    return scope == 'any' or now - row.queued_at <= scope
  end

  local function holder_of(item)
    local type = Kinds.text(item.names.type)
    local n = type and Store.get(K.key, tenant_number(item.names.tenant) .. type .. item.spec.k)
    return n and Rows.get(n)
  end

  -- The earlier item that answers for this one by its key: one of the plan's, or a stored row. nil: this one is
  -- to hold the key.
  function KeyHolders.answering(keys, item)
    local names = item.names
    local key = names.tenant .. '\0' .. names.type .. '\0' .. item.spec.k
    if keys[key] then return {item = keys[key], existing = true} end
    local row = holder_of(item)
    if row and key_answers(item.spec.ks, row) then return {row = row, existing = true} end
    keys[key] = item
    return nil
  end

  local function changers_of(row)
    local packed = Store.get(K.changers, row.n)
    return packed and cmsgpack.unpack(packed) or {}
  end

  -- Whether the holder of a key takes over what a new item has; and whether it did so before. A submit that is
  -- repeated because its answer was lost changes nothing.
  function KeyHolders.takes_over(found, id)
    if found.item then return found.item.id ~= id, false end
    if not Unstarted.is(found.row) or found.row.id == id then return false, false end
    for _, changer in ipairs(changers_of(found.row)) do
      if changer == id then return false, true end
    end
    return true, false
  end

  -- When an earlier item is due that takes over what a new one has.
  local function changed_due_at(spec, queued_at)
    if spec.ra then return spec.ra end
    if spec.kp ~= 'debounce' then return queued_at + (spec.dl or 0) end
    local due = now + (spec.dl or 0)
    return spec.dm and math.min(due, queued_at + spec.dm) or due
  end

  local function add_changer(row, id)
    local changers = changers_of(row)
    changers[#changers + 1] = id
    if #changers > KEPT_CHANGES then table.remove(changers, 1) end
    Store.set(K.changers, row.n, cmsgpack.pack(changers))
  end

  -- Let the items that hold keys take over what new items have. Call it after the new items were stored.
  function KeyHolders.take_over(plan)
    for _, change in ipairs(plan.changes) do
      local item = change.item
      local row = change.target.row or change.target
      if Unstarted.is(row) then
        local names, of = item.names, row.kind.names
        Unstarted.move(row, {
          kind = Kinds.named(of.tenant, names.queue, names.lane, of.type), priority = item.priority,
          due_at = Holds.keep(row, changed_due_at(item.spec, row.queued_at)), replaces = true,
          keep = item.keep, keep_dead = item.keep_dead, body = item.body,
        })
        Unstarted.set_deadline(row, NewItems.deadline_at(item.spec))
        add_changer(row, item.id)
      end
    end
  end
end
