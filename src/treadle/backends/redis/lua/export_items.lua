-- uses: store raw_rows
-- reads
-- Items of a page, as they are stored, for Python to read: see moving.py. ARGV: the page, see row_indexes.lua; their tenant,
-- or nothing for all
-- Answers for each: a raw row, its gate, its changers, whether it holds its key, whether it is the root of a group with a
-- row; and what it has recorded: fields and values without n.

local page = tonumber(ARGV[1])
local numbers, all = {}, {}
for i = 0, 999 do all[i + 1] = struct.pack('>I6', page * 1000 + i) end
local items = RawRows.fields(K.item, all)
local wanted = ARGV[2] and RawRows.text(ARGV[2])
local kinds = wanted and RawRows.kinds(items)
for i = 1, 1000 do
  local item = items[i]
  if item and (not wanted or sub(kinds[sub(item, 2, 5)], 1, 4) == wanted) then numbers[#numbers + 1] = all[i] end
end

local HIGHEST = string.rep('\255', 9)
local SHORT = {p = true, q = true, P = true} -- formats of `state`
local HAS_RECORDS = 0x60 -- in the first byte of `redrives`: it has steps, or others

-- The members of a set that begin with n, without it.
local function rests(key, n)
  local found = call('ZRANGEBYLEX', key, '[' .. n, '[' .. n .. HIGHEST)
  for i = 1, #found do found[i] = sub(found[i], 7) end
  return found
end

local function recorded(n)
  local steps, signal_keys = rests(K.steps, n), rests(K.signal_keys, n)
  local names = {'m', 'p', 'c', 'l'}
  for i = 1, #steps do names[#names + 1] = 's' .. sub(steps[i], 7) end
  local function read(wanted)
    local fields = {}
    for i = 1, #wanted do fields[i] = n .. wanted[i] end
    return RawRows.fields(K.recorded, fields)
  end
  local values = read(names)
  local more = {}
  local box = values[1] or ''
  local at = 5
  while at <= #box do
    local number, length, after = struct.unpack('>c6I2', box, at)
    more[#more + 1] = 'm' .. number
    at = after + length
  end
  local chunks = values[3] and struct.unpack('>I4', values[3]) or 0
  for i = 1, chunks do more[#more + 1] = 'c' .. struct.pack('>I4', i) end
  local logs = values[4] or ''
  for i = 1, #logs, 8 do more[#more + 1] = 'l' .. sub(logs, i, i + 7) end
  local others = read(more)
  for i = 1, #more do
    names[#names + 1] = more[i]
    values[#values + 1] = others[i]
  end
  return {steps, signal_keys, names, values}
end

local rows = RawRows.read(numbers, false)
local gates, changers = RawRows.fields(K.gates, numbers), RawRows.fields(K.changers, numbers)
local answer = {}
for i = 1, #numbers do
  local row, n = rows[i], numbers[i]
  local holds, extra, state = false, row[5], row[3]
  if extra ~= '' then
    local key = cmsgpack.unpack(extra).k
    if key then
      local kind = row[4]
      holds = call('HGET', K.key, sub(kind, 1, 4) .. sub(kind, 13, 16) .. key) == n
    end
  end
  local has_more = #state > 23 and not SHORT[sub(state, 1, 1)] and bit.band(state:byte(23), HAS_RECORDS) > 0
  answer[i] = {row, gates[i] or '', changers[i] or '', holds and 1 or 0, call('HEXISTS', K.groups, n), has_more and recorded(n) or {}}
end
return answer
