-- uses: clock store kinds rows lines transitions groups retention dependencies effects leases new_items plan
-- uses: plan_store key_holders bulk stages
-- Settlements: apply each whose token still owns its item, as a whole or not at all. For settle.lua and suspend.lua.
--
-- ARGV: how many groups have had a fold refused in an earlier part of this call, and their names; then for each
-- settlement
--   n(6) token(8) kind(1: S D C, t retry, f defer, l release, s suspend) flags(2) reason(1) ran(8) delay(8) run_at(8)
--   version(8) length(2) tenant \0 group     the last two as its lease names them
-- and, as the flags say, its result, the contributed value, its failure, its mark, its steps, its plain children, its
-- children. Steps are how many they are, and the name and the bytes (lib/step_bytes.lua) of each.
-- Many plain children, before the others, are the shortest keep and a portion (see bulk.lua), or a stage(8), how many
-- it has, and the shortest keep.
--
-- Returns the instant(8), an outcome for each settlement, and the effects. An outcome is
--   ''            applied                      a number    applied: the group's new version
--   'a'           applied by an earlier call   a letter    stale: why, as in leases.lua
--   'y'           applied: suspended, and ready at once
--   {'m', version, value, final}      moved    {'r', why, ids, keys}    rejected
--   {'e', version, ids}               applied: ids of children, each with the id that answers for it; version 0
--                                     without a contribution; 'y' follows for 'y'
--   {'n'}         plain children cannot be stored in the short way: nothing was done

local HAS_RESULT, CONTRIBUTES, FINAL, FOLD, HAS_VALUE = 1, 2, 4, 8, 16
local HAS_RUN, HAS_RUN_AT, HAS_FAILURE, HAS_MARK, HAS_CHILDREN = 32, 64, 128, 256, 512
local HAS_PLAIN_CHILDREN, HAS_STAGE, HAS_STEPS = 1024, 2048, 4096
local ABORTED = 2 -- a reason: as REASONS in item_bytes.py
local REASONS = {[0] = ABORTED, 3, 5, 8} -- by verdict
local APPLIED, AGAIN, READY = '', 'a', 'y'

local refused = {} -- names of groups of which a fold was refused

-- Reading -------------------------------------------------------------------------------------------------

local at = 1
local band = bit.band

local function take(is_given)
  if not is_given then return nil end
  at = at + 1
  return ARGV[at - 1]
end

