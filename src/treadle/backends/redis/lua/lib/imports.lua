-- uses: clock store kinds row_bytes row_indexes rows lines transitions groups dependencies retention effects
-- Imports: items and groups as another store had them, in any state. See moving.py and tenant_moves.py.

local Imports = {}

do
  local HOLDS_KEY = 1

  local function insert(kinds, head, id, body, extra, state)
    local k, n, group, queued_at, priority, keep, keep_dead, flags = struct.unpack('>I2c6c6dc4ddB', head)
    if Rows.find(kinds[k].tenant, id) then return nil end
    local row = Rows.new(n, {id = id, priority = priority, keep = keep, keep_dead = keep_dead >= 0 and keep_dead or nil, body = body},
      kinds[k], group, queued_at)
    local map = extra ~= '' and cmsgpack.unpack(extra) or nil
    local key = map and map.k and row.kind.tenant .. row.kind.type .. map.k
    local holder = key and Store.get(K.key, key)
    Rows.add(row, map)
    if map then Store.set(K.extra, n, extra) end
    if key and flags ~= HOLDS_KEY then Store.set(K.key, key, holder or nil) end
    RowBytes.read_state(row, state)
    Kinds.count(row.kind, 'b', -1)
    Kinds.count(row.kind, row.status, 1)
    if row.ended_at then RowIndexes.count_ended(n, 1) end
    if map and map.p then
      local parent = Rows.find(row.kind.tenant, map.p)
      if parent and parent ~= row then Store.insert(K.children, parent.n, n) end
    end
    if group ~= n then
      Store.insert(K.members, group, n)
      Groups.place_end(row, group)
    end
    return row
  end

  local newest = {} -- by mark: its newest death

  local function list_ended(row)
    Effects.list(row)
    if row.status ~= 'D' then return end
    local known = newest[row.mark] or tonumber(call('ZSCORE', K.marks_last, row.mark) or 0)
    newest[row.mark] = math.max(known, row.ended_at)
    Store.score(K.marks_last, row.mark, newest[row.mark])
  end

  local function place_ended(row, release)
    local extra = Rows.extra(row)
    if extra.a then Dependencies.was_waiting(row) end
    row.release = release ~= '' and release or nil
    list_ended(row)
    if row.group == row.n then Retention.add_member(row, row.ended_at) end
  end

  local function place_open(row, gate)
    if gate ~= '' then Dependencies.restore(row, gate) end
    if row.losses >= KILLING then Store.insert(K.killing, '', row.n) end
    if row.holds_lane then Lines.hold_lane(row) end
    if row.verdict ~= 0 then
      Lines.add_doomed(row)
      return
    end
    if row.deadline then Store.score(K.deadlines, row.n, row.deadline) end
    if row.status == 'r' then
      Lines.add_ready(row)
    elseif row.status == 'w' then
      Lines.add_due(row)
    end
  end

  -- Store items. They are the arguments from `first` on:
  --   how many kinds, tenant, queue, lane and type of each; how many items; then for each item
  --   head     kind(2) n(6) group(6) queued_at(8) priority(4) keep(8) keep_dead(8, negative: none) flags(1: holds its key)
  --   id, body, extra, state (all fields, see row_bytes.lua), past, gate, changers, release of its death
  --   how many fields of `recorded`(2), members of `steps`(2) and of `signal_keys`(2), then these, without n
  -- Returns the id of an item that is there already: the import has failed then.
  function Imports.items(first)
    local kinds, at = {}, first + 1
    for i = 1, tonumber(ARGV[first]) do
      kinds[i] = Kinds.named(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
      at = at + 4
    end
    local count = tonumber(ARGV[at])
    at = at + 1
    for _ = 1, count do
      local row = insert(kinds, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
      if not row then return ARGV[at + 1] end
      local n, past, gate, changers, release, fields, steps, keys = row.n, ARGV[at + 5], ARGV[at + 6], ARGV[at + 7], ARGV[at + 8],
        struct.unpack('>I2I2I2', ARGV[at + 9])
      if past ~= '' then Store.set(K.past, n, past) end
      if changers ~= '' then Store.set(K.changers, n, changers) end
      if row.ended_at then place_ended(row, release) else place_open(row, gate) end
      at = at + 10
      for _ = 1, fields do
        Store.set(K.recorded, n .. ARGV[at], ARGV[at + 1])
        at = at + 2
      end
      for _ = 1, steps do
        Store.insert(K.steps, n, ARGV[at])
        at = at + 1
      end
      for _ = 1, keys do
        Store.insert(K.signal_keys, n, ARGV[at])
        at = at + 1
      end
    end
  end

  -- Store groups. Their members are there. The arguments from `first` on: for each, its numbers and flags as in groups.lua
  -- (without the tenant's number and the members), members that it has had(4), then id, tenant, type and value
  function Imports.groups(first)
    for at = first, #ARGV, 5 do
      local g, open, version, flags, failed, cancelled, ended, keep, outer, total = struct.unpack('>c6I4dBI4I4ddc6I4', ARGV[at])
      Groups.put(g, {
        open = open, version = version, flags = flags, failed = failed, cancelled = cancelled, ended = ended, keep = keep,
        outer = outer, total = total, id = ARGV[at + 1], tenant_name = ARGV[at + 2], type = ARGV[at + 3], value = ARGV[at + 4],
      })
    end
  end
end
