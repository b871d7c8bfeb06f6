-- uses: store raw_rows holds
-- List sources: the numbers of rows that a list has to look at, in the order of submission or in reverse.
--
-- A source is a table. `source.take(size)` returns the next numbers, at most `size`. The source has ended when
-- `source.ended`; a portion before that may be empty. `source.position`: how far it has got, if that is further than
-- the last of these numbers.

local ListSources = {}

do
  local HIGHEST = string.rep('\255', 12) -- no rest is above this
  local PAGE = 1000

  local function number(n) return (struct.unpack('>I6', n, #n - 5)) end
  local function packed(value) return struct.pack('>I6', value) end

  local CHARACTERS = {} -- by their numbers
  for i = 0, 255 do CHARACTERS[i] = string.char(i) end

  -- Add the packed numbers from one to another, `step` apart, to `found`, up to `size`. Returns the one after these.
  local function add_range(found, at, last, step, size)
    local count, start = #found, nil
    for value = at, last, step do
      if count == size then return value end
      local low = value % 256
      if not start or low == (step > 0 and 0 or 255) then start = sub(packed(value), 1, 5) end
      count = count + 1
      found[count] = start .. CHARACTERS[low]
    end
    return last + step
  end

  -- The pages that have open rows, in order.
  function ListSources.open_pages(bound, oldest_first)
    local all, open, pages = call('HGETALL', K.pages), {}, {}
    for i = 1, #all, 2 do
      local name, count = all[i], tonumber(all[i + 1])
      if sub(name, -1) == 'e' then name, count = sub(name, 1, -2), -count end
      open[name] = (open[name] or 0) + count
    end
    for name, count in pairs(open) do
      local page = tonumber(name)
      local is_behind = bound and (oldest_first and page * PAGE + PAGE - 1 <= bound or not oldest_first and page * PAGE >= bound)
      if count > 0 and not is_behind then pages[#pages + 1] = page end
    end
    sort(pages, not oldest_first and function(a, b) return a > b end or nil)
    return pages
  end

  -- All numbers of pages. `bound`: the number after which it begins, or nil.
  function ListSources.pages(pages, bound, oldest_first)
    local source = {ended = #pages == 0}
    local page, at, step = 1, nil, oldest_first and 1 or -1

    function source.take(size)
      local found = {}
      while #found < size and page <= #pages do
        local first, last = pages[page] * PAGE, pages[page] * PAGE + PAGE - 1
        if not oldest_first then first, last = last, first end
        at = at or bound and (oldest_first and math.max(first, bound + 1) or math.min(first, bound - 1)) or first
        at = add_range(found, at, last, step, size)
        if at == last + step then page, at = page + 1, nil end
      end
      source.ended = page > #pages
      return found
    end

    return source
  end

  local function range(key, prefix, bound, oldest_first, size)
    if oldest_first then
      local first = '[' .. prefix .. (bound and packed(bound + 1) or '')
      return call('ZRANGEBYLEX', key, first, '[' .. prefix .. HIGHEST, 'LIMIT', 0, size)
    end
    local last = bound and '(' .. prefix .. packed(bound) or '[' .. prefix .. HIGHEST
    return call('ZREVRANGEBYLEX', key, last, '[' .. prefix, 'LIMIT', 0, size)
  end

  -- The rows of an index: prefix / n, or prefix / n tenant(4). `tenant`: only these, in the second case.
  function ListSources.index(key, prefix, bound, oldest_first, tenant)
    local source = {ended = false}
    local from = #prefix + 1

    function source.take(size)
      local members = range(key, prefix, bound, oldest_first, size)
      local found = {}
      for i = 1, #members do
        local member = members[i]
        if not tenant or sub(member, from + 6) == tenant then found[#found + 1] = sub(member, from, from + 5) end
      end
      if #members > 0 then
        source.position = sub(members[#members], from, from + 5)
        bound = number(source.position)
      end
      source.ended = #members < size
      return found
    end

    return source
  end

  -- The numbers with which these texts end. They may be repeated and in any order. Lists often need few of many: those of
  -- 256 numbers are sorted when it is their turn.
  function ListSources.given(numbers, bound, oldest_first)
    local parts, starts, start_of = {}, {}, {}
    for i = 1, #numbers do
      local n = numbers[i]
      local start = sub(n, -6, -2)
      local part = parts[start]
      if part then
        part[#part + 1] = n
      else
        parts[start] = {n}
        local value = struct.unpack('>I5', start)
        starts[#starts + 1], start_of[value] = value, start
      end
    end
    sort(starts)
    local source = {ended = #starts == 0}
    local left, values, at, last = #starts, {}, 1, nil

    local function next_part()
      local start = starts[oldest_first and #starts - left + 1 or left]
      left, at, values = left - 1, 1, {}
      local part = parts[start_of[start]]
      for i = 1, #part do values[i] = number(part[i]) end
      sort(values)
    end

    function source.take(size)
      local found = {}
      while #found < size do
        if at <= #values then
          local value = values[oldest_first and at or #values - at + 1]
          local is_after = not bound or (oldest_first and value > bound) or (not oldest_first and value < bound)
          if is_after and value ~= last then found[#found + 1] = packed(value) end
          at, last = at + 1, value
        elseif left == 0 then
          break
        else
          next_part()
        end
      end
      source.ended = left == 0 and at > #values
      return found
    end

    return source
  end

  -- Groups ------------------------------------------------------------------------------------------------

  local function add_all(numbers, members, from)
    for i = 1, #members do numbers[#numbers + 1] = sub(members[i], from, from + 5) end
  end

  -- The numbers of the groups with an id, in one tenant or in all.
  local function groups_of(id, tenant)
    local found, seen = {}, {}
    for _, key in ipairs({K.id, K.group_ids}) do
      local places = Store.get(key, id) or ''
      for at = 1, #places, 10 do
        local g = sub(places, at, at + 5)
        if not seen[g] and (not tenant or sub(places, at + 6, at + 9) == tenant) then
          seen[g] = true
          found[#found + 1] = g
        end
      end
    end
    return found
  end

  -- The members of the groups with an id. The row of a root that is alone is in no index.
  function ListSources.group(id, tenant, bound, oldest_first, size)
    local groups = groups_of(id, tenant)
    if #groups == 1 and Store.get(K.groups, groups[1]) then
      return ListSources.index(K.members, groups[1], bound, oldest_first)
    end
    local numbers = {}
    for i = 1, #groups do
      numbers[#numbers + 1] = groups[i]
      add_all(numbers, range(K.members, groups[i], bound, oldest_first, size), 7)
    end
    local source = ListSources.given(numbers, bound, oldest_first)
    if #groups > 1 and #numbers >= size then source.partial = true end
    return source
  end

  -- Open rows ---------------------------------------------------------------------------------------------

  local function add(numbers, members)
    local size = #numbers
    for i = 1, #members do numbers[size + i] = members[i] end
  end

  -- The members of `due` from a text on after their queue and tenant, if there are at most `most`, and as many queues of
  -- tenants with rows that wait; else nil. `tenant`: only its rows. Each member ends with a number.
  local function due_rows(from, tenant, most)
    if call('ZCARD', K.due_first) > most then return nil end
    local owners, numbers = call('ZRANGE', K.due_first, 0, -1), {}
    for i = 1, #owners do
      local owner = owners[i]
      if not tenant or sub(owner, 5, 8) == tenant then
        add(numbers, call('ZRANGEBYLEX', K.due, '[' .. owner .. from, '[' .. owner .. HIGHEST .. HIGHEST, 'LIMIT', 0,
          most + 1 - #numbers))
        if #numbers > most then return nil end
      end
    end
    return numbers
  end

  -- The held rows, or nil: see above. They are due after all others of their queue and tenant.
  function ListSources.held(tenant, bound, oldest_first, most)
    local numbers = due_rows(struct.pack('>d', Holds.FACTOR), tenant, most)
    return numbers and ListSources.given(numbers, bound, oldest_first)
  end

  -- The members of `waiters` of a tenant, likewise: its rows that are blocked, or were.
  local function waiting_rows(tenant, most)
    local members = call('ZRANGEBYLEX', K.waiters, '[' .. tenant, '[' .. tenant .. HIGHEST, 'LIMIT', 0, most + 1)
    if #members <= most then return members end
  end

  -- The open rows, if there are at most `most` in the sets that can hold rows of these statuses; else nil. `tenant`: of
  -- rows that wait, only its own, if these are at most `most_waiting`.
  function ListSources.open(statuses, tenant, bound, oldest_first, most, most_waiting)
    local hashes, sets, numbers = {K.held}, {K.doomed}, {}
    if statuses.b and not tenant then hashes[2] = K.gates end
    if statuses.r then sets[2] = K.ready end
    if statuses.w and not tenant then sets[#sets + 1] = K.due end
    local total = 0
    for _, key in ipairs(hashes) do total = total + call('HLEN', key) end
    for _, key in ipairs(sets) do total = total + call('ZCARD', key) end
    if total > most then return nil end
    local parts = {}
    if tenant and statuses.w then parts[1] = due_rows('', tenant, most_waiting) or false end
    if tenant and statuses.b then parts[#parts + 1] = waiting_rows(tenant, most_waiting) or false end
    for _, found in ipairs(parts) do
      if not found then return nil end
      add(numbers, found)
    end
    for _, key in ipairs(hashes) do add(numbers, call('HKEYS', key)) end
    for _, key in ipairs(sets) do add(numbers, call('ZRANGE', key, 0, -1)) end
    return ListSources.given(numbers, bound, oldest_first)
  end
end
