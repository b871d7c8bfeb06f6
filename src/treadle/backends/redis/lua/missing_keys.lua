-- reads
-- Missing keys: which keys of the namespace are gone, or have lost a part, as counters and other keys show. It does not
-- look at items: `treadle doctor` and workers ask now and then, and a script that has failed asks why.
-- Answers the names of the keys.

local call = redis.call
local MOST_COUNTS = 20000 -- counters that are added up, at most
local missing = {}

local function expect(name, is_whole)
  if not is_whole then missing[#missing + 1] = name end
end

local function exists(key) return call('EXISTS', key) == 1 end

local rows, counted = call('HLEN', K.item), call('HLEN', K.counts)

-- What every item has.
if rows > 0 or counted > 0 or exists(K.id) or exists(K.ready) or exists(K.state) then
  expect('item', rows > 0)
  expect('counts', counted > 0)
  expect('id', exists(K.id))
  expect('kind', exists(K.kind))
  expect('kinds', exists(K.kinds))
  expect('text', exists(K.text))
  expect('uses', exists(K.uses))
  expect('pages', exists(K.pages))
  expect('seq', exists(K.seq))
  expect('names', exists(K.names))
  expect('meta', exists(K.meta))
end

-- What items of each status have.
if rows > 0 and counted > 0 and counted <= MOST_COUNTS then
  local count, total = {b = 0, w = 0, r = 0, R = 0, S = 0, D = 0, C = 0}, 0
  local counts = call('HGETALL', K.counts)
  for i = 1, #counts, 2 do
    local letter = string.sub(counts[i], -1)
    count[letter] = count[letter] + tonumber(counts[i + 1])
    total = total + tonumber(counts[i + 1])
  end
  expect('item', rows >= total)
  expect('counts', rows <= total)
  expect('state', call('HLEN', K.state) >= total - count.r)
  expect('gates', call('HLEN', K.gates) >= count.b)
  expect('waiters', count.b == 0 or exists(K.waiters))
  local held = call('HLEN', K.held) - call('HEXISTS', K.held, string.rep('\0', 6)) -- without `FILLER` of workers.lua
  expect('held', held >= count.R)
  -- Doomed items keep their status. They are in `doomed`, or leased.
  local doomed = call('ZCARD', K.doomed) + math.max(held - count.R, 0)
  expect('ready', call('ZCARD', K.ready) + doomed >= count.r)
  expect('due', call('ZCARD', K.due) + doomed >= count.w)
  expect('dead', call('ZCARD', K.dead) >= count.D)
  expect('marks', call('ZCARD', K.marks) >= count.D)
  expect('marked', call('ZCARD', K.marked) >= count.D)
  expect('marks_last', count.D == 0 or exists(K.marks_last))
  expect('cancelled', call('ZCARD', K.cancelled) >= count.C)
end

-- What only exists together.
if exists(K.ready) then
  expect('ring', exists(K.ring))
  expect('turns', exists(K.turns))
  expect('served', exists(K.served))
end
expect('due_first', exists(K.due_first) or not exists(K.due))
expect('groups', exists(K.groups) or not (exists(K.group_ids) or exists(K.members)))
expect('group_ids', exists(K.group_ids) or not exists(K.groups))
local has_extras = exists(K.keyed) or exists(K.workflows) or exists(K.children) or exists(K.gates)
expect('extra', exists(K.extra) or not has_extras)
expect('recorded', exists(K.recorded) or not exists(K.steps))
expect('step_numbers', exists(K.step_numbers) or not exists(K.steps))
expect('keyed', exists(K.keyed) or not exists(K.key))
expect('workers', exists(K.workers) or not exists(K.workers_until))
expect('workers_until', exists(K.workers_until) or not exists(K.workers))
if not exists(K.known_types) then
  for _, worker in ipairs(call('HVALS', K.workers)) do
    if #worker > 21 or worker:byte(13) < 2 then -- it has types: see workers.lua
      expect('known_types', false)
      break
    end
  end
end
return missing
