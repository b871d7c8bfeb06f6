-- uses: store raw_rows
-- reads
-- Ready kinds: the kinds of a queue that have ready rows, as the ring has them (lines.lua). Arguments: the queue, a tenant
-- or ''. Answers for each line the row of one of its kinds (kinds.lua), then the numbers of all of them.

local HIGHEST = string.rep('\255', 19) -- no rest is above this

local queue = Store.get(K.text, ARGV[1])
if not queue then return {} end
local tenant = RawRows.text(ARGV[2])

local lines, kinds, first = {}, {}, {}
local queues = call('ZRANGEBYLEX', K.ring, '[Q', '(R')
for i = 1, #queues do
  if sub(queues[i], -4) == queue then
    local prefix = 'L' .. sub(queues[i], 2, 5) .. queue .. (tenant or '')
    local found = call('ZRANGEBYLEX', K.ring, '[' .. prefix, '[' .. prefix .. HIGHEST)
    for j = 1, #found do
      local member = found[j]
      local line, k = sub(member, 10, 13) .. sub(member, 20, 23), sub(member, -4)
      local known = kinds[line]
      if known then
        known[#known + 1] = k
      else
        lines[#lines + 1], first[#first + 1], kinds[line] = line, k, {k}
      end
    end
  end
end
local rows, answer = RawRows.fields(K.kinds, first), {}
for i = 1, #lines do
  if rows[i] then
    answer[#answer + 1] = rows[i]
    answer[#answer + 1] = concat(kinds[lines[i]])
  end
end
return answer
