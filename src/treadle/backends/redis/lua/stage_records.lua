-- uses: store kinds tenant_marks
-- Keep records of a tenant that comes. Nothing else looks at them.
--   arriving  tenant -> how many; tenant 0 number(4) -> a record
-- ARGV: tenant, its mark as it is stored, records...
-- Answers 0 if the mark is another one.

local tenant = ARGV[1]
if (call('HGET', K.claimed, TenantMarks.name(tenant)) or '') ~= ARGV[2] then return 0 end
local before = tonumber(call('HGET', K.arriving, tenant) or 0)
for i = 3, #ARGV do Store.set(K.arriving, tenant .. '\0' .. struct.pack('>I4', before + i - 2), ARGV[i]) end
Store.set(K.arriving, tenant, string.format('%d', before + #ARGV - 2))
Store.flush()
return 1
