-- uses: demand
-- Fair order: which ready rows a claim takes next. lines.lua has the layout of the ring.
--
-- Queues are served in turn, tenants in turn within a queue, lanes in turn within a tenant. A claim of several
-- types serves their rings as if they were one: the turn of a name is the least that it has in any of them.
--
-- type    number, text, left (room), shared, open (whether there is room), letter (of its new leases)
-- level   the queues (depth 1), the tenants of a queue (2), or the lanes of a tenant (3)
-- source  the ring of one type at a level: the names in it (rests), as far as they were read
-- child   a name of a level, with the level below it or, for a lane, its kinds
-- kind    k, type, path (queue and tenant), lane, and its first ready rows as they stand in the set

local SMALL_RING = 24

-- `members`: the beginning of the ring. `most`: how many rows will be taken at most.
local function fair_order(members, most)
  local MANY_TYPES, MOST_READ = 64, 1000
  local MOST_KINDS = 60 -- that one call takes rows of: each costs more than a row
  local LETTERS = {'Q', 'T', 'L'}
  local NONE = {}
  local unpack_bytes = struct.unpack

  local types = {}
  local whole -- the ring by prefix, if it is small
  local page = most + 1 -- how many names are read at once
  local filters = demand.paused or next(demand.avoid) or next(demand.strict) -- whether names may be left out
  local top
  local services = 0
  local served = {} -- children
  local touched = {} -- kinds

  -- Types -------------------------------------------------------------------------------------------------

  -- Names after `after` in a part of the ring, and whether these are all.
  local function read_ring(prefix, after, limit)
    if whole then return whole[prefix] or NONE, true end
    local found = call('ZRANGEBYLEX', K.ring, after and '(' .. prefix .. after or '[' .. prefix,
      '[' .. prefix .. HIGHEST, 'LIMIT', 0, limit)
    local from = #prefix + 1
    for i = 1, #found do found[i] = sub(found[i], from) end
    return found, #found < limit
  end

  local function update_open(type)
    type.open = (not type.left or type.left > 0) and (not type.shared or type.shared.left > 0)
  end

  local function use_room(type, amount)
    if type.left then
      type.left = type.left - amount
      if type.left < 1 or amount < 0 then update_open(type) end
    end
    if type.shared then
      type.shared.left = type.shared.left - amount
      for i = 1, #types do update_open(types[i]) end
    end
  end

  local function add_types()
    local found = read_ring('Y', nil, MANY_TYPES)
    if #found >= MANY_TYPES and not demand.room then
      found = read_ring('Y', nil, 1000000)
    elseif #found >= MANY_TYPES then
      local wanted = {}
      for text, left in pairs(demand.room) do
        if left > 0 then wanted[#wanted + 1] = text end
      end
      found = {}
      for text, number in pairs(numbers_of(wanted)) do
        if call('ZSCORE', K.ring, 'Y' .. number .. text) then found[#found + 1] = number .. text end
      end
    end
    for i = 1, #found do
      local text = sub(found[i], 5)
      local type = {
        number = sub(found[i], 1, 4), text = text, left = demand.room and (demand.room[text] or 0) or nil,
        shared = demand.shared[text], avoid = demand.avoid[text],
        strict = demand.strict[text] and {}, -- by tenant and lane: whether this call has taken a row of it
        letter = demand.buffered[text] and 'q' or 'p',
      }
      update_open(type)
      if type.open then types[#types + 1] = type end
    end
  end

  -- Levels ------------------------------------------------------------------------------------------------

  -- The names of a level that are wanted, in the order of their turns.
  local function read_named(source, names)
    local nodes, rests = {}, {}
    for i = 1, #names do nodes[i] = source.prefix .. names[i] end
    for first = 1, #nodes, 4000 do
      local turns = call('HMGET', K.turns, unpack(nodes, first, math.min(first + 3999, #nodes)))
      for i = 1, #turns do
        if turns[i] then rests[#rests + 1] = turns[i] .. names[first + i - 1] end
      end
    end
    table.sort(rests, function(a, b) return unpack_bytes('>I6', a) < unpack_bytes('>I6', b) end)
    source.rests, source.complete, source.named = rests, true, true
  end

  -- Which of the lanes from the place `first` on are held.
  local function find_held(source, first)
    local owner = source.type.number .. sub(source.prefix, 10, 13)
    local lanes = {}
    for i = first, #source.rests do lanes[#lanes + 1] = owner .. sub(source.rests[i], 7, 10) end
    if #lanes == 0 then return end
    local holders = call('HMGET', K.lanes, unpack(lanes))
    for i = 1, #lanes do
      if holders[i] then source.held[sub(lanes[i], 9, 12)] = true end
    end
  end

  local function read_more(source)
    source.size = math.min(2 * source.size, MOST_READ)
    local rests = source.rests
    local found, complete = read_ring(source.prefix, rests[#rests], source.size)
    local first = #rests + 1
    for i = 1, #found do rests[first + i - 1] = found[i] end
    source.complete = complete
    if source.held then find_held(source, first) end
  end

  local function new_level(depth, path, above)
    local level = {depth = depth, path = path, above = above, sources = {}, seen = {}, waiting = {}, first = 1, last = 0}
    local names = depth == 1 and demand.queues or depth == 2 and demand.tenants
    local tenant = depth == 3 and sub(path, 5, 8)
    local width = 0
    for i = 1, #types do
      local type = types[i]
      if type.open and not (tenant and type.avoid and type.avoid[tenant] == true) then
        local source = {type = type, prefix = LETTERS[depth] .. type.number .. path, at = 1, size = page}
        if names then
          read_named(source, names)
        else
          source.rests, source.complete = read_ring(source.prefix, nil, page)
        end
        if #source.rests > 0 then
          level.sources[#level.sources + 1] = source
          width = math.max(width, #source.rests)
          if depth == 3 and type.strict then
            source.held = {}
            find_held(source, 1)
          end
        end
      end
    end
    level.only = #level.sources == 1 and level.sources[1]
    level.width = (above and above.level.width or 1) * math.max(width, 1)
    return level
  end

  -- Whether a name of a level may be served for the type of a source.
  local function may_serve(level, source, name)
    local depth, paused, avoid = level.depth, demand.paused, source.type.avoid
    if depth < 3 then
      if paused and paused[level.path .. name] then return false end
      return not (depth == 2 and avoid and avoid[name] == true)
    end
    if source.held and source.held[name] then return false end
    local lanes = avoid and avoid[sub(level.path, 5, 8)]
    return not (lanes and lanes[name])
  end

  -- The next name of a source that was not served yet, with its turn; or nil.
  local function head(level, source)
    if not source.type.open then return nil end
    while true do
      local rest = source.rests[source.at]
      if rest then
        local name = sub(rest, 7, 10)
        if not level.seen[name] and (not filters or may_serve(level, source, name)) then return rest end
        source.at = source.at + 1
      elseif source.complete then
        return nil
      else
        read_more(source)
      end
    end
  end

  -- The least recently served child that may have rows to take, or nil.
  local function next_child(level)
    local source, rest = level.only, nil
    if source then
      rest = head(level, source)
    else
      local least
      for i = 1, #level.sources do
        local found = head(level, level.sources[i])
        local turn = found and unpack_bytes('>I6', found)
        if turn and (not least or turn < least) then source, rest, least = level.sources[i], found, turn end
      end
    end
    if rest then
      source.at = source.at + 1
      local name = sub(rest, 7, 10)
      if not level.only then level.seen[name] = true end
      return {name = name, rest = rest, source = source, level = level}
    end
    local first = level.first
    if first > level.last then return nil end
    local child = level.waiting[first]
    level.waiting[first] = nil
    level.first = first + 1
    return child
  end

  -- Whether a level has no child besides the one that was taken from it.
  local function is_used_up(level)
    if level.first <= level.last then return false end
    local only = level.only
    if only and not filters and only.rests[only.at] then return false end
    for i = 1, #level.sources do
      if head(level, level.sources[i]) then return false end
    end
    return true
  end

  -- Where a child stands in the ring of a source, or nil.
  local function find_entry(level, source, child)
    if source == child.source then return child.rest end
    if source.complete then
      if not source.by_name then
        source.by_name = {}
        for i = 1, #source.rests do source.by_name[sub(source.rests[i], 7, 10)] = source.rests[i] end
      end
      return source.by_name[child.name]
    end
    if level.depth < 3 then
      local turn = call('HGET', K.turns, source.prefix .. child.name)
      return turn and turn .. child.name or nil
    end
    -- The same texts, with the other type. See kinds.lua.
    local row, at, texts = call('HGET', K.kinds, sub(child.rest, 11, 14)), 17, {}
    for i = 1, 3 do
      local length = unpack_bytes('>I2', row, at)
      texts[i] = sub(row, at + 2, at + 1 + length)
      at = at + 2 + length
    end
    local k = call('HGET', K.kind, concat(texts, '\0') .. '\0' .. source.type.text)
    local turn = k and call('HGET', K.turns, 'K' .. sub(k, 1, 4))
    return turn and turn .. child.name .. sub(k, 1, 4) or nil
  end

  -- Rows --------------------------------------------------------------------------------------------------

  local function make_kind(kind, source, rest, level)
    kind.k, kind.lane, kind.type, kind.path = sub(rest, 11, 14), sub(rest, 7, 10), source.type, level.path
    kind.source, kind.rest, kind.level, kind.rows, kind.at = source, rest, level, NONE, 1
    if source.type.strict then kind.strict_lane = sub(level.path, 5, 8) .. kind.lane end
    return kind
  end

  -- The kinds of a lane. If there is one, it is the same table as the child.
  local function find_kinds(level, child)
    local own = make_kind(child, child.source, child.rest, level)
    if level.only then return end
    local kinds = {own}
    for i = 1, #level.sources do
      local source = level.sources[i]
      if source ~= child.source and source.type.open then
        local rest = find_entry(level, source, child)
        if rest and may_serve(level, source, child.name) then
          kinds[#kinds + 1] = make_kind({}, source, rest, level)
        end
      end
    end
    if #kinds > 1 then child.kinds = kinds end
  end

  -- Read rows of a kind: as many as it gets if all others have as many names.
  local function read_rows(kind)
    local rows, k = kind.rows, kind.k
    local count = math.min(math.max(math.ceil(most / kind.level.width), 2 * #rows), MOST_READ) + 1
    local found = call('ZRANGEBYLEX', K.ready, #rows > 0 and '(' .. rows[#rows] or '[' .. k, '[' .. k .. HIGHEST, 'LIMIT', 0, count)
    kind.complete = #found < count
    if #rows == 0 then
      kind.rows = found
    else
      for i = 1, #found do rows[#rows + 1] = found[i] end
    end
  end

  -- The next row of a kind that may be served, or nil.
  local function next_row(kind)
    local type = kind.type
    if not type.open or (type.strict and type.strict[kind.strict_lane]) then return nil end
    local row = kind.rows[kind.at]
    if not row and not kind.complete then
      read_rows(kind)
      row = kind.rows[kind.at]
    end
    return row
  end

  -- The next row of a lane, and its kind; or nil.
  local function first_row(child)
    local kinds = child.kinds
    if not kinds then return next_row(child), child end
    local best, first
    for i = 1, #kinds do
      local kind = kinds[i]
      local row = next_row(kind)
      if row then
        if kind.read ~= row then
          kind.read = row
          kind.priority, kind.place = unpack_bytes('>I4I6', row, 5)
        end
        if not best or kind.priority < best.priority or (kind.priority == best.priority and kind.place < best.place) then
          best, first = kind, row
        end
      end
    end
    return first, best
  end

  local function mark_served(child)
    if not child.served then served[#served + 1] = child end
    child.served = services
  end

  local function wait_again(child)
    local level = child.level
    local last = level.last + 1
    level.last = last
    level.waiting[last] = child
  end

  local order = {cut_short = false}

  -- Take up to `left` rows in order, and put them, and their kinds, into these lists. `cut_short` says whether
  -- there was too much to do.
  function order.take(left, rows, kinds)
    local level = top
    local count = 0
    local is_alone = false -- whether there are no other queues and tenants than those of the level
    while left > 0 do
      local child = next_child(level)
      if not child then
        if not level.above then return end
        level = level.above.level -- without the child that has nothing more
      elseif level.depth < 3 then
        if not child.below then child.below = new_level(level.depth + 1, level.path .. child.name, child) end
        level = child.below
        is_alone = level.depth == 3 and is_used_up(child.level) and is_used_up(child.level.above.level)
      else
        if not child.rows then
          if #touched >= MOST_KINDS then
            order.cut_short = true
            return
          end
          find_kinds(level, child)
        end
        local turns = is_alone and is_used_up(level) and left or 1
        local before = count
        while turns > 0 do
          local row, kind = first_row(child)
          if not row then break end
          count = count + 1
          rows[count], kinds[count] = row, kind
          kind.at = kind.at + 1
          local type = kind.type
          if type.strict then type.strict[kind.strict_lane] = true end
          if kind.at == 2 then touched[#touched + 1] = kind end
          if type.left or type.shared then use_room(type, 1) end
          turns = turns - 1
        end
        if count > before then
          left = left - (count - before)
          services = services + 1
          local tenant = level.above
          local queue = tenant.level.above
          mark_served(child)
          mark_served(tenant)
          mark_served(queue)
          wait_again(child)
          if not is_alone or left < 1 then
            wait_again(tenant)
            wait_again(queue)
            level = top
          end
        end
      end
    end
  end

  -- A row was taken, and cannot be handed out.
  function order.give_back(kind)
    local type = kind.type
    use_room(type, -1)
    if type.strict then type.strict[kind.strict_lane] = nil end
  end

  -- Writing -----------------------------------------------------------------------------------------------

  local ring_gone, turns_gone, gone = {}, {}, {}

  local function node_of(level, source, rest)
    return level.depth == 3 and 'K' .. sub(rest, 11, 14) or source.prefix .. sub(rest, 7, 10)
  end

  local function is_empty(source)
    if not source.named then return source.complete and source.gone >= #source.rests end
    local prefix = source.prefix
    return #call('ZRANGEBYLEX', K.ring, '[' .. prefix, '[' .. prefix .. HIGHEST, 'LIMIT', 0, source.gone + 1) <= source.gone
  end

  -- A name has nothing more for the type of a source. Then the names above it may have nothing more either.
  local function leave(level, source, rest)
    ring_gone[#ring_gone + 1] = source.prefix .. rest
    turns_gone[#turns_gone + 1] = node_of(level, source, rest)
    gone[source.prefix .. rest] = true
    source.gone = (source.gone or 0) + 1
    if not is_empty(source) then return end
    local above = level.above
    if not above then
      ring_gone[#ring_gone + 1] = 'Y' .. source.type.number .. source.type.text
      return
    end
    for i = 1, #above.level.sources do
      local upper = above.level.sources[i]
      if upper.type == source.type then leave(above.level, upper, find_entry(above.level, upper, above)) end
    end
  end

  -- Whether a level has names besides one.
  local function has_several(level)
    if level.several == nil then
      level.several = false
      local name
      for i = 1, #level.sources do
        local source = level.sources[i]
        local first = sub(source.rests[1], 7, 10)
        if source.named or not source.complete or #source.rests > 1 or (name and name ~= first) then level.several = true end
        name = first
      end
    end
    return level.several
  end

  local ring_new, turns_new = {}, {}

  -- Decide what to write: who has nothing more, and the turns of the others.
  function order.finish()
    for i = 1, #touched do
      local kind = touched[i]
      if kind.at > #kind.rows and not kind.complete then read_rows(kind) end
      if kind.at > #kind.rows then leave(kind.level, kind.source, kind.rest) end
    end
    local before
    for i = 1, #served do
      local child = served[i]
      local level = child.level
      if has_several(level) then
        before = before or call('INCRBY', K.served, services) - services
        local turn = struct.pack('>I6', before + child.served)
        for j = 1, #level.sources do
          local source = level.sources[j]
          local rest = find_entry(level, source, child)
          if rest and not gone[source.prefix .. rest] then
            ring_gone[#ring_gone + 1] = source.prefix .. rest
            local at = #ring_new
            ring_new[at + 1], ring_new[at + 2] = 0, source.prefix .. turn .. sub(rest, 7)
            turns_new[at + 1], turns_new[at + 2] = node_of(level, source, rest), turn
          end
        end
      end
    end
  end

  -- Write the new turns, and remove the rows that were taken from the set.
  function order.write()
    send('ZREM', K.ring, ring_gone)
    send('HDEL', K.turns, turns_gone)
    send('ZADD', K.ring, ring_new)
    send('HSET', K.turns, turns_new)
    local single = {}
    for i = 1, #touched do
      local rows, last = touched[i].rows, touched[i].at - 1
      if last > 8 then
        send('ZREMRANGEBYLEX', K.ready, {'[' .. rows[1], '[' .. rows[last]})
      else
        for j = 1, last do single[#single + 1] = rows[j] end
      end
    end
    send('ZREM', K.ready, single)
  end

  -- ---------------------------------------------------------------------------------------------------------

  if #members <= SMALL_RING then
    local lengths = {L = 13, Q = 5, T = 9, Y = 1}
    whole = {}
    for i = 1, #members do
      local member = members[i]
      local length = lengths[sub(member, 1, 1)]
      local prefix = sub(member, 1, length)
      local rests = whole[prefix] or {}
      whole[prefix] = rests
      rests[#rests + 1] = sub(member, length + 1)
    end
  end
  add_types()
  if #types == 0 then return nil end
  top = new_level(1, '', nil)
  return order
end
