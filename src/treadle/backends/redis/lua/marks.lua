-- uses: store raw_rows
-- reads
-- Marks: what dead rows died of, those with the newest deaths first. Arguments: a tenant or '', how many marks are
-- behind, how many to look at, a cap. Answers how many were looked at, and for each that has dead rows: the mark,
-- their number up to one more than the cap, when the one submitted first was submitted(8), the row that died last, and
-- for each release under which rows died its name, how many, when the first died(8), and when it began(8), or '', one after the
-- other.

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

local MOST_GROUPS = 500 -- tenants and releases of a mark
local FEW = 100 -- a cap up to which no more deaths are looked at for their releases than are counted
local has_releases = call('EXISTS', K.mark_releases) == 1

-- Under which releases rows with a mark died, for each tenant. If there are too many, none.
local function releases_of(mark)
  local prefix, answer, seen = mark .. (tenant or ''), {}, 0
  local from, to = '[' .. prefix, '[' .. prefix .. HIGHEST .. HIGHEST
  for _ = 1, MOST_GROUPS do
    local first = call('ZRANGEBYLEX', K.mark_releases, from, to, 'LIMIT', 0, 1)[1]
    if not first then return answer end
    local group = sub(first, 1, #mark + 5 + first:byte(#mark + 5))
    local release = sub(group, #mark + 6)
    local total = call('ZLEXCOUNT', K.mark_releases, '[' .. group, '[' .. group .. HIGHEST)
    local began = call('HGET', K.releases, release) or ''
    for _, value in ipairs({release, total, sub(first, #group + 1, #group + 8), began}) do answer[#answer + 1] = value end
    seen = seen + total
    if cap <= FEW and seen >= cap then return answer end
    from = '[' .. group .. HIGHEST
  end
  return {}
end

local names = call('ZREVRANGE', K.marks_last, behind, behind + size - 1)
local found, numbers = {}, {}
for i = 1, #names do
  local mark = struct.pack('>I2', #names[i]) .. names[i]
  local total = count(mark .. (tenant or ''))
  if total > 0 then
    found[#found + 1] = {names[i], math.min(total, cap + 1), first_number(mark)}
    numbers[#numbers + 1] = sub(newest_death(mark), 9, 14)
    found[#found][5] = has_releases and releases_of(mark) or {}
  end
end
local rows = RawRows.read(numbers)
for i = 1, #found do
  local first = call('HGET', K.item, found[i][3])
  found[i][3], found[i][4] = sub(first, 12, 19), rows[i]
end
return {#names, found}
