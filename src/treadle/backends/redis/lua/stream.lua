-- uses: store raw_rows
-- reads
-- Stream: chunks of an item. Arguments: a tenant or '', an id, the number before the first, how many.
-- Answers the chunks: see lib/steps.lua.

local n = RawRows.number(Store.get(K.id, ARGV[2]), RawRows.text(ARGV[1]))
local count = n and Store.get(K.recorded, n .. 'c')
if not count then return {} end
local since, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local last, fields = struct.unpack('>I4', count), {}
for number = since + 1, math.min(since + limit, last) do
  fields[#fields + 1] = n .. 'c' .. struct.pack('>I4', number)
end
return RawRows.fields(K.recorded, fields)
