-- uses: store raw_rows
-- reads
-- Marks: what dead rows died of, those with the newest deaths first. Arguments: a tenant or '', how many marks are
-- behind, how many to look at, a cap, and a release, if it is asked for its marks. Answers how many were looked at, and for
-- each that has dead rows: the mark, their number up to one more than the cap, when the one submitted first was
-- submitted(8), the row that died last, and for each release under which rows died its name, how many, when the first
-- died(8), and when it began(8), or '', one after the other. Two of these are false for a mark that has another release.

local HIGHEST = string.rep('\255', 15) -- no rest is above this
local byte = string.byte
local MOST_TENANTS, MOST_FIRST, SOME_FIRST = 100, 200, 25

local tenant, behind, size, cap = RawRows.text(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local wanted = ARGV[5]

local function count(prefix)
  return call('ZLEXCOUNT', K.marks, '[' .. prefix, '[' .. prefix .. HIGHEST)
end

-- The number of the row with a mark that died last, whosever it is.
local function last_number(mark)
  local newest_at, newest = -1, -1
  local last = '[' .. mark .. (tenant or HIGHEST) .. HIGHEST
  for _ = 1, MOST_TENANTS do
    local member = call('ZREVRANGEBYLEX', K.marks, last, '[' .. mark .. (tenant or ''), 'LIMIT', 0, 1)[1]
    if not member then break end
    local died_at, n = struct.unpack('>dI6', member, #mark + 5)
    if died_at > newest_at or (died_at == newest_at and n > newest) then newest_at, newest = died_at, n end
    last = '(' .. sub(member, 1, #mark + 4)
  end
  return struct.pack('>I6', newest)
end

-- The row with a mark that was submitted first. Of one tenant: if it is among the first of the mark, or among those of
-- the tenant that died first.
local function first_number(mark)
  for behind = 0, tenant and MOST_FIRST - SOME_FIRST or 0, SOME_FIRST do
    local members = call('ZRANGEBYLEX', K.marked, '[' .. mark, '[' .. mark .. HIGHEST, 'LIMIT', behind, tenant and SOME_FIRST or 1)
    for i = 1, #members do
      local rest = sub(members[i], #mark + 1)
      if not tenant or sub(rest, 7, 10) == tenant then return sub(rest, 1, 6) end
    end
    if #members < SOME_FIRST then break end
  end
  local prefix, first = mark .. tenant, nil
  local members = call('ZRANGEBYLEX', K.marks, '[' .. prefix, '[' .. prefix .. HIGHEST, 'LIMIT', 0, MOST_FIRST)
  for i = 1, #members do
    local n = sub(members[i], -6)
    if not first or Store.before(n, first) then first = n end
  end
  return first
end

local MOST_GROUPS = 500 -- tenants and releases of a mark
local FEW = 100 -- a cap up to which no more deaths are looked at for their releases than are counted
local MOST_DEATHS = 1000 -- of a mark that are read at once: of more, the tenants and releases one by one
local has_releases = call('EXISTS', K.mark_releases) == 1

local began = {} -- when releases began, by name

local function began_at(release)
  if began[release] == nil then began[release] = call('HGET', K.releases, release) or '' end
  return began[release]
end

-- Under which releases rows with a mark died: for each its name, how many, when the first died and when it began. None if
-- they are too many to be counted.
local function releases_of(mark, total)
  local releases, names, seen = {}, {}, 0

  local function add(name, count, died_at)
    local known = releases[name]
    if not known then
      known = {0, died_at}
      releases[name], names[#names + 1] = known, name
    end
    known[1], seen = known[1] + count, seen + count
    if died_at < known[2] then known[2] = died_at end
  end

  local prefix, at = mark .. (tenant or ''), #mark + 5
  local from, to = '[' .. prefix, '[' .. prefix .. HIGHEST .. HIGHEST
  if cap > FEW and total <= MOST_DEATHS then
    local members = call('ZRANGEBYLEX', K.mark_releases, from, to)
    for i = 1, #members do
      local member = members[i]
      local last = at + byte(member, at)
      add(sub(member, at + 1, last), 1, (struct.unpack('>d', member, last + 1)))
    end
  else
    local groups = 0
    while cap > FEW or seen < cap do
      local first = call('ZRANGEBYLEX', K.mark_releases, from, to, 'LIMIT', 0, 1)[1]
      if not first then break end
      groups = groups + 1
      if groups == MOST_GROUPS then return {} end
      local last = at + byte(first, at)
      local group = sub(first, 1, last)
      from = '[' .. group .. HIGHEST
      add(sub(first, at + 1, last), call('ZLEXCOUNT', K.mark_releases, '[' .. group, from), (struct.unpack('>d', first, last + 1)))
    end
  end
  local answer = {}
  for i = 1, #names do
    local known = releases[names[i]]
    answer[4 * i - 3], answer[4 * i - 2] = names[i], known[1]
    answer[4 * i - 1], answer[4 * i] = struct.pack('>d', known[2]), began_at(names[i])
  end
  return answer
end

local names = call('ZREVRANGE', K.marks_last, behind, behind + size - 1)
local found, numbers, places = {}, {}, {}
for i = 1, #names do
  local mark = struct.pack('>I2', #names[i]) .. names[i]
  local total = count(mark .. (tenant or ''))
  if total > 0 then
    local releases = has_releases and releases_of(mark, total) or {}
    found[#found + 1] = {names[i], math.min(total, cap + 1), false, false, releases}
    if not wanted or (#releases == 4 and releases[1] == wanted) then
      found[#found][3] = first_number(mark)
      numbers[#numbers + 1], places[#places + 1] = last_number(mark), #found
    end
  end
end
local rows = RawRows.read(numbers)
for i = 1, #places do
  local mark = found[places[i]]
  mark[3], mark[4] = sub(call('HGET', K.item, mark[3]), 12, 19), rows[i]
end
return {#names, found}
