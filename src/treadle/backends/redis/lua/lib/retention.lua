-- uses: clock store kinds rows groups
-- Retention: ended rows by the time they may be pruned.
--
--   fades  scored by the instant: 'N' n (a row), 'G' group (a group to unfold), 'B' batch(6)
--   fade   batch -> the numbers of rows that ended in one call and are kept equally long
--
-- An entry may be out of date: the row was requeued, or is gone. Prune looks at the row itself.

local Retention = {}

do
  local pending = {} -- by instant: numbers

  local function add(row, at)
    pending[at] = pending[at] or {}
    pending[at][#pending[at] + 1] = row.n
  end

  Retention.add = add

  -- How long a row is kept after its group's end, or nil: until an operator deletes it.
  function Retention.keep(row)
    if row.status == 'D' then return row.keep_dead end
    return row.keep
  end

  -- Add a row whose group has ended.
  function Retention.add_member(row, ended_at)
    local keep = Retention.keep(row)
    if keep then add(row, ended_at + keep) end
  end

  -- Add a group that has just ended, and the groups in it, unless a group around it is open.
  function Retention.add_group(group)
    if not Groups.kept_since(group) then return end
    local stack = {group}
    while #stack > 0 do
      group = stack[#stack]
      stack[#stack] = nil
      local since = Groups.kept_since(group)
      if since then
        local inner = Store.any(K.nested) and Store.list(K.nested, group.g) or {}
        for i = 1, #inner do stack[#stack + 1] = Groups.get(inner[i]) end
        if group.keep and group.members > 0 then Store.score(K.fades, 'G' .. group.g, since + group.keep) end
      end
    end
  end

  Store.before_flush[#Store.before_flush + 1] = function()
    for at, numbers in pairs(pending) do
      if #numbers == 1 then
        Store.score(K.fades, 'N' .. numbers[1], at)
      else
        local batch = struct.pack('>I6', Store.next(K.batches))
        Store.set(K.fade, batch, concat(numbers))
        Store.score(K.fades, 'B' .. batch, at)
      end
    end
  end
end
