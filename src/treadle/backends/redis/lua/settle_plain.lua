-- uses: clock
-- flags: allow-oom
-- beside stages
-- Settle, for most settlements: a root that is alone succeeds. Nobody waits for it, it has no deadline and holds
-- no lane, its last worker was not lost, and it adds its own result to its group's value, or nothing.
--
-- ARGV: how many tenants, their names, and then for each settlement
--   n(6) token(8) tenant(2: which one) flags(1: contributes, 2: has a result, 4: has run) ran(8) result
-- Returns the instant(8). If one was not plain, for each settlement '1' follows if it was applied, else '0':
-- nothing was done with it, and settle.lua must look at it. Call it without two settlements of one item.
--
-- It does what settle.lua does, on the bytes themselves: see row_bytes.lua for the formats.

local call, sub, byte = redis.call, string.sub, string.byte
local pack, unpack_bytes = struct.pack, struct.unpack

local SHORT, GENERAL = byte('p'), byte('R')
local CONTRIBUTES, HAS_RESULT, HAS_RUN = 1, 2, 4
local FLAGS = {[0] = '\0', '\1', '\2', '\3'}
local OWNED, BEGUN = 64, 1
local NOT_CONTRIBUTING = '\161x\195' -- `x = true` in `extra`
local MOST_TOKENS = 10
local NONE = string.rep('\0', 8)
local HIGHEST = string.rep('\255', 9)

local tenants = tonumber(ARGV[1])
local first = tenants + 1 -- the argument before those of the first settlement
local count = #ARGV - first

local numbers = {}
for i = 1, count do numbers[i] = sub(ARGV[first + i], 1, 6) end
local states = call('HMGET', K.state, unpack(numbers))
local items -- read when one is needed: a short running row has of its item what is needed here

-- Looking -------------------------------------------------------------------------------------------------

local settled = {} -- by place: the new state
local class_of = {} -- by place: what rows of one kind have in common that are kept for the same time
local general = {} -- places of rows in the general format: they may have had children
local with_extra = {} -- places of rows that contribute, unless their extra says that they do not
local classes, kinds, kind_numbers = {}, {}, {}
local kept, keeps = {}, {} -- by `keep`: the rows that are settled

-- When the handler began, or what the state has.
local function started_at(settlement, state, claimed_at)
  local at, claimed = now - unpack_bytes('>d', settlement, 18), unpack_bytes('>d', state, claimed_at)
  return at > claimed and pack('>d', at) or sub(state, claimed_at, claimed_at + 7)
end

-- A running row with all fields: nil if it is not plain.
local function end_general(state, settlement)
  local flags = byte(state, 10)
  if (flags ~= OWNED and flags ~= OWNED + BEGUN) or sub(state, 11, 12) ~= '\0\0' or sub(state, 21, 22) ~= '\0\0'
    or sub(state, 71, 78) ~= NONE then
    return nil
  end
  local at = 80 + byte(state, 79) -- of how many tokens have settled it
  local tokens = byte(state, at)
  if tokens >= MOST_TOKENS then return nil end
  local after = at + 1 + 8 * tokens
  local mark = byte(state, after)
  local how = byte(settlement, 17)
  local started = how >= HAS_RUN and started_at(settlement, state, 47) or sub(state, 55, 62)
  return 'S' .. NONE .. string.char(flags - OWNED + how % 2 * 2) .. sub(state, 11, 54)
    .. started .. now8 .. sub(state, 71, at - 1)
    .. string.char(tokens + 1) .. sub(state, at + 1, after - 1) .. sub(settlement, 7, 14) .. sub(state, after, after + mark)
    .. (how % HAS_RUN >= HAS_RESULT and '\1' .. sub(settlement, 26) or '\0')
end

