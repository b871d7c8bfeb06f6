-- uses: clock calls clock_steps
-- flags: allow-oom
-- beside stages
-- Beat: renew the lease of a worker, and say which leases may be lost. It knows the bytes of workers
-- (lib/workers.lua), rows (lib/row_bytes.lua) and permits (lib/permits.lua), since it is called often.
-- ARGV: worker, lease, types ('-' for no change, else 't' and the types), info ('-' for no change, else 'i' and the
-- info), up to how many leases of all workers it looks for those of this one, how many leases the worker knows, and
-- n(6) token(8) of each, or of some
-- Answers: '' if the worker is not known or has other types, and nothing was changed. Else whether it is to stop, how
-- many permits it holds, the tokens of leases that do not own their rows, and the tokens of all leases that it has: 1
-- if it knows as many, 0 if it has not looked.

local sub, read = string.sub, redis.call -- until the first write, a command that fails has no effect
local DRAIN, SOME_TYPES = 1, 2

local name, types, packed = ARGV[1], ARGV[3], ARGV[7]
local row = read('HGET', K.workers, name)
if not row then return '' end
local last_until, number, flags = struct.unpack('>dc4B', row)
if types ~= '-' and (flags < SOME_TYPES or sub(row, 22) ~= sub(types, 2)) then return '' end

-- Tokens have a random part: the one in a row says all.
local lost = {}
if packed ~= '' then
  local numbers = {}
  for at = 1, #packed, 14 do numbers[#numbers + 1] = sub(packed, at, at + 5) end
  local states = read('HMGET', K.state, unpack(numbers))
  for i = 1, #numbers do
    local state, token = states[i], sub(packed, 14 * i - 7, 14 * i)
    if not state or sub(state, 2, 9) ~= token or sub(state, 1, 1) == 'P' then lost[#lost + 1] = token end
  end
end

local leases, known, total = 1, tonumber(ARGV[6]) - #lost, read('HLEN', K.held) - 1 -- without `FILLER` of workers.lua
if total > known and total > tonumber(ARGV[5]) then
  leases = 0
elseif total > known then
  local workers, count = read('HVALS', K.held), 0
  for i = 1, #workers do
    if sub(workers[i], 1, 4) == number then count = count + 1 end
  end
  if count > known then
    local held = read('HGETALL', K.held)
    leases = {}
    for i = 2, #held, 2 do
      local state = sub(held[i], 1, 4) == number and read('HGET', K.state, held[i - 1])
      if state then leases[#leases + 1] = sub(state, 2, 9) end
    end
  end
end

local permits, first = 0, 'W' .. number
local names = read('ZRANGEBYLEX', K.permit_index, '[' .. first, '[' .. first .. '\255') -- no name has this byte
for i = 1, #names do permits = permits + (read('HGET', K.permits, sub(names[i], 2)) or 0) end

local lease = tonumber(ARGV[2])
local until_ = now + lease
call('HSET', K.workers, name, struct.pack('>dc4Bd', until_, number, flags, lease) .. sub(row, 22))
call('ZADD', K.workers_until, string.format('%.17g', until_), name)
if ARGV[4] ~= '-' then call('HSET', K.worker_info, name, sub(ARGV[4], 2)) end
if last_until > until_ then shorten_leases() end
return {flags % 2 == DRAIN and 1 or 0, permits, lost, leases}
