-- uses: store workers worker_removal
-- flags: allow-oom
-- Remove a worker. ARGV: its name. Answers how many rows were freed.

local worker = Workers.get(ARGV[1])
if not worker then return 0 end
local freed = Workers.remove(worker)
Store.flush()
return freed
