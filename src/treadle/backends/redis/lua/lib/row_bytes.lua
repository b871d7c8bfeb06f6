-- uses: store kinds
-- Row bytes: what is stored of an item. item_bytes.py has the same formats for Python.
--
-- A row is known by its number n: six bytes, in the order of submission. Its data is in these hashes, by n:
--   item   flags(1) kind(4) group(6) queued_at(8) priority(4, inverted) keep(8) [keep_dead(8)] length(1) id body
--   extra  a map: what few items have (Rows.extra). Absent for plain items.
--   state  what changes. Absent: ready, and never claimed. One byte says which format it has:
--          p q  running, first attempt, begun or not: token(8) claimed_at(8) length(1) worker. A row without an extra
--               is a root. It also has kind(4) keep(8), as in item: it is settled without reading the item
--          P    success after p: token(8) claimed_at(8) length(1) worker, then ended_at(8) started_at(8)
--               flags(1: contributed, 2: result) result
--          b w r R S D C  blocked, scheduled, ready, running, success, dead, cancelled: all fields. The highest bits
--               of `redrives` are flags: it was suspended, and its last lease, if it has one since, goes on from there;
--               it has steps; it has mail, progress or a stream (steps.lua, mailboxes.lua)
--   past   the history: for each attempt length(4) and 'F', a failure: attempt(4) at(8) length(1) worker, and what
--          Python packed; or 'L', a lost lease: attempt(4) at(8) worker. A worker with a release is worker \0 release

local RowBytes = {}

