-- uses: store kinds rows groups
-- Trees: many rows at once, for operators: those with some ids, their descendants, whole groups.

local Trees = {}

do
  local EACH = 2000 -- rows that one command reads at most

  -- Read rows, their groups and all else that an operator's change needs, in few commands.
  function Trees.load(numbers)
    for first = 1, #numbers, EACH do
      local part = {unpack(numbers, first, math.min(first + EACH - 1, #numbers))}
      Rows.load(part)
      local extras, groups = {}, {}
      for i = 1, #part do
        local item = Store.get(K.item, part[i])
        if item then
          if item:byte(1) % 2 == 1 then extras[#extras + 1] = part[i] end
          groups[#groups + 1] = sub(item, 6, 11)
        end
      end
      Store.load(K.extra, extras)
      Store.load(K.groups, groups)
      Store.load(K.past, part)
      Store.load_lists(K.children, part)
    end
  end

  -- The rows with these numbers that exist.
  function Trees.rows(numbers)
    Trees.load(numbers)
    local rows = {}
    for i = 1, #numbers do
      local row = Rows.get(numbers[i])
      if row then rows[#rows + 1] = row end
    end
    return rows
  end

  -- The tenant whose name is an argument: nil for all tenants, false for one without items.
  function Trees.tenant(name)
    if name == '' then return nil end
    return Kinds.text(sub(name, 2))
  end

  -- The rows with the ids that are the arguments from `first` on, up to `last` if it is given: for each id a row, or
  -- false.
  function Trees.named(tenant, first, last)
    local found, ids = {}, {}
    for i = first, last or #ARGV do ids[#ids + 1] = ARGV[i] end
    if tenant == false then
      for i = 1, #ids do found[i] = false end
      return found
    end
    Store.load(K.id, ids)
    local numbers = {}
    for i = 1, #ids do
      local places = Store.get(K.id, ids[i])
      if places then numbers[#numbers + 1] = sub(places, 1, 6) end
    end
    Trees.load(numbers)
    for i = 1, #ids do found[i] = Rows.find(tenant, ids[i]) end
    return found
  end

  -- These rows and all their descendants, each once. What is in a group descends from the row that closes it
  -- too.
  function Trees.descendants(rows)
    local seen, first, stack, found = {}, {}, {}, {}
    for i = 1, #rows do
      if not seen[rows[i].n] then first[#first + 1] = rows[i] end
      seen[rows[i].n] = true
    end
    for i = #first, 1, -1 do stack[#stack + 1] = first[i] end
    local children_exist = Store.any(K.children)
    while #stack > 0 do
      local row = stack[#stack]
      stack[#stack] = nil
      found[#found + 1] = row
      local below = children_exist and Store.list(K.children, row.n) or {}
      local closed = row.has_extra and Groups.closed_by(row)
      if closed then
        for _, n in ipairs(Groups.members(closed)) do below[#below + 1] = n end
      end
      Trees.load(below)
      for i = 1, #below do
        local child = not seen[below[i]] and Rows.get(below[i])
        if child then
          seen[child.n] = true
          stack[#stack + 1] = child
        end
      end
    end
    return found
  end

  -- Add the members of a group, and of the groups in it, to a list of rows. `seen`: by number.
  function Trees.add_group(found, rows, seen)
    local stack, added = {found}, {}
    while #stack > 0 do
      local group = stack[#stack]
      stack[#stack] = nil
      for _, row in ipairs(Trees.rows(Groups.members(group))) do
        if not seen[row.n] then
          seen[row.n] = true
          rows[#rows + 1] = row
          added[#added + 1] = row
        end
      end
      if group.g and Store.any(K.nested) then
        for _, g in ipairs(Store.list(K.nested, group.g)) do stack[#stack + 1] = Groups.get(g) or nil end
      end
    end
    return added
  end

  -- Rows as Python reads them.
  function Trees.raw(rows)
    local raw = {}
    for i = 1, #rows do raw[i] = Rows.raw(rows[i]) end
    return raw
  end
end
