-- uses: store kinds rows list_filter
-- reads
-- Find ended items for a requeue, the oldest first, in portions.
-- ARGV: filter (a map: see list_filter.lua), statuses (D, C or both), redrives (empty: any), after which number,
--       how many to find, how many to look at
-- Answers the numbers that were found, and the number to go on after; empty if there are no more.

local filter = ListFilter.new(cmsgpack.unpack(ARGV[1]))
local redrives, after, most, reach = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

local function ended_after(key)
  return call('ZRANGEBYLEX', key, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, reach)
end

-- The numbers of dead and cancelled rows, in order.
local numbers = {}
local dead = ARGV[2]:find('D', 1, true) and ended_after(K.dead) or {}
local cancelled = ARGV[2]:find('C', 1, true) and ended_after(K.cancelled) or {}
local i, j = 1, 1
while #numbers < reach and (dead[i] or cancelled[j]) do
  if not cancelled[j] or (dead[i] and Store.before(dead[i], cancelled[j])) then
    numbers[#numbers + 1] = dead[i]
    i = i + 1
  else
    numbers[#numbers + 1] = cancelled[j]
    j = j + 1
  end
end

local found = {}
for _, n in ipairs(ListFilter.look_at(filter, numbers, #numbers, {looked = 0, bytes = 0})) do
  if #found < most and (not redrives or Rows.get(n).redrives < redrives) then found[#found + 1] = n end
end
local last = #numbers == reach and #found < most and numbers[#numbers] or ''
return {found, last}
