-- uses: store permits workers
-- flags: allow-oom
-- beside stages
-- Make the permits that a worker holds exactly these, if it holds `counted` of them.
-- ARGV: worker, counted, requests: a list of {count, limits}, then for each its lease: n(6) token(8), or empty
-- Answers how many it held.

local worker = Workers.get(ARGV[1])
if not worker then return 0 end
local number, count = worker.number, 0
for _, name in ipairs(Permits.names(number)) do count = count + Permits.of_worker(number, name) end
if count ~= tonumber(ARGV[2]) then return count end

Permits.return_all(number)
for i, request in ipairs(cmsgpack.unpack(ARGV[3])) do
  local lease = ARGV[3 + i]
  for _, limit in ipairs(request[2]) do
    Permits.give(number, limit[1], request[1])
    if lease ~= '' then Permits.give_to_lease(number, limit[1], sub(lease, 7), sub(lease, 1, 6)) end
  end
end
Store.flush()
return count
