-- uses: store kinds rows raw_rows
-- reads
-- Heads: the first ready row of each of several lists of kinds. Arguments: how far their rows are counted, 0 if they are
-- not; for each list, how many kinds, then their numbers. Answers for each, if it has ready rows: how many, as far as they
-- are counted, the place of the first (priority and place), since when it is ready(8), its id, and the number of its kind;
-- else false.

local HIGHEST = string.rep('\255', 17) -- no rest is above this

local MOST_HELD = 1000 -- leased rows that are looked at

local cap, ready = tonumber(ARGV[1]), K.ready

-- Whether rows count as ready, and are in no line: those that are doomed, until a worker has settled them.
local function has_doomed()
  if call('ZCARD', K.doomed) > 0 or call('HLEN', K.held) > MOST_HELD then return true end
  local states = RawRows.fields(K.state, call('HKEYS', K.held))
  for i = 1, #states do
    if states[i] and sub(states[i], 1, 1) == 'r' then return true end
  end
  return false
end

-- By the number of a kind: how many ready rows it has. Without doomed rows the counts say so: to look at `ready` takes
-- eight times as long.
local function counts_of_kinds()
  local kinds, names, found, at = {}, {}, {}, 2
  while at <= #ARGV do
    local last = at + tonumber(ARGV[at])
    for i = at + 1, last do kinds[#kinds + 1], names[#names + 1] = ARGV[i], ARGV[i] .. 'r' end
    at = last + 1
  end
  local counts = RawRows.fields(K.counts, names)
  for i = 1, #kinds do found[kinds[i]] = tonumber(counts[i] or 0) end
  return found
end

local known = cap > 0 and not has_doomed() and counts_of_kinds()
local heads, numbers, sizes = {}, {}, {}
local at, list = 2, 0
while at <= #ARGV do
  local last, first, priority, place, size = at + tonumber(ARGV[at]), false, 0, 0, 0
  list = list + 1
  for i = at + 1, last do
    local k = ARGV[i]
    local head = call('ZRANGEBYLEX', ready, '[' .. k, '+', 'LIMIT', 0, 1)[1]
    if head and sub(head, 1, 4) == k then
      local its_priority, its_place = struct.unpack('>I4I6', head, 5)
      if not first or its_priority < priority or (its_priority == priority and its_place < place) then
        first, priority, place = head, its_priority, its_place
      end
      if size < cap then size = size + (known and known[k] or call('ZLEXCOUNT', ready, '[' .. k, '[' .. k .. HIGHEST)) end
    end
  end
  heads[list], sizes[list] = first, size
  if first then numbers[#numbers + 1] = sub(first, -6) end
  at = last + 1
end
local items, states, row = RawRows.fields(K.item, numbers), RawRows.fields(K.state, numbers), 0
for i = 1, #heads do
  local head = heads[i]
  if head then
    row = row + 1
    local item = items[row]
    local ready_at = states[row] and struct.pack('>d', Rows.get(numbers[row]).ready_at) or sub(item, 12, 19)
    heads[i] = {sizes[i], sub(head, 5, 14), ready_at, RawRows.id(item), sub(head, 1, 4)}
  end
end
return heads
