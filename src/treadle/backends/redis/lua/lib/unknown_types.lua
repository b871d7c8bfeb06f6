-- uses: clock store kinds rows lines transitions workers demand
-- Unknown types: rows that were ready for longer than a grace while no live worker had their type are doomed.
--
--   unknown_searches   type(4) -> when it must be searched again; if a search is under way: when it began, the
--                      earliest that a row it has met became ready, and how far it got in the ring and in the line
--
-- A row that becomes ready after a search began is not older than the search, unless it was due before. So the next
-- search is due a grace after this one began, or after the oldest row became ready that was too young for it. Rows
-- that were due before are looked at when they are made ready: a search of the same call would not find them.

local UnknownTypes = {}

do
  local PORTION = 200
  local BULK_TYPE = 'treadle.bulk'

  -- Look at rows of a kind. Returns how many, and where it stopped; nil: at the end.
  local function search_kind(k, search, grace, left)
    local from = search.row ~= '' and '(' .. search.row or '[' .. k
    local members = call('ZRANGEBYLEX', K.ready, from, '[' .. k .. HIGHEST, 'LIMIT', 0, left)
    local numbers = {}
    for i = 1, #members do numbers[i] = sub(members[i], 15) end
    Rows.load(numbers)
    for i = 1, #numbers do
      local row = Rows.get(numbers[i])
      if row.status == 'r' and row.verdict == 0 and not row.owned then
        if row.ready_at < now - grace then
          Transitions.doom(row, UNKNOWN_TYPE)
        else
          search.oldest = math.min(search.oldest, row.ready_at)
        end
      end
    end
    return #members, #members == left and members[#members] or nil
  end

  -- Continue the search of a type. True: it is not at its end.
  local function continue(type, search, grace)
    local prefix = 'L' .. type
    local left = PORTION
    while left > 0 do
      local leaf = call('ZRANGEBYLEX', K.ring, (search.row ~= '' and '[' or '(') .. prefix .. search.leaf, '[' .. prefix .. HIGHEST, 'LIMIT', 0, 1)[1]
      if not leaf then
        Store.set(K.unknown_searches, type, struct.pack('>d', math.min(search.began, search.oldest) + grace))
        return false
      end
      local rest = sub(leaf, 6)
      if rest ~= search.leaf then search.leaf, search.row = rest, '' end
      local count, stopped_at = search_kind(sub(leaf, -4), search, grace, left)
      left = left - math.max(count, 1)
      search.row = stopped_at or ''
    end
    Store.set(K.unknown_searches, type, struct.pack('>ddd', 0, search.began, search.oldest)
      .. struct.pack('>I2', #search.leaf) .. search.leaf .. search.row)
    return true
  end

  -- Whether rows of a type are doomed after a grace.
  local function is_unknown(text) return text ~= BULK_TYPE and not Workers.is_known(text) end

  local function is_unknown_for(text, grace)
    local since = Workers.unknown_since(text)
    return not since or now - since > grace
  end

  local function read(stored)
    local search = {at = 0, began = now, oldest = now, leaf = '', row = ''}
    if not stored then return search end
    search.at = struct.unpack('>d', stored)
    if #stored > 8 then
      local _, began, oldest, length, at = struct.unpack('>dddI2', stored)
      search.began, search.oldest = began, oldest
      search.leaf, search.row = sub(stored, at, at + length - 1), sub(stored, at + length)
    end
    return search
  end

  -- Look at rows that this call has made ready: doom those that are too old. Without a grace, or if they are too
  -- young, their types are searched again in time. Returns the earliest that a row became ready, by its type.
  function UnknownTypes.meet(rows, grace)
    local oldest = {}
    for i = 1, #rows do
      local row = rows[i]
      local type, text = row.kind.type, row.kind.names.type
      if row.status == 'r' and row.verdict == 0 and is_unknown(text) then
        if grace and row.ready_at < now - grace and is_unknown_for(text, grace) then
          Transitions.doom(row, UNKNOWN_TYPE)
        else
          oldest[type] = math.min(oldest[type] or now, row.ready_at)
        end
      end
    end
    if not grace then
      for type in pairs(oldest) do Store.set(K.unknown_searches, type) end
    end
    return oldest
  end

  -- `oldest`: what `meet` has returned. True: there is more to search.
  function UnknownTypes.doom(grace, oldest)
    if Workers.any_has_every_type() then return false end
    local types, more, unknown = Store.list(K.ring, 'Y'), false, {}
    for i = 1, #types do
      local type, text = sub(types[i], 1, 4), sub(types[i], 5)
      if is_unknown(text) then
        unknown[type] = true
        if is_unknown_for(text, grace) then
          local search = read(Store.get(K.unknown_searches, type))
          search.oldest = math.min(search.oldest, oldest[type] or now)
          if search.at <= now then
            more = continue(type, search, grace) or more
          elseif oldest[type] then
            Store.set(K.unknown_searches, type, struct.pack('>d', math.min(search.at, oldest[type] + grace)))
          end
        end
      end
    end
    local stored = call('HKEYS', K.unknown_searches)
    for i = 1, #stored do
      if not unknown[stored[i]] then Store.set(K.unknown_searches, stored[i]) end
    end
    return more
  end
end
