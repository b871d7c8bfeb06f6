-- uses: clock calls
-- Demand: what a worker asks for, as claim.py sends it.
--
-- ARGV: worker, three random bytes, limit, the room of each type ('' for every type), options ('' for none):
-- q queues, n tenants, b buffered types, h types that share room, a what to avoid, s strict types, g grace. At last the
-- version of the orders that the worker knows ('' for none).
--
-- Functions stand where they are needed: each costs time in every call.

local sub, concat = string.sub, table.concat
local NOTHING = {}
local HIGHEST = string.rep('\255', 9) -- above all that follows a prefix in a set
local LOST = 'what is ready is not stored whole' -- an error: keys are missing, see missing_keys.lua

local demand = {
  worker = ARGV[1], random = ARGV[2], limit = tonumber(ARGV[3]), room = ARGV[4] ~= '' and cmsgpack.unpack(ARGV[4]),
  options = NOTHING, buffered = NOTHING, strict = NOTHING,
  shared = NOTHING, -- by type: what is left of the room that it shares
  avoid = NOTHING, -- by type, then by the number of a tenant: true, or the numbers of lanes
  queues = nil, tenants = nil, -- lists of numbers
  paused = nil, -- numbers of queues, of a queue with a tenant, and, after a star, of a tenant in all queues
}

-- The numbers of texts, by text. Those that no item has are missing.
local function numbers_of(texts)
  local numbers = {}
  for first = 1, #texts, 4000 do
    local last = math.min(first + 3999, #texts)
    local found = call('HMGET', K.text, unpack(texts, first, last))
    for i = first, last do numbers[texts[i]] = found[i - first + 1] or nil end
  end
  return numbers
end

if ARGV[5] ~= '' then
  local options = cmsgpack.unpack(ARGV[5])
  demand.options, demand.buffered, demand.strict, demand.shared = options, {}, {}, {}

  local function listed(texts)
    local numbers, list = numbers_of(texts), {}
    for i = 1, #texts do list[#list + 1] = numbers[texts[i]] end
    return list
  end

  local function read_avoided(avoid)
    local texts = {}
    for _, tenants in pairs(avoid) do
      for tenant, lanes in pairs(tenants) do
        texts[#texts + 1] = tenant
        if lanes ~= true then
          for i = 1, #lanes do texts[#texts + 1] = lanes[i] end
        end
      end
    end
    local numbers, avoided = numbers_of(texts), {}
    for type, tenants in pairs(avoid) do
      avoided[type] = {}
      for tenant, lanes in pairs(tenants) do
        local found = lanes
        if lanes ~= true then
          found = {}
          for i = 1, #lanes do
            if numbers[lanes[i]] then found[numbers[lanes[i]]] = true end
          end
        end
        if numbers[tenant] then avoided[type][numbers[tenant]] = found end
      end
    end
    return avoided
  end

  if options.q then demand.queues = listed(options.q) end
  if options.n then demand.tenants = listed(options.n) end
  if options.a then demand.avoid = read_avoided(options.a) end
  for _, type in ipairs(options.b or {}) do demand.buffered[type] = true end
  for _, type in ipairs(options.s or {}) do demand.strict[type] = true end
  for _, room in ipairs(options.h or {}) do
    local shared = {left = room[2]}
    for _, type in ipairs(room[1]) do demand.shared[type] = shared end
  end
end

-- Whether there is more than ready rows. Often there is not, and one command tells it.
local unusual = call('EXISTS', K.paused, K.doomed, K.deadlines, K.due_first) > 0

if unusual then
  local found = call('HGETALL', K.paused) -- see order.lua
  if #found > 0 then
    local queues, tenants, texts = {}, {}, {}
    for i = 1, #found, 2 do
      if #found[i + 1] < 8 or struct.unpack('>d', found[i + 1]) > now then
        local zero = found[i]:find('\0', 1, true)
        queues[#queues + 1] = zero and sub(found[i], 1, zero - 1) or found[i]
        tenants[#queues] = zero and sub(found[i], zero + 1)
        texts[#texts + 1] = queues[#queues]
        texts[#texts + 1] = tenants[#queues] or nil
      end
    end
    local numbers = numbers_of(texts)
    demand.paused = {}
    for i = 1, #queues do
      local queue, tenant = queues[i] == '' and '*' or numbers[queues[i]], tenants[i] and numbers[tenants[i]]
      if queue and (tenant or not tenants[i]) then demand.paused[queue .. (tenant or '')] = true end
    end
  end
end

-- The version of the orders, if the worker knows another one.
local function other_orders()
  local version = ARGV[6] ~= '' and (call('HGET', K.orders, '') or '0')
  return version and version ~= ARGV[6] and version
end

-- Whether one of a list of numbers, or any number if there is no list.
local function is_listed(numbers, number)
  if not numbers then return true end
  for i = 1, #numbers do
    if numbers[i] == number then return true end
  end
  return false
end

-- Send a command that writes, with many arguments. After the first write nothing may stop a call: a command that
-- fails is sent once more by `resend`.
local failed = {}

local function send(name, key, values)
  for first = 1, #values, 4000 do
    local last = math.min(first + 3999, #values)
    local answer = redis.pcall(name, key, unpack(values, first, last))
    if type(answer) == 'table' and answer.err then failed[#failed + 1] = {name, key, unpack(values, first, last)} end
  end
end

local function resend()
  for i = 1, #failed do call(unpack(failed[i])) end
end
