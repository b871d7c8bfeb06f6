-- uses: store raw_rows
-- reads
-- Get: items with their history. Arguments: a tenant or '', ids. Answers a row, or false, for each id.

local tenant = RawRows.text(ARGV[1])
local ids = {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
local places = RawRows.fields(K.id, ids)
local numbers, asked = {}, {}
for i = 1, #ids do
  local n = RawRows.number(places[i], tenant)
  if n then
    numbers[#numbers + 1] = n
    asked[#asked + 1] = i
  end
end
local rows = RawRows.read(numbers, true)
local answer = {}
for i = 1, #ids do answer[i] = false end
for i = 1, #asked do answer[asked[i]] = rows[i] end
return answer
