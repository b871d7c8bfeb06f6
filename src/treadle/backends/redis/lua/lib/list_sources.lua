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

  local function number(n) return (struct.unpack('>I6', n)) end
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

  local function before(a, b) return number(a) < number(b) end
  local function after(a, b) return number(a) > number(b) end

  -- The given numbers, which may be repeated and in any order. Lists often need few of many: those of 256 numbers are
  -- sorted when it is their turn.
  function ListSources.given(numbers, bound, oldest_first)
    local starts, parts = {}, {}
    for i = 1, #numbers do
      local n = numbers[i]
      local start = sub(n, 1, 5)
      local part = parts[start]
      if part then
        part[#part + 1] = n
      else
        starts[#starts + 1], parts[start] = start .. '\0', {n}
      end
    end
    local in_order = oldest_first and before or after
    sort(starts, in_order)
    local source = {ended = #starts == 0}
    local part, at, last = 0, 1, nil
    local rests = {}

    function source.take(size)
      local found = {}
      while #found < size do
        local n = rests[at]
        if n then
          local is_after = not bound or (oldest_first and number(n) > bound) or (not oldest_first and number(n) < bound)
          if is_after and n ~= last then found[#found + 1] = n end
          at, last = at + 1, n
        elseif part == #starts then
          break
        else
          part, at = part + 1, 1
          rests = parts[sub(starts[part], 1, 5)]
          sort(rests, in_order)
        end
      end
      source.ended = part == #starts and at > #rests
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

  local function last_six(numbers, members)
    for i = 1, #members do numbers[#numbers + 1] = sub(members[i], -6) end
  end

  -- The rows of `due` from a text on after their queue and tenant, if there are at most `most`, and as many queues of
  -- tenants with rows that wait; else nil. `tenant`: only its rows.
  local function due_rows(from, tenant, most)
    if call('ZCARD', K.due_first) > most then return nil end
    local owners, numbers = call('ZRANGE', K.due_first, 0, -1), {}
    for i = 1, #owners do
      local owner = owners[i]
      if not tenant or sub(owner, 5, 8) == tenant then
        last_six(numbers, call('ZRANGEBYLEX', K.due, '[' .. owner .. from, '[' .. owner .. HIGHEST .. HIGHEST, 'LIMIT', 0,
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

  -- The same of the rows of a tenant that name others in `after`: they are blocked, or were. Each member ends with a number.
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
      last_six(numbers, found)
    end
    for _, key in ipairs(hashes) do last_six(numbers, call('HKEYS', key)) end
    for _, key in ipairs(sets) do last_six(numbers, call('ZRANGE', key, 0, -1)) end
    return ListSources.given(numbers, bound, oldest_first)
  end
end
