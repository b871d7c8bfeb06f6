-- uses: store kinds rows raw_rows list_filter
-- reads
-- List whole: how many rows a list can find at most. Arguments: a map with the tenant, queue and type of its filter, the
-- letters of the statuses. Answers the numbers of the kinds that have such rows, one after the other, and how many these are.

local filter = ListFilter.new(cmsgpack.unpack(ARGV[1]))
local all, kinds = call('HGETALL', K.kinds), {}
for i = 1, #all, 2 do
  if ListFilter.is_kind(filter, all[i + 1]) then kinds[#kinds + 1] = all[i] end
end

local names, letters = {}, #ARGV[2]
for i = 1, #kinds do
  for j = 1, letters do names[#names + 1] = kinds[i] .. sub(ARGV[2], j, j) end
end
local counts, found, whole = RawRows.fields(K.counts, names), {}, 0
for i = 1, #kinds do
  local count = 0
  for at = (i - 1) * letters + 1, i * letters do count = count + tonumber(counts[at] or 0) end
  if count > 0 then found[#found + 1], whole = kinds[i], whole + count end
end
return {concat(found), whole}
