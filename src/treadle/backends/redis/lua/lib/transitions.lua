-- uses: clock store kinds rows lines
-- Transitions: how a row gets from one state to another, except its end.
--
-- wait -> make_ready, or scheduled      lease -> unlease, free -> wait_again      doom      withdraw

local EXPIRED, UNSATISFIABLE, UNKNOWN_TYPE = 1, 2, 3 -- verdicts
local KILLING = 3 -- as in treadle.item

local Transitions = {}

-- Put it into its line: at its place, or at the end if it has none.
function Transitions.make_ready(row, at)
  Rows.set_status(row, 'r')
  row.ready_at = at
  if row.place == 0 then
    local number = struct.unpack('>I6', row.n)
    row.place = Store.last(K.seq) == number and number or Store.next(K.seq) -- a new row is the last one
  end
  Lines.add_ready(row)
end

-- Make it scheduled or ready: it waits for nothing but its time.
function Transitions.wait(row)
  if row.due_at > now then
    Rows.set_status(row, 'w')
    Lines.add_due(row)
  else
    Transitions.make_ready(row, now)
  end
end

-- Remove it from the line, or from the scheduled rows.
function Transitions.leave_line(row)
  if row.owned or row.verdict ~= 0 then return end
  if row.status == 'r' then
    Lines.remove_ready(row)
  elseif row.status == 'w' then
    Lines.remove_due(row)
  end
end

-- Remove it from where it waits, or from the leases of its worker.
function Transitions.withdraw(row)
  if row.owned then
    Transitions.unlease(row)
  elseif row.verdict ~= 0 then
    Lines.remove_doomed(row)
  else
    Transitions.leave_line(row)
  end
end

-- Deadlines -----------------------------------------------------------------------------------------------

function Transitions.watch_deadline(row, deadline)
  row.deadline = deadline
  Store.score(K.deadlines, row.n, deadline)
  Rows.save(row)
end

function Transitions.unwatch_deadline(row)
  if row.deadline then Store.score(K.deadlines, row.n) end
end

-- Its deadline has come. It is doomed: now, or when it is no longer running.
function Transitions.expire(row)
  Store.score(K.deadlines, row.n)
  if row.owned then
    row.overdue = true
    Rows.save(row)
  else
    Transitions.doom(row, EXPIRED)
  end
end

-- It can only end, and waits for a claim to hand it out. It keeps its status.
function Transitions.doom(row, verdict)
  Transitions.leave_line(row)
  Transitions.unwatch_deadline(row)
  row.verdict = verdict
  Lines.add_doomed(row)
  Rows.save(row)
end

-- Its condition can be met again. A lease with its verdict is lost.
function Transitions.undoom(row)
  Transitions.withdraw(row)
  row.verdict, row.worker = 0, nil
  if row.deadline then Transitions.watch_deadline(row, row.deadline) end
  Rows.save(row)
end

-- Leases --------------------------------------------------------------------------------------------------

-- A new token: unique in the life of the store, also after a failover. `random`: three bytes of the caller.
function Transitions.token(random)
  return struct.pack('>I5', Store.next(K.tokens)) .. random
end

-- Lease it to a worker: to be run, or to be ended with its verdict. It must have left its line.
-- `worker`: its name; `number`: its number (4 bytes). `buffered`: its type waits in the worker before it begins.
function Transitions.lease(row, worker, number, token, buffered)
  row.token, row.owned, row.worker = token, true, worker
  if row.verdict == 0 then
    row.begun = row.losses == 0 and not buffered
    if row.begun then row.attempt = row.attempt + 1 end
    row.claimed_at = now
    Rows.set_status(row, 'R')
  end
  Store.set(K.held, row.n, row.verdict == 0 and number or number .. 'd') -- see workers.lua
  Rows.save(row)
end

function Transitions.unlease(row)
  Store.set(K.held, row.n)
  row.owned, row.token, row.suspended = false, RowBytes.NO_TOKEN, false
  Rows.save(row)
end

local function loss_delay(losses, number)
  local spread = (number * 7919 + losses * 104729) % 1000 / 1000
  return math.min(2 ^ math.min(losses - 2, 10), 30) * (1 - spread / 2)
end

-- Its worker is dead. `release`: the worker's, or false.
function Transitions.free(row, release)
  local worker = row.worker
  Transitions.unlease(row)
  row.worker = nil
  if row.verdict ~= 0 then
    Lines.add_doomed(row)
    return
  end
  local again = {
    due = row.due_at, attempt = row.attempt, failures = row.failures,
    losses = row.losses + (row.begun and 1 or 0), keeps_place = true, stays_ready = not row.begun,
  }
  if row.begun then
    row.started_at = row.claimed_at
    Rows.add_to_history(row, 'L' .. struct.pack('>I4d', row.attempt, now) .. Rows.with_release(worker, release))
    if again.losses > 1 then again.due = now + loss_delay(again.losses, struct.unpack('>I6', row.n)) end
  end
  Transitions.wait_again(row, again)
end

-- Its attempt is over, and did not end it. `again`: due, attempt, failures, losses, keeps_place, stays_ready.
function Transitions.wait_again(row, again)
  if again.losses >= KILLING then
    Store.insert(K.killing, '', row.n)
  elseif row.losses >= KILLING then
    Store.remove(K.killing, '', row.n)
  end
  row.attempt, row.failures, row.losses, row.due_at = again.attempt, again.failures, again.losses, again.due
  if not again.keeps_place then row.place = 0 end
  if row.overdue then
    Rows.set_status(row, again.due > now and 'w' or 'r')
    row.verdict = EXPIRED
    Lines.add_doomed(row)
  else
    local ready_at = row.ready_at
    Transitions.wait(row)
    if again.stays_ready then row.ready_at = ready_at end
  end
end
