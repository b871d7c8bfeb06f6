-- uses: store kinds row_bytes row_indexes
-- Rows: items, and all that changes about them. row_bytes.lua has the formats.
--
-- A row is a table. Call Rows.save after changing it. A row that is gone has `gone`.

local Rows = {}

do
  local known = {} -- by n; false if there is none
  local changed = {}
  local ENDED = {S = true, D = true, C = true}
  local KEPT_TOKENS = 10

  -- Read rows in three commands, before each is asked for.
  function Rows.load(numbers)
    Store.load(K.item, numbers)
    Store.load(K.state, numbers)
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
      row = item and RowBytes.read_item(n, item)
      known[n] = row
      if row then RowBytes.read_state(row, Store.get(K.state, n)) end
    end
    return row
  end

  -- The row with a number if this call has read it: false if it is gone, nil if it was not read.
  function Rows.seen(n)
    return known[n]
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
    }, RowBytes.NEVER_CLAIMED)
  end

  -- Store a new row. `extra`: if it has any.
  function Rows.add(row, extra)
    row.has_extra = extra ~= nil
    known[row.n] = row
    if extra then
      row.extra_map = extra
      Store.set(K.extra, row.n, cmsgpack.pack(extra))
    end
    row.item = RowBytes.write_item(row)
    Store.set(K.item, row.n, row.item)
    Store.set(K.id, row.id, (Store.get(K.id, row.id) or '') .. row.n .. row.kind.tenant)
    if STAGES then refuse_stage(row.id) end
    if extra then RowIndexes.label(row, extra) end
    RowIndexes.enter_page(row.n)
    Kinds.count(row.kind, 'b', 1)
    Rows.save(row)
    return row
  end

  -- Note that its token has settled it: the same settlement may come again if its answer is lost.
  function Rows.record_token(row)
    local tokens = row.settled_by
    if #tokens == 0 then
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
    row.item = RowBytes.write_item(row)
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
    if row.has_extra then RowIndexes.unlabel(row, Rows.extra(row)) end
    row.gone = true
    known[row.n] = false
    changed[row.n] = nil
    Store.set(K.item, row.n)
    Store.set(K.state, row.n)
    Store.set(K.extra, row.n)
    Store.set(K.past, row.n)
    Store.set(K.changers, row.n)
    local places, left = Store.get(K.id, row.id) or '', ''
    for at = 1, #places, 10 do
      if sub(places, at, at + 5) ~= row.n then left = left .. sub(places, at, at + 9) end
    end
    Store.set(K.id, row.id, left ~= '' and left)
    RowIndexes.leave_page(row.n, ENDED[row.status])
    Kinds.count(row.kind, row.status, -1)
  end

  -- Forget ended rows that were not read, and have neither labels nor a history. No other rows have their ids.
  function Rows.delete_plain(numbers, ids)
    for i = 1, #numbers do known[numbers[i]] = false end
    RowIndexes.leave_pages(numbers)
    Store.drop(K.item, numbers)
    Store.drop(K.state, numbers)
    Store.drop(K.id, ids)
  end

  -- Change the status, and count it.
  function Rows.set_status(row, status)
    Kinds.count(row.kind, row.status, -1)
    Kinds.count(row.kind, status, 1)
    if ENDED[row.status] ~= ENDED[status] then RowIndexes.count_ended(row.n, ENDED[status] and 1 or -1) end
    row.status = status
    Rows.save(row)
  end

  -- The name of a worker and its release, as an attempt in the history has them.
  function Rows.with_release(worker, release)
    if not release or #worker + #release > 254 then return worker end
    return worker .. '\0' .. release
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
    local state = row.state
    if changed[row.n] then state = RowBytes.write_state(row) end
    return {row.n, row.item, state or '', row.kind.row, row.has_extra and Store.get(K.extra, row.n) or '', Store.get(K.past, row.n) or ''}
  end

  Store.before_flush[#Store.before_flush + 1] = function()
    for n, row in pairs(changed) do Store.set(K.state, n, RowBytes.write_state(row)) end
  end
end
