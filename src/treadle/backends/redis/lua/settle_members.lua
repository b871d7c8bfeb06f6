-- uses: clock store kinds rows groups dependencies effects
-- flags: allow-oom
-- Settle, for many members of groups that succeed. They have no deadline, wait for nothing and hold no lane, their
-- last worker was not lost, and what they contribute is a value. Their rows are not read into tables; the groups,
-- and the items that wait for them, are changed once.
--
-- ARGV: how many tenants, their names, and then for each settlement
--   n(6) token(8) tenant(2: which one) flags(1: contributes, 2: has a result, 4: has run, 8: has a value) ran(8)
--   and, with a value, length(4) value; then the result
-- Returns the instant(8), the effects and, for each settlement, one byte: c if it was applied and has contributed,
-- a if it was applied and has not; n if nothing was done with it, and settle.lua must look at it. Call it without
-- two settlements of one item.
--
-- It does what settle.lua does, on the bytes themselves: see row_bytes.lua for the formats.

local byte, pack, unpack_bytes = string.byte, struct.pack, struct.unpack

local SHORT, GENERAL = byte('p'), byte('R')
local CONTRIBUTES, HAS_RESULT, HAS_RUN, HAS_VALUE = 1, 2, 4, 8
local OWNED, BEGUN = 64, 1
local NOT_CONTRIBUTING = '\161x\195' -- `x = true` in `extra`
local CONTRIBUTED, APPLIED, NOTHING_DONE = 'c', 'a', 'n'
local MOST_TOKENS = 10
local NONE = string.rep('\0', 8)

local tenants = tonumber(ARGV[1])
local first = tenants + 1 -- the argument before those of the first settlement
local count = #ARGV - first

local numbers = {}
for i = 1, count do numbers[i] = sub(ARGV[first + i], 1, 6) end
local states = call('HMGET', K.state, unpack(numbers))
local items = call('HMGET', K.item, unpack(numbers))

-- Rows ----------------------------------------------------------------------------------------------------

-- The result and the value that it contributes. Nil where there is none.
local function result_and_value(settlement, how)
  local at, value = 26, nil
  if how >= HAS_VALUE then
    at = 30 + unpack_bytes('>I4', settlement, 26)
    value = sub(settlement, 30, at - 1)
  end
  local result = how % HAS_RUN >= HAS_RESULT and sub(settlement, at) or nil
  return result, value or result
end

-- When the handler began, or what the state has.
local function started_at(settlement, state, claimed_at)
  local at, claimed = now - unpack_bytes('>d', settlement, 18), unpack_bytes('>d', state, claimed_at)
  return at > claimed and pack('>d', at) or sub(state, claimed_at, claimed_at + 7)
end

-- A running row with all fields: nil if it is not plain.
local function end_general(state, settlement, has_run, result)
  local flags = byte(state, 10)
  if (flags ~= OWNED and flags ~= OWNED + BEGUN) or sub(state, 11, 12) ~= '\0\0' or sub(state, 21, 22) ~= '\0\0'
    or sub(state, 71, 78) ~= NONE then
    return nil
  end
  local at = 80 + byte(state, 79) -- of how many tokens have settled it
  local tokens = byte(state, at)
  if tokens >= MOST_TOKENS then return nil end
  local after = at + 1 + 8 * tokens
  return 'S' .. NONE .. string.char(flags - OWNED) .. sub(state, 11, 54)
    .. (has_run and started_at(settlement, state, 47) or sub(state, 55, 62)) .. now8 .. sub(state, 71, at - 1)
    .. string.char(tokens + 1) .. sub(state, at + 1, after - 1) .. sub(settlement, 7, 14)
    .. sub(state, after, after + byte(state, after)) .. (result and '\1' .. result or '\0')
end

