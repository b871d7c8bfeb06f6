-- uses: clock store kinds rows lines groups retention dependencies raw_rows worker_list
-- reads
-- Explain: why an item is where it is. Arguments: a tenant or '', an id. Answers false, or: now(8), the row as from `get`,
-- need met open, its prerequisites that exist (name, status, type, one after the other), since
-- when its type and every type is unknown(8), how many rows are ahead, how many lines
-- its queue has, who holds its lane, all workers.

local MOST_AHEAD, MOST_LANES = 1000, 100 -- as in treadle.store.rules.watching

local given = RawRows.text(ARGV[1])
local row = Rows.find(given, ARGV[2])
if not row then return false end
local kind, names = row.kind, row.kind.names

local function numbers_of(after)
  local numbers = {}
  Store.load(K.id, after)
  for _, name in ipairs(after) do
    local n = RawRows.number(Store.get(K.id, name), kind.tenant)
    if n then numbers[#numbers + 1] = n end
  end
  return numbers
end

-- The status and type of those in `after` that exist.
local function prerequisites()
  local after, found = Rows.extra(row).a or {}, {}
  Rows.load(numbers_of(after))
  for _, name in ipairs(after) do
    local is_group = sub(name, 1, 1) == GROUP_MARK
    local stored
    if is_group then
      stored = Groups.find(kind.tenant, sub(name, 2))
    else
      stored = Rows.find(kind.tenant, name)
    end
    if stored then
      found[#found + 1] = name
      found[#found + 1] = is_group and (Dependencies.ended(kind.tenant, name) or 'R') or stored.status
      found[#found + 1] = stored.n and stored.kind.names.type or stored.type
    end
  end
  return found
end

-- The types of which rows are ready: the text of each, by its number.
local function ready_types()
  local types = {}
  for i, rest in ipairs(Store.list(K.ring, 'Y')) do types[i] = {number = sub(rest, 1, 4), name = sub(rest, 5)} end
  return types
end

local function count_ahead(types)
  local place = row.priority .. struct.pack('>I6', row.place) .. row.n
  local found = 0
  for _, type in ipairs(types) do
    local name = names.tenant .. '\0' .. names.queue .. '\0' .. names.lane .. '\0' .. type.name
    local stored = found < MOST_AHEAD and Store.get(K.kind, name)
    local k = stored and sub(stored, 1, 4)
    if k then found = found + call('ZLEXCOUNT', K.ready, '[' .. k, '(' .. k .. place) end
  end
  return math.min(found, MOST_AHEAD)
end

-- The lines of its queue that have ready rows, of one tenant or of all.
local function count_lanes(types)
  local found, count = {}, 0
  for _, type in ipairs(types) do
    local prefix = 'L' .. type.number .. kind.queue .. (given or '')
    local members = call('ZRANGEBYLEX', K.ring, '[' .. prefix, '[' .. prefix .. string.rep('\255', 19), 'LIMIT', 0, MOST_LANES)
    for _, member in ipairs(members) do
      local line = sub(member, 10, 13) .. sub(member, 20, 23) -- tenant and lane
      if not found[line] and count < MOST_LANES then
        found[line] = true
        count = count + 1
      end
    end
  end
  return count
end

local function lane_holder()
  local n = Lines.lane_holder(kind)
  local holder = n and n ~= row.n and Rows.get(n)
  return holder and holder.id or ''
end

local gate = row.status == 'b' and Dependencies.gate(row) or {need = 0, met = 0, open = 0}
local shows_prerequisites = row.status == 'b' or row.verdict ~= 0
local is_ready = row.status == 'r' and row.verdict == 0
local types = is_ready and ready_types() or {}
return {
  now8, RawRows.read({row.n}, true)[1], {gate.need, gate.met, gate.open},
  shows_prerequisites and prerequisites() or {},
  {Store.get(K.unknown_since, names.type) or '', Store.get(K.unknown_since, '') or ''},
  is_ready and count_ahead(types) or 0, is_ready and count_lanes(types) or 0, is_ready and lane_holder() or '',
  Workers.list(),
}
