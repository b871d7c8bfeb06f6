-- uses: demand ring_levels
-- Ring changes: the turns of those that a claim has served, and which of them have nothing more.
--
-- `Levels`: see ring_levels.lua. `read_rows`: see ring_rows.lua. `touched`: the kinds of which rows were taken.
-- `served`: the children that were served.
local function ring_changes(Levels, read_rows, touched, served)
  local find_entry = Levels.find_entry
  local RingChanges = {}

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

  -- Decide what to write. `services`: how often a child was served.
  function RingChanges.decide(services)
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
  function RingChanges.write()
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

  return RingChanges
end
