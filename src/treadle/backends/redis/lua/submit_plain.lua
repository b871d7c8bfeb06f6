-- uses: clock elsewhere
-- Submit, the short way: items that are ready at once, with nothing that most items do not have.
--
-- ARGV: how many classes; each class: flags(1) and its kind, as in `kind`; the class of each item, a byte each
-- (empty: there is one class); then for each item its id and the rest of its row from the priority on.
-- Answers now, or nothing if an id exists: nothing was written then. No id may come twice.

local sub, pack = string.sub, struct.pack
local MOST = 2000 -- items in one command

local classes = tonumber(ARGV[1])
local names = {}
for i = 1, classes do names[i] = sub(ARGV[i + 1], 2) end
local kinds = redis.call('HMGET', K.kind, unpack(names))

local class_of = ARGV[classes + 2]
local before = classes + 1 -- the arguments of item i are at before + 2 * i
local count = (#ARGV - classes - 2) / 2
for first = 1, count, MOST do
  local ids = {}
  for i = first, math.min(first + MOST - 1, count) do ids[i - first + 1] = ARGV[before + 2 * i] end
  local taken = redis.call('HMGET', K.id, unpack(ids))
  for i = 1, #ids do
    if taken[i] then return false end
  end
  if STAGES then
    local staged = redis.call('HMGET', K.staged, unpack(ids))
    for i = 1, #ids do
      if staged[i] then return false end
    end
  end
end

-- Make the kinds that are new: see kinds.lua. Returns the commands that store them.
local function new_kinds()
  local texts, places, missing = {}, {}, {}
  for i = 1, classes do
    if not kinds[i] and not missing[names[i]] then
      local own = {string.match(names[i], '^([^%z]*)%z([^%z]*)%z([^%z]*)%z([^%z]*)$')}
      missing[names[i]] = own
      check_tenant(own[1])
      for j = 1, 4 do
        if not places[own[j]] then
          texts[#texts + 1] = own[j]
          places[own[j]] = #texts
        end
      end
    end
  end
  local numbers, uses = redis.call('HMGET', K.text, unpack(texts)), redis.call('HMGET', K.uses, unpack(texts))
  local number = tonumber(redis.call('GET', K.names) or 0)
  local added, stored, rows, used = {}, {}, {}, {}
  for i = 1, #texts do uses[i] = tonumber(uses[i] or 0) end
  for i = 1, classes do
    local own = missing[names[i]]
    if type(own) == 'table' then
      number = number + 1
      local k, of, row = pack('>I4', number), '', ''
      for j = 1, 4 do
        local place = places[own[j]]
        if not numbers[place] then
          number = number + 1
          numbers[place] = pack('>I4', number)
          added[#added + 1], added[#added + 2] = own[j], numbers[place]
        end
        uses[place] = uses[place] + 1
        of, row = of .. numbers[place], row .. pack('>I2', #own[j]) .. own[j]
      end
      stored[#stored + 1], stored[#stored + 2] = names[i], k .. of
      rows[#rows + 1], rows[#rows + 2] = k, of .. row
      missing[names[i]] = k .. of
    end
    kinds[i] = kinds[i] or missing[names[i]]
  end
  for i = 1, #texts do used[2 * i - 1], used[2 * i] = texts[i], string.format('%d', uses[i]) end
  local commands = {
    {'SET', K.names, string.format('%d', number)}, {'HSET', K.uses, unpack(used)},
    {'HSET', K.kind, unpack(stored)}, {'HSET', K.kinds, unpack(rows)},
  }
  if #added > 0 then commands[5] = {'HSET', K.text, unpack(added)} end
  return commands
end

local commands = {}
for i = 1, classes do
  if not kinds[i] then
    commands = new_kinds()
    break
  end
end

-- Kinds that had no ready item are served after all that wait now: see lines.lua.
local nodes = {}
for i = 1, classes do
  local kind = kinds[i]
  local tenant, queue, type = sub(kind, 5, 8), sub(kind, 9, 12), sub(kind, 17, 20)
  nodes[3 * i - 2], nodes[3 * i - 1], nodes[3 * i] = 'K' .. sub(kind, 1, 4), 'T' .. type .. queue .. tenant, 'Q' .. type .. queue
end
local known = redis.call('HMGET', K.turns, unpack(nodes))
local entering, entered = {}, {}
local function enter(at, prefix, child)
  local node = nodes[at]
  if known[at] or entered[node] then return false end
  entered[node] = true
  entering[#entering + 1] = {node, prefix, child}
  return true
end
local types = {}
for i = 1, classes do
  local kind = kinds[i]
  local tenant, queue, lane, type = sub(kind, 5, 8), sub(kind, 9, 12), sub(kind, 13, 16), sub(kind, 17, 20)
  if enter(3 * i - 2, 'L' .. type .. queue .. tenant, lane .. sub(kind, 1, 4))
    and enter(3 * i - 1, 'T' .. type .. queue, tenant)
    and enter(3 * i, 'Q' .. type, queue) then
    types[#types + 1] = 'Y' .. type .. string.match(names[i], '[^%z]*$')
  end
end

local last = redis.call('INCRBY', K.seq, count)
local turn = #entering > 0 and redis.call('INCRBY', K.served, #entering)

-- From here on nothing may stop this call: a command that fails is sent once more at the end.
local failed = {}
local function send(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then failed[#failed + 1] = {...} end
end

for i = 1, #commands do send(unpack(commands[i])) end
local heads, added = {}, {}
for i = 1, classes do
  heads[i], added[i] = sub(ARGV[i + 1], 1, 1) .. sub(kinds[i], 1, 4), 0
end
local first_number = last - count
for first = 1, count, MOST do
  local items, places, ready = {}, {}, {}
  local at = 1
  for i = first, math.min(first + MOST - 1, count) do
    local class = classes == 1 and 1 or class_of:byte(i)
    local head, id, rest, n = heads[class], ARGV[before + 2 * i], ARGV[before + 2 * i + 1], pack('>I6', first_number + i)
    items[at], items[at + 1] = n, head .. n .. now8 .. rest
    places[at], places[at + 1] = id, n .. sub(kinds[class], 5, 8)
    ready[at], ready[at + 1] = 0, sub(head, 2) .. sub(rest, 1, 4) .. n .. n
    added[class] = added[class] + 1
    at = at + 2
  end
  send('HSET', K.item, unpack(items))
  send('HSET', K.id, unpack(places))
  send('ZADD', K.ready, unpack(ready))
end
for i = 1, classes do send('HINCRBY', K.counts, sub(kinds[i], 1, 4) .. 'r', added[i]) end
local number = first_number + 1
while number <= last do
  local page = math.floor(number / 1000)
  local next_page = math.min((page + 1) * 1000, last + 1)
  send('HINCRBY', K.pages, page, next_page - number)
  number = next_page
end
if #entering > 0 then
  local turns, ring = {}, {}
  for i = 1, #entering do
    local node, prefix, child = unpack(entering[i])
    local own = pack('>I6', turn - #entering + i)
    turns[2 * i - 1], turns[2 * i] = node, own
    ring[2 * i - 1], ring[2 * i] = 0, prefix .. own .. child
  end
  for i = 1, #types do ring[#ring + 1], ring[#ring + 2] = 0, types[i] end
  send('HSET', K.turns, unpack(turns))
  send('ZADD', K.ring, unpack(ring))
end
for i = 1, #failed do redis.call(unpack(failed[i])) end
return now8
