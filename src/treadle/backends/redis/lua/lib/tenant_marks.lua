-- uses: store kinds
-- Tenant marks: who owns a tenant. They are claimed keys: see tenant_moves.py.

local TenantMarks = {}

function TenantMarks.name(tenant) return 'treadle.stores\0mark.' .. tenant end

-- `row`: the instant(8) until which it is claimed, and the mark.
function TenantMarks.put(tenant, row)
  local name = TenantMarks.name(tenant)
  Store.set(K.claimed, name, row)
  Store.score(K.claimed_until, name, struct.unpack('>d', row))
end

-- The tenant is elsewhere from now on. A stage that is open may have items of it, and can no longer be decided.
-- Kinds without items are forgotten: see elsewhere.lua.
function TenantMarks.shut(tenant)
  local stages = call('HGETALL', K.stages)
  for i = 1, #stages, 2 do
    if stages[i] ~= 'unfolding' then Store.set(K.stages, stages[i], 'x' .. sub(stages[i + 1], 2)) end
  end
  Kinds.forget_empty(Kinds.of_tenant(tenant))
end
