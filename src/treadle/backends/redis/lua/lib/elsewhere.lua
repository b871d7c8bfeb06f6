-- Elsewhere: what would be stored of a tenant that has moved to another store, or is on its way into this one, is
-- refused: see tenant_moves.py. A tenant that is elsewhere has no kinds, so it is looked at when one is made.
-- `name`: that of the tenant.

local function check_tenant(name)
  local mark = redis.call('HGET', K.claimed, 'treadle.stores\0mark.' .. name)
  local state = mark and cjson.decode(string.sub(mark, 9)).state
  if state == 'away' or state == 'importing' then error({err = 'AWAY the tenant is elsewhere'}) end
end
