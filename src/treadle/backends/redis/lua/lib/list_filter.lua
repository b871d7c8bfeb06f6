-- uses: store kinds rows raw_rows holds
-- List filter: which rows a Filter finds. lists.py sends it: tenant, type, queue, status (letters), workflow, group_id,
-- key, reason (its number), mark, release, failed_group, killing, held, since and until_.

local ListFilter = {}

do
  local KILLING = 3 -- as in treadle.item
  local SHORT = {p = 'R', q = 'R', P = 'S'}
  local byte = string.byte

  -- The letter of a row's status, from its state.
  function ListFilter.status(state)
    if not state then return 'r' end
    local letter = sub(state, 1, 1)
    return SHORT[letter] or letter
  end

  function ListFilter.queued_at(item)
    return (struct.unpack('>d', item, 12))
  end

  -- A filter with what it needs to look at rows. `kinds`: the numbers of all kinds that are as wanted, one after the
  -- other, if they are known.
  function ListFilter.new(where, kinds)
    local filter = {where = where, kinds = {}, knows_kinds = kinds ~= nil}
    for at = 1, #(kinds or ''), 4 do filter.kinds[sub(kinds, at, at + 3)] = true end
    if where.status then
      filter.statuses = {}
      filter.letters = {} -- the first bytes of the states of these statuses
      for i = 1, #where.status do
        local letter = sub(where.status, i, i)
        filter.statuses[letter] = true
        filter.letters[byte(letter)] = true
        for short, status in pairs(SHORT) do
          if status == letter then filter.letters[byte(short)] = true end
        end
      end
    end
    filter.ready = not filter.statuses or filter.statuses.r
    filter.of_kind = where.tenant or where.type or where.queue
    filter.tenant, filter.queue, filter.type = RawRows.text(where.tenant), RawRows.text(where.queue), RawRows.text(where.type)
    filter.of_time = where.since or where.until_
    filter.of_rest = where.workflow or where.group_id or where.key or where.reason or where.mark or where.failed_group
      or where.killing or where.held or where.release
    return filter
  end

  -- Whether a kind is as wanted. Its row begins with the numbers of the texts: see kinds.lua.
  function ListFilter.is_kind(filter, row)
    local tenant, queue, type = filter.tenant, filter.queue, filter.type
    return (not tenant or sub(row, 1, 4) == tenant) and (not queue or sub(row, 5, 8) == queue)
      and (not type or sub(row, 13, 16) == type)
  end

  -- See which of these kinds are as wanted.
  local function read_kinds(filter, numbers)
    local rows = RawRows.fields(K.kinds, numbers)
    for i = 1, #numbers do filter.kinds[numbers[i]] = rows[i] and ListFilter.is_kind(filter, rows[i]) end
  end

  -- See which of the kinds of these rows are as wanted.
  local function learn_kinds(filter, items)
    local numbers, kinds = {}, filter.kinds
    for i = 1, #items do
      local k = items[i] and sub(items[i], 2, 5)
      if k and kinds[k] == nil then
        kinds[k] = false
        numbers[#numbers + 1] = k
      end
    end
    if #numbers > 0 then read_kinds(filter, numbers) end
  end

  local function has_kind(filter, k)
    if filter.kinds[k] == nil and not filter.knows_kinds then read_kinds(filter, {k}) end
    return filter.kinds[k]
  end

  -- Whether what never changes about a row is as wanted.
  function ListFilter.has_item(filter, item)
    if filter.of_kind and not has_kind(filter, sub(item, 2, 5)) then return false end
    if not filter.of_time then return true end
    local where, queued_at = filter.where, ListFilter.queued_at(item)
    return (not where.since or queued_at >= where.since) and (not where.until_ or queued_at < where.until_)
  end

  local function has_labels(where, row)
    if not (where.workflow or where.group_id or where.key) then return true end
    local extra = Rows.extra(row)
    return (not where.workflow or extra.w == where.workflow) and (not where.key or extra.k == where.key)
      and (not where.group_id or (extra.g or row.id) == where.group_id)
  end

  -- The release of the last attempt of a row. A dead one has it apart, the others in their history: see row_bytes.lua.
  local function release_of(row)
    if row.status == 'D' then return Store.get(K.released, row.n) end
    local past, at, entry = Store.get(K.past, row.n) or '', 1, nil
    while at <= #past do
      local length = struct.unpack('>I4', past, at)
      entry, at = sub(past, at + 4, at + 3 + length), at + 4 + length
    end
    if not entry then return '' end
    local worker = sub(entry, 14)
    if sub(entry, 1, 1) == 'F' then worker = sub(entry, 15, 14 + byte(entry, 14)) end
    local zero = worker:find('\0', 1, true)
    return zero and sub(worker, zero + 1) or ''
  end

  -- Whether all else about a row is as wanted.
  function ListFilter.has_rest(filter, n)
    if not filter.of_rest then return true end
    local where = filter.where
    local row = Rows.get(n)
    return (not where.reason or row.reason == where.reason)
      and (not where.mark or (row.status == 'D' and row.mark == where.mark))
      and (not where.failed_group or row.failed_group)
      and (not where.killing or (row.losses >= KILLING and not row.ended_at))
      and (not where.held or (Holds.is_held(row) and not row.ended_at and row.verdict == 0))
      and (not where.release or release_of(row) == where.release)
      and has_labels(where, row)
  end

  -- Whether the status is as wanted. A row without a state was ready at once.
  local function has_status(filter, state)
    if not state then return filter.ready end
    return not filter.letters or filter.letters[byte(state)]
  end

  -- Shorten lists of the same length.
  local function cut(length, ...)
    for _, list in ipairs({...}) do
      for i = #list, length + 1, -1 do list[i] = nil end
    end
  end

  -- Of rows in order, those whose kind and status are as wanted: their places, numbers, items and states. Then what is
  -- true by place for rows that exist, and how many bytes were read.
  local function rows_of_kind(filter, numbers)
    local there, kinds, bytes, count = RawRows.fields(K.item, numbers), filter.kinds, 0, 0
    local places, wanted, items = {}, {}, {}
    if not filter.knows_kinds then learn_kinds(filter, there) end
    for i = 1, #numbers do
      local item = there[i]
      if item then
        bytes = bytes + #item
        if kinds[sub(item, 2, 5)] then
          count = count + 1
          places[count], wanted[count], items[count] = i, numbers[i], item
        end
      end
    end
    local states, last = RawRows.fields(K.state, wanted), 0
    for i = 1, count do
      local state = states[i]
      if state then bytes = bytes + #state end
      if has_status(filter, state) then
        last = last + 1
        places[last], wanted[last], items[last], states[last] = places[i], wanted[i], items[i], state
      end
    end
    cut(last, places, wanted, items, states)
    return places, wanted, items, states, there, bytes
  end

  -- The same where all kinds are wanted: the status is looked at first.
  local function rows_of_status(filter, numbers)
    local there, bytes, count, last = RawRows.fields(K.state, numbers), 0, 0, 0
    local places, wanted, states = {}, {}, {}
    for i = 1, #numbers do
      local state = there[i]
      if state then bytes = bytes + #state end
      if not state or has_status(filter, state) then
        count = count + 1
        places[count], wanted[count], states[count] = i, numbers[i], state
      end
    end
    local items = RawRows.fields(K.item, wanted)
    for i = 1, count do
      local item = items[i]
      if item then
        there[places[i]], bytes = true, bytes + #item
        if states[i] or filter.ready then
          last = last + 1
          places[last], wanted[last], items[last], states[last] = places[i], wanted[i], item, states[i]
        end
      end
    end
    cut(last, places, wanted, items, states)
    return places, wanted, items, states, there, bytes
  end

  -- Count the rows up to a place that exist.
  local function count_rows(numbers, there, last, look)
    local looked, at = look.looked, nil
    for i = 1, last do
      if there[i] then looked, at = looked + 1, i end
    end
    look.looked, look.last = looked, at and numbers[at] or look.last
    look.position = numbers[last] or look.position
  end

  -- Of these rows, those that may have the release. To read a row takes many times as long as to see that it died
  -- under another one, or has never failed.
  local function may_have_release(filter, numbers, states)
    local dead, others, found, may = {}, {}, {}, {}
    for i = 1, #numbers do
      local some = ListFilter.status(states[i]) == 'D' and dead or others
      some[#some + 1] = numbers[i]
    end
    Store.load(K.released, dead)
    Store.load(K.past, others)
    for i = 1, #dead do may[dead[i]] = Store.get(K.released, dead[i]) == filter.where.release end
    for i = 1, #others do may[others[i]] = Store.get(K.past, others[i]) and true end
    for i = 1, #numbers do
      if may[numbers[i]] then found[#found + 1] = numbers[i] end
    end
    return found, may
  end

  -- Look at rows in order, until `most` are found that match. Returns their numbers, and adds to `look`: how many
  -- rows exist (looked), how many bytes were read, the last number that was looked at (position), the last one
  -- that exists (last).
  function ListFilter.look_at(filter, numbers, most, look)
    local found, last, rows_of = {}, #numbers, filter.of_kind and rows_of_kind or rows_of_status
    local places, wanted, items, states, there, bytes = rows_of(filter, numbers)
    look.bytes = look.bytes + bytes
    local maybe, may = wanted, nil
    if filter.where.release then maybe, may = may_have_release(filter, wanted, states) end
    if filter.of_rest then Rows.load(maybe) end
    for i = 1, #places do
      local n = wanted[i]
      if (not may or may[n]) and ListFilter.has_item(filter, items[i]) and ListFilter.has_rest(filter, n) then
        found[#found + 1] = n
        if #found == most then
          last = places[i]
          break
        end
      end
    end
    count_rows(numbers, there, last, look)
    return found
  end
end
