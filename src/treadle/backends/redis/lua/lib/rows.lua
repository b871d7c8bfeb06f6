-- uses: store kinds
-- Rows: items, and all that changes about them. item_bytes.py has the same formats for Python.
--
-- A row is known by its number n: six bytes, in the order of submission. Its data is in these hashes, by n:
--   item   flags(1) kind(4) group(6) queued_at(8) priority(4, inverted) keep(8) [keep_dead(8)] length(1) id body
--   extra  a map: what few items have (Rows.extra). Absent for plain items.
--   job    what changes. Absent: ready, and never claimed. One byte says which format it has:
--          p q  running, first attempt, begun or not: token(8) claimed_at(8) length(1) worker. A row without an extra
--               is a root. It also has kind(4) keep(8), as in item: it is settled without reading the item
--          P    success after p: token(8) claimed_at(8) length(1) worker, then ended_at(8) started_at(8)
--               flags(1: contributed, 2: result) result
--          b w r R S D C  blocked, scheduled, ready, running, success, dead, cancelled: all fields
--   past   the history: for each attempt length(4) and 'F', a failure: attempt(4) at(8) length(1) worker, and what
--          Python packed; or 'L', a lost lease: attempt(4) at(8) worker
--
-- Indexes for lists:
--   pages      page -> how many rows it has; page 'e' -> how many of them have ended. A page: numbers / 1000.
--   key        tenant type key -> n of the row that has it now
--   keyed      length(2) key / n tenant: all rows that had it
--   workflows  length(2) workflow / n tenant
--
-- A row is a table. Call Rows.save after changing it. A row that is gone has `gone`.

local Rows = {}

