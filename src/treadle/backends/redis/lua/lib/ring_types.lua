-- uses: demand ring
-- Ring types: the types with ready rows that a claim has room for.
--
-- A type is a table: number, text, left (room; nil for any), shared (room that it shares), open (whether there is
-- room), letter (of its new leases), avoid, strict (by tenant and lane: whether this call has taken a row of it).

-- A list of them, and a function that counts rows that are taken. `read_ring`: see ring.lua.
local function ring_types(read_ring)
  local MANY_TYPES = 64
  local types = {}

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
      shared = demand.shared[text], avoid = demand.avoid[text], strict = demand.strict[text] and {},
      letter = demand.buffered[text] and 'q' or 'p',
    }
    update_open(type)
    if type.open then types[#types + 1] = type end
  end
  return types, use_room
end
