-- uses: store kinds rows raw_rows
-- reads
-- Heads: the first ready row of each of several lists of kinds. Arguments: how far their rows are counted, 0 if they are
-- not; for each list, how many kinds, then their numbers. Answers for each, if it has ready rows: how many, as far as they
-- are counted, the place of the first (priority and place), since when it is ready(8), its id, and the number of its kind;
-- else false.

local HIGHEST = string.rep('\255', 17) -- no rest is above this

local cap, ready = tonumber(ARGV[1]), K.ready
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
      if size < cap then size = size + call('ZLEXCOUNT', ready, '[' .. k, '[' .. k .. HIGHEST) end
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