local function read_settlement()
  local n, token, kind, flags, reason, ran, delay, run_at, version, length, after =
    struct.unpack('>c6c8c1I2BddddI2', take(true))
  local name = ARGV[at - 1]
  local settlement = {
    n = n, token = token, kind = kind, reason = reason, delay = delay, name = sub(name, after),
    tenant = sub(name, after, after + length - 1), ran = band(flags, HAS_RUN) > 0 and ran, run_at = band(flags, HAS_RUN_AT) > 0 and run_at,
    contributes = band(flags, CONTRIBUTES) > 0, final = band(flags, FINAL) > 0, version = band(flags, FOLD) > 0 and version,
  }
  settlement.result = take(band(flags, HAS_RESULT) > 0)
  settlement.value = take(band(flags, HAS_VALUE) > 0)
  settlement.failure = take(band(flags, HAS_FAILURE) > 0)
  settlement.mark = take(band(flags, HAS_MARK) > 0)
  if band(flags, HAS_STEPS) > 0 then
    local steps, first = {}, at + 1
    at = first + 2 * tonumber(ARGV[at])
    for i = first, at - 1 do steps[#steps + 1] = ARGV[i] end
    settlement.steps = steps
  end
  if band(flags, HAS_PLAIN_CHILDREN) > 0 then
    settlement.keep = tonumber(take(true))
    settlement.portion, at = Bulk.read(ARGV, at)
    settlement.count = settlement.portion.count
  elseif band(flags, HAS_STAGE) > 0 then
    settlement.stage, settlement.count, settlement.keep = take(true), tonumber(take(true)), tonumber(take(true))
  end
  if band(flags, HAS_CHILDREN) > 0 then settlement.children, at = NewItems.read(at) end
  return settlement
end

-- Read all rows and groups of the settlements in a few commands.
local function load_rows(settlements)
  local numbers, groups, extras, failed = {}, {}, {}, {}
  for i = 1, #settlements do
    numbers[i] = settlements[i].n
    if settlements[i].failure then failed[#failed + 1] = numbers[i] end
  end
  Rows.load(numbers)
  for i = 1, #numbers do
    local row = Rows.get(numbers[i])
    if row then
      groups[#groups + 1] = row.group
      if row.has_extra then extras[#extras + 1] = row.n end
    end
  end
  Store.load(K.groups, groups)
  Store.load(K.extra, extras)
  Store.load(K.past, failed)
end

-- Ends ----------------------------------------------------------------------------------------------------

local function record_failure(row, settlement)
  if settlement.failure then
    row.release = row.worker and Store.get(K.worker_release, row.worker)
    local worker = Rows.with_release(row.worker or '', row.release)
    Rows.add_to_history(row,
      'F' .. struct.pack('>I4dB', row.attempt, now, #worker) .. worker .. settlement.failure)
  end
end

local function group_id(row) return Rows.extra(row).g or row.id end

-- Whether the plain children can be stored.
local function is_free(settlement)
  if settlement.stage then return Stages.is_whole(settlement.stage, settlement.count) end
  return #Bulk.taken(settlement.portion) == 0
end

-- The plain children, by id. Of a stage: those that the other children wait for.
local function plain_children(settlement)
  local ids, found = {}, {}
  if settlement.portion then
    ids = Bulk.ids(settlement.portion)
  elseif settlement.stage then
    for _, child in ipairs(settlement.children) do
      for _, name in ipairs(child.spec.a or {}) do ids[#ids + 1] = name end
    end
    Store.load(K.staged, ids)
  end
  for i = 1, #ids do
    found[ids[i]] = settlement.portion ~= nil or Store.get(K.staged, ids[i]) == settlement.stage or nil
  end
  return found
end

-- The plan for the children. Without children nil, nil; if they are refused nil and the answer.
local function plan_children(row, settlement)
  local has_plain = settlement.count ~= nil
  if has_plain and not is_free(settlement) then return nil, {'n'} end
  if not settlement.children then return has_plain and {plain = settlement, new = {}, changes = {}} or nil, nil end
  local plan = Plan.make(settlement.children, group_id(row), plain_children(settlement))
  if plan.why then return nil, {'r', plan.why, plan.ids, plan.keys or {}} end
  plan.plain = has_plain and settlement
  return plan, nil
end

-- Store many plain children, or let them be unfolded.
local function store_plain(row, group, settlement)
  Groups.join_many(group, settlement.count, settlement.keep)
  if settlement.stage then return Stages.decide(settlement.stage, group.g, row.n) end
  Bulk.take_ids(settlement.portion)
  Bulk.store(settlement.portion, Store.reserve(K.seq, settlement.count), now8, group.g, row.n)
end

local function has_new(plan) return plan and (plan.plain or #plan.new > 0) end

local function store_children(row, group, plan)
  if plan.plain then store_plain(row, group, plan.plain) end
  for _, empty in ipairs(PlanStore.children(plan, group)) do Effects.end_group(empty) end
end

local function end_row(row, status, plan)
  local group = has_new(plan) and Groups.of(row)
  Effects.end_row(row, status)
  if group then store_children(row, group, plan) end
  Effects.count_end(row)
  if plan then KeyHolders.take_over(plan) end
end

-- The answer to a settlement that was applied. `is_ready`: it has suspended a row that is ready.
local function applied(version, plan, is_ready)
  local ids = {}
  for id, existing in pairs(plan and plan.existing or {}) do
    ids[#ids + 1] = id
    ids[#ids + 1] = existing
  end
  if #ids > 0 then return {'e', version or 0, ids, is_ready and READY or nil} end
  return version or (is_ready and READY) or APPLIED
end

-- The answer to a fold that must be computed anew. Nil: the contribution need not be.
local function refuse_moved(row, settlement)
  if not settlement.version then return nil end
  local version, value, final = Groups.value_of(row)
  if settlement.version == version and not refused[row.kind.names.tenant .. '\0' .. group_id(row)] then return nil end
  return {'m', version, value or false, final and 1 or 0}
end

local function succeed(row, settlement)
  local contributes = settlement.contributes and not Rows.extra(row).x
  local plan, rejected = plan_children(row, settlement)
  if rejected then return rejected end
  local moved = contributes and refuse_moved(row, settlement)
  if moved then return moved end
  Rows.record_token(row)
  row.result = settlement.result
  local version
  if has_new(plan) then Groups.of(row) end
  if contributes then
    version = Groups.contribute(row, settlement.value, settlement.final, settlement.token, settlement.version)
  end
  end_row(row, 'S', plan)
  return applied(version, plan)
end

local function die(row, settlement)
  local plan, rejected = plan_children(row, settlement)
  if rejected then return rejected end
  Rows.record_token(row)
  record_failure(row, settlement)
  if row.verdict == 0 and row.begun then row.failures = row.failures + 1 end
  row.reason = settlement.reason > 0 and settlement.reason or REASONS[row.verdict]
  row.mark = settlement.mark or ''
  end_row(row, 'D', plan)
  return applied(nil, plan)
end

local function cancel(row, settlement)
  Rows.record_token(row)
  record_failure(row, settlement)
  end_row(row, 'C')
  return APPLIED
end

-- Put back ------------------------------------------------------------------------------------------------

-- What a retry, a deferral or a release makes of a row.
local function put_back(row, settlement)
  local retry, release = settlement.kind == 't', settlement.kind == 'l'
  local stays_ready = release and settlement.delay == 0 and not settlement.run_at
  local due = row.due_at
  if not stays_ready then due = settlement.run_at or now + settlement.delay end
  return {
    due = due, attempt = row.attempt - ((not retry and row.begun) and 1 or 0),
    failures = row.failures + (retry and 1 or 0), losses = release and row.losses or 0,
    keeps_place = release, stays_ready = stays_ready,
  }
end

-- The row will be claimed again. A doomed row stays doomed.
local function give_back(row, settlement)
  Rows.record_token(row)
  if row.verdict ~= 0 then
    Transitions.unlease(row)
    Lines.add_doomed(row)
    return APPLIED
  end
  if settlement.kind == 't' then record_failure(row, settlement) end
  if settlement.kind == 'f' then row.deferrals = row.deferrals + 1 end
  Transitions.unlease(row)
  Transitions.wait_again(row, put_back(row, settlement))
  return APPLIED
end

-- All of them ---------------------------------------------------------------------------------------------

-- suspend.lua adds one.
local BY_KIND = {S = succeed, D = die, C = cancel, t = give_back, f = give_back, l = give_back}

local function apply(row, settlement)
  local ran, claimed_at = settlement.ran, row.claimed_at
  local outcome = BY_KIND[settlement.kind](row, settlement)
  local is_applied = type(outcome) ~= 'table' or outcome[1] == 'e'
  if is_applied and ran then
    row.started_at = claimed_at and math.max(now - ran, claimed_at) or now - ran
  end
  return outcome, is_applied
end

local function settle(settlement)
  local row = Rows.get(settlement.n)
  if row and row.kind.names.tenant ~= settlement.tenant then row = false end
  local outcome, is_applied
  if Leases.owns(row, settlement.token) then
    outcome, is_applied = apply(row, settlement)
  else
    local loss = Leases.why_lost(row, settlement.token)
    outcome, is_applied = loss or AGAIN, not loss
  end
  if not is_applied and settlement.version then refused[settlement.name] = true end
  return outcome
end

local function settle_all()
  for _ = 1, tonumber(take(true)) do refused[take(true)] = true end
  local settlements, outcomes = {}, {}
  while at <= #ARGV do settlements[#settlements + 1] = read_settlement() end
  load_rows(settlements)
  for i = 1, #settlements do outcomes[i] = settle(settlements[i]) end
  local effects = Effects.answer()
  Store.flush()
  return {now8, outcomes, effects}
end
