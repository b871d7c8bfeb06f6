-- uses: store raw_rows
-- reads
-- Whether none of some rows has anything to do with others: see lib/apart.lua. A row with an extra does not count.
-- ARGV: tenant (as Trees.tenant reads it), whether numbers of rows follow (1) or ids (0), then these
-- Answers 1 or 0.

local HIGHEST = string.rep('\255', 9)
local names, numbers = {}, {}
for i = 3, #ARGV do names[i - 2] = ARGV[i] end
if ARGV[2] == '1' then
  numbers = names
else
  local tenant = RawRows.text(sub(ARGV[1], 2))
  local places = RawRows.fields(K.id, names)
  for i = 1, #names do numbers[#numbers + 1] = RawRows.number(places[i], tenant) or nil end
end
local items, groups = RawRows.fields(K.item, numbers), RawRows.fields(K.groups, numbers)
for i = 1, #numbers do
  local item = items[i]
  if groups[i] or (item and item:byte(1) % 2 == 1) then return 0 end
end

local function is_named(key, name)
  return #call('ZRANGEBYLEX', key, '[' .. name, '[' .. name .. HIGHEST, 'LIMIT', 0, 1) > 0
end

local waiting = {}
for _, key in ipairs({K.waiters, K.unmet}) do
  if call('EXISTS', key) == 1 then waiting[#waiting + 1] = key end
end
if #waiting == 0 then return 1 end
local kinds = RawRows.kinds(items)
for i = 1, #numbers do
  local item = items[i]
  if item then
    local tenant, id = sub(kinds[sub(item, 2, 5)], 1, 4), RawRows.id(item)
    for _, key in ipairs(waiting) do
      if is_named(key, tenant .. struct.pack('>I2', #id) .. id)
        or is_named(key, tenant .. struct.pack('>I2', #id + 1) .. '\30' .. id) then
        return 0
      end
    end
  end
end
return 1
