-- uses: clock calls lease_arguments
-- flags: allow-oom
-- beside stages
-- Beat: renew the lease of a worker, and say which leases may be lost. It knows the bytes of workers
-- (lib/workers.lua) and rows (lib/row_bytes.lua), since it is called often.
-- ARGV: worker, lease, types ('-' for no change, else 't' and the types), info ('-' for no change, else 'i' and the
-- info), leases (lib/lease_arguments.lua)
-- Answers: '' if the worker is not known or has other types, and nothing was changed. Else whether it is to stop, the
-- id of the store, then the tokens of leases that do not own their rows.

local sub = string.sub
local DRAIN, SOME_TYPES = 1, 2

local name, types = ARGV[1], ARGV[3]
local row = call('HGET', K.workers, name)
if not row then return '' end
local flags = row:byte(13)
if types ~= '-' and (flags < SOME_TYPES or sub(row, 14) ~= sub(types, 2)) then return '' end

local answer = {flags % 2 == DRAIN and 1 or 0, call('HGET', K.meta, 'id') or ''}
local numbers, tokens, exist = lease_arguments(5)
if #numbers > 0 then
  local states = call('HMGET', K.state, unpack(numbers))
  for i = 1, #numbers do
    local state = states[i]
    if not state or not exist[i] or sub(state, 2, 9) ~= tokens[i] or sub(state, 1, 1) == 'P' then
      answer[#answer + 1] = tokens[i]
    end
  end
end

local until_ = now + tonumber(ARGV[2])
call('HSET', K.workers, name, struct.pack('>d', until_) .. sub(row, 9))
call('ZADD', K.workers_until, string.format('%.17g', until_), name)
if ARGV[4] ~= '-' then call('HSET', K.worker_info, name, sub(ARGV[4], 2)) end
return answer
