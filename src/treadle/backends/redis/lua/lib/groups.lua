-- uses: store kinds rows
-- Groups: their members and values. A group is known by the number of its root, or of the row that closes it.
--
-- A root that never had children is a group without a row in `groups`: `contributed` of its own row is all there
-- is to know of it.
--
--   groups     group(6) -> open(4) version(8) flags(1) failed(4) cancelled(4) ended_at(8) keep(8) members(4)
--              outer(6) tenant(4) and, each with its length, id, tenant and type; then the value
--   group_ids  id -> for each tenant, in the order of submission: group(6) tenant(4)
--   members    group / n        nested  outer group / group
--   deaths     group / ended_at(8) n    of members whose death was not tolerated
--   cancels    group / ended_at(8) n    of cancelled members
--   listed     outcome(1) / group: groups that have had a second member, and are not nested. Processes that do not know it
--              leave it as it is: lists look at the group too
--   left       group -> how many members were removed

local Groups = {}

do
  local known = {} -- by number; false if there is none
  local changed = {}

  local FIXED = '>I4dBI4I4ddI4c6c4'
  local NONE = string.rep('\0', 6)
  local LONE_VERSION = 1 -- of a group that ended with its only member
  local CONTRIBUTED, FINAL, HAS_VALUE, HAS_CLOSER, HAS_KEEP = 1, 2, 4, 8, 16

  local function has(flags, bit) return math.floor(flags / bit) % 2 == 1 end

  local function text(data, at)
    local length = data:byte(at)
    return sub(data, at + 1, at + length), at + 1 + length
  end

  local function read(g, data)
    local open, version, flags, failed, cancelled, ended, keep, members, outer, tenant, at = struct.unpack(FIXED, data)
    local group = {
      g = g, open = open, version = version, failed = failed, cancellations = cancelled, members = members, tenant = tenant,
      contributed = has(flags, CONTRIBUTED), final = has(flags, FINAL), closer = has(flags, HAS_CLOSER),
    }
    if ended ~= 0 then group.ended_at = ended end
    if has(flags, HAS_KEEP) then group.keep = keep end
    if outer ~= NONE then group.outer = outer end
    group.id, at = text(data, at)
    group.tenant_name, at = text(data, at)
    group.type, at = text(data, at)
    if has(flags, HAS_VALUE) then group.value = sub(data, at) end
    return group
  end

  local function write(group)
    local flags = (group.contributed and CONTRIBUTED or 0) + (group.final and FINAL or 0)
      + (group.value and HAS_VALUE or 0) + (group.closer and HAS_CLOSER or 0) + (group.keep and HAS_KEEP or 0)
    return struct.pack(FIXED, group.open, group.version, flags, group.failed, group.cancellations,
        group.ended_at or 0, group.keep or 0, group.members, group.outer or NONE, group.tenant)
      .. string.char(#group.id) .. group.id .. string.char(#group.tenant_name) .. group.tenant_name
      .. string.char(#group.type) .. group.type .. (group.value or '')
  end

  -- How a group stands: 0 running  1 succeeded  2 failed  3 cancelled. `outcome_of` in treadle.store.rules.
  function Groups.outcome(group)
    if group.open > 0 then return '0' end
    if group.final and group.contributed then return '1' end
    if group.failed > 0 then return '2' end
    return group.cancellations > 0 and not group.contributed and '3' or '1'
  end

  -- Members that it has had.
  function Groups.total(group)
    return group.members + (tonumber(Store.get(K.left, group.g)) or 0)
  end

  -- The group with a number, or false. A root that is alone has none.
  function Groups.get(g)
    local group = known[g]
    if group == nil then
      local data = Store.get(K.groups, g)
      group = data and read(g, data)
      if group then group.was = Groups.outcome(group) end
      known[g] = group
    end
    return group
  end

  function Groups.save(group)
    changed[group.g] = group
  end

  local function new(row, outer, closer)
    local group = {
      g = row.n, id = row.id, tenant = row.kind.tenant, tenant_name = row.kind.names.tenant, type = row.kind.names.type,
      open = 0, version = 0, failed = 0, cancellations = 0, members = 0, outer = outer, closer = closer,
    }
    known[row.n] = group
    Store.set(K.group_ids, group.id, (Store.get(K.group_ids, group.id) or '') .. group.g .. group.tenant)
    Groups.save(group)
    return group
  end

  -- The group of a row. A root that was alone gets a new one.
  function Groups.of(row)
    local group = Groups.get(row.group)
    if group then return group end
    group = new(row)
    Groups.join(group, row)
    return group
  end

  -- Make the group that a row closes. It has no members yet.
  function Groups.nest(outer, closer)
    local group = new(closer, outer.g, true)
    Store.insert(K.nested, outer.g, group.g)
    return group
  end

  -- Move a nested group into another outer group.
  function Groups.move(group, outer)
    Store.remove(K.nested, group.outer, group.g)
    Store.insert(K.nested, outer.g, group.g)
    group.outer = outer.g
    Groups.save(group)
  end

  -- An open row joins a group.
  function Groups.join(group, row)
    if row.group ~= group.g then
      row.group = group.g
      Rows.rewrite(row)
    end
    Store.insert(K.members, group.g, row.n)
    group.members = group.members + 1
    group.open = group.open + 1
    local keep = row.keep_dead and math.min(row.keep, row.keep_dead) or row.keep
    group.keep = group.keep and math.min(group.keep, keep) or keep
    Groups.save(group)
  end

  -- Many open rows join a group that are not in the overlay. `keep`: the shortest time that one of them is kept.
  function Groups.join_many(group, count, keep)
    group.members, group.open = group.members + count, group.open + count
    group.keep = group.keep and math.min(group.keep, keep) or keep
    Groups.save(group)
  end

  -- The group with an id, of a tenant (the number of its text) or of the one that was first: a group, or the row
  -- of a root that is alone, or false. A row has `n`, a group has `g`.
  function Groups.find(tenant, id)
    local places = Store.get(K.id, id) or ''
    for at = 1, #places, 10 do
      local n = sub(places, at, at + 5)
      if not tenant or sub(places, at + 6, at + 9) == tenant then
        local row = Rows.get(n)
        if row and row.group == n then return Groups.get(n) or row end
      end
    end
    places = Store.get(K.group_ids, id) or ''
    for at = 1, #places, 10 do
      if not tenant or sub(places, at + 6, at + 9) == tenant then return Groups.get(sub(places, at, at + 5)) end
    end
    return false
  end

  -- The nested group that a row closes, or false.
  function Groups.closed_by(row)
    if not Rows.extra(row).c then return false end
    local group = Groups.get(row.n)
    return group and group.closer and group or false
  end

  -- The numbers of the members of a group, or of a row that is alone.
  function Groups.members(found)
    if not found then return {} end
    return found.g and Store.list(K.members, found.g) or {found.n}
  end

  -- When this group and all around it had ended: `keep` counts from then. Nil: one of them is open.
  function Groups.kept_since(group)
    local latest = 0
    while group do
      if not group.ended_at then return nil end
      latest = math.max(latest, group.ended_at)
      group = group.outer and Groups.get(group.outer)
    end
    return latest
  end

  -- A member that had ended is open again.
  function Groups.reopen(row)
    local group = Groups.get(row.group)
    if group then
      group.open = group.open + 1
      group.ended_at = nil
      if row.failed_group then
        group.failed = group.failed - 1
        Store.remove(K.deaths, group.g, struct.pack('>d', row.ended_at) .. row.n)
      end
      if row.status == 'C' then
        group.cancellations = group.cancellations - 1
        Store.remove(K.cancels, group.g, struct.pack('>d', row.ended_at) .. row.n)
      end
      Groups.save(group)
    end
    row.failed_group = false
    Rows.save(row)
  end

  local function drop(group)
    if group.outer then Store.remove(K.nested, group.outer, group.g) end
    known[group.g] = false
    changed[group.g] = nil
    Store.set(K.groups, group.g)
    local places, left = Store.get(K.group_ids, group.id) or '', ''
    for at = 1, #places, 10 do
      if sub(places, at, at + 5) ~= group.g then left = left .. sub(places, at, at + 9) end
    end
    Store.set(K.group_ids, group.id, left ~= '' and left)
    if not group.outer then
      for outcome = 0, 3 do Store.remove(K.listed, tostring(outcome), group.g) end
    end
    Store.set(K.left, group.g)
  end

  -- A row is removed from the store: it leaves its group, and the group that it closes loses its end.
  function Groups.leave(row)
    local group = Groups.get(row.group)
    if group then
      Store.remove(K.members, group.g, row.n)
      if row.ended_at then
        Store.remove(K.deaths, group.g, struct.pack('>d', row.ended_at) .. row.n)
        Store.remove(K.cancels, group.g, struct.pack('>d', row.ended_at) .. row.n)
      else
        group.open = group.open - 1
      end
      group.members = group.members - 1
      Store.set(K.left, group.g, tostring(1 + (tonumber(Store.get(K.left, group.g)) or 0)))
      Groups.save(group)
      if group.members == 0 and not group.closer then drop(group) end
    end
    local closed = Groups.closed_by(row)
    if closed then
      closed.closer = false
      Groups.save(closed)
      if closed.members == 0 then drop(closed) end
    end
  end

  -- A row that has ended in a group, as it is imported.
  function Groups.place_end(row, g)
    local place = row.ended_at and struct.pack('>d', row.ended_at) .. row.n
    if row.failed_group then Store.insert(K.deaths, g, place) end
    if row.status == 'C' then Store.insert(K.cancels, g, place) end
  end

  -- Store a group that is imported. Its members are there already.
  function Groups.put(g, from)
    local root = Rows.get(g)
    local closer = root and Rows.extra(root).c and true or false
    local is_nested = from.outer ~= NONE
    if root and not is_nested then
      Store.insert(K.members, g, g)
      Groups.place_end(root, g)
    end
    local members = call('ZLEXCOUNT', K.members, '[' .. g, '[' .. g .. string.rep('\255', 7)) + (root and not is_nested and 1 or 0)
    local flags, tenant = from.flags, Kinds.text(from.tenant_name)
    local group = {
      g = g, id = from.id, tenant = tenant, tenant_name = from.tenant_name, type = from.type, open = from.open,
      version = from.version, contributed = has(flags, CONTRIBUTED), final = has(flags, FINAL), failed = from.failed,
      cancellations = from.cancelled, members = members, closer = closer, ended_at = from.ended ~= 0 and from.ended or nil,
      keep = has(flags, HAS_KEEP) and from.keep or nil, outer = is_nested and from.outer or nil,
      value = has(flags, HAS_VALUE) and from.value or nil,
    }
    known[g], changed[g] = group, group
    group.was = Groups.outcome(group)
    Store.set(K.group_ids, group.id, (Store.get(K.group_ids, group.id) or '') .. g .. tenant)
    if is_nested then Store.insert(K.nested, from.outer, g) end
    if from.total > members then Store.set(K.left, g, string.format('%d', from.total - members)) end
    if group.ended_at and group.keep and members > 0 then Store.score(K.fades, 'G' .. g, group.ended_at + group.keep) end
  end

  -- Values ------------------------------------------------------------------------------------------------

  -- The version and value of the group of a row, and whether the value is final.
  function Groups.value_of(row)
    local group = Groups.get(row.group)
    if group then return group.version, group.value, group.final end
    if row.contributed then return LONE_VERSION, row.result, false end
    return 0, nil, false
  end

  -- The version that a contribution makes: see `next_version` in treadle.store.rules. `from`: what it was folded from.
  function Groups.next_version(token, from)
    local high, low = struct.unpack('>I4I4', token)
    return math.max((high % 2 ^ 18 * 2 ^ 32 + low + 3 * (from or 0)) % 2 ^ 50, LONE_VERSION)
  end

  -- Set the group's value. The row's result must be set already, and its group be there if it has children.
  -- `value`: nil for the row's own result. `token`, `from`: see `next_version`. Returns the new version, or nil if
  -- the value is final, and stays.
  function Groups.contribute(row, value, final, token, from)
    if not Groups.get(row.group) and value == nil and not final then
      row.contributed = true
      Rows.save(row)
      return LONE_VERSION
    end
    local group = Groups.of(row)
    if group.final then return nil end
    if value == nil then value = row.result end
    group.version, group.value, group.final, group.contributed = Groups.next_version(token, from), value, final, true
    Groups.save(group)
    return group.version
  end

  local function list(group)
    local outcome = Groups.outcome(group)
    if group.was and group.was ~= outcome then Store.remove(K.listed, group.was, group.g) end
    Store.insert(K.listed, outcome, group.g)
  end

  Store.before_flush[#Store.before_flush + 1] = function()
    for g, group in pairs(changed) do
      Store.set(K.groups, g, write(group))
      -- A group that is new has lost no members.
      if not group.outer and (group.members > 1 or group.was and Groups.total(group) > 1) then list(group) end
    end
  end
end
