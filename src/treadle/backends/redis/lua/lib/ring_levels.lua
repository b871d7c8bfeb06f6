-- uses: demand ring
-- Ring levels: the queues, the tenants of a queue and the lanes of a tenant, and which of them is served next.
--
-- level   the queues (depth 1), the tenants of a queue (2), or the lanes of a tenant (3)
-- source  the ring of one type at a level: the names in it (rests), as far as they were read
-- child   a name of a level, with the level below it or, for a lane, its kinds (see ring_rows.lua)

-- `types`: see ring_types.lua. `read_ring`: see ring.lua. `page`: how many names are read at once.
local function ring_levels(types, read_ring, page)
  local MOST_READ = 1000
  local LETTERS = {'Q', 'T', 'L'}
  local unpack_bytes = struct.unpack
  local filters = demand.paused or next(demand.avoid) or next(demand.strict) -- whether names may be left out

  local Levels = {}

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

  -- The level at a depth below a child. `path`: the numbers above it.
  function Levels.new(depth, path, above)
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
  function Levels.may_serve(level, source, name)
    local depth, paused, avoid = level.depth, demand.paused, source.type.avoid
    if depth < 3 then
      if paused and (paused[level.path .. name] or (depth == 2 and paused['*' .. name])) then return false end
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
        if not level.seen[name] and (not filters or Levels.may_serve(level, source, name)) then return rest end
        source.at = source.at + 1
      elseif source.complete then
        return nil
      else
        read_more(source)
      end
    end
  end

  -- The least recently served child that may have rows to take, or nil.
  function Levels.next_child(level)
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
  function Levels.is_used_up(level)
    if level.first <= level.last then return false end
    local only = level.only
    if only and not filters and only.rests[only.at] then return false end
    for i = 1, #level.sources do
      if head(level, level.sources[i]) then return false end
    end
    return true
  end

  -- Where a child stands in the ring of a source, or nil.
  function Levels.find_entry(level, source, child)
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

  -- A child was served. It comes after all others of its level.
  function Levels.wait_again(child)
    local level = child.level
    local last = level.last + 1
    level.last = last
    level.waiting[last] = child
  end

  return Levels
end
