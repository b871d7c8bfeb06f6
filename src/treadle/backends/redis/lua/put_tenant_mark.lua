-- uses: store kinds tenant_marks
-- flags: allow-oom
-- Replace the mark of a tenant. What was staged of it is dropped.
-- ARGV: tenant, its mark as it is stored (empty: none), the new one, 1 if the tenant is elsewhere from now on, 1 if the
-- store must have nothing of it
-- Answers 1; 0 if the mark is another one; or what the store has of it.

local tenant = ARGV[1]
local prefix = tenant .. '\0'
if (call('HGET', K.claimed, TenantMarks.name(tenant)) or '') ~= ARGV[2] then return 0 end

local function in_the_way()
  for _, kind in ipairs(Kinds.of_tenant(tenant)) do
    for letter in string.gmatch('bwrRSDC', '.') do
      if tonumber(call('HGET', K.counts, kind.k .. letter) or 0) > 0 then return 'items' end
    end
  end
  local cursor = '0'
  repeat
    local found = call('HSCAN', K.claimed, cursor, 'COUNT', 1000)
    cursor = found[1]
    for i = 1, #found[2], 2 do
      if sub(found[2][i], 1, #prefix) == prefix then return 'claimed keys' end
    end
  until cursor == '0'
end

local found = ARGV[5] == '1' and in_the_way()
if found then return found end
TenantMarks.put(tenant, ARGV[3])
if ARGV[4] == '1' then TenantMarks.shut(tenant) end
local staged = tonumber(call('HGET', K.arriving, tenant) or 0)
local dropped = {tenant}
for i = 1, staged do dropped[i + 1] = prefix .. struct.pack('>I4', i) end
if staged > 0 then Store.drop(K.arriving, dropped) end
Store.flush()
return 1
