-- uses: clock store limits workers
-- flags: allow-oom
-- beside stages
-- Take permits for requests without leases.
-- ARGV: worker, requests: a list of {count, limits}
-- Answers for each: how many, and after how many seconds(8) another may be available

local worker = Workers.get(ARGV[1])
local answer = {}
for i, request in ipairs(cmsgpack.unpack(ARGV[2])) do
  local count, wait = Limits.take(request[2], request[1], worker and worker.number or nil)
  answer[2 * i - 1], answer[2 * i] = count, struct.pack('>d', wait)
end
Store.flush()
return answer
