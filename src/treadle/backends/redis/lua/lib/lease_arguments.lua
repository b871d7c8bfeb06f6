-- Leases as workers.py sends them: how many tenants, their names, then n(6) token(8) tenant(2: which one) of all
-- leases in one argument, and the id of each. At most 4000.

-- Read them from a place on: their numbers, their tokens, and of each whether its item has its tenant, id and number.
local function lease_arguments(at)
  local tenants = tonumber(ARGV[at])
  local packed = ARGV[at + tenants + 1]
  local numbers, tokens, exist = {}, {}, {}
  if packed == '' then return numbers, tokens, exist end
  local first = at + tenants + 2
  local texts = redis.call('HMGET', K.text, unpack(ARGV, at + 1, at + tenants))
  local found = redis.call('HMGET', K.id, unpack(ARGV, first, first + #packed / 16 - 1))
  for i = 1, #packed / 16 do
    local n, token, tenant = struct.unpack('>c6c8I2', packed, 16 * i - 15)
    numbers[i], tokens[i] = n, token
    local places, text = found[i] or '', texts[tenant]
    for place = 1, #places, 10 do
      if text and string.sub(places, place, place + 9) == n .. text then exist[i] = true end
    end
  end
  return numbers, tokens, exist
end
