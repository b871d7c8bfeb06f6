-- uses: clock store kinds rows lines
-- Bulk: many new items that are ready at once, with neither keys nor prerequisites. They are written with few
-- commands, without a table for each.
--
-- A portion is a list of texts, as stage.py packs it: how many classes; for each class flags(1) and its kind, as in
-- `kind`, and its extra (empty: none); the class of each item, a byte each (empty: there is one class); how many
-- items; then for each its id, and its row from the priority on.

local Bulk = {}

do
  -- The portion that begins at a place of a list, and the place after it.
  function Bulk.read(list, at)
    local portion = {classes = {}, list = list}
    local count = tonumber(list[at])
    at = at + 1
    for i = 1, count do
      local tenant, queue, lane, type = string.match(list[at], '^.([^%z]*)%z([^%z]*)%z([^%z]*)%z([^%z]*)$')
      portion.classes[i] = {
        flags = list[at]:byte(1), tenant = tenant, queue = queue, lane = lane, type = type, extra = list[at + 1], count = 0,
      }
      at = at + 2
    end
    portion.class_of, portion.count, portion.before = list[at], tonumber(list[at + 1]), at
    return portion, at + 2 + 2 * portion.count
  end

  local function class_at(portion, i)
    return portion.classes[portion.class_of == '' and 1 or portion.class_of:byte(i)]
  end

  -- The ids, in order.
  function Bulk.ids(portion)
    local ids, list, before = {}, portion.list, portion.before
    for i = 1, portion.count do ids[i] = list[before + 2 * i] end
    return ids
  end

  -- The places of the ids that items of the same tenants have.
  function Bulk.taken(portion)
    local ids, taken = Bulk.ids(portion), {}
    Store.load(K.id, ids)
    for i = 1, #ids do
      local places = Store.get(K.id, ids[i])
      if places then
        local tenant = Kinds.text(class_at(portion, i).tenant)
        for at = 7, #places, 10 do
          if sub(places, at, at + 3) == tenant then taken[#taken + 1] = i end
        end
      end
    end
    return taken
  end

  -- The ids are used now: stages that have one of them can no longer be decided.
  function Bulk.take_ids(portion)
    if not STAGES then return end
    local ids = Bulk.ids(portion)
    Store.load(K.staged, ids)
    for i = 1, #ids do Rows.refuse_stage(ids[i]) end
  end

  -- Store the items. Their ids must be free. `first`: the number before the first one; `queued`: now, as 8 bytes;
  -- `group` and `parent`: the numbers of theirs, or nil for roots.
  function Bulk.store(portion, first, queued, group, parent)
    local pack, list, before, class_of = struct.pack, portion.list, portion.before, portion.class_of
    local ids = Bulk.ids(portion)
    Store.load(K.id, ids)
    local items, places, ready, extras, members, children, workflows, roots, roots_of = {}, {}, {}, {}, {}, {}, {}, {}, {}
    local classes = portion.classes
    for i = 1, #classes do
      local class = classes[i]
      class.kind = Kinds.named(class.tenant, class.queue, class.lane, class.type)
      local extra = class.extra ~= ''
      class.head = string.char(class.flags + (extra and 1 or 0)) .. class.kind.k
      local workflow = extra and cmsgpack.unpack(class.extra).w
      class.workflow = workflow and pack('>I2', #workflow) .. workflow
    end
    local pages = {}
    for i = 1, #ids do
      local class = classes[class_of == '' and 1 or class_of:byte(i)]
      local kind, id, rest, number = class.kind, ids[i], list[before + 2 * i + 1], first + i
      local n, at = pack('>I6', number), 2 * i
      items[at - 1], items[at] = n, class.head .. (group or n) .. queued .. rest
      places[at - 1], places[at] = id, (Store.get(K.id, id) or '') .. n .. kind.tenant
      ready[at - 1], ready[at] = 0, kind.k .. sub(rest, 1, 4) .. n .. n
      if group then members[at - 1], members[at] = 0, group .. n end
      if parent then children[at - 1], children[at] = 0, parent .. n end
      if class.extra ~= '' then extras[#extras + 1], extras[#extras + 2] = n, class.extra end
      if class.workflow then
        workflows[#workflows + 1], workflows[#workflows + 2] = 0, class.workflow .. n .. kind.tenant
        if not group then
          roots[#roots + 1], roots[#roots + 2] = 0, n
          roots_of[#roots_of + 1], roots_of[#roots_of + 2] = 0, class.workflow .. kind.tenant .. n
        end
      end
      class.count = class.count + 1
      local page = math.floor(number / 1000)
      pages[page] = (pages[page] or 0) + 1
    end
    for page, count in pairs(pages) do Store.add(K.pages, string.format('%d', page), count) end
    for i = 1, #classes do
      if classes[i].count > 0 then
        Kinds.count(classes[i].kind, 'r', classes[i].count)
        Lines.touch(classes[i].kind)
      end
    end
    Store.write('HSET', K.item, items)
    Store.write('HSET', K.id, places)
    Store.write('HSET', K.extra, extras)
    Store.write('ZADD', K.ready, ready)
    Store.write('ZADD', K.members, members)
    Store.write('ZADD', K.children, children)
    Store.write('ZADD', K.workflows, workflows)
    Store.write('ZADD', K.workflow_roots, roots)
    Store.write('ZADD', K.roots_of_workflow, roots_of)
  end
end
