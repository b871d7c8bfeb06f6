-- uses: clock store rows permits leases
-- reads
-- Limits: how far they are used.
-- ARGV: how many names to look at, the name after which to begin ('' for the first); or 0 and names
-- (name 0 algorithm)
-- Answers: now(8), the name after which to go on ('' if there are no more), then for each limit: its name, and
-- its row, or for `slots` its holders: worker, count, ids of the items each

local worker_names
local function name_of(number)
  if not worker_names then
    worker_names = {}
    local rows = call('HGETALL', K.workers)
    for i = 1, #rows, 2 do worker_names[sub(rows[i + 1], 9, 12)] = rows[i] end
  end
  return worker_names[number]
end

local function holders(name)
  local items, found = {}, {}
  for _, token in ipairs(Permits.leases(name)) do
    local n, number = struct.unpack('>c6c4', Permits.of_lease(token, name))
    local row = Rows.get(n)
    if Leases.owns(row, token) then
      items[number] = items[number] or {}
      table.insert(items[number], row.id)
    end
  end
  for _, number in ipairs(Permits.workers(name)) do
    found[#found + 1] = {name_of(number) or '', Permits.of_worker(number, name), items[number] or {}}
  end
  return found
end

local most, names, more = tonumber(ARGV[1]), {}, ''
if most > 0 then
  local after = ARGV[2] == '' and '-' or '(' .. ARGV[2]
  names = call('ZRANGEBYLEX', K.limit_names, after, '+', 'LIMIT', 0, most)
  if #names == most then more = names[most] end
else
  for i = 2, #ARGV do names[i - 1] = ARGV[i] end
end
Store.load(K.limits, names)
local answer = {now8, more}
for i = 1, #names do
  local name, algorithm = string.match(names[i], '^(.*)%z([^%z]*)$')
  if algorithm == 'slots' then
    local found = holders(name)
    if #found > 0 then answer[#answer + 1] = {names[i], found} end
  else
    local row = Store.get(K.limits, names[i])
    if row then answer[#answer + 1] = {names[i], row} end
  end
end
return answer
