-- uses: clock store kinds rows transitions groups retention dependencies effects trees apart repair list_filter audits steps
-- flags: allow-oom
-- Open ended items again, and with them the items that died because of them.
-- ARGV: note, entry and apart (see operate.py), tenant, redrives (empty: an operator requeues), backoff, alone
--       (1 or 0), statuses (letters), a step to begin with or nothing, a filter (see list_filter.lua) or nothing, then the
--       numbers of rows that it found, or ids
-- Answers the rows as they were, the places of names that are left, and the entry.

local redrives, backoff, alone, statuses, found_by = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8], ARGV[10]
local from_step = ARGV[9] ~= '' and ARGV[9] or nil
local MOST_REDRIVES = 8191 -- see row_bytes.lua
local FIRST = 11 -- the place of the first name

local function named_rows()
  if found_by == '' then return Trees.named(Trees.tenant(ARGV[4]), FIRST) end
  local numbers, found = {}, {}
  for i = FIRST, #ARGV do numbers[#numbers + 1] = ARGV[i] end
  local filter = ListFilter.new(cmsgpack.unpack(found_by))
  for _, row in ipairs(Trees.rows(ListFilter.look_at(filter, numbers, #numbers, {looked = 0, bytes = 0}))) do
    found[row.n] = row
  end
  local named = {}
  for i = 1, #numbers do named[i] = found[numbers[i]] or false end
  return named
end

local function has_step(row) return not from_step or (row.has_steps and Steps.find(row.n, from_step)) end

-- Those of the named rows that are to be opened.
local function asked_rows(named)
  local rows, seen = {}, {}
  for _, row in ipairs(named) do
    if row and not seen[row] and statuses:find(row.status, 1, true) and (not redrives or row.redrives < redrives) and has_step(row) then
      seen[row] = true
      rows[#rows + 1] = row
    end
  end
  return rows, seen
end

-- An ended row is as if it had never been claimed. It keeps its history.
local function open_again(row)
  Store.score(K.fades, 'N' .. row.n)
  if row.has_extra then Dependencies.forget_waiting(row) end
  Effects.unlist(row)
  Groups.reopen(row)
  row.prune_pending, row.suspended = false, false
  row.attempt, row.failures, row.losses, row.deferrals, row.place, row.reason, row.mark = 0, 0, 0, 0, 0, 0, ''
  row.worker, row.deadline, row.started_at, row.claimed_at, row.ended_at = nil, nil, nil, nil, nil
  Rows.set_status(row, 'b')
end

-- It waits for its prerequisites as they are now, or for its time.
local function wait_for_after(row)
  if Rows.extra(row).a then
    local gate = Dependencies.start_waiting(row, function(_, name) return Repair.ended(row, name) end)
    if Dependencies.state(gate) ~= 'released' then return end
  end
  Transitions.wait(row)
end

-- Items that are still blocked wait again for what ended without counting, and is open again.
local function count_as_open(tenant, name, ended, opened)
  for _, row in ipairs(Dependencies.waiters(tenant, name)) do
    local gate = Dependencies.gate(row)
    if not opened[row] and row.status == 'b' and gate and not Dependencies.counts(row, ended) then
      Dependencies.reopen(gate, name)
      if row.verdict == UNSATISFIABLE and Dependencies.state(gate) == 'waiting' and not alone then
        Transitions.undoom(row)
      end
    end
  end
end

local named, left = named_rows(), {}
if ARGV[3] == '1' then named, left = Apart.split(named) end
local asked, is_asked = asked_rows(named)
local rows, names = Repair.plan(asked, alone)
local before, ends, opened = Trees.raw(rows), {}, {}
for i, new in ipairs(names) do ends[i] = Dependencies.ended(new.tenant, new.name) or false end
for _, row in ipairs(rows) do
  opened[row] = true
  if is_asked[row] then
    row.due_at = now + (redrives and backoff * 2 ^ row.redrives or 0)
    row.redrives = redrives and math.min(row.redrives + 1, MOST_REDRIVES) or 0
    if row.has_steps then row.has_steps = Steps.requeue(row.n, row.status == 'D', from_step) end
  end
  open_again(row)
end
for _, row in ipairs(rows) do wait_for_after(row) end
for i, new in ipairs(names) do
  if ends[i] then count_as_open(new.tenant, new.name, ends[i], opened) end
end
local entry = Audits.record(1, #rows, ARGV[2])
Store.flush()
return {before, left, entry}
