-- uses: demand ring_levels
-- Ring rows: the ready rows of a lane, in order.
--
-- kind  k, type, path (queue and tenant), lane, and its first ready rows as they stand in the set

-- `Levels`: see ring_levels.lua. `most`: how many rows will be taken at most.
local function ring_rows(Levels, most)
  local MOST_READ = 1000
  local NONE = {}
  local unpack_bytes = struct.unpack
  local RingRows = {}

  local function make_kind(kind, source, rest, level)
    kind.k, kind.lane, kind.type, kind.path = sub(rest, 11, 14), sub(rest, 7, 10), source.type, level.path
    kind.source, kind.rest, kind.level, kind.rows, kind.at = source, rest, level, NONE, 1
    if source.type.strict then kind.strict_lane = sub(level.path, 5, 8) .. kind.lane end
    return kind
  end

  -- The kinds of a lane. If there is one, it is the same table as the child.
  function RingRows.find_kinds(level, child)
    local own = make_kind(child, child.source, child.rest, level)
    if level.only then return end
    local kinds = {own}
    for i = 1, #level.sources do
      local source = level.sources[i]
      if source ~= child.source and source.type.open then
        local rest = Levels.find_entry(level, source, child)
        if rest and Levels.may_serve(level, source, child.name) then
          kinds[#kinds + 1] = make_kind({}, source, rest, level)
        end
      end
    end
    if #kinds > 1 then child.kinds = kinds end
  end

  -- Read rows of a kind: as many as it gets if all others have as many names.
  function RingRows.read_rows(kind)
    local rows, k = kind.rows, kind.k
    local count = math.min(math.max(math.ceil(most / kind.level.width), 2 * #rows), MOST_READ) + 1
    local found = call('ZRANGEBYLEX', K.ready, #rows > 0 and '(' .. rows[#rows] or '[' .. k, '[' .. k .. HIGHEST, 'LIMIT', 0, count)
    if #found + #rows == 0 then error(LOST) end
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
      RingRows.read_rows(kind)
      row = kind.rows[kind.at]
    end
    return row
  end

  -- The next row of a lane, and its kind; or nil.
  function RingRows.first_row(child)
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

  return RingRows
end
