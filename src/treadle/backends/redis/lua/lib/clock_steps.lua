-- uses: clock calls
-- The clock went back: see `is_far` in treadle.rules.

-- Shorten the leases of workers that are far: one that died meanwhile is not kept for so long.
local function shorten_leases()
  for _, name in ipairs(call('ZRANGEBYSCORE', K.workers_until, string.format('(%.17g', now), '+inf')) do
    local lease, row = tonumber(call('HGET', K.worker_leases, name)), call('HGET', K.workers, name)
    if lease and row and struct.unpack('>d', row) > now + 2 * lease then
      call('HSET', K.workers, name, struct.pack('>d', now + lease) .. string.sub(row, 9))
      call('ZADD', K.workers_until, string.format('%.17g', now + lease), name)
    end
  end
end
