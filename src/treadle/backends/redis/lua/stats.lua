-- reads
-- Statistics of a range of names (lib/stats.lua). ARGV: first, last, as ZRANGEBYLEX has them, how many.
-- Answers: names and counts in turn

local names = redis.call('ZRANGEBYLEX', K.stats_at, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
if #names == 0 then return {} end
local counts, answer = redis.call('HMGET', K.stats, unpack(names)), {}
for i = 1, #names do
  answer[2 * i - 1] = names[i]
  answer[2 * i] = counts[i] or ''
end
return answer
