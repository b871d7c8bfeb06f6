-- uses: store raw_rows
-- reads
-- Ready kinds: the kinds of a queue that have ready rows. Argument: the queue. Answers their numbers and rows, one after
-- the other: see kinds.lua.

local queue = Store.get(K.text, ARGV[1])
if not queue then return {} end

local values, numbers = call('HGETALL', K.counts), {}
for i = 1, #values, 2 do
  if sub(values[i], 5) == 'r' and tonumber(values[i + 1]) > 0 then numbers[#numbers + 1] = sub(values[i], 1, 4) end
end
local rows, found = RawRows.fields(K.kinds, numbers), {}
for i = 1, #numbers do
  if rows[i] and sub(rows[i], 5, 8) == queue then
    found[#found + 1] = numbers[i]
    found[#found + 1] = rows[i]
  end
end
return found
