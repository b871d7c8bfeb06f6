-- uses: store workers audits
-- flags: allow-oom
-- Ask a worker to stop. ARGV: its name, a note (lib/audits.lua). Answers 1 if it is known.

local worker = Workers.get(ARGV[1])
if worker then
  worker.drain = true
  Workers.save(worker)
end
Audits.record(2, worker and 1 or 0)
Store.flush()
return worker and 1 or 0
