-- uses: store kinds rows groups dependencies refs
-- Cycles: items that would wait for each other if a plan was stored.

local Cycles = {}

do
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
    return Store.any(K.waiters) and #Store.list(K.waiters, Dependencies.name(tenant_number(tenant), name), 1) > 0
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
  function Cycles.find(plan, group_id)
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
      local number = tenant_number(tenant)
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
end
