-- reads
-- Statistics, or samples, of a range of names (lib/stats.lua). ARGV: first, last, as ZRANGEBYLEX has them, how many; queues,
-- for what is of these alone.
-- Answers: the last name that was looked at ('' if there are no others), then names and what is stored, in turn

local found = redis.call('ZRANGEBYLEX', K.stats_at, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local answer, names, wanted = {#found == tonumber(ARGV[3]) and found[#found] or ''}, found, {}
if #ARGV > 3 then
  names = {}
  for i = 4, #ARGV do wanted[ARGV[i]] = true end
  for i = 1, #found do
    local name = found[i]
    local zero = name:find('\0', 10, true) -- a sample has none: its type is not named
    if wanted[name:sub((zero or 9) + 1)] then names[#names + 1] = name end
  end
end
if #names == 0 then return answer end
local counts = redis.call('HMGET', K.stats, unpack(names))
for i = 1, #names do
  answer[2 * i] = names[i]
  answer[2 * i + 1] = counts[i] or ''
end
return answer
