-- uses: clock store
-- Stats: what workers counted, by minute, quarter and hour, and samples of the backlog.
--
--   stats     step(1) at(8) type 0 queue -> a list of seven counters, how many counts of `wait` there are, these,
--             and the counts of `run`. step: m, q or h
--             step(1) at(8) queue -> a sample, of which only Python knows the bytes. step: M, Q or H
--   stats_at  the same names, in order

local Stats = {}

do
  local KEPT = {m = 86400, q = 86400, h = 90 * 86400, M = 86400, Q = 86400, H = 90 * 86400} -- by step: STEPS in treadle.store.rules.records
  local COUNTERS = 7

  -- Add two lists of counts of a histogram, which begin after these places.
  local function add_histograms(sums, a, after_a, many_a, b, after_b, many_b)
    for i = 1, math.max(many_a, many_b) do
      sums[#sums + 1] = (i <= many_a and a[after_a + i] or 0) + (i <= many_b and b[after_b + i] or 0)
    end
  end

  local function sum_of(a, b)
    local sums, first = {}, COUNTERS + 1
    for i = 1, COUNTERS do sums[i] = a[i] + b[i] end
    local wait_a, wait_b = a[first], b[first]
    sums[first] = math.max(wait_a, wait_b)
    add_histograms(sums, a, first, wait_a, b, first, wait_b)
    add_histograms(sums, a, first + wait_a, #a - first - wait_a, b, first + wait_b, #b - first - wait_b)
    return sums
  end

  -- Add counts to what is stored under a name. A sample replaces it. Its row must have been loaded.
  function Stats.add(name, counts)
    local known = Store.get(K.stats, name)
    if known and sub(name, 1, 1):match('%l') then
      counts = cmsgpack.pack(sum_of(cmsgpack.unpack(known), cmsgpack.unpack(counts)))
    elseif not known then
      Store.insert(K.stats_at, sub(name, 1, 1), sub(name, 2))
    end
    Store.set(K.stats, name, counts)
  end

  -- Remove the rows that were kept long enough, up to `most` of each step.
  function Stats.prune(most)
    for step, kept in pairs(KEPT) do
      local last = '(' .. step .. struct.pack('>d', math.max(0, now - kept))
      local names = call('ZRANGEBYLEX', K.stats_at, '[' .. step, last, 'LIMIT', 0, most)
      for i = 1, #names do
        Store.set(K.stats, names[i])
        Store.remove(K.stats_at, step, sub(names[i], 2))
      end
    end
  end
end
