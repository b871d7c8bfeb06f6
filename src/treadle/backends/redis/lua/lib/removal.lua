-- uses: clock store kinds rows lines groups retention dependencies transitions effects steps mailboxes
-- Removal: rows that leave the store.

local Removal = {}

do
  local function leave_family(row)
    local parent = row.has_extra and Rows.extra(row).p
    local found = parent and Rows.find(row.kind.tenant, parent)
    if found then Store.remove(K.children, found.n, row.n) end
    if Store.any(K.children) then
      for _, child in ipairs(Store.list(K.children, row.n)) do Store.remove(K.children, row.n, child) end
    end
  end

  -- Read what the removal of these rows looks at, in one command.
  function Removal.load(rows)
    local ids = {}
    for i = 1, #rows do ids[i] = rows[i].id end
    Store.load(K.id, ids)
  end

  -- Remove a row from everything. It has no lease, is in no line, and nothing waits for it.
  function Removal.delete(row)
    if row.has_extra then Dependencies.forget_waiting(row) end
    if row.ended_at then
      Effects.unlist(row)
      Store.score(K.fades, 'N' .. row.n)
    elseif row.losses >= KILLING then
      Store.remove(K.killing, '', row.n)
    end
    Lines.free_lane(row)
    if row.has_steps or row.has_records then
      Steps.delete(row.n)
      Mailboxes.delete(row.n)
    end
    leave_family(row)
    Groups.leave(row)
    if not Groups.get(row.group) then Store.score(K.fades, 'G' .. row.group) end
    Rows.delete(row)
    Kinds.leave(row.kind)
  end

  -- Remove rows in any state. No other row may wait for them.
  function Removal.delete_all(rows)
    Removal.load(rows)
    for _, row in ipairs(rows) do
      if not row.ended_at then
        Transitions.withdraw(row)
        Transitions.unwatch_deadline(row)
        if row.has_extra then Dependencies.stop_waiting(row) end
      end
    end
    for _, row in ipairs(rows) do Removal.delete(row) end
  end

  -- Remove successful rows of which nothing but their own data is stored. `ids`: theirs; `counts`: how many of
  -- each kind, by its number.
  function Removal.delete_plain(numbers, ids, counts)
    Rows.delete_plain(numbers, ids)
    for k, count in pairs(counts) do
      local kind = Kinds.get(k)
      Kinds.count(kind, 'S', -count)
      Kinds.leave(kind)
    end
  end
end
