-- uses: clock store kinds rows groups dependencies trees
-- Repair: which items a requeue opens again. The same as treadle.store.rules.repair.
--
-- An item is opened if its condition can be met once all of them are open. So is an item that died
-- unsatisfiable and waits for one of them. Items that wait for each other stay as they are.

local Repair = {}

-- How a prerequisite of an ended row has ended, or nil if it is open. One that no longer exists counts as met
-- for a row whose condition was met before; otherwise it is open.
function Repair.ended(row, name)
  if not Dependencies.exists(row.kind.tenant, name) then return not row.unreleased and 'S' or nil end
  return Dependencies.ended(row.kind.tenant, name)
end

-- The rows that a requeue of `asked` opens, those asked for first; and the names (tenant and name) of items and
-- groups that are open again. `alone`: no others than those asked for.
function Repair.plan(asked, alone)
  local opened, order = {}, {} -- rows
  local names, news = {}, {} -- what is open again, by its full name; and in order
  local lacking = {} -- by row: how many more of its prerequisites must open
  local in_the_way = {} -- by full name: rows

  local function open(row)
    opened[row] = true
    order[#order + 1] = row
    local tenant = row.kind.tenant
    for _, name in ipairs({row.id, GROUP_MARK .. (Rows.extra(row).g or row.id)}) do
      local full = Dependencies.name(tenant, name)
      if not names[full] then
        names[full] = true
        news[#news + 1] = {tenant = tenant, name = name, full = full}
      end
    end
  end

  -- Open a row, unless too many of its prerequisites have ended without counting.
  local function consider(row)
    if opened[row] or lacking[row] then return end
    local extra, tenant = Rows.extra(row), row.kind.tenant
    local missing, ways = extra.n or 0, {}
    for _, name in ipairs(extra.a or {}) do
      local full = Dependencies.name(tenant, name)
      local status = not names[full] and Repair.ended(row, name)
      if not status or Dependencies.counts(row, status) then
        missing = missing - 1
      else
        ways[#ways + 1] = full
      end
    end
    if missing <= 0 then return open(row) end
    lacking[row] = missing
    for _, full in ipairs(ways) do
      in_the_way[full] = in_the_way[full] or {}
      table.insert(in_the_way[full], row)
    end
  end

  local function unblock(full)
    local rows = in_the_way[full] or {}
    in_the_way[full] = nil
    for _, row in ipairs(rows) do
      if lacking[row] then
        lacking[row] = lacking[row] - 1
        if lacking[row] == 0 then
          lacking[row] = nil
          open(row)
        end
      end
    end
  end

  for _, row in ipairs(asked) do consider(row) end
  local at = 1
  while at <= #news do
    local new = news[at]
    at = at + 1
    unblock(new.full)
    if not alone and Store.any(K.unmet) then
      local numbers = Store.list(K.unmet, new.full)
      if #numbers > 1 then Trees.load(numbers) end
      for _, n in ipairs(numbers) do consider(Rows.get(n)) end
    end
  end

  local rows, is_first = {}, {}
  for _, row in ipairs(asked) do
    if opened[row] then
      rows[#rows + 1] = row
      is_first[row] = true
    end
  end
  for _, row in ipairs(order) do
    if not is_first[row] then rows[#rows + 1] = row end
  end
  return rows, news
end
