-- uses: clock calls lease_arguments
-- flags: allow-oom
-- beside stages
-- Beat: renew the lease of a worker, and say which leases may be lost. It knows the bytes of workers
-- (lib/workers.lua), rows (lib/row_bytes.lua) and permits (lib/permits.lua), since it is called often.
-- ARGV: worker, lease, types ('-' for no change, else 't' and the types), info ('-' for no change, else 'i' and the
-- info), up to how many leases of all workers it looks for those of this one, how many leases the worker knows, leases
-- (lib/lease_arguments.lua), which may be fewer
-- Answers: '' if the worker is not known or has other types, and nothing was changed. Else whether it is to stop, the
-- id of the store, how many permits it holds, the tokens of leases that do not own their rows, and the tokens of all
-- leases that it has: 1 if it knows as many, 0 if it has not looked.

local sub = string.sub
local DRAIN, SOME_TYPES = 1, 2
local HIGHEST = string.rep('\255', 15)

local name, types = ARGV[1], ARGV[3]
local row = call('HGET', K.workers, name)
if not row then return '' end
local flags = row:byte(13)
if types ~= '-' and (flags < SOME_TYPES or sub(row, 14) ~= sub(types, 2)) then return '' end

local number = sub(row, 9, 12)

local function count_permits()
  local first = '[W' .. number
  local names = call('ZRANGEBYLEX', K.permit_index, first, first .. HIGHEST)
  local count = 0
  for i = 1, #names do count = count + tonumber(call('HGET', K.permits, sub(names[i], 2)) or 0) end
  return count
end

local lost = {}
local numbers, tokens, exist = lease_arguments(7)
if #numbers > 0 then
  local states = call('HMGET', K.state, unpack(numbers))
  for i = 1, #numbers do
    local state = states[i]
    if not state or not exist[i] or sub(state, 2, 9) ~= tokens[i] or sub(state, 1, 1) == 'P' then
      lost[#lost + 1] = tokens[i]
    end
  end
end

-- The tokens of all leases of the worker, if there are more than these: 1 if there are not, 0 if it has not looked.
local function all_leases(known)
  local total = call('HLEN', K.held) - 1 -- without `FILLER` of workers.lua
  if total <= known then return 1 end -- no other worker has leases either
  if total > tonumber(ARGV[5]) then return 0 end
  local workers, count = call('HVALS', K.held), 0
  for i = 1, #workers do
    if sub(workers[i], 1, 4) == number then count = count + 1 end
  end
  if count <= known then return 1 end
  local held, found = call('HGETALL', K.held), {}
  for i = 2, #held, 2 do
    if sub(held[i], 1, 4) == number then
      local state = call('HGET', K.state, held[i - 1])
      if state then found[#found + 1] = sub(state, 2, 9) end
    end
  end
  return found
end

local leases = all_leases(tonumber(ARGV[6]) - #lost)
local until_ = now + tonumber(ARGV[2])
call('HSET', K.workers, name, struct.pack('>d', until_) .. sub(row, 9))
call('ZADD', K.workers_until, string.format('%.17g', until_), name)
if ARGV[4] ~= '-' then call('HSET', K.worker_info, name, sub(ARGV[4], 2)) end
if call('HGET', K.worker_leases, name) ~= ARGV[2] then call('HSET', K.worker_leases, name, ARGV[2]) end

-- The clock went back: see `is_far` in treadle.rules. A worker that died meanwhile is not kept for so long.
local far = string.format('(%.17g', now + 2 * tonumber(ARGV[2]))
for _, other in ipairs(call('ZRANGEBYSCORE', K.workers_until, far, '+inf')) do
  local lease, known = tonumber(call('HGET', K.worker_leases, other)), call('HGET', K.workers, other)
  if lease and known and struct.unpack('>d', known) > now + 2 * lease then
    call('HSET', K.workers, other, struct.pack('>d', now + lease) .. sub(known, 9))
    call('ZADD', K.workers_until, string.format('%.17g', now + lease), other)
  end
end
return {flags % 2 == DRAIN and 1 or 0, call('HGET', K.meta, 'id') or '', count_permits(), lost, leases}
