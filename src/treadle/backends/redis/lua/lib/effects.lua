-- uses: clock store kinds rows lines transitions groups retention dependencies
-- Effects: how a row ends, and what its end causes elsewhere. `Effects.answer()` is what effects.py reads.
--
--   dead, cancelled  n: indexes for lists
--   marks            length(2) mark tenant(4) / ended_at(8) n of dead rows
--   marked           length(2) mark / n tenant(4) of the same rows
--   marks_last       mark, scored by its newest death
--   released         n -> the release of dead rows that have one
--   mark_releases    length(2) mark tenant(4) length(1) release / ended_at(8) n of the same rows

local Effects = {}

do
  local released, ended_groups, doomed = {}, {}, 0
  local unlisted = {} -- marks that a row has left

  -- The effects of this call so far.
  function Effects.answer()
    return {released, ended_groups, doomed}
  end

  local function mark_name(row) return struct.pack('>I2', #row.mark) .. row.mark end

  local function mark_release(row, release)
    return mark_name(row) .. row.kind.tenant .. string.char(#release) .. release
  end

  -- Remove an ended row from the indexes of ended rows.
  function Effects.unlist(row)
    if row.status == 'D' then
      Store.remove(K.dead, '', row.n)
      Store.remove(K.marks, mark_name(row) .. row.kind.tenant, struct.pack('>d', row.ended_at) .. row.n)
      Store.remove(K.marked, mark_name(row), row.n .. row.kind.tenant)
      unlisted[row.mark] = mark_name(row)
      local release = Store.any(K.mark_releases) and Store.get(K.released, row.n)
      if release then
        Store.set(K.released, row.n)
        Store.remove(K.mark_releases, mark_release(row, release), struct.pack('>d', row.ended_at) .. row.n)
      end
    elseif row.status == 'C' then
      Store.remove(K.cancelled, '', row.n)
    end
  end

  -- Add an ended row to these indexes.
  function Effects.list(row)
    if row.status == 'D' then
      local place = struct.pack('>d', row.ended_at) .. row.n
      Store.insert(K.dead, '', row.n)
      Store.insert(K.marks, mark_name(row) .. row.kind.tenant, place)
      Store.insert(K.marked, mark_name(row), row.n .. row.kind.tenant)
      Store.score(K.marks_last, row.mark, row.ended_at)
      if row.release then
        Store.set(K.released, row.n, row.release)
        Store.insert(K.mark_releases, mark_release(row, row.release), place)
      end
    elseif row.status == 'C' then
      Store.insert(K.cancelled, '', row.n)
    end
  end

  -- End a row. The caller must call count_end before the verb is over. Its reason and mark are set already.
  function Effects.end_row(row, status)
    Transitions.withdraw(row)
    Transitions.unwatch_deadline(row)
    if row.has_extra then Dependencies.stop_waiting(row) end
    row.unreleased = row.status == 'b'
    Lines.free_lane(row)
    Rows.set_status(row, status)
    row.ended_at = now
    row.verdict = 0
    row.overdue = false
    if row.losses >= KILLING then Store.remove(K.killing, '', row.n) end
    Effects.list(row)
  end

  -- A prerequisite of a row was counted: it may wait no longer, or in vain.
  function Effects.release_or_doom(gate)
    local row, state = gate.row, Dependencies.state(gate)
    if row.status ~= 'b' or row.verdict ~= 0 then return end
    if state == 'released' then
      released[#released + 1] = {row.id, row.kind.row, row.has_extra and Store.get(K.extra, row.n) or ''}
      Transitions.wait(row)
    elseif state == 'doomed' then
      doomed = doomed + 1
      Transitions.doom(row, UNSATISFIABLE)
    end
  end

  -- Count the end of an item, or of a group, for the items that wait for it.
  local function prerequisite_ended(tenant, name, ended)
    for _, waiter in ipairs(Dependencies.waiters(tenant, name)) do
      local gate = Dependencies.gate(waiter)
      if gate and Dependencies.count(gate, name, ended) then Effects.release_or_doom(gate) end
    end
  end

  local function group_ended(tenant, id, failed)
    prerequisite_ended(tenant, GROUP_MARK .. id, failed and 'D' or 'S')
  end

  -- The last member of a group has ended.
  function Effects.end_group(group)
    group.ended_at = now
    ended_groups[#ended_groups + 1] = {group.id, group.tenant_name, group.type, group.failed, group.value or false}
    Retention.add_group(group)
    group_ended(group.tenant, group.id, group.failed > 0 or group.cancellations > 0)
  end

  -- Count the end of a member. The last one ends the group.
  local function member_ended(row)
    local group = Groups.get(row.group)
    if not group then
      local names = row.kind.names
      local failed = row.failed_group and 1 or 0
      ended_groups[#ended_groups + 1] = {row.id, names.tenant, names.type, failed, row.contributed and row.result or false}
      Retention.add_member(row, now)
      group_ended(row.kind.tenant, row.id, row.failed_group or row.status == 'C')
      return
    end
    group.open = group.open - 1
    if row.failed_group then
      group.failed = group.failed + 1
      Store.insert(K.deaths, group.g, now8 .. row.n)
    elseif row.status == 'C' then
      Store.insert(K.cancels, group.g, now8 .. row.n)
      group.cancellations = group.cancellations + 1
    end
    Groups.save(group)
    if group.open == 0 then Effects.end_group(group) end
  end

  -- Count the end of a row: for the items that wait for it, and for its group.
  function Effects.count_end(row)
    if row.status == 'D' then
      local can_fail = not Rows.extra(row).x or row.kind.names.type == 'treadle.group'
      row.failed_group = can_fail and not Dependencies.is_tolerated(row)
      Rows.save(row)
    end
    prerequisite_ended(row.kind.tenant, row.id, row.status)
    member_ended(row)
  end

  -- End several rows at once. Those that wait for each other are neither released nor doomed.
  function Effects.end_all(rows, status)
    for _, row in ipairs(rows) do
      if row.status == 'R' and row.begun then row.started_at = row.claimed_at end
      Effects.end_row(row, status)
    end
    for _, row in ipairs(rows) do Effects.count_end(row) end
  end

  Store.before_flush[#Store.before_flush + 1] = function()
    for mark, name in pairs(unlisted) do
      if #Store.list(K.marked, name, 1) == 0 then Store.score(K.marks_last, mark) end
    end
  end
end