local settled, values = {}, {} -- by place: the new state, what it contributes
local labelled = {} -- places of rows that contribute, unless their extra says that they do not
local ks, gs = {}, {}
do
  local seen, last_k, last_g = {}, nil, nil
  for i = 1, count do
    local state, settlement, item = states[i], ARGV[first + i], items[i]
    if state and item and sub(state, 2, 9) == sub(settlement, 7, 14) then
      local how, letter, new = byte(settlement, 17), byte(state), nil
      local has_run = how % HAS_VALUE >= HAS_RUN
      local result, value = result_and_value(settlement, how)
      if letter == SHORT then
        -- A running row of the first attempt.
        new = 'P' .. sub(state, 2) .. now8 .. (has_run and started_at(settlement, state, 10) or NONE)
          .. (result and '\2' .. result or '\0')
      elseif letter == GENERAL then
        new = end_general(state, settlement, has_run, result)
      end
      if new then
        settled[i], values[i] = new, value
        local k, g = sub(item, 2, 5), sub(item, 6, 11)
        if k ~= last_k and not seen[k] then seen[k], ks[#ks + 1] = true, k end
        if g ~= last_g and not seen[g] then seen[g], gs[#gs + 1] = true, g end
        last_k, last_g = k, g
        if byte(item) % 2 == 1 and how % 2 == CONTRIBUTES then labelled[#labelled + 1] = i end
      end
    end
  end
end
Kinds.load(ks)
Store.load(K.groups, gs)

local silent = {} -- by place: it contributes nothing
if #labelled > 0 then
  local names, last, is_silent = {}, nil, nil
  for i = 1, #labelled do names[i] = numbers[labelled[i]] end
  local extras = call('HMGET', K.extra, unpack(names))
  for i = 1, #labelled do
    local extra = extras[i]
    if extra ~= last then
      last = extra
      is_silent = string.find(extra, NOT_CONTRIBUTING, 1, true) and cmsgpack.unpack(extra).x
    end
    silent[labelled[i]] = is_silent
  end
end

-- Waiters -------------------------------------------------------------------------------------------------

local ids, awaited = {}, {} -- by place: the id; the numbers of the rows that wait for it, one after the other
if #ks > 0 and Store.any(K.waiters) then
  local names, place_of = {}, {}
  local last_k, last_length, start -- of a name, see dependencies.lua
  for i = 1, count do
    if settled[i] then
      local item = items[i]
      local at, k = byte(item) >= 2 and 40 or 32, sub(item, 2, 5)
      local length = byte(item, at)
      if k ~= last_k or length ~= last_length then
        last_k, last_length, start = k, length, Kinds.get(k).tenant .. pack('>I2', length)
      end
      local id = sub(item, at + 1, at + length)
      local name = start .. id
      names[#names + 1], place_of[name], ids[i] = name, i, id
    end
  end
  local members = Store.members_near(K.waiters, names)
  for i = 1, #members do
    local member = members[i]
    local place = place_of[sub(member, 1, -7)]
    if place then
      local n = sub(member, -6)
      awaited[place] = awaited[place] and awaited[place] .. n or n
    end
  end
end

local gates = {} -- by number of the row that waits; false if there is none

-- Count the end of a row for those that wait for it.
local function count_prerequisite(id, waiting)
  for at = 1, #waiting, 6 do
    local n = #waiting == 6 and waiting or sub(waiting, at, at + 5)
    local gate = gates[n]
    if gate == nil then
      gate = Dependencies.gate(Rows.get(n)) or false
      gates[n] = gate
    end
    if gate and Dependencies.count(gate, id, 'S') and gate.met >= gate.need then Effects.release_or_doom(gate) end
  end
end

-- Applying ------------------------------------------------------------------------------------------------

local answers, new_states, ended, pages, ended_of = {}, {}, {}, {}, {}
local applied = 0

-- Apply the settlement at a place to its row and its group. Returns the answer.
local function apply(i, k, group, contributes)
  local n = numbers[i]
  applied = applied + 1
  ended[applied], new_states[2 * applied - 1], new_states[2 * applied] = n, n, settled[i]
  ended_of[k] = (ended_of[k] or 0) + 1
  local number = unpack_bytes('>I6', n)
  local page = (number - number % 1000) / 1000
  pages[page] = (pages[page] or 0) + 1
  local answer = APPLIED
  if contributes and not group.final then
    group.version, group.value, group.contributed = Groups.next_version(sub(ARGV[first + i], 7, 14)), values[i], true
    answer = CONTRIBUTED
  end
  if awaited[i] then count_prerequisite(ids[i], awaited[i]) end
  group.open = group.open - 1
  if group.open == 0 then Effects.end_group(group) end
  return answer
end

local last_k, last_g, tenant, group
for i = 1, count do
  local settlement, item, answer = ARGV[first + i], items[i], NOTHING_DONE
  if item then
    local k, g = sub(item, 2, 5), sub(item, 6, 11)
    if g ~= last_g then
      last_g, group = g, Groups.get(g)
      if group then Groups.save(group) end
    end
    if settled[i] and group then
      if k ~= last_k then last_k, tenant = k, Kinds.get(k).names.tenant end
      local contributes = byte(settlement, 17) % 2 == CONTRIBUTES and not silent[i]
      if not (contributes and group.put_off)
        and tenant == ARGV[1 + (tenants == 1 and 1 or unpack_bytes('>I2', settlement, 15))] then
        answer = apply(i, k, group, contributes)
      end
    end
    -- What is contributed later in this call must come after it.
    if group and answer == NOTHING_DONE then group.put_off = true end
  end
  answers[i] = answer
end

for k, amount in pairs(ended_of) do
  Kinds.count(Kinds.get(k), 'R', -amount)
  Kinds.count(Kinds.get(k), 'S', amount)
end
for page, amount in pairs(pages) do Store.add(K.pages, string.format('%de', page), amount) end
Store.write('HSET', K.state, new_states)
Store.write('HDEL', K.held, ended)
local effects = Effects.answer()
Store.flush()
return {now8, effects, concat(answers)}
