-- uses: demand
-- Ring: who has ready rows, and whose turn it is. lines.lua has the layout.

local SMALL_RING = 24

-- The beginning of the ring: empty if nothing is ready.
local function ready_ring()
  return call('ZRANGE', K.ring, 0, SMALL_RING)
end

-- A function that reads parts of the ring: the names after `after` with a prefix, and whether these are all.
-- `members`: the beginning of the ring. It is all of it if it is small.
local function ring_reader(members)
  local NONE = {}
  if #members > SMALL_RING then
    return function(prefix, after, limit)
      local found = call('ZRANGEBYLEX', K.ring, after and '(' .. prefix .. after or '[' .. prefix,
        '[' .. prefix .. HIGHEST, 'LIMIT', 0, limit)
      local from = #prefix + 1
      for i = 1, #found do found[i] = sub(found[i], from) end
      return found, #found < limit
    end
  end
  local lengths = {L = 13, Q = 5, T = 9, Y = 1}
  local whole = {} -- by prefix
  for i = 1, #members do
    local member = members[i]
    local length = lengths[sub(member, 1, 1)]
    local prefix = sub(member, 1, length)
    local rests = whole[prefix] or {}
    whole[prefix] = rests
    rests[#rests + 1] = sub(member, length + 1)
  end
  return function(prefix) return whole[prefix] or NONE, true end
end
