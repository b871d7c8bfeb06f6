-- uses: clock store workers calls clock_steps
-- flags: allow-oom
-- beside stages
-- Register a worker, or change its types.
-- ARGV: worker, lease, types ('-' for no change, else 't' and the types), info ('-' for no change, else 'i' and the
-- info), an id and the version of the layout for a store that has none, its release or ''
-- Answers whether it was not known, whether it is to stop, and the id of the store.

local name, lease = ARGV[1], tonumber(ARGV[2])
local types = ARGV[3] ~= '-' and sub(ARGV[3], 2) or nil
local worker = Workers.get(name)
local fresh = not worker
if fresh then
  worker = Workers.add(name, types)
  Workers.note_release(name, ARGV[7] or '')
elseif types and types ~= worker.packed then
  Workers.set_types(worker, types)
end
worker.until_, worker.lease = now + lease, lease
Workers.save(worker)
if ARGV[4] ~= '-' then Store.set(K.worker_info, name, sub(ARGV[4], 2)) end
local id = Store.get(K.meta, 'id')
if not id then
  id = ARGV[5]
  Store.set(K.meta, 'id', id)
  if not Store.get(K.meta, 'version') then Store.set(K.meta, 'version', ARGV[6]) end
end
Store.flush()
if fresh then shorten_leases() end
return {fresh and 1 or 0, worker.drain and 1 or 0, id}