do
  local known = {} -- by n; false if there is none
  local changed = {}
  local left_pages = {} -- pages that a row was removed from
  local ENDED = {S = true, D = true, C = true}

  local FIXED = '>c1c8BBBI4I4I2I2I6dddddd'
  local NO_TOKEN = string.rep('\0', 8)

  local BEGUN, CONTRIBUTED, UNRELEASED, FAILED_GROUP = 1, 2, 4, 8
  local OVERDUE, PRUNE_PENDING, OWNED, HOLDS_LANE = 16, 32, 64, 128
  local HAS_EXTRA, HAS_KEEP_DEAD = 1, 2
  local SHORT = {p = true, q = true, P = true} -- formats of jobs

  local floor = math.floor
  local struct_pack, struct_unpack = struct.pack, struct.unpack
  local function has(flags, bit) return floor(flags / bit) % 2 == 1 end

  local NO_TOKENS = {}
  local KEPT_TOKENS = 10

  -- What a row has that was never claimed. Fields that most rows have alike are not stored in each.
  local NEVER_CLAIMED = {__index = {
    status = 'r', token = NO_TOKEN, owned = false, begun = true, verdict = 0, reason = 0, attempt = 0, failures = 0,
    losses = 0, redrives = 0, settled_by = NO_TOKENS, mark = '',
  }}

  local function read_item(n, item)
    local flags, k, group, queued, priority, keep, at = struct_unpack('>Bc4c6dc4d', item)
    local keep_dead
    if flags >= HAS_KEEP_DEAD then keep_dead, at = struct_unpack('>d', item, at) end
    -- The names without values make room: a table that grows is slow.
    return setmetatable({
      n = n, item = item, kind = Kinds.get(k), group = group, queued_at = queued, priority = priority, keep = keep,
      keep_dead = keep_dead, has_extra = flags % 2 == HAS_EXTRA, id = sub(item, at + 1, at + item:byte(at)),
      place = struct_unpack('>I6', n), due_at = queued, ready_at = queued,
      job = nil, status = nil, token = nil, owned = nil, ended_at = nil, worker = nil, claimed_at = nil, attempt = nil,
      verdict = nil, unreleased = nil, overdue = nil,
    }, NEVER_CLAIMED)
  end

  -- What scripts do not look at: the end of `item`.
  local function body_of(row)
    if row.body then return row.body end
    local at = row.item:byte(1) >= HAS_KEEP_DEAD and 40 or 32
    return sub(row.item, at + 1 + row.item:byte(at))
  end

  local function write_item(row)
    local flags = (row.has_extra and HAS_EXTRA or 0) + (row.keep_dead and HAS_KEEP_DEAD or 0)
    return struct_pack('>Bc4c6dc4d', flags, row.kind.k, row.group, row.queued_at, row.priority, row.keep)
      .. (row.keep_dead and struct_pack('>d', row.keep_dead) or '')
      .. string.char(#row.id) .. row.id .. body_of(row)
  end

  local function read_short(row, job, letter)
    local token, claimed, length, at = struct.unpack('>c8dB', job, 2)
    row.token, row.claimed_at, row.worker = token, claimed, sub(job, at, at + length - 1)
    if letter == 'P' then
      local ended, started, flags, after = struct.unpack('>ddB', job, at + length)
      row.status, row.attempt, row.ended_at, row.settled_by = 'S', 1, ended, {token}
      if started > 0 then row.started_at = started end
      row.contributed = has(flags, 1)
      if has(flags, 2) then row.result = sub(job, after) end
    else
      row.status, row.owned = 'R', true
      row.begun = letter == 'p'
      if row.begun then row.attempt = 1 end
    end
  end

  local FLAGS = {'begun', 'contributed', 'unreleased', 'failed_group', 'overdue', 'prune_pending', 'owned', 'holds_lane'}
  local flags_by_byte = {} -- the names of those that are set: a byte has few different values

  local function read_flags(flags)
    local found = {}
    for i = 1, #FLAGS do
      if has(flags, 2 ^ (i - 1)) then found[#found + 1] = FLAGS[i] end
    end
    flags_by_byte[flags] = found
    return found
  end

  local function read_job(row, job)
    row.job = job
    if not job then return end
    local letter = sub(job, 1, 1)
    if letter == 'p' or letter == 'q' or letter == 'P' then return read_short(row, job, letter) end
    local status, token, flags, verdict, reason, attempt, failures, losses, redrives, place, due, ready, claimed,
      started, ended, deadline, at = struct.unpack(FIXED, job)
    row.status, row.token, row.verdict, row.reason, row.attempt = status, token, verdict, reason, attempt
    row.failures, row.losses, row.redrives, row.place, row.due_at, row.ready_at = failures, losses, redrives, place, due, ready
    local set = flags_by_byte[flags] or read_flags(flags)
    row.begun = false
    for i = 1, #set do row[set[i]] = true end
    if claimed ~= 0 then row.claimed_at = claimed end
    if started ~= 0 then row.started_at = started end
    if ended ~= 0 then row.ended_at = ended end
    if deadline ~= 0 then row.deadline = deadline end
    local length = job:byte(at)
    if length > 0 then row.worker = sub(job, at + 1, at + length) end
    at = at + 1 + length
    local tokens = job:byte(at)
    if tokens > 0 then
      row.settled_by = {}
      for i = 1, tokens do row.settled_by[i] = sub(job, at + 8 * i - 7, at + 8 * i) end
    end
    at = at + 1 + 8 * tokens
    length = job:byte(at)
    if length > 0 then row.mark = sub(job, at + 1, at + length) end
    at = at + 1 + length
    if job:byte(at) == 1 then row.result = sub(job, at + 1) end
  end

  local function write_job(row)
    local flags = (row.begun and BEGUN or 0) + (row.contributed and CONTRIBUTED or 0)
      + (row.unreleased and UNRELEASED or 0) + (row.failed_group and FAILED_GROUP or 0)
      + (row.overdue and OVERDUE or 0) + (row.prune_pending and PRUNE_PENDING or 0)
      + (row.owned and OWNED or 0) + (row.holds_lane and HOLDS_LANE or 0)
    local worker, mark = row.worker or '', row.mark
    return struct.pack(FIXED, row.status, row.token, flags, row.verdict, row.reason, row.attempt, row.failures,
        row.losses, row.redrives, row.place, row.due_at, row.ready_at, row.claimed_at or 0, row.started_at or 0,
        row.ended_at or 0, row.deadline or 0)
      .. string.char(#worker) .. worker .. string.char(#row.settled_by) .. concat(row.settled_by)
      .. string.char(#mark) .. mark .. (row.result and '\1' .. row.result or '\0')
  end

  Rows.NO_TOKEN = NO_TOKEN

  -- Read rows in three commands, before each is asked for.
  function Rows.load(numbers)
    Store.load(K.item, numbers)
    Store.load(K.job, numbers)
    local kinds, seen = {}, {}
    for i = 1, #numbers do
      local item = Store.get(K.item, numbers[i])
      local k = item and sub(item, 2, 5)
      if k and not seen[k] then
        seen[k] = true
        kinds[#kinds + 1] = k
      end
    end
    Kinds.load(kinds)
  end

  -- The row with a number, or false.
  function Rows.get(n)
    local row = known[n]
    if row == nil then
      local item = Store.get(K.item, n)
      row = item and read_item(n, item)
      known[n] = row
      if row then read_job(row, Store.get(K.job, n)) end
    end
    return row
  end

  -- The row with a number if this call has read it: false if it is gone, nil if it was not read.
  function Rows.seen(n)
    return known[n]
  end

  -- Whether a stored `job` says that its row is to be pruned as soon as no item waits for it.
  function Rows.is_prune_pending(job)
    return job and not SHORT[sub(job, 1, 1)] and has(job:byte(10), PRUNE_PENDING) or false
  end

  -- The row of an item of a tenant (the number of its text). Without a tenant: the one submitted first.
  function Rows.find(tenant, id)
    local places = Store.get(K.id, id)
    if not places then return false end
    for at = 1, #places, 10 do
      if not tenant or sub(places, at + 6, at + 9) == tenant then return Rows.get(sub(places, at, at + 5)) end
    end
    return false
  end

  local function with_length(text) return struct.pack('>I2', #text) .. text end

  -- Add a row to the indexes of what few rows have.
  local function label(row, extra)
    local kind = row.kind
    if extra.k then
      Store.set(K.key, kind.tenant .. kind.type .. extra.k, row.n)
      Store.insert(K.keyed, '', with_length(extra.k) .. row.n .. kind.tenant)
    end
    if extra.w then Store.insert(K.workflows, with_length(extra.w), row.n .. kind.tenant) end
  end

  local function unlabel(row, extra)
    local kind = row.kind
    if extra.k then
      local holder = kind.tenant .. kind.type .. extra.k
      if Store.get(K.key, holder) == row.n then Store.set(K.key, holder) end
      Store.remove(K.keyed, '', with_length(extra.k) .. row.n .. kind.tenant)
    end
    if extra.w then Store.remove(K.workflows, with_length(extra.w), row.n .. kind.tenant) end
  end

  -- A stage that has this id can no longer be decided: see stages.lua.
  local function refuse_stage(id)
    local stage = Store.get(K.staged, id)
    local data = stage and Store.get(K.stages, stage)
    if data then Store.set(K.stages, stage, 'x' .. sub(data, 2)) end
  end

  Rows.refuse_stage = refuse_stage

  -- A row for a new item of a kind (see new_items.lua), as if it was never claimed. All fields are named here, so
  -- that the table has room for them from the beginning.
  function Rows.new(n, item, kind, group, now)
    return setmetatable({
      n = n, id = item.id, kind = kind, group = group, queued_at = now, priority = item.priority, keep = item.keep,
      keep_dead = item.keep_dead, body = item.body, item = '', has_extra = false, status = 'b', place = 0, due_at = now,
      ready_at = 0, extra_map = nil, deadline = nil, parent = nil,
    }, NEVER_CLAIMED)
  end

  -- Store a new row. `extra`: if it has any.
  function Rows.add(row, extra)
    row.has_extra = extra ~= nil
    known[row.n] = row
    if extra then
      row.extra_map = extra
      Store.set(K.extra, row.n, cmsgpack.pack(extra))
    end
    row.item = write_item(row)
    Store.set(K.item, row.n, row.item)
    Store.set(K.id, row.id, (Store.get(K.id, row.id) or '') .. row.n .. row.kind.tenant)
    if STAGES then refuse_stage(row.id) end
    if extra then label(row, extra) end
    Store.add(K.pages, Rows.page(row.n), 1)
    Kinds.count(row.kind, 'b', 1)
    Rows.save(row)
    return row
  end

  local pages = {} -- the names of pages, by their numbers

  -- The number of the page of a row: `list` skips pages without items, and those without open items.
  function Rows.page(n)
    local number = math.floor(struct.unpack('>I6', n) / 1000)
    local page = pages[number]
    if not page then
      page = string.format('%d', number)
      pages[number] = page
    end
    return page
  end

  local function count_ended(row, amount)
    Store.add(K.pages, Rows.page(row.n) .. 'e', amount)
  end

  -- Note that its token has settled it: the same settlement may come again if its answer is lost.
  function Rows.record_token(row)
    local tokens = row.settled_by
    if tokens == NO_TOKENS then
      row.settled_by = {row.token}
      return
    end
    if #tokens >= KEPT_TOKENS then table.remove(tokens, 1) end
    tokens[#tokens + 1] = row.token
  end

  -- Store the row at the end of the call.
  function Rows.save(row)
    changed[row.n] = row
  end

  -- A new row is in line. Nothing is stored of its state if it was ready at once.
  function Rows.started(row)
    if row.status == 'r' and row.place == struct.unpack('>I6', row.n) and not row.deadline and row.due_at == row.queued_at then
      changed[row.n] = nil
    end
  end

  -- The item's own data was changed: kind, priority, keep, keep_dead or body.
  function Rows.rewrite(row)
    row.item = write_item(row)
    Store.set(K.item, row.n, row.item)
    Rows.save(row)
  end

  -- What few items have: k key, w workflow, p parent, a after, n need, d counts any end ("done"),
  -- g the id of its group if it is not its own id, c closes a group, x contributes nothing. An empty table
  -- if it has none of these. Do not change it.
  function Rows.extra(row)
    if not row.extra_map then
      row.extra_map = row.has_extra and cmsgpack.unpack(Store.get(K.extra, row.n)) or {}
    end
    return row.extra_map
  end

  -- Forget a row, with its key and workflow. It must have been removed from all other sets before.
  function Rows.delete(row)
    if row.has_extra then unlabel(row, Rows.extra(row)) end
    row.gone = true
    known[row.n] = false
    changed[row.n] = nil
    Store.set(K.item, row.n)
    Store.set(K.job, row.n)
    Store.set(K.extra, row.n)
    Store.set(K.past, row.n)
    Store.set(K.changers, row.n)
    local places, left = Store.get(K.id, row.id) or '', ''
    for at = 1, #places, 10 do
      if sub(places, at, at + 5) ~= row.n then left = left .. sub(places, at, at + 9) end
    end
    Store.set(K.id, row.id, left ~= '' and left)
    Store.add(K.pages, Rows.page(row.n), -1)
    left_pages[Rows.page(row.n)] = true
    if ENDED[row.status] then count_ended(row, -1) end
    Kinds.count(row.kind, row.status, -1)
  end

  -- Forget ended rows that were not read, and have neither labels nor a history. No other rows have their ids.
  function Rows.delete_plain(numbers, ids)
    local pages = {}
    for i = 1, #numbers do
      local n = numbers[i]
      known[n] = false
      local page = math.floor(struct.unpack('>I6', n) / 1000)
      pages[page] = (pages[page] or 0) + 1
    end
    for page, count in pairs(pages) do
      local name = string.format('%d', page)
      Store.add(K.pages, name, -count)
      Store.add(K.pages, name .. 'e', -count)
      left_pages[name] = true
    end
    Store.drop(K.item, numbers)
    Store.drop(K.job, numbers)
    Store.drop(K.id, ids)
  end

  -- Change the status, and count it.
  function Rows.set_status(row, status)
    Kinds.count(row.kind, row.status, -1)
    Kinds.count(row.kind, status, 1)
    if ENDED[row.status] ~= ENDED[status] then count_ended(row, ENDED[status] and 1 or -1) end
    row.status = status
    Rows.save(row)
  end

  -- Add an attempt to the history: an entry as `past` has it.
  function Rows.add_to_history(row, entry)
    local past = (Store.get(K.past, row.n) or '') .. struct.pack('>I4', #entry) .. entry
    local starts, at = {}, 1
    while at <= #past do
      starts[#starts + 1] = at
      at = at + 4 + struct.unpack('>I4', past, at)
    end
    if #starts > 10 then past = sub(past, starts[#starts - 9]) end
    Store.set(K.past, row.n, past)
  end

  -- What Python needs to read a row: see item_bytes.py. `before`: as it is stored, without this call's changes.
  function Rows.raw(row)
    local job = row.job
    if changed[row.n] then job = write_job(row) end
    return {row.n, row.item, job or '', row.kind.row, row.has_extra and Store.get(K.extra, row.n) or '', Store.get(K.past, row.n) or ''}
  end

  Store.before_flush[#Store.before_flush + 1] = function()
    for n, row in pairs(changed) do Store.set(K.job, n, write_job(row)) end
    for page in pairs(left_pages) do Store.drop_zero(K.pages, page, {page .. 'e'}) end
  end
end
