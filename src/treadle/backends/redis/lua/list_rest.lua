-- uses: store kinds rows raw_rows list_filter
-- reads
-- List rest: how many rows of some kinds have one of some statuses, without those that a list has found. Arguments: the
-- numbers of the kinds, the letters of the statuses, the numbers of the rows, each one after the other.

local wanted, names = {}, {}
for at = 1, #ARGV[1], 4 do
  local k = sub(ARGV[1], at, at + 3)
  for i = 1, #ARGV[2] do
    names[#names + 1] = k .. sub(ARGV[2], i, i)
    wanted[names[#names]] = true
  end
end
local rest, counts = 0, RawRows.fields(K.counts, names)
for i = 1, #names do rest = rest + tonumber(counts[i] or 0) end

local numbers = {}
for at = 1, #ARGV[3], 6 do numbers[#numbers + 1] = sub(ARGV[3], at, at + 5) end
local items, states = RawRows.fields(K.item, numbers), RawRows.fields(K.state, numbers)
for i = 1, #numbers do
  if items[i] and wanted[sub(items[i], 2, 5) .. ListFilter.status(states[i])] then rest = rest - 1 end
end
return rest
