-- uses: store raw_rows
-- reads
-- Ready kinds: the kinds of a queue that have ready rows, as the ring has them (lines.lua). Argument: the queue. Answers
-- their numbers and rows, one after the other: see kinds.lua.

local HIGHEST = string.rep('\255', 19) -- no rest is above this

local queue = Store.get(K.text, ARGV[1])
if not queue then return {} end

local queues, numbers = call('ZRANGEBYLEX', K.ring, '[Q', '(R'), {}
for i = 1, #queues do
  if sub(queues[i], -4) == queue then
    local lines = 'L' .. sub(queues[i], 2, 5) .. queue
    local found = call('ZRANGEBYLEX', K.ring, '[' .. lines, '[' .. lines .. HIGHEST)
    for j = 1, #found do numbers[#numbers + 1] = sub(found[j], -4) end
  end
end
local rows, found = RawRows.fields(K.kinds, numbers), {}
for i = 1, #numbers do
  if rows[i] then
    found[#found + 1] = numbers[i]
    found[#found + 1] = rows[i]
  end
end
return found
