-- uses: store kinds rows raw_rows
-- reads
-- Heads: the first ready row of kinds. Arguments: 1 if their rows are counted too, else 0; numbers of kinds. Answers for each,
-- if it has ready rows: how many or 0, its place (priority and place), since when it is ready(8), and its id; else
-- false.

local HIGHEST = string.rep('\255', 17) -- no rest is above this

local counts_rows = ARGV[1] == '1'
local heads, numbers = {}, {}
for i = 2, #ARGV do
  local k = ARGV[i]
  local head = call('ZRANGEBYLEX', K.ready, '[' .. k, '[' .. k .. HIGHEST, 'LIMIT', 0, 1)[1]
  heads[i - 1] = head or false
  if head then numbers[#numbers + 1] = sub(head, -6) end
end
local items, states = RawRows.fields(K.item, numbers), RawRows.fields(K.state, numbers)
local at = 0
for i = 1, #heads do
  local head = heads[i]
  if head then
    at = at + 1
    local k, item = sub(head, 1, 4), items[at]
    local count = counts_rows and call('ZLEXCOUNT', K.ready, '[' .. k, '[' .. k .. HIGHEST) or 0
    local ready_at = states[at] and struct.pack('>d', Rows.get(numbers[at]).ready_at) or sub(item, 12, 19)
    heads[i] = {count, sub(head, 5, 14), ready_at, RawRows.id(item)}
  end
end
return heads
