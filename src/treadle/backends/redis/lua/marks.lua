-- uses: store raw_rows
-- reads
-- Marks: what dead rows died of, those with the newest deaths first. Arguments: a tenant or '', how many marks are
-- behind, how many to look at, a cap. Answers how many were looked at, and for each that has dead rows: the mark,
-- their number up to one more than the cap, when the one submitted first was submitted(8), the row that died last.

local HIGHEST = string.rep('\255', 15) -- no rest is above this
local MOST_TENANTS, MOST_FIRST = 100, 200

local tenant, behind, size, cap = RawRows.text(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function count(prefix)
  return call('ZLEXCOUNT', K.marks, '[' .. prefix, '[' .. prefix .. HIGHEST)
end

-- The last death of a mark and tenant: ended_at(8) n.
local function last_death(prefix)
  local last = call('ZREVRANGEBYLEX', K.marks, '[' .. prefix .. HIGHEST, '[' .. prefix, 'LIMIT', 0, 1)[1]
  return last and sub(last, #prefix + 1)
end

-- The last death of a mark, whosever it is.
local function newest_death(mark)
  if tenant then return last_death(mark .. tenant) end
  local newest
  local from = '[' .. mark
  for _ = 1, MOST_TENANTS do
    local member = call('ZRANGEBYLEX', K.marks, from, '[' .. mark .. HIGHEST .. HIGHEST, 'LIMIT', 0, 1)[1]
    if not member then break end
    local owner = sub(member, 1, #mark + 4)
    local death = last_death(owner)
    if not newest or Store.before(newest, death) then newest = death end
    from = '[' .. owner .. HIGHEST
  end
  return newest
end

-- The row with a mark that was submitted first. Of one tenant: if it is among the first of the mark, or among those of
-- the tenant that died first.
local function first_number(mark)
  local members = call('ZRANGEBYLEX', K.marked, '[' .. mark, '[' .. mark .. HIGHEST, 'LIMIT', 0, tenant and MOST_FIRST or 1)
  for i = 1, #members do
    local rest = sub(members[i], #mark + 1)
    if not tenant or sub(rest, 7, 10) == tenant then return sub(rest, 1, 6) end
  end
  local prefix, first = mark .. tenant, nil
  members = call('ZRANGEBYLEX', K.marks, '[' .. prefix, '[' .. prefix .. HIGHEST, 'LIMIT', 0, MOST_FIRST)
  for i = 1, #members do
    local n = sub(members[i], -6)
    if not first or Store.before(n, first) then first = n end
  end
  return first
end

local names = call('ZREVRANGE', K.marks_last, behind, behind + size - 1)
local found, numbers = {}, {}
for i = 1, #names do
  local mark = struct.pack('>I2', #names[i]) .. names[i]
  local total = count(mark .. (tenant or ''))
  if total > 0 then
    found[#found + 1] = {names[i], math.min(total, cap + 1), first_number(mark)}
    numbers[#numbers + 1] = sub(newest_death(mark), 9, 14)
  end
end
local rows = RawRows.read(numbers)
for i = 1, #found do
  local first = call('HGET', K.item, found[i][3])
  found[i][3], found[i][4] = sub(first, 12, 19), rows[i]
end
return {#names, found}
