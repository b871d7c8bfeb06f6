-- uses: clock calls
-- The clock went back: see `is_far` in treadle.store.rules.

-- Shorten the leases of workers that are far: one that died meanwhile is not kept for so long.
local function shorten_leases()
  for _, name in ipairs(call('ZRANGEBYSCORE', K.workers_until, string.format('(%.17g', now), '+inf')) do
    local row = call('HGET', K.workers, name)
    local until_, _, _, lease = struct.unpack('>dc4Bd', row or string.rep('\0', 21))
    if until_ > now + 2 * lease then
      call('HSET', K.workers, name, struct.pack('>d', now + lease) .. string.sub(row, 9))
      call('ZADD', K.workers_until, string.format('%.17g', now + lease), name)
    end
  end
end
