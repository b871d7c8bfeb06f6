-- uses: store stats
-- beside stages
-- Add statistics, or put samples. ARGV: names and counts in turn (lib/stats.lua).

local names = {}
for i = 1, #ARGV, 2 do names[#names + 1] = ARGV[i] end
Store.load(K.stats, names)
for i = 1, #ARGV, 2 do Stats.add(ARGV[i], ARGV[i + 1]) end
Store.flush()
return 0
