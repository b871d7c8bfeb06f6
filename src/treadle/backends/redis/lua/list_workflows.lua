-- uses: store kinds rows raw_rows list_filter
-- reads
-- List workflows: a portion of a list of workflows, by their newest roots, newest first. Argument and answer are those of
-- list_groups.lua; `counted` is how many items of a workflow are counted.

local LOOKED, MOST_ITEMS, AT_ONCE = 100, 2000, 100 -- roots and items of one call, states that are read at once
local MOST_BYTES = 1000000 -- of the states of a workflow
local MOST_MEMBERS = 10000 -- items of one name, of all tenants, that are passed over in one call
local HIGHEST = string.rep('\255', 12) -- no rest is above this
local FAILED_GROUP, FLAGS, ENDED_AT = 8, 10, 63 -- see row_bytes.lua

local asked = cmsgpack.unpack(ARGV[1])
local last = asked.bound and '(' .. struct.pack('>I6', asked.bound) or '+'
local roots = call('ZREVRANGEBYLEX', K.workflow_roots, last, '-', 'LIMIT', 0, LOOKED)
local items = RawRows.fields(K.item, roots)
local extras = RawRows.fields(K.extra, roots)

local function double(value) return value and struct.pack('>d', value) or '' end

local function ended_at(state)
  return (struct.unpack('>d', state, sub(state, 1, 1) == 'P' and 19 + state:byte(18) or ENDED_AT))
end

local passed = 0 -- items of all tenants, in this call

-- The numbers of the newest items of a workflow, at most one more than are counted; of its newest root if there are too many
-- of other tenants before those. Also whether there may be others.
local function newest(prefix, tenant, root)
  local numbers, from, bound, until_ = {}, #prefix + 1, '[' .. prefix .. HIGHEST, passed + MOST_MEMBERS
  repeat
    local members = call('ZREVRANGEBYLEX', K.workflows, bound, '[' .. prefix, 'LIMIT', 0, asked.counted + 1)
    for i = 1, #members do
      if sub(members[i], from + 6) == tenant then numbers[#numbers + 1] = sub(members[i], from, from + 5) end
      if #numbers > asked.counted then return numbers, true end
    end
    passed, bound = passed + #members, '(' .. (members[#members] or '')
  until #members <= asked.counted or passed >= until_
  return #numbers > 0 and numbers or {root}, passed >= until_
end

local function count(numbers, has_more)
  local counted = {total = 0, open = 0, failed = 0, cancelled = 0, ended = 0, capped = has_more, died = 0}
  local bytes = 0
  for first = 1, math.min(#numbers, asked.counted), AT_ONCE do
    local some = {unpack(numbers, first, math.min(first + AT_ONCE - 1, #numbers, asked.counted))}
    local states = RawRows.fields(K.state, some)
    for i = 1, #some do
      local state = states[i]
      local status = ListFilter.status(state)
      counted.total, counted.first, bytes = counted.total + 1, some[i], bytes + (state and #state or 0)
      if status == 'S' or status == 'D' or status == 'C' then
        local at = ended_at(state)
        counted.ended = math.max(counted.ended, at)
        if status == 'C' then counted.cancelled = counted.cancelled + 1 end
        if status == 'D' and math.floor(state:byte(FLAGS) / FAILED_GROUP) % 2 == 1 then
          counted.failed = counted.failed + 1
          if not counted.death or at <= counted.died then counted.death, counted.died = some[i], at end
        end
      else
        counted.open = counted.open + 1
      end
    end
    if bytes > MOST_BYTES and counted.total < #numbers then
      counted.capped = true
      break
    end
  end
  return counted
end

local function outcome_of(counted)
  return counted.open > 0 and '0' or counted.failed > 0 and '2' or counted.cancelled > 0 and '3' or '1'
end

local found, looked, position, reached, read = {}, 0, '', nil, 0
for i = 1, #roots do
  if #found == asked.most or looked == asked.reach or read > MOST_ITEMS or passed > MOST_MEMBERS then break end
  local n, item = roots[i], items[i]
  local kind, workflow = Kinds.get(sub(item, 2, 5)), cmsgpack.unpack(extras[i]).w
  local queued = ListFilter.queued_at(item)
  looked, position, reached = looked + 1, n, queued
  local prefix = struct.pack('>I2', #workflow) .. workflow
  local own = prefix .. kind.tenant
  local is_newest = call('ZREVRANGEBYLEX', K.roots_of_workflow, '[' .. own .. HIGHEST, '[' .. own, 'LIMIT', 0, 1)[1] == own .. n
  if is_newest and (not asked.tenant or kind.names.tenant == asked.tenant) and (not asked.type or kind.names.type == asked.type)
    and not (asked.since and queued < asked.since) and not (asked.until_ and queued >= asked.until_) then
    local counted = count(newest(prefix, kind.tenant, n))
    read = read + counted.total
    local outcome = outcome_of(counted)
    if string.find(asked.outcomes, outcome, 1, true) then
      found[#found + 1] = {
        n, workflow, kind.names.tenant, kind.names.type, outcome, counted.open, counted.total, counted.failed,
        double(ListFilter.queued_at(call('HGET', K.item, counted.first))), counted.open == 0 and double(counted.ended) or '',
        counted.death and RawRows.read({counted.death}) or {}, counted.capped and 1 or 0,
      }
    end
  end
end
return {looked == #roots and #roots < LOOKED and 1 or 0, position, looked, double(reached), found}
