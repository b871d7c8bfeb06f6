-- uses: clock store rows limits permits workers leases
-- flags: allow-oom
-- beside stages
-- Take permits, some of which belong to leases.
-- ARGV: worker, requests: a list of {count, limits}, then for each its lease: n(6) token(8), or empty
-- Answers for each: how many, after how many seconds(8) another may be available, and the rows whose leases
-- have a permit, if none was left for a lease: id, tenant, due_at(8), n each

local worker = Workers.get(ARGV[1])

local function has_permit(limits, token)
  for i = 1, #limits do
    if Permits.of_lease(token, limits[i][1]) then return true end
  end
  return false
end

local function holders(limits)
  local found = {}
  for i = 1, #limits do
    local name = limits[i][1]
    for _, token in ipairs(Permits.leases(name)) do
      local row = Rows.get(sub(Permits.of_lease(token, name), 1, 6))
      if Leases.owns(row, token) then
        found[#found + 1] = {row.id, row.kind.names.tenant, struct.pack('>d', row.due_at), row.n}
      end
    end
  end
  return found
end

local function take(count, limits, lease)
  local number = worker and worker.number or nil
  if lease == '' then return {Limits.take(limits, count, number)} end
  local n, token = sub(lease, 1, 6), sub(lease, 7)
  if has_permit(limits, token) then return {1, 0} end
  local row = Rows.get(n)
  if not (worker and Leases.owns(row, token) and row.worker == worker.name) then return {0, 0} end
  local given, wait = Limits.take(limits, count, number, lease)
  return {given, wait, given == 0 and holders(limits) or nil}
end

local answer = {}
for i, request in ipairs(cmsgpack.unpack(ARGV[2])) do
  local reply = take(request[1], request[2], ARGV[2 + i])
  answer[i] = {reply[1], struct.pack('>d', reply[2]), reply[3] or {}}
end
Store.flush()
return answer
