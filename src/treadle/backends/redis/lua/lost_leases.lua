-- uses: store rows leases lease_arguments
-- reads
-- Lost leases: why leases do not own their rows.
-- ARGV: leases (lib/lease_arguments.lua)
-- Answers: token and letter (lib/leases.lua) of each that is lost; not of those that settled their rows

local numbers, tokens, exist = lease_arguments(1)
local lost = {}
Rows.load(numbers)
for i = 1, #numbers do
  local row, token = exist[i] and Rows.get(numbers[i]), tokens[i]
  local why = not Leases.owns(row, token) and Leases.why_lost(row, token)
  if why then lost[#lost + 1] = token .. why end
end
return lost