do
  local DEFERRED = 2 -- added to the byte before the result: the number of deferrals follows
  local FIXED = '>c1c8BBBI4I4I2I2I6dddddd'
  local NO_TOKEN = string.rep('\0', 8)

  local BEGUN, CONTRIBUTED, UNRELEASED, FAILED_GROUP = 1, 2, 4, 8
  local OVERDUE, PRUNE_PENDING, OWNED, HOLDS_LANE = 16, 32, 64, 128
  local SUSPENDED, HAS_STEPS, HAS_RECORDS = 32768, 16384, 8192 -- of redrives
  local HAS_EXTRA, HAS_KEEP_DEAD = 1, 2
  local SHORT = {p = true, q = true, P = true} -- formats of `state`

  local floor = math.floor
  local struct_pack, struct_unpack = struct.pack, struct.unpack
  local function has(flags, bit) return floor(flags / bit) % 2 == 1 end

  -- What a row has that was never claimed. Fields that most rows have alike are not stored in each.
  local NEVER_CLAIMED = {__index = {
    status = 'r', token = NO_TOKEN, owned = false, begun = true, verdict = 0, reason = 0, attempt = 0, failures = 0,
    losses = 0, deferrals = 0, redrives = 0, settled_by = {}, mark = '',
  }}

  RowBytes.NO_TOKEN, RowBytes.NEVER_CLAIMED = NO_TOKEN, NEVER_CLAIMED

  -- A row with what never changes about it. Its kind must exist.
  function RowBytes.read_item(n, item)
    local flags, k, group, queued, priority, keep, at = struct_unpack('>Bc4c6dc4d', item)
    local keep_dead
    if flags >= HAS_KEEP_DEAD then keep_dead, at = struct_unpack('>d', item, at) end
    -- The names without values make room: a table that grows is slow.
    return setmetatable({
      n = n, item = item, kind = Kinds.get(k), group = group, queued_at = queued, priority = priority, keep = keep,
      keep_dead = keep_dead, has_extra = flags % 2 == HAS_EXTRA, id = sub(item, at + 1, at + item:byte(at)),
      place = struct_unpack('>I6', n), due_at = queued, ready_at = queued,
      state = nil, status = nil, token = nil, owned = nil, ended_at = nil, worker = nil, claimed_at = nil, attempt = nil,
      verdict = nil, unreleased = nil, overdue = nil,
    }, NEVER_CLAIMED)
  end

  -- What scripts do not look at: the end of `item`.
  local function body_of(row)
    if row.body then return row.body end
    local at = row.item:byte(1) >= HAS_KEEP_DEAD and 40 or 32
    return sub(row.item, at + 1 + row.item:byte(at))
  end

  function RowBytes.write_item(row)
    local flags = (row.has_extra and HAS_EXTRA or 0) + (row.keep_dead and HAS_KEEP_DEAD or 0)
    return struct_pack('>Bc4c6dc4d', flags, row.kind.k, row.group, row.queued_at, row.priority, row.keep)
      .. (row.keep_dead and struct_pack('>d', row.keep_dead) or '')
      .. string.char(#row.id) .. row.id .. body_of(row)
  end

  local function read_short(row, state, letter)
    local token, claimed, length, at = struct.unpack('>c8dB', state, 2)
    row.token, row.claimed_at, row.worker = token, claimed, sub(state, at, at + length - 1)
    if letter == 'P' then
      local ended, started, flags, after = struct.unpack('>ddB', state, at + length)
      row.status, row.attempt, row.ended_at, row.settled_by = 'S', 1, ended, {token}
      if started > 0 then row.started_at = started end
      row.contributed = has(flags, 1)
      if has(flags, 2) then row.result = sub(state, after) end
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

  -- Add what changes about it, as stored. False: it was never claimed.
  function RowBytes.read_state(row, state)
    row.state = state
    if not state then return end
    local letter = sub(state, 1, 1)
    if letter == 'p' or letter == 'q' or letter == 'P' then return read_short(row, state, letter) end
    local status, token, flags, verdict, reason, attempt, failures, losses, redrives, place, due, ready, claimed,
      started, ended, deadline, at = struct.unpack(FIXED, state)
    row.status, row.token, row.verdict, row.reason, row.attempt = status, token, verdict, reason, attempt
    row.failures, row.losses, row.redrives, row.place, row.due_at, row.ready_at = failures, losses, redrives, place, due, ready
    if redrives >= HAS_RECORDS then
      row.suspended, row.has_steps = has(redrives, SUSPENDED), has(redrives, HAS_STEPS)
      row.has_records, row.redrives = has(redrives, HAS_RECORDS), redrives % HAS_RECORDS
    end
    local set = flags_by_byte[flags] or read_flags(flags)
    row.begun = false
    for i = 1, #set do row[set[i]] = true end
    if claimed ~= 0 then row.claimed_at = claimed end
    if started ~= 0 then row.started_at = started end
    if ended ~= 0 then row.ended_at = ended end
    if deadline ~= 0 then row.deadline = deadline end
    local length = state:byte(at)
    if length > 0 then row.worker = sub(state, at + 1, at + length) end
    at = at + 1 + length
    local tokens = state:byte(at)
    if tokens > 0 then
      row.settled_by = {}
      for i = 1, tokens do row.settled_by[i] = sub(state, at + 8 * i - 7, at + 8 * i) end
    end
    at = at + 1 + 8 * tokens
    length = state:byte(at)
    if length > 0 then row.mark = sub(state, at + 1, at + length) end
    at = at + 1 + length
    local ending = state:byte(at)
    if ending >= DEFERRED then
      row.deferrals, at = struct.unpack('>I4', state, at + 1)
      at, ending = at - 1, ending - DEFERRED
    end
    if ending == 1 then row.result = sub(state, at + 1) end
  end

  -- Few rows have deferrals: the others have no bytes for them.
  local function ending_of(row)
    local kind = row.result and 1 or 0
    if row.deferrals == 0 then return string.char(kind) .. (row.result or '') end
    return struct.pack('>BI4', kind + DEFERRED, row.deferrals) .. (row.result or '')
  end

  function RowBytes.write_state(row)
    local flags = (row.begun and BEGUN or 0) + (row.contributed and CONTRIBUTED or 0)
      + (row.unreleased and UNRELEASED or 0) + (row.failed_group and FAILED_GROUP or 0)
      + (row.overdue and OVERDUE or 0) + (row.prune_pending and PRUNE_PENDING or 0)
      + (row.owned and OWNED or 0) + (row.holds_lane and HOLDS_LANE or 0)
    local redrives = row.redrives + (row.suspended and SUSPENDED or 0) + (row.has_steps and HAS_STEPS or 0)
      + (row.has_records and HAS_RECORDS or 0)
    local worker, mark = row.worker or '', row.mark
    return struct.pack(FIXED, row.status, row.token, flags, row.verdict, row.reason, row.attempt, row.failures,
        row.losses, redrives, row.place, row.due_at, row.ready_at, row.claimed_at or 0, row.started_at or 0,
        row.ended_at or 0, row.deadline or 0)
      .. string.char(#worker) .. worker .. string.char(#row.settled_by) .. concat(row.settled_by)
      .. string.char(#mark) .. mark .. ending_of(row)
  end

  -- Whether a stored `state` says that its row is to be pruned as soon as no item waits for it.
  function RowBytes.is_prune_pending(state)
    return state and not SHORT[sub(state, 1, 1)] and has(state:byte(10), PRUNE_PENDING) or false
  end
end
