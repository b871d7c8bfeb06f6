-- uses: clock store kinds rows groups retention dependencies effects trees removal
-- flags: allow-oom
-- Remove ended items whose retention has passed, in portions.
-- ARGV: how many rows may be removed, how many may be looked at
-- Answers how many were removed, 1 if there may be more, and 1 if there are stages.
--
-- fades has one more form here: 'U' group(6) n(6), the rest of a group that is unfolded, from the member n on.

local most, left = tonumber(ARGV[1]), tonumber(ARGV[2])
local removed = 0
local MOST_OTHERS = 45 -- rows that are not plain take longer
local SHORT = string.byte('P') -- see row_bytes.lua

-- Entries -------------------------------------------------------------------------------------------------

-- Whether a row is to be removed now. If not, it comes up again when its group ends, or when no item waits for
-- it any more.
local function may_prune(row)
  local keep = row.ended_at and Retention.keep(row)
  if not keep then return false end
  local group = Groups.get(row.group)
  local since = row.ended_at
  if group then since = Groups.kept_since(group) end
  if not since or since + keep > now then return false end
  if Dependencies.is_needed(row) then
    row.prune_pending = true
    Rows.save(row)
    return false
  end
  return true
end

local function prune_row(n)
  local row = Rows.get(n)
  if row and may_prune(row) then
    Removal.delete(row)
    removed = removed + 1
  end
end

-- Whether one of the rows of a batch may have children: one command for all of them.
local function some_have_children(numbers)
  if not Store.any(K.children) then return false end
  local lowest, highest = numbers[1], numbers[1]
  for i = 2, #numbers do
    if Store.before(numbers[i], lowest) then lowest = numbers[i] end
    if Store.before(highest, numbers[i]) then highest = numbers[i] end
  end
  return #call('ZRANGEBYLEX', K.children, '[' .. lowest, '[' .. highest .. string.rep('\255', 7), 'LIMIT', 0, 1) > 0
end

-- Remove the successful rows of a batch of which nothing but their own data is stored. Returns the others.
local function prune_plain(numbers)
  if some_have_children(numbers) then return numbers end
  local none_wait = not (Store.any(K.waiters) or Store.any(K.unmet))
  local items = call('HMGET', K.item, unpack(numbers))
  local states = call('HMGET', K.state, unpack(numbers))
  local groups = call('HMGET', K.groups, unpack(numbers))
  local ids, plain, others, seen = {}, {}, {}, {}
  for i = 1, #numbers do
    local n, item, state = numbers[i], items[i], states[i]
    local flags = item and item:byte(1)
    if item and state and not groups[i] and state:byte(1) == SHORT and flags % 2 == 0 and sub(item, 6, 11) == n then
      local at = flags >= 2 and 40 or 32
      ids[#ids + 1] = sub(item, at + 1, at + item:byte(at))
      plain[#plain + 1] = i
    elseif item then
      others[#others + 1] = n
    end
  end
  if #ids == 0 then return others end
  local places = call('HMGET', K.id, unpack(ids))
  local removable, names, counts = {}, {}, {}
  for i = 1, #plain do
    local n, id = numbers[plain[i]], ids[i]
    local k = sub(items[plain[i]], 2, 5)
    if seen[n] then
      -- it was in another batch too
    elseif #places[i] == 10 and (none_wait or not Dependencies.is_awaited(Kinds.get(k).tenant, id, id)) then
      seen[n] = true
      removable[#removable + 1], names[#names + 1] = n, id
      counts[k] = (counts[k] or 0) + 1
    else
      others[#others + 1] = n
    end
  end
  Removal.delete_plain(removable, names, counts)
  removed = removed + #removable
  return others
end

-- Put rows off to the next call.
local function put_off(numbers, first)
  local batch = struct.pack('>I6', Store.next(K.batches))
  Store.set(K.fade, batch, concat(numbers, '', first))
  Store.score(K.fades, 'B' .. batch, 0)
end

-- Remove rows: those that may be.
local function prune_rows(numbers)
  local others = prune_plain(numbers)
  if #others > MOST_OTHERS then put_off(others, MOST_OTHERS + 1) end
  local some = {unpack(others, 1, math.min(#others, MOST_OTHERS))}
  Removal.load(Trees.rows(some))
  for i = 1, #some do prune_row(some[i]) end
end

-- Take numbers out of a batch, as many as there is room for.
local function take_from_batch(entry, numbers, room)
  local batch = sub(entry, 2)
  local data = Store.get(K.fade, batch) or ''
  local taken = math.min(#data, room * 6)
  for at = 1, taken, 6 do numbers[#numbers + 1] = sub(data, at, at + 5) end
  if taken < #data then
    Store.set(K.fade, batch, sub(data, taken + 1))
  else
    Store.set(K.fade, batch)
    Store.score(K.fades, entry)
  end
end

-- Put the members of a group among the rows, each with its own time.
local function unfold(entry, score)
  local g, from = sub(entry, 2, 7), sub(entry, 8)
  Store.score(K.fades, entry)
  local group = Groups.get(g)
  local since = group and Groups.kept_since(group)
  if not since then return end -- a group around it has opened again, and adds it when it ends
  local some = math.min(left, MOST_OTHERS)
  local found = call('ZRANGEBYLEX', K.members, '[' .. g .. from, '[' .. g .. string.rep('\255', 7), 'LIMIT', 0, some + 1)
  local numbers = {}
  for i = 1, math.min(#found, some) do numbers[i] = sub(found[i], 7) end
  for _, row in ipairs(Trees.rows(numbers)) do
    if row.ended_at then Retention.add_member(row, since) end
  end
  if #found > some then Store.score(K.fades, 'U' .. found[some + 1], score) end
  left = math.max(left - 3 * #numbers, 0)
end

-- The portion ---------------------------------------------------------------------------------------------

local entries = call('ZRANGEBYSCORE', K.fades, '-inf', string.format('%.17g', now), 'WITHSCORES', 'LIMIT', 0, left)
local numbers = {}
local at = 1
while at < #entries and left > 0 and #numbers < most do
  local entry, letter = entries[at], sub(entries[at], 1, 1)
  local before = #numbers
  if letter == 'N' then
    Store.score(K.fades, entry)
    numbers[before + 1] = sub(entry, 2)
  elseif letter == 'B' then
    take_from_batch(entry, numbers, math.min(left, most - before))
  else
    unfold(entry, tonumber(entries[at + 1]))
    left = left - 1
  end
  left = left - (#numbers - before)
  at = at + 2
end
if #numbers > 0 then prune_rows(numbers) end
Store.flush()
return {removed, #entries > 0 and 1 or 0, STAGES and 1 or 0}
