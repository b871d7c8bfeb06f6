-- uses: store permits workers
-- flags: allow-oom
-- beside stages
-- Return permits of `slots` limits, no more than the worker holds.
-- ARGV: worker, requests: a list of {count, limits}, then for each its lease: n(6) token(8), or empty

local worker = Workers.get(ARGV[1])
if not worker then return 0 end
local number = worker.number

-- False: the lease has no permit of its worker to return.
local function take_back_lease(name, lease)
  if lease == '' then return true end
  local token = sub(lease, 7)
  local held = Permits.of_lease(token, name)
  if not held or sub(held, 7) ~= number then return false end
  Permits.forget_lease(number, name, token)
  return true
end

for i, request in ipairs(cmsgpack.unpack(ARGV[2])) do
  for _, limit in ipairs(request[2]) do
    local name = limit[1]
    if limit[4] == 'slots' and take_back_lease(name, ARGV[2 + i]) then
      Permits.take_back(number, name, math.min(Permits.of_worker(number, name), request[1]))
    end
  end
end
Store.flush()
return 0
