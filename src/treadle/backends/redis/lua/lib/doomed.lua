-- uses: clock store kinds rows lines transitions workers demand
-- Doomed: rows that can only end are leased with their verdict.

local Doomed = {}

do
  local MOST = 100 -- rows
  local MOST_READ = 1000 -- parts of the set

  local wanted_types = {}

  local function type_is_wanted(prefix, n)
    local type = sub(prefix, 1, 4)
    if wanted_types[type] == nil then
      local text = Rows.get(n).kind.names.type
      wanted_types[type] = not demand.room or demand.room[text] ~= nil or not Workers.is_known(text)
    end
    return wanted_types[type]
  end

  -- Lease the rows of a type, queue and tenant.
  local function lease(prefix, leased, worker)
    if not is_listed(demand.queues, sub(prefix, 5, 8)) or not is_listed(demand.tenants, sub(prefix, 9, 12)) then
      return true
    end
    local numbers = Store.list(K.doomed, prefix, MOST - #leased)
    if #numbers == 0 then return true end
    if not type_is_wanted(prefix, numbers[1]) then return false end
    Rows.load(numbers)
    for i = 1, #numbers do
      local row = Rows.get(numbers[i])
      Lines.remove_doomed(row)
      Transitions.lease(row, worker.name, worker.number, Transitions.token(demand.random), false)
      leased[#leased + 1] = row
    end
    return true
  end

  -- Lease rows of the types that the worker has, or that no live worker has. Returns them.
  function Doomed.lease(worker)
    local leased = {}
    local changed = Store.changed_prefixes(K.doomed)
    for i = 1, #changed do
      if #leased < MOST then lease(changed[i], leased, worker) end
    end
    local from = '-'
    for _ = 1, MOST_READ do
      local member = #leased < MOST and call('ZRANGEBYLEX', K.doomed, from, '+', 'LIMIT', 0, 1)[1]
      if not member then break end
      local prefix = sub(member, 1, 12)
      local whole_type = not lease(prefix, leased, worker)
      from = '(' .. (whole_type and sub(prefix, 1, 4) or prefix) .. HIGHEST
    end
    return leased
  end
end
