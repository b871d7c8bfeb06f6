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
-- It does what settle.lua does, on the bytes themselves: see rows.lua for the formats.

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
local jobs = call('HMGET', K.job, unpack(numbers))
local items = call('HMGET', K.item, unpack(numbers))

-- Looking -------------------------------------------------------------------------------------------------

local settled = {} -- by place: the new job
local kind_of = {} -- by place
local general = {} -- places of rows in the general format: they may have had children, and few have an extra
local kinds, kind_numbers = {}, {}

-- When the handler began, or what the job has.
local function started_at(settlement, job, claimed_at)
  local at, claimed = now - unpack_bytes('>d', settlement, 18), unpack_bytes('>d', job, claimed_at)
  return at > claimed and pack('>d', at) or sub(job, claimed_at, claimed_at + 7)
end

-- A running row with all fields: nil if it is not plain.
local function end_general(job, settlement)
  local flags = byte(job, 10)
  if (flags ~= OWNED and flags ~= OWNED + BEGUN) or sub(job, 11, 12) ~= '\0\0' or sub(job, 21, 22) ~= '\0\0'
    or sub(job, 71, 78) ~= NONE then
    return nil
  end
  local at = 80 + byte(job, 79) -- of how many tokens have settled it
  local tokens = byte(job, at)
  if tokens >= MOST_TOKENS then return nil end
  local after = at + 1 + 8 * tokens
  local mark = byte(job, after)
  local how = byte(settlement, 17)
  local started = how >= HAS_RUN and started_at(settlement, job, 47) or sub(job, 55, 62)
  return 'S' .. NONE .. string.char(flags - OWNED + how % 2 * 2) .. sub(job, 11, 54)
    .. started .. now8 .. sub(job, 71, at - 1)
    .. string.char(tokens + 1) .. sub(job, at + 1, after - 1) .. sub(settlement, 7, 14) .. sub(job, after, after + mark)
    .. (how % HAS_RUN >= HAS_RESULT and '\1' .. sub(settlement, 26) or '\0')
end

local last_k, last_kind
for i = 1, count do
  local job, settlement, item = jobs[i], ARGV[first + i], items[i]
  if job and sub(job, 2, 9) == sub(settlement, 7, 14) and sub(item, 6, 11) == numbers[i] then
    local letter, new = byte(job), nil
    if letter == SHORT then
      -- A running row of the first attempt.
      local flags = byte(settlement, 17)
      new = 'P' .. sub(job, 2) .. now8 .. (flags >= HAS_RUN and started_at(settlement, job, 10) or NONE)
        .. FLAGS[flags % HAS_RUN] .. sub(settlement, 26)
    elseif letter == GENERAL then
      new = end_general(job, settlement)
      if new then general[#general + 1] = i end
    end
    if new then
      local k = sub(item, 2, 5)
      if k ~= last_k then
        last_k, last_kind = k, kinds[k]
        if not last_kind then
          last_kind = {ended = 0}
          kinds[k] = last_kind
          kind_numbers[#kind_numbers + 1] = k
        end
      end
      settled[i], kind_of[i] = new, last_kind
    end
  end
end

local function values_of(key, places)
  local names = {}
  for i = 1, #places do names[i] = numbers[places[i]] end
  return call('HMGET', key, unpack(names))
end

if #general > 0 then
  local groups, with_extra = values_of(K.groups, general), {}
  for i = 1, #general do
    local place = general[i]
    if groups[i] then
      settled[place] = nil
    elseif byte(ARGV[first + place], 17) % 2 == CONTRIBUTES and byte(items[place]) % 2 == 1 then
      with_extra[#with_extra + 1] = place
    end
  end
  if #with_extra > 0 then
    local extras = values_of(K.extra, with_extra)
    for i = 1, #with_extra do
      if string.find(extras[i], NOT_CONTRIBUTING, 1, true) then settled[with_extra[i]] = nil end
    end
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
local values, ended, pages, kept, keeps = {}, {}, {}, {}, {}
local last_keep, kept_rows
local applied = 0
for i = 1, count do
  local new = settled[i]
  if new then
    local item, kind = items[i], kind_of[i]
    local tenant = tenants == 1 and 1 or unpack_bytes('>I2', ARGV[first + i], 15)
    if kind.name ~= ARGV[1 + tenant] or (awaiting and is_awaited(kind, item)) then
      settled[i] = nil
    else
      local n = numbers[i]
      applied = applied + 1
      ended[applied], values[2 * applied - 1], values[2 * applied] = n, n, new
      kind.ended = kind.ended + 1
      local number = unpack_bytes('>I6', n)
      local page = (number - number % 1000) / 1000
      pages[page] = (pages[page] or 0) + 1
      local keep = sub(item, 24, 31)
      if keep ~= last_keep then
        last_keep, kept_rows = keep, kept[keep]
        if not kept_rows then
          kept_rows = {}
          kept[keep], keeps[#keeps + 1] = kept_rows, keep
        end
      end
      kept_rows[#kept_rows + 1] = n
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
  fades[#fades + 1] = string.format('%.17g', now + unpack_bytes('>d', keeps[i]))
  if #rows == 1 then
    fades[#fades + 1] = 'N' .. rows[1]
  else
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

write('HSET', K.job, unpack(values))
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
