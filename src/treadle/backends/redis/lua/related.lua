-- uses: clock store kinds rows groups retention dependencies raw_rows
-- reads
-- Related: what has to do with an item. Arguments: a tenant or '', an id, how many of each kind. Answers false, or its
-- children and its dependents: id, status and type, one after the other.

local row = Rows.find(RawRows.text(ARGV[1]), ARGV[2])
if not row then return false end
local count = tonumber(ARGV[3])

local function in_short(numbers)
  table.sort(numbers, Store.before)
  local shown = {}
  for i = 1, math.min(#numbers, count) do shown[i] = numbers[i] end
  Rows.load(shown)
  local answer = {}
  for _, n in ipairs(shown) do
    local found = Rows.get(n)
    if found then
      answer[#answer + 1] = found.id
      answer[#answer + 1] = found.status
      answer[#answer + 1] = found.kind.names.type
    end
  end
  return answer
end

local function dependents()
  local numbers, seen = {}, {}
  for _, name in ipairs({row.id, GROUP_MARK .. row.id}) do
    for _, key in ipairs({K.waiters, K.tolerant, K.unmet}) do
      for _, n in ipairs(Store.list(key, Dependencies.name(row.kind.tenant, name), count)) do
        if not seen[n] then
          seen[n] = true
          numbers[#numbers + 1] = n
        end
      end
    end
  end
  return numbers
end

return {in_short(Store.list(K.children, row.n, count)), in_short(dependents())}
