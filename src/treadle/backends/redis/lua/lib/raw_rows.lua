-- uses: store
-- Raw rows: many rows at once, as they are stored, for Python to read: see `read_item` in item_bytes.py. For
-- scripts that write nothing.

local RawRows = {}

do
  local MOST = 4000 -- arguments that `unpack` takes at once

  -- The values of fields of a hash, in order; false where there is none.
  function RawRows.fields(key, names)
    if #names <= MOST then return #names > 0 and call('HMGET', key, unpack(names)) or {} end
    local values = {}
    for first = 1, #names, MOST do
      local last = math.min(first + MOST - 1, #names)
      local found = call('HMGET', key, unpack(names, first, last))
      for i = 1, #found do values[first + i - 1] = found[i] end
    end
    return values
  end

  local fields = RawRows.fields

  -- The number of a text: nil if all are meant, and one that nothing has if the text is not stored.
  function RawRows.text(name)
    if not name or name == '' then return nil end
    return Store.get(K.text, name) or '-'
  end

  -- The number of an item in a value of `id`, or false. Without a tenant: of the one submitted first.
  function RawRows.number(places, tenant)
    if not places then return false end
    if not tenant then return sub(places, 1, 6) end
    for at = 1, #places, 10 do
      if sub(places, at + 6, at + 9) == tenant then return sub(places, at, at + 5) end
    end
    return false
  end

  -- Whether a row is the root of its group: what is stored of an item says which group it is in.
  function RawRows.is_root(n, item)
    return item and sub(item, 6, 11) == n
  end

  -- The id of an item.
  function RawRows.id(item)
    local at = item:byte(1) % 4 >= 2 and 40 or 32
    return sub(item, at + 1, at + item:byte(at))
  end

  local function group_exists(tenant, id)
    local n = RawRows.number(Store.get(K.id, id), tenant)
    if n and RawRows.is_root(n, Store.get(K.item, n)) then return true end
    return RawRows.number(Store.get(K.group_ids, id), tenant) and true or false
  end

  -- Whether an item, or with \30 a group, is stored.
  local function exists(tenant, name)
    if sub(name, 1, 1) == '\30' then return group_exists(tenant, sub(name, 2)) end
    return RawRows.number(Store.get(K.id, name), tenant) and true or false
  end

  -- The names in `after` that are open and do not exist.
  local function waiting_for(tenant, extra, gate)
    local names, found, seen = cmsgpack.unpack(extra).a or {}, {}, {}
    Store.load(K.id, names)
    for i = 1, #names do
      local name = names[i]
      if seen[name] == nil then
        seen[name] = sub(gate, 8 + i, 8 + i) == '1' and not exists(tenant, name)
      end
      if seen[name] then found[#found + 1] = name end
    end
    return found
  end

  -- By number: the values of a hash for those rows that can have one.
  local function values_of(key, numbers)
    local found, by_number = fields(key, numbers), {}
    for i = 1, #numbers do by_number[numbers[i]] = found[i] end
    return by_number
  end

  -- By number of four bytes: the kinds of items.
  function RawRows.kinds(items)
    local numbers, seen = {}, {}
    for i = 1, #items do
      local item = items[i]
      local k = item and sub(item, 2, 5)
      if k and not seen[k] then
        seen[k] = true
        numbers[#numbers + 1] = k
      end
    end
    return values_of(K.kinds, numbers)
  end

  local ENDED = string.byte('P') -- these are formats of `state`, see row_bytes.lua
  local SHORT = {[string.byte('p')] = true, [string.byte('q')] = true, [ENDED] = true}

  -- Rows in order, false where there is none: n, item, state, kind, extra and past; with `full` also the names that
  -- it waits for and that do not exist, if it waits. A row in a short format has no past. One that was ready at once
  -- may name items that are open.
  function RawRows.read(numbers, full)
    local items, states = fields(K.item, numbers), fields(K.state, numbers)
    local labelled, tried, waiting = {}, {}, {}
    for i = 1, #numbers do
      local item, state = items[i], states[i]
      local n, has_extra = numbers[i], item and item:byte(1) % 2 == 1
      local letter = state and state:byte(1)
      if has_extra then labelled[#labelled + 1] = n end
      if has_extra and letter ~= ENDED then waiting[#waiting + 1] = n end
      if letter and not SHORT[letter] then tried[#tried + 1] = n end
    end
    local kinds, extras, pasts = RawRows.kinds(items), values_of(K.extra, labelled), values_of(K.past, tried)
    local gates = full and values_of(K.gates, waiting) or {}
    local rows = {}
    for i = 1, #numbers do
      local n, item = numbers[i], items[i]
      if item then
        local kind, extra = kinds[sub(item, 2, 5)], extras[n] or ''
        rows[i] = {n, item, states[i] or '', kind, extra, pasts[n] or ''}
        if gates[n] and extra ~= '' then rows[i][7] = waiting_for(sub(kind, 1, 4), extra, gates[n]) end
      else
        rows[i] = false
      end
    end
    return rows
  end
end
