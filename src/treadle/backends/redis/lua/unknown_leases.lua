-- uses: clock store rows workers worker_removal
-- reads
-- Unknown leases of a worker. ARGV: its name, the tokens that it knows.
-- Answers: now(8), then the rows

local worker = Workers.get(ARGV[1])
local answer = {now8}
if not worker then return answer end
local tokens = {}
for at = 1, #ARGV[2], 8 do tokens[sub(ARGV[2], at, at + 7)] = true end
for _, row in ipairs(Workers.rows(worker)) do
  if not tokens[row.token] then answer[#answer + 1] = Rows.raw(row) end
end
return answer
