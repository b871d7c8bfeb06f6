-- uses: store raw_rows
-- reads
-- Logs: what attempts of an item have logged, the last written last. Arguments: a tenant or '', an id. See lib/steps.lua.

local n = RawRows.number(Store.get(K.id, ARGV[2]), RawRows.text(ARGV[1]))
local tokens = n and Store.get(K.recorded, n .. 'l')
if not tokens then return {} end
local fields = {}
for at = 1, #tokens, 8 do fields[#fields + 1] = n .. 'l' .. sub(tokens, at, at + 7) end
return RawRows.fields(K.recorded, fields)
