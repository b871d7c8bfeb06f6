-- uses: store kinds rows groups raw_rows shown_groups
-- reads
-- Ended: which items and groups have ended. Arguments: how many items, then for each of these, and of the groups, its
-- tenant and its id. Answers the rows of the items and the groups, in order: '' if it is open, false if it does
-- not exist.

local ENDED = {P = true, S = true, D = true, C = true}

local count = tonumber(ARGV[1])
local ids, tenants = {}, {}
for at = 2, #ARGV, 2 do
  tenants[#tenants + 1], ids[#ids + 1] = ARGV[at], ARGV[at + 1]
end
Store.load(K.text, tenants)
Store.load(K.id, ids)

local function numbers_of()
  local numbers = {}
  for i = 1, count do
    numbers[i] = RawRows.number(Store.get(K.id, ids[i]), RawRows.text(tenants[i])) or ''
  end
  return numbers
end

local numbers = numbers_of()
local states = RawRows.fields(K.state, numbers)
local wanted, items = {}, {}
for i = 1, count do
  local has_ended = states[i] and ENDED[sub(states[i], 1, 1)]
  if has_ended then wanted[#wanted + 1] = numbers[i] end
  items[i] = has_ended and #wanted or (numbers[i] ~= '' and '')
end
local rows = RawRows.read(wanted)
for i = 1, count do
  if type(items[i]) == 'number' then items[i] = rows[items[i]] end
end

local names, groups = {}, {}
for i = count + 1, #ids do names[i - count] = ids[i] end
ShownGroups.load(names)
for i = count + 1, #ids do
  local found = Groups.find(RawRows.text(tenants[i]), ids[i])
  groups[i - count] = found and (found.ended_at and found or '')
end
return {items, ShownGroups.answers(groups)}
