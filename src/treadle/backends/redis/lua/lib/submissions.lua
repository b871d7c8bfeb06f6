-- uses: plan plan_store key_holders workers audits
-- Submissions: plan, store and answer one submission.

local Submissions = {}

do
  local function holds(pause)
    local found = Store.get(K.paused, pause)
    return found and (#found < 8 or struct.unpack('>d', found) > now)
  end

  local function is_paused(names)
    local of_tenant = '\0' .. names.tenant
    return holds(names.queue) or holds(names.queue .. of_tenant) or holds(of_tenant)
  end

  -- Lease a new row to the worker that it names, if it is ready, no pause holds it, and the worker is alive.
  local function lease_at_once(row, name)
    local worker = Workers.get(name)
    if not worker or worker.until_ <= now or row.status ~= 'r' or row.verdict ~= 0 then return false end
    if row.deadline and row.deadline <= now or is_paused(row.kind.names) then return false end
    Transitions.leave_line(row)
    Transitions.lease(row, name, worker.number, Transitions.token(ARGV[1]), false)
    return true
  end

  local function answer_for(found)
    local row = found.row or found.item.row
    if found.existing then return {row.id, row.status, Rows.extra(row).g or row.id} end
    local worker = found.item.spec.lt
    return worker and lease_at_once(row, worker) and Rows.raw(row) or row.status
  end

  -- Store items together or not at all. `note`: as in audits.lua. ARGV[1] must be three random bytes.
  -- Answers {1, answers} or {0, why, ids, keys}. An answer is a letter: the status of a new item; or a raw row: a new
  -- item that is leased; or {id, letter, group id}: an earlier item.
  function Submissions.store(items, note)
    local plan = Plan.make(items)
    if plan.why then return {0, plan.why, plan.ids, plan.keys} end
    if plan.stored > 0 then Audits.store(note, plan.stored) end
    PlanStore.roots(plan)
    KeyHolders.take_over(plan)
    local answers = {}
    for i, found in ipairs(plan.answers) do answers[i] = answer_for(found) end
    return {1, answers}
  end
end
