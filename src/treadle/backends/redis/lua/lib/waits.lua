-- uses: clock store kinds rows lines transitions steps mailboxes holds
-- Waits: how rows are suspended until something comes, and how they are woken.

local Waits = {}

do
  local NEVER = 253402300799 -- as in treadle.item
  local SLEEP = 2 -- kinds of steps, as STEP_KINDS in treadle.item; those below are no waits

  -- Whether a row waits without a worker: a claim ends that.
  function Waits.is_suspended(row) return row.suspended and not row.owned and not row.ended_at end

  local function has_passed(until_) return until_ and until_ <= now end

  -- When a row is due that waits for these steps, as they are stored.
  local function due_at(n, names)
    local due = NEVER
    for i = 1, #names do
      local data = Steps.find(n, names[i])
      local kind, until_ = StepBytes.wait(data)
      local _, _, _, is_over = StepBytes.place(data)
      if kind >= SLEEP then
        due = math.min(due, (is_over or has_passed(until_)) and now or until_ or NEVER)
      end
    end
    return due
  end

  -- Let the waits of a settlement take signals that are there.
  local function take_mail(n, names)
    if Mailboxes.unread(n) == 0 then return end
    local waits = {}
    for _, step in ipairs(Steps.open(n)) do waits[step.name] = step end
    for i = 1, #names do
      local step = waits[names[i]]
      if step and step.signal ~= '' and not has_passed(step.until_) then
        local found, value = Mailboxes.take(n, step.signal)
        if found then Steps.answer(n, step, value) end
      end
    end
  end

  -- Suspend a row that has no lease any more. `steps`: names and bytes, one after the other.
  function Waits.suspend(row, steps)
    local n, names, asked = row.n, {}, {}
    for i = 1, #steps, 2 do
      names[#names + 1], asked[steps[i]] = steps[i], true
      Steps.write(n, row.attempt, steps[i], steps[i + 1])
    end
    for _, step in ipairs(row.has_steps and Steps.open(n) or {}) do
      if step.signal ~= '' and not asked[step.name] then Steps.remove(n, step) end
    end
    if row.has_records then take_mail(n, names) end
    row.has_steps = #names > 0 or (row.has_steps and #Store.list(K.steps, n, 1) > 0)
    Transitions.wait_again(row, {due = due_at(n, names), attempt = 0, failures = 0, losses = 0})
    if row.overdue then Rows.set_status(row, 'w') end
    row.suspended = true
  end

  -- The steps of a row that sleep.
  function Waits.sleeps(row)
    local found = {}
    for _, step in ipairs(row.has_steps and Steps.open(row.n) or {}) do
      if step.kind == SLEEP then found[#found + 1] = step end
    end
    return found
  end

  -- The first wait of a suspended row that takes a signal of this name now, or nil.
  function Waits.for_signal(row, name)
    if not (Waits.is_suspended(row) and row.has_steps) then return nil end
    for _, step in ipairs(Steps.open(row.n)) do
      if step.signal == name and not has_passed(step.until_) then return step end
    end
  end

  -- A wait of a row was answered. Returns whether that has made the row ready.
  function Waits.answer(row, step, value)
    Steps.answer(row.n, step, value)
    if row.status ~= 'w' or row.verdict ~= 0 then return false end
    Transitions.leave_line(row)
    row.due_at = Holds.keep(row, now)
    Transitions.wait(row)
    Rows.save(row)
    return row.status == 'r'
  end
end
