-- uses: clock store kinds rows transitions groups dependencies new_items plan
-- Plan store: store the new items of a plan.

local PlanStore = {}

do
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
  function PlanStore.roots(plan)
    for _, item in ipairs(plan.new) do
      item.spec.g = nil
      start(insert(item), plan.beside)
    end
  end

  -- Store the children of a settled item: in its group, or in groups that are nested in it. Returns those of the
  -- latter that have no members. Their end is not counted yet.
  function PlanStore.children(plan, group)
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
      return {}
    end
    local nested, empty = {}, {} -- the first by id
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
          empty[#empty + 1] = inner
        end
      end
    end
    -- Only now are all members of the groups known that some of these wait for.
    for _, item in ipairs(plan.new) do start(item.row, plan.beside) end
    return empty
  end
end