-- `name`: kind(4) keep(8).
local function new_class(name)
  local k = sub(name, 1, 4)
  if not kinds[k] then
    kinds[k] = {ended = 0}
    kind_numbers[#kind_numbers + 1] = k
  end
  local keep = sub(name, 5)
  if not kept[keep] then kept[keep], keeps[#keeps + 1] = {}, keep end
  classes[name] = {kind = kinds[k], kept = kept[keep]}
  return classes[name]
end

local function item_at(place)
  items = items or call('HMGET', K.item, unpack(numbers))
  return items[place]
end

local last_name, last_class
for i = 1, count do
  local state, settlement = states[i], ARGV[first + i]
  if state and sub(state, 2, 9) == sub(settlement, 7, 14) then
    local letter, worker_ends = byte(state), 18 + byte(state, 18)
    local new, name, item
    if letter == SHORT and #state > worker_ends then
      name = sub(state, worker_ends + 1)
    elseif letter == SHORT or letter == GENERAL then
      item = item_at(i)
      name = sub(item, 6, 11) == numbers[i] and sub(item, 2, 5) .. sub(item, 24, 31)
    end
    if name and letter == SHORT then
      -- A running row of the first attempt.
      local flags = byte(settlement, 17)
      new = 'P' .. sub(state, 2, worker_ends) .. now8 .. (flags >= HAS_RUN and started_at(settlement, state, 10) or NONE)
        .. FLAGS[flags % HAS_RUN] .. sub(settlement, 26)
    elseif name then
      new = end_general(state, settlement)
      if new then general[#general + 1] = i end
    end
    if new then
      if item and byte(item) % 2 == 1 and byte(settlement, 17) % 2 == CONTRIBUTES then
        with_extra[#with_extra + 1] = i
      end
      if name ~= last_name then last_name, last_class = name, classes[name] or new_class(name) end
      settled[i], class_of[i] = new, last_class
    end
  end
end

local function values_of(key, places)
  local names = {}
  for i = 1, #places do names[i] = numbers[places[i]] end
  return call('HMGET', key, unpack(names))
end

if #general > 0 then
  local groups = values_of(K.groups, general)
  for i = 1, #general do
    if groups[i] then settled[general[i]] = nil end
  end
end
if #with_extra > 0 then
  local extras = values_of(K.extra, with_extra)
  for i = 1, #with_extra do
    if string.find(extras[i], NOT_CONTRIBUTING, 1, true) then settled[with_extra[i]] = nil end
  end
end

if #kind_numbers > 0 then
  local found = call('HMGET', K.kinds, unpack(kind_numbers))
  for i = 1, #kind_numbers do
    local row = found[i]
    local length = unpack_bytes('>I2', row, 17)
    local kind = kinds[kind_numbers[i]]
    kind.tenant, kind.name = sub(row, 1, 4), sub(row, 19, 18 + length)
  end
end

local function has_waiter(name)
  return #call('ZRANGEBYLEX', K.waiters, '[' .. name, '[' .. name .. HIGHEST, 'LIMIT', 0, 1) > 0
end

local function is_awaited(kind, item)
  local at = byte(item) >= 2 and 40 or 32
  local length = byte(item, at)
  local id = sub(item, at + 1, at + length)
  return has_waiter(kind.tenant .. pack('>I2', length) .. id)
    or has_waiter(kind.tenant .. pack('>I2', length + 1) .. '\30' .. id)
end

-- Writing -------------------------------------------------------------------------------------------------

local awaiting = #kind_numbers > 0 and call('EXISTS', K.waiters) == 1
local values, ended, pages = {}, {}, {}
local applied = 0
for i = 1, count do
  local new = settled[i]
  if new then
    local class = class_of[i]
    local kind, rows = class.kind, class.kept
    local tenant = tenants == 1 and 1 or unpack_bytes('>I2', ARGV[first + i], 15)
    if kind.name ~= ARGV[1 + tenant] or (awaiting and is_awaited(kind, item_at(i))) then
      settled[i] = nil
    else
      local n = numbers[i]
      applied = applied + 1
      ended[applied], values[2 * applied - 1], values[2 * applied] = n, n, new
      kind.ended = kind.ended + 1
      local number = unpack_bytes('>I6', n)
      local page = (number - number % 1000) / 1000
      pages[page] = (pages[page] or 0) + 1
      rows[#rows + 1] = n
    end
  end
end

-- What is answered.
local function codes()
  if applied == count then return now8 end
  local codes = {now8}
  for i = 1, count do codes[i + 1] = settled[i] and '1' or '0' end
  return table.concat(codes)
end

if applied == 0 then return codes() end

local fades, fade = {}, {}
for i = 1, #keeps do
  local rows = kept[keeps[i]]
  if #rows > 0 then fades[#fades + 1] = string.format('%.17g', now + unpack_bytes('>d', keeps[i])) end
  if #rows == 1 then
    fades[#fades + 1] = 'N' .. rows[1]
  elseif #rows > 1 then
    local batch = pack('>I6', call('INCR', K.batches))
    fades[#fades + 1] = 'B' .. batch
    fade[#fade + 1] = batch
    fade[#fade + 1] = table.concat(rows)
  end
end

-- From here on nothing may stop this call: a command that fails is sent once more at the end.
local failed = {}
local function write(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then failed[#failed + 1] = {...} end
end

write('HSET', K.state, unpack(values))
write('HDEL', K.held, unpack(ended))
for i = 1, #kind_numbers do
  local k = kind_numbers[i]
  if kinds[k].ended > 0 then
    write('HINCRBY', K.counts, k .. 'R', -kinds[k].ended)
    write('HINCRBY', K.counts, k .. 'S', kinds[k].ended)
  end
end
for page, amount in pairs(pages) do write('HINCRBY', K.pages, string.format('%de', page), amount) end
if #fade > 0 then write('HSET', K.fade, unpack(fade)) end
write('ZADD', K.fades, unpack(fades))
for i = 1, #failed do call(unpack(failed[i])) end
return codes()
