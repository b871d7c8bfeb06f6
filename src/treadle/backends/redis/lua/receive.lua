-- uses: clock store kinds rows transitions workers imports tenant_marks portions
-- flags: allow-oom
-- Store a portion of a tenant that comes. See tenant_moves.py.
-- ARGV: move, how many portions were done, then
--   'start', tenant, its mark, and the last numbers: of items, of tokens, of steps
--   'items', as for Imports.items        'groups', as for Imports.groups
--   'leases', how many workers, and for each its name, until(8) lease(8), types ('-' for every type, else 't' and the
--     types), info or '', release or ''; then for each lease its worker(2) n(6) token(8) flags(1: begun, 2: goes on from its
--     steps) started_at(8)
--   'keys', names and rows of `claimed`  'audits', entries
--   'drop', tenant, the first and the last number of records that are not needed any more
-- Answers 1, or 0 if it is not to be done.

local done, what = tonumber(ARGV[2]), ARGV[3]
if not Portions.are_due('coming', ARGV[1], ARGV[2]) then return 0 end

local function raise(key, value)
  if value > tonumber(call('GET', key) or 0) then call('SET', key, string.format('%d', value)) end
end

local function worker_at(at)
  local name, types = ARGV[at], ARGV[at + 2]
  local worker = Workers.get(name)
  if worker then return worker end
  worker = Workers.add(name, sub(types, 1, 1) == 't' and sub(types, 2) or nil)
  Workers.note_release(name, ARGV[at + 4])
  worker.until_, worker.lease = struct.unpack('>dd', ARGV[at + 1])
  Workers.save(worker)
  if ARGV[at + 3] ~= '' then Store.set(K.worker_info, name, ARGV[at + 3]) end
  return worker
end

local function leases()
  local workers, at = {}, 5
  for i = 1, tonumber(ARGV[4]) do
    workers[i] = worker_at(at)
    at = at + 5
  end
  for i = at, #ARGV do
    local place, n, token, flags, started = struct.unpack('>I2c6c8Bd', ARGV[i])
    local row, worker = Rows.get(n), workers[place]
    Transitions.leave_line(row)
    row.token, row.owned, row.worker = token, true, worker.name
    row.begun, row.suspended, row.started_at = flags % 2 == 1, flags >= 2, started > 0 and started or nil
    Rows.set_status(row, 'R')
    Store.set(K.held, n, worker.number)
  end
end

if what == 'start' then
  raise(K.seq, tonumber(ARGV[6]))
  raise(K.tokens, tonumber(ARGV[7]))
  raise(K.step_numbers, tonumber(ARGV[8]))
  TenantMarks.put(ARGV[4], ARGV[5])
elseif what == 'items' then
  local there = Imports.items(4)
  if there then error('the item is there already: ' .. there) end
elseif what == 'groups' then
  Imports.groups(4)
elseif what == 'leases' then
  leases()
elseif what == 'keys' then
  for i = 4, #ARGV, 2 do
    Store.set(K.claimed, ARGV[i], ARGV[i + 1])
    Store.score(K.claimed_until, ARGV[i], struct.unpack('>d', ARGV[i + 1]))
  end
elseif what == 'audits' then
  for i = 4, #ARGV do
    local number = Store.next(K.audit_numbers)
    Store.set(K.audits, struct.pack('>I6', number), ARGV[i])
  end
elseif what == 'drop' then
  local dropped = {ARGV[4]}
  for i = tonumber(ARGV[5]), tonumber(ARGV[6]) do dropped[#dropped + 1] = ARGV[4] .. '\0' .. struct.pack('>I4', i) end
  Store.drop(K.arriving, dropped)
end
Portions.count(done + 1)
Store.flush()
return 1
