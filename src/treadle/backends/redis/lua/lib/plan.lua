-- uses: clock store kinds rows groups dependencies new_items refs key_holders cycles
-- Plans: what a submission comes to. `Plan.make` decides, and changes nothing. plan_store.lua stores what was decided,
-- and `KeyHolders.take_over` changes earlier items.
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
        if type then keys[#keys + 1] = tenant_number(of.tenant) .. type .. key end
      end
    end
    Store.load(K.key, keys)
    for i = 1, #keys do
      local n = Store.get(K.key, keys[i])
      if n then numbers[#numbers + 1] = n end
    end
    if #numbers > 1 then Rows.load(numbers) end
  end

  -- Names ------------------------------------------------------------------------------------------------

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
          and not Dependencies.exists(tenant_number(tenant), name) then
          names[#names + 1] = name
        end
      end
    end
    return names
  end

  -- Planning ----------------------------------------------------------------------------------------------

  local function plan_change(plan, at, found, item)
    local takes_over, repeated = KeyHolders.takes_over(found, item.id)
    if not takes_over and not repeated then return end
    local target = found.item or found.row
    local before = at[target]
    if before then plan.changes[before] = false end -- in the order of the last changes
    if repeated then return end
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
      local found = spec.k and KeyHolders.answering(keys, item)
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
        elseif spec.kp and spec.kp ~= 'existing' then
          plan_change(plan, changed_at, found, item)
        end
      else
        local ref = ref_of(tenant, item.id)
        if plan.by_ref[ref] or Dependencies.exists(tenant_number(tenant), item.id) then
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
    local cycle = Cycles.find(plan, group_id)
    if cycle then return {why = 'cycle', ids = cycle, keys = {}} end
    plan.changes = without_holes(plan.changes)
    plan.stored = #plan.new
    for _, change in ipairs(plan.changes) do
      if change.target.n then plan.stored = plan.stored + 1 end
    end
    return plan
  end
end
