-- reads
-- Where the items of runs are now. It knows the bytes of rows (lib/row_bytes.lua).
-- ARGV: tenants and ids in turn. Answers for each the letter of its status (lib/row_bytes.lua), or an empty text.

local call, sub = redis.call, string.sub
local SHORT = {p = 'R', q = 'R', P = 'S'}

local function number_of(tenant, id)
  local text = call('HGET', K.text, tenant)
  local places = text and call('HGET', K.id, id) or ''
  for at = 1, #places, 10 do
    if sub(places, at + 6, at + 9) == text then return sub(places, at, at + 5) end
  end
end

local answer = {}
for i = 1, #ARGV, 2 do
  local n, letter = number_of(ARGV[i], ARGV[i + 1]), ''
  if n then
    local state = call('HGET', K.state, n)
    letter = state and sub(state, 1, 1) or 'r'
    letter = SHORT[letter] or letter
  end
  answer[#answer + 1] = letter
end
return answer
