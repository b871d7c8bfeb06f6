-- uses: clock store workers
-- flags: allow-oom
-- beside stages
-- Register a worker, or change its types.
-- ARGV: worker, lease, types ('-' for no change, else 't' and the types), info ('-' for no change, else 'i' and the
-- info)
-- Answers whether it was not known, and whether it is to stop.

local name, until_ = ARGV[1], now + tonumber(ARGV[2])
local types = ARGV[3] ~= '-' and sub(ARGV[3], 2) or nil
local worker = Workers.get(name)
local fresh = not worker
if fresh then
  worker = Workers.add(name, until_, types)
elseif types and types ~= worker.packed then
  Workers.set_types(worker, types)
end
worker.until_ = until_
Workers.save(worker)
if ARGV[4] ~= '-' then Store.set(K.worker_info, name, sub(ARGV[4], 2)) end
Store.flush()
return {fresh and 1 or 0, worker.drain and 1 or 0}
