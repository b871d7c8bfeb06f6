-- uses: lease_arguments
-- flags: allow-oom
-- beside stages
-- Begin: count the attempts of leases. It knows the bytes of rows (lib/row_bytes.lua), since it is called often.
-- ARGV: leases (lib/lease_arguments.lua), at least one
-- Answers: the tokens of leases that do not own their rows

local sub = string.sub
local BEGUN = 1

-- The row as begun. nil: it has begun.
local function begun(state)
  local letter = sub(state, 1, 1)
  if letter == 'q' then return 'p' .. sub(state, 2) end
  if letter == 'p' then return nil end
  local flags = state:byte(10)
  if flags % 2 == BEGUN then return nil end
  local attempt = struct.unpack('>I4', state, 13)
  return sub(state, 1, 9) .. string.char(flags + BEGUN) .. sub(state, 11, 12)
    .. struct.pack('>I4', attempt + 1) .. sub(state, 17)
end

local numbers, tokens, exist = lease_arguments(1)
local states = redis.call('HMGET', K.state, unpack(numbers))
local changed, lost = {}, {}
for i = 1, #numbers do
  local state, token = states[i], tokens[i]
  if not state or not exist[i] or sub(state, 2, 9) ~= token or sub(state, 1, 1) == 'P' then
    lost[#lost + 1] = token
  else
    local new = begun(state)
    if new then
      changed[#changed + 1] = numbers[i]
      changed[#changed + 1] = new
    end
  end
end
if #changed > 0 then redis.call('HSET', K.state, unpack(changed)) end
return lost
