-- uses: clock store steps
-- flags: allow-oom
-- beside stages
-- Record: write what running items have done so far. It knows the bytes of rows (lib/row_bytes.lua), since it is called
-- often.
-- ARGV: for each record
--   n(6) token(8) flags(1: 1 has progress, 2 has a log) steps(4: how many) chunks(4: how many)
--   number(4: of the first chunk)
-- and then the name and the bytes (lib/step_bytes.lua) of each step, the progress, the log, and the chunks.
-- Answers: the tokens of leases that do not own their rows

local byte, char, bor = string.byte, string.char, bit.bor
local OWNED, BEGUN = 64, 1
local HAS_STEPS, HAS_RECORDS = 64, 32 -- of the byte 23
local KILLING = 3 -- as in treadle.item
local NONE = string.rep('\0', 8)

-- Reading -------------------------------------------------------------------------------------------------

local records, numbers, names = {}, {}, {}
local at = 1
while at <= #ARGV do
  local n, token, flags, steps, chunks, first = struct.unpack('>c6c8BI4I4I4', ARGV[at])
  local record = {n = n, token = token, steps = at + 1, steps_end = at + 2 * steps, first = first}
  at = record.steps_end
  if flags % 2 == 1 then at, record.progress = at + 1, ARGV[at + 1] end
  if flags >= 2 then at, record.log = at + 1, ARGV[at + 1] end
  record.chunks, record.chunks_end = at + 1, at + chunks
  for i = record.steps, record.steps_end, 2 do names[#names + 1], names[#names + 2] = n, ARGV[i] end
  records[#records + 1], numbers[#numbers + 1] = record, n
  at = record.chunks_end + 1
end
Store.load(K.state, numbers)
Steps.load(names)

local SHORT = {p = true, q = true} -- formats of `state`
local short = {}
for i = 1, #numbers do
  local state = Store.get(K.state, numbers[i])
  if state and SHORT[sub(state, 1, 1)] then short[#short + 1] = numbers[i] end
end
if #short > 0 then Store.load(K.item, short) end

-- Rows ----------------------------------------------------------------------------------------------------

-- A running row of the first attempt, with all fields.
local function general(n, state)
  local queued, begun = sub(Store.get(K.item, n), 12, 19), sub(state, 1, 1) == 'p'
  return 'R' .. sub(state, 2, 9) .. char(OWNED + (begun and BEGUN or 0)) .. '\0\0\0\0\0' .. (begun and '\1' or '\0')
    .. NONE .. n .. queued .. queued .. sub(state, 10, 17) .. NONE .. NONE .. NONE
    .. sub(state, 18, 18 + byte(state, 18)) .. '\0\0\0'
end

local function with_flag(state, flag)
  return sub(state, 1, 22) .. char(bor(byte(state, 23), flag)) .. sub(state, 24)
end

-- A step is progress: this attempt is the first, and none before it has failed or was lost.
local function progressed(n, state)
  if struct.unpack('>I2', state, 21) >= KILLING then Store.remove(K.killing, '', n) end
  return sub(state, 1, 12) .. '\0\0\0\1\0\0\0\0\0\0' .. sub(state, 23)
end

-- Writing -------------------------------------------------------------------------------------------------

local function write_chunks(record)
  local n, count = record.n, Steps.chunks(record.n)
  for i = record.chunks, record.chunks_end do
    local number = record.first + i - record.chunks
    if number > count then
      count = number
      Store.set(K.recorded, n .. 'c' .. struct.pack('>I4', number), now8 .. ARGV[i])
    end
  end
  Store.set(K.recorded, n .. 'c', struct.pack('>I4', count))
end

local function write(record, state)
  local n, new = record.n, state
  if SHORT[sub(state, 1, 1)] then new = general(n, state) end
  if record.steps <= record.steps_end then new = with_flag(progressed(n, new), HAS_STEPS) end
  for i = record.steps, record.steps_end, 2 do Steps.write(n, 1, ARGV[i], ARGV[i + 1]) end
  local has_chunks = record.chunks <= record.chunks_end
  if record.progress or record.log or has_chunks then new = with_flag(new, HAS_RECORDS) end
  if record.progress then Store.set(K.recorded, n .. 'p', now8 .. record.progress) end
  if record.log then Steps.write_log(n, record.token, record.log) end
  if has_chunks then write_chunks(record) end
  if new ~= state then Store.set(K.state, n, new) end
end

local lost = {}
for i = 1, #records do
  local record = records[i]
  local state = Store.get(K.state, record.n)
  if state and sub(state, 2, 9) == record.token and sub(state, 1, 1) ~= 'P' then
    write(record, state)
  else
    lost[#lost + 1] = record.token
  end
end
Store.flush()
return lost
