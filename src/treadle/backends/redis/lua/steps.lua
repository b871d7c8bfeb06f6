-- uses: store raw_rows
-- reads
-- Steps: what items have recorded. Arguments: a tenant or '', ids.
-- Answers for each id false, or: its mailbox, its progress, how many chunks it has, the names of its steps and the steps.
-- See lib/steps.lua and lib/mailboxes.lua.

local tenant = RawRows.text(ARGV[1])
local ids = {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
local places = RawRows.fields(K.id, ids)

local numbers = {}
for i = 1, #ids do numbers[i] = RawRows.number(places[i], tenant) end

local function recorded(n)
  local names, fields = {}, {n .. 'm', n .. 'p', n .. 'c'}
  for i, rest in ipairs(Store.list(K.steps, n)) do
    names[i], fields[i + 3] = sub(rest, 7), n .. 's' .. sub(rest, 7)
  end
  local values, steps = RawRows.fields(K.recorded, fields), {}
  for i = 1, #names do steps[i] = values[i + 3] end
  return {values[1] or '', values[2] or '', values[3] or '', names, steps}
end

local answers, loaded = {}, {}
for i = 1, #ids do
  if numbers[i] then loaded[#loaded + 1] = numbers[i] end
end
Store.load_lists(K.steps, loaded)
for i = 1, #ids do answers[i] = numbers[i] and recorded(numbers[i]) or false end
return answers
