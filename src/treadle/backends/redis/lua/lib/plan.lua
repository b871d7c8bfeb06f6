-- uses: clock store kinds rows lines transitions groups dependencies new_items
-- Plans: what a submission comes to. `Plan.make` decides, and changes nothing. `Plan.store` and
-- `Plan.store_children` store what was decided.
--
-- A plan is a table:
--   new       the items to be stored, in order, with `after` as keys have resolved it
--   answers   for each submitted item, in order: {item = one of new} or {row = a stored one}, and `existing` if
--             that is an earlier one. Items have their `row` once they are stored.
--   existing  the ids that are not stored -> the ids that answer for them
--   changes   {target = one of new, or a stored row; item = what it takes over}, in order
--   stored    how many items it stores or changes
--
-- A refusal is a table: why, ids, keys.

local Plan = {}

do
  local NONE = {}
  local NO_TENANT = '\255\255\255\255' -- the number of a tenant that has no items

  local function number_of(tenant) return Kinds.text(tenant) or NO_TENANT end

  local function ref_of(tenant, name) return tenant .. '\0' .. name end

  local function bare(name)
    return sub(name, 1, 1) == GROUP_MARK and sub(name, 2) or name
  end

  -- Reading ahead -----------------------------------------------------------------------------------------

  local function load_places(key, names, numbers)
    Store.load(key, names)
    for i = 1, #names do
      local places = Store.get(key, names[i])
      for at = 1, #(places or ''), 10 do numbers[#numbers + 1] = sub(places, at, at + 5) end
    end
  end

  -- Read what plans of these items look at, in few commands. `beside`: see Plan.make.
  function Plan.load(items, beside)
    beside = beside or NONE
    local ids, names, texts, parents = {}, {}, {}, {}
    local seen = {}
    for i = 1, #items do
      local item = items[i]
      local spec = item.spec
      ids[i] = item.id
      if not seen[item.names] then
        seen[item.names] = true
        local of = item.names
        texts[#texts + 1], texts[#texts + 2] = of.tenant, of.queue
        texts[#texts + 1], texts[#texts + 2] = of.lane, of.type
      end
      for _, name in ipairs(spec.a or {}) do
        if not beside[name] then names[#names + 1] = bare(name) end
      end
      if spec.p then parents[#parents + 1] = spec.p end
    end
    Store.load(K.text, texts)
    Store.load(K.id, ids)
    local numbers, keys = {}, {}
    if #names > 0 then
      load_places(K.id, names, numbers)
      Store.load(K.group_ids, names)
    end
    if #parents > 0 then load_places(K.id, parents, numbers) end
    for i = 1, #items do
      local key = items[i].spec.k
      if key then
        local of = items[i].names
        local type = Kinds.text(of.type)
        if type then keys[#keys + 1] = number_of(of.tenant) .. type .. key end
      end
    end
    Store.load(K.key, keys)
    for i = 1, #keys do
      local n = Store.get(K.key, keys[i])
      if n then numbers[#numbers + 1] = n end
    end
    if #numbers > 1 then Rows.load(numbers) end
  end

  -- Keys --------------------------------------------------------------------------------------------------

  -- Whether nothing of it has begun: it may still be changed.
  function Plan.is_unstarted(row)
    return not row.gone and not row.ended_at and not row.owned and row.attempt == 0 and row.verdict == 0
  end

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
    local n = type and Store.get(K.key, number_of(item.names.tenant) .. type .. item.spec.k)
    return n and Rows.get(n)
  end

  -- The earlier item that answers for this one by its key: one of the plan's, or a stored row. nil: this one is
  -- to hold the key.
  local function answering(keys, item)
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

  -- Whether the holder of a key takes over what a new item has. A submit that is repeated because its answer was
  -- lost changes nothing.
  local function takes_over(found, id)
    if found.item then return found.item.id ~= id end
    if not Plan.is_unstarted(found.row) or found.row.id == id then return false end
    for _, changer in ipairs(changers_of(found.row)) do
      if changer == id then return false end
    end
    return true
  end

  -- Dependencies ------------------------------------------------------------------------------------------

  local function rename(plan, renamed)
    for _, item in ipairs(plan.new) do
      local after = item.spec.a
      if after then
        local tenant = item.names.tenant
        for i = 1, #after do after[i] = renamed[ref_of(tenant, after[i])] or after[i] end
      end
    end
  end

  -- An item that closes a nested group waits for new members by the group, not by their names.
  local function leave_out_members(plan, closing)
    local spec, left = closing.spec, {}
    for _, name in ipairs(spec.a) do
      local member = plan.by_ref[ref_of(closing.names.tenant, name)]
      if not member or member.spec.g ~= closing.id then left[#left + 1] = name end
    end
    spec.n = (spec.n or 0) - #spec.a + #left
    spec.a = #left > 0 and left or nil
  end

  -- The names of items and groups that were submitted before and do not exist now.
  local function missing(plan)
    local names = {}
    for _, item in ipairs(plan.new) do
      local tenant = item.names.tenant
      for _, name in ipairs(item.spec.me or {}) do
        if not plan.beside[bare(name)] and not plan.by_ref[ref_of(tenant, bare(name))]
          and not Dependencies.exists(number_of(tenant), name) then
          names[#names + 1] = name
        end
      end
    end
    return names
  end

  local function is_blocked(row) return row.status == 'b' and row.verdict == 0 end

  local function pending_names(after, gate)
    local names, seen = {}, {}
    for _, name in ipairs(after) do
      if gate.pending[name] and not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
    end
    return names
  end

  -- What a stored item waits for, if it is blocked; and which blocked members a group waits for.
  local function stored_waits_for(tenant, name)
    local names = {}
    if sub(name, 1, 1) == GROUP_MARK then
      local numbers = Groups.members(Groups.find(tenant, sub(name, 2)))
      if #numbers > 1 then Rows.load(numbers) end
      for _, n in ipairs(numbers) do
        local row = Rows.get(n)
        if row and is_blocked(row) then names[#names + 1] = row.id end
      end
      return names
    end
    local row = Rows.find(tenant, name)
    local gate = row and is_blocked(row) and Dependencies.gate(row)
    return gate and pending_names(Rows.extra(row).a, gate) or names
  end

  local function is_awaited(tenant, name)
    return Store.any(K.waiters) and #Store.list(K.waiters, Dependencies.name(number_of(tenant), name), 1) > 0
  end

  -- What blocked items name. `among_new`: each other, or groups that they join. `leads_out`: anything that is not
  -- new. `names_joined`: that is a group that they join.
  local function named_by(plan, blocked, joined, is_child)
    local among_new, leads_out, names_joined = false, false, false
    for _, item in ipairs(blocked) do
      local tenant = item.names.tenant
      for _, name in ipairs(item.spec.a) do
        local ref = not plan.beside[name] and ref_of(tenant, name)
        local new = ref and plan.by_ref[ref]
        if ref and (joined[ref] or (new and new.blocked)) then among_new = true end
        if ref and not new then
          local closing = sub(name, 1, 1) == GROUP_MARK and plan.by_ref[ref_of(tenant, sub(name, 2))]
          if not closing or (is_child and not closing.spec.c) then
            leads_out = true
            names_joined = names_joined or joined[ref] ~= nil
          end
        end
      end
    end
    return among_new, leads_out, names_joined
  end

  -- Nodes of which each waits for the next, and the last for the first. A node is {tenant, name}. nil: there are
  -- none. Depth first, with a stack of its own: chains may be long.
  local function find_cycle(starts, waits_for)
    local cleared = {}
    for _, start in ipairs(starts) do
      local path, depth, on_path = {}, 0, {}
      local function enter(tenant, name)
        local ref = ref_of(tenant, name)
        if cleared[ref] then return end
        depth = depth + 1
        path[depth] = {tenant = tenant, name = name, ref = ref, names = waits_for(tenant, name, ref), at = 0}
        on_path[ref] = depth
      end
      enter(start.names.tenant, start.id)
      while depth > 0 do
        local node = path[depth]
        node.at = node.at + 1
        local name = node.names[node.at]
        if not name then
          cleared[node.ref], on_path[node.ref], path[depth] = true, nil, nil
          depth = depth - 1
        else
          local first = on_path[ref_of(node.tenant, name)]
          if first then
            local ids = {}
            for i = first, depth do
              if sub(path[i].name, 1, 1) ~= GROUP_MARK then ids[#ids + 1] = path[i].name end
            end
            return ids
          end
          enter(node.tenant, name)
        end
      end
    end
    return nil
  end

  -- The ids of items that would wait for each other if the new ones were stored, or nil. A group waits for its
  -- members. `group_id`: the group that the new items join; nil: each is a root.
  local function dependency_cycle(plan, group_id)
    local blocked, joined, groups = {}, {}, {}
    for _, item in ipairs(plan.new) do
      local after = item.spec.a
      if after and #after > 0 then
        item.blocked = true
        blocked[#blocked + 1] = item
        local name = GROUP_MARK .. (item.spec.g or group_id or item.id)
        local ref = ref_of(item.names.tenant, name)
        if not joined[ref] then
          joined[ref] = {}
          groups[#groups + 1] = {tenant = item.names.tenant, name = name}
        end
        joined[ref][#joined[ref] + 1] = item.id
      end
    end
    if #blocked == 0 then return nil end
    local among_new, leads_out, through_stored = named_by(plan, blocked, joined, group_id ~= nil)
    if leads_out and not through_stored then
      for _, item in ipairs(blocked) do
        through_stored = through_stored or is_awaited(item.names.tenant, item.id)
      end
      for _, group in ipairs(groups) do
        through_stored = through_stored or is_awaited(group.tenant, group.name)
      end
    end
    if not through_stored and not among_new then return nil end

    local function waits_for(tenant, name, ref)
      local number = number_of(tenant)
      local item = plan.by_ref[ref]
      if not item or not item.blocked then
        local stored = through_stored and stored_waits_for(number, name) or {}
        if not joined[ref] then return stored end
        local names = {}
        for _, id in ipairs(joined[ref]) do names[#names + 1] = id end
        for _, id in ipairs(stored) do names[#names + 1] = id end
        return names
      end
      local gate = Dependencies.count_all(item.spec, function(each) return Dependencies.ended(number, each) end)
      return Dependencies.state(gate) == 'waiting' and pending_names(item.spec.a, gate) or {}
    end

    return find_cycle(blocked, waits_for)
  end

  -- Planning ----------------------------------------------------------------------------------------------

  local function plan_change(plan, at, found, item)
    local target = found.item or found.row
    local before = at[target]
    if before then plan.changes[before] = false end -- in the order of the last changes
    plan.changes[#plan.changes + 1] = {target = target, item = item}
    at[target] = #plan.changes
    if found.item then found.item.spec.lt = nil end
  end

  local function without_holes(changes)
    local left = {}
    for i = 1, #changes do
      if changes[i] then left[#left + 1] = changes[i] end
    end
    return left
  end

  -- Plan items. `group`: the group that children join (a group, or its id); nil: each is a root. `beside`: by id,
  -- the plain children that are stored before these, see bulk.lua. They are of the same tenant.
  function Plan.make(items, group, beside)
    beside = beside or NONE
    Plan.load(items, beside)
    local plan = {new = {}, by_ref = {}, answers = {}, existing = {}, changes = {}, beside = beside}
    local keys, renamed, changed_at = {}, nil, {}
    local duplicates, seen, refused, key_of = {}, {}, {}, {}
    for _, item in ipairs(items) do
      local tenant, spec = item.names.tenant, item.spec
      local found = spec.k and answering(keys, item)
      if found then
        local id = (found.item or found.row).id
        local group_id = found.row and Rows.extra(found.row).g or id
        renamed = renamed or {}
        renamed[ref_of(tenant, item.id)] = id
        renamed[ref_of(tenant, GROUP_MARK .. item.id)] = GROUP_MARK .. group_id
        plan.existing[item.id] = id
        plan.answers[#plan.answers + 1] = found
        if spec.kp == 'error' then
          if not key_of[id] then refused[#refused + 1] = id end
          key_of[id] = spec.k
        elseif spec.kp and spec.kp ~= 'existing' and takes_over(found, item.id) then
          plan_change(plan, changed_at, found, item)
        end
      else
        local ref = ref_of(tenant, item.id)
        if plan.by_ref[ref] or Dependencies.exists(number_of(tenant), item.id) then
          if not seen[item.id] then duplicates[#duplicates + 1] = item.id end
          seen[item.id] = true
        end
        plan.by_ref[ref] = item
        plan.new[#plan.new + 1] = item
        plan.answers[#plan.answers + 1] = {item = item}
      end
    end
    if #refused > 0 then
      local refused_keys = {}
      for i, id in ipairs(refused) do refused_keys[i] = key_of[id] end
      return {why = 'duplicate_key', ids = refused, keys = refused_keys}
    end
    if #duplicates > 0 then return {why = 'duplicate_id', ids = duplicates, keys = {}} end
    local not_found = missing(plan)
    if #not_found > 0 then return {why = 'not_found', ids = not_found, keys = {}} end
    if renamed then rename(plan, renamed) end
    for _, item in ipairs(plan.new) do
      if item.spec.c and item.spec.a and #item.spec.a > 1 then leave_out_members(plan, item) end
    end
    local group_id = type(group) == 'table' and group.id or group or nil
    local cycle = dependency_cycle(plan, group_id)
    if cycle then return {why = 'cycle', ids = cycle, keys = {}} end
    plan.changes = without_holes(plan.changes)
    plan.stored = #plan.new
    for _, change in ipairs(plan.changes) do
      if change.target.n then plan.stored = plan.stored + 1 end
    end
    return plan
  end

  -- Storing -----------------------------------------------------------------------------------------------

  local function insert(item, group)
    local row = NewItems.insert(item, group)
    item.row = row
    local deadline = NewItems.deadline_at(item.spec)
    if deadline then Transitions.watch_deadline(row, deadline) end
    return row
  end

  -- A new row begins to wait: for its prerequisites, for its time or for a worker.
  local function start(row, beside)
    local waits = row.has_extra and Rows.extra(row).a
    local state = waits and Dependencies.state(Dependencies.start_waiting(row, nil, beside)) or 'released'
    if state == 'released' then
      Transitions.wait(row)
      Rows.started(row)
    elseif state == 'doomed' then
      Transitions.doom(row, UNSATISFIABLE)
    end
  end

  -- Store the items of a plan, each as the root of its own group.
  function Plan.store(plan)
    for _, item in ipairs(plan.new) do
      item.spec.g = nil
      start(insert(item), plan.beside)
    end
  end

  -- Store the children of a settled item: in its group, or in groups that are nested in it.
  function Plan.store_children(plan, group)
    local closers = {}
    for _, item in ipairs(plan.new) do
      if item.spec.c then closers[item.id] = true end
    end
    for _, item in ipairs(plan.new) do
      local spec = item.spec
      if not (spec.g and closers[spec.g]) then spec.g = group.id end
    end
    if not next(closers) then
      for _, item in ipairs(plan.new) do
        local row = insert(item, group.g)
        Groups.join(group, row)
        start(row, plan.beside)
      end
      return
    end
    local nested = {} -- by id
    for _, item in ipairs(plan.new) do
      local row = insert(item, group.g)
      if item.spec.c then nested[item.id] = Groups.nest(group, row) end
    end
    for _, item in ipairs(plan.new) do Groups.join(nested[item.spec.g] or group, item.row) end
    for _, item in ipairs(plan.new) do
      local inner = nested[item.id]
      if inner then
        local outer = nested[item.spec.g] or group
        if outer ~= group then Groups.move(inner, outer) end
        if inner.open == 0 then
          inner.ended_at = now
          Groups.save(inner)
        end
      end
    end
    -- Only now are all members of the groups known that some of these wait for.
    for _, item in ipairs(plan.new) do start(item.row, plan.beside) end
  end

  -- Changing ----------------------------------------------------------------------------------------------

  local KEPT_CHANGES = 20 -- as in treadle.rules.submission

  -- Give a row that has not started other data, and its place at the end of its new line. `to`: kind, priority and
  -- due_at; keep, keep_dead and body with `replaces`. A blocked row stays blocked. It holds no lane any more.
  function Plan.move(row, to)
    Transitions.leave_line(row)
    Lines.free_lane(row)
    local before = row.kind
    if to.kind ~= before then
      Kinds.count(before, row.status, -1)
      Kinds.count(to.kind, row.status, 1)
      Kinds.leave(before)
    end
    row.kind, row.priority, row.due_at, row.place = to.kind, to.priority, to.due_at, 0
    if to.replaces then row.keep, row.keep_dead, row.body = to.keep, to.keep_dead, to.body end
    if row.status ~= 'b' then Transitions.wait(row) end
    Rows.rewrite(row)
  end

  function Plan.set_deadline(row, deadline)
    Transitions.unwatch_deadline(row)
    row.deadline = nil
    if deadline then Transitions.watch_deadline(row, deadline) end
    Rows.save(row)
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
  function Plan.take_over(plan)
    for _, change in ipairs(plan.changes) do
      local item = change.item
      local row = change.target.row or change.target
      if Plan.is_unstarted(row) then
        local names, of = item.names, row.kind.names
        Plan.move(row, {
          kind = Kinds.named(of.tenant, names.queue, names.lane, of.type), priority = item.priority,
          due_at = changed_due_at(item.spec, row.queued_at), replaces = true,
          keep = item.keep, keep_dead = item.keep_dead, body = item.body,
        })
        Plan.set_deadline(row, NewItems.deadline_at(item.spec))
        add_changer(row, item.id)
      end
    end
  end
end
