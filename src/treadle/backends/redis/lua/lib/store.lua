-- Store: what the keys hold, as this call sees it. Reads are cached. Writes wait until `Store.flush`.
--
-- So a script that fails has written nothing, and each key is written with few commands that have many
-- arguments. A verb decides and changes; the last line of its script flushes.
--
-- Sets in the order of bytes have members that begin with a prefix: `Store.list(key, prefix)` sees what this
-- call has added and removed.

local call, pcall_redis = redis.call, redis.pcall
local sub, concat, sort = string.sub, table.concat, table.sort

local Store = {}

do
  local MOST = 4000 -- arguments that `unpack` takes at once
  local HIGHEST = string.rep('\255', 9) -- no rest is above this

  local fields = {} -- by key, then by field: the value, or false if there is none
  local written = {} -- by key: the fields that must be written
  local sums = {} -- by key, then by field: what must be added
  local scores = {} -- by key, then by member: its new score, or false if it must leave
  local ordered = {} -- by key, prefix and rest: true if it must be added, false if it must leave
  local additions = {} -- by key and prefix: how many must be added
  local looked = {} -- by key and prefix: how far `is_empty` has looked
  local listed = {} -- by key and prefix: the rests that were read ahead
  local sizes = {} -- by key: whether a set exists
  local counters = {} -- by key: what this call has reserved of a counter

  local function table_of(tables, key)
    local found = tables[key]
    if not found then
      found = {}
      tables[key] = found
    end
    return found
  end

  -- Hashes ------------------------------------------------------------------------------------------------

  -- Read the fields of a hash that are not known yet, in one command.
  function Store.load(key, names)
    local known = table_of(fields, key)
    local missing = {}
    for i = 1, #names do
      local name = names[i]
      if known[name] == nil then
        known[name] = false
        missing[#missing + 1] = name
      end
    end
    for first = 1, #missing, MOST do
      local last = math.min(first + MOST - 1, #missing)
      local found = call('HMGET', key, unpack(missing, first, last))
      for i = first, last do known[missing[i]] = found[i - first + 1] end
    end
  end

  -- The value of a field, or false.
  function Store.get(key, name)
    local known = fields[key] or table_of(fields, key)
    local value = known[name]
    if value == nil then
      value = call('HGET', key, name)
      known[name] = value
    end
    return value
  end

  -- Set a field. Without a value it is removed.
  function Store.set(key, name, value)
    local known, changed = fields[key], written[key]
    if not changed then known, changed = table_of(fields, key), table_of(written, key) end
    known[name] = value or false
    changed[name] = true
  end

  local dropped = {} -- by key: lists of fields

  -- Remove many fields of a hash that this call does not look at any more.
  function Store.drop(key, names)
    local lists = table_of(dropped, key)
    lists[#lists + 1] = names
  end

  local others = {} -- commands

  -- Write fields, or members, that this call does not look at: a command and its arguments.
  function Store.write(name, key, values)
    if #values > 0 then others[#others + 1] = {name, key, values} end
  end

  -- Add to a number in a hash that is only read by other calls.
  function Store.add(key, name, amount)
    local known = sums[key] or table_of(sums, key)
    known[name] = (known[name] or 0) + amount
  end

  -- Remove numbers of a hash, whatever this call adds to them: the fields that are the name and a letter.
  function Store.drop_sums(key, name, letters)
    for i = 1, #letters do
      local field = name .. sub(letters, i, i)
      table_of(sums, key)[field] = nil
      Store.set(key, field)
    end
  end

  -- Remove a number that is zero now, and others with it.
  function Store.drop_zero(key, name, others)
    local added = sums[key] and sums[key][name] or 0
    if tonumber(call('HGET', key, name) or 0) + added > 0 then return end
    others[#others + 1] = name
    for i = 1, #others do
      table_of(sums, key)[others[i]] = nil
      Store.set(key, others[i])
    end
  end

  -- Counters ----------------------------------------------------------------------------------------------

  -- The next number of a counter, as a Lua number. A reserved number that is not used is a hole.
  function Store.next(key)
    local reserved = counters[key]
    if not reserved then
      reserved = {at = tonumber(call('GET', key) or 0)}
      counters[key] = reserved
    end
    reserved.at = reserved.at + 1
    return reserved.at
  end

  -- Take many numbers of a counter. Returns the number before the first one.
  function Store.reserve(key, count)
    local before = Store.next(key) - 1
    counters[key].at = before + count
    return before
  end

  -- The last number of a counter that was given out.
  function Store.last(key)
    return counters[key] and counters[key].at or tonumber(call('GET', key) or 0)
  end

  -- Sorted sets with scores -------------------------------------------------------------------------------

  -- Give a member a score. Without one it leaves the set.
  function Store.score(key, member, score)
    local members = scores[key] or table_of(scores, key)
    members[member] = score or false
  end

  -- All members of a set, by score.
  function Store.by_score(key)
    local found, members, by_member = call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}, {}
    for i = 1, #found, 2 do by_member[found[i]] = tonumber(found[i + 1]) end
    for member, score in pairs(scores[key] or {}) do by_member[member] = score or nil end
    for member in pairs(by_member) do members[#members + 1] = member end
    sort(members, function(a, b) return by_member[a] < by_member[b] end)
    return members
  end

  -- Sorted sets in the order of bytes ---------------------------------------------------------------------

  local function count_addition(key, prefix, amount)
    local known = additions[key] or table_of(additions, key)
    known[prefix] = (known[prefix] or 0) + amount
  end

  local function changes_of(key, prefix)
    local prefixes = ordered[key] or table_of(ordered, key)
    return prefixes[prefix] or table_of(prefixes, prefix)
  end

  function Store.insert(key, prefix, rest)
    local changes = changes_of(key, prefix)
    if not changes[rest] then count_addition(key, prefix, 1) end
    changes[rest] = true
  end

  function Store.remove(key, prefix, rest)
    local changes = changes_of(key, prefix)
    if changes[rest] then count_addition(key, prefix, -1) end
    changes[rest] = false
  end

  -- The rests of the members with a prefix, in order: at most `most`, all if it is left out. No other prefix
  -- that is used may begin with this one.
  function Store.list(key, prefix, most)
    local changes = ordered[key] and ordered[key][prefix]
    local last = '[' .. prefix .. HIGHEST
    local known = not most and listed[key] and listed[key][prefix]
    local found
    if known then
      found = known
    elseif most then
      local limit = most
      if changes then
        for _, is_in in pairs(changes) do
          if not is_in then limit = limit + 1 end
        end
      end
      found = call('ZRANGEBYLEX', key, '[' .. prefix, last, 'LIMIT', 0, limit)
    else
      found = call('ZRANGEBYLEX', key, '[' .. prefix, last)
    end
    local from = #prefix + 1
    local rests = {}
    for i = 1, #found do rests[i] = sub(found[i], from) end
    if not changes then return rests end
    local left, seen = {}, {}
    for i = 1, #rests do
      local rest = rests[i]
      seen[rest] = true
      if changes[rest] ~= false then left[#left + 1] = rest end
    end
    for rest, added in pairs(changes) do
      if added and not seen[rest] then left[#left + 1] = rest end
    end
    if most == 1 then
      local first = left[1]
      for i = 2, #left do
        if Store.before(left[i], first) then first = left[i] end
      end
      return {first}
    end
    sort(left, Store.before)
    if most and #left > most then
      for i = #left, most + 1, -1 do left[i] = nil end
    end
    return left
  end

  -- A text that is not above any of these, and one that is not below. They are equally long, and at least six bytes:
  -- only six are compared, after those that all have alike.
  local function bounds(texts)
    local first, alike = texts[1], #texts[1] - 6
    local start = sub(first, 1, alike)
    for i = 2, #texts do
      while sub(texts[i], 1, alike) ~= start do
        alike = alike - 1
        start = sub(first, 1, alike)
      end
    end
    local lowest, highest = math.huge, 0
    for i = 1, #texts do
      local number = struct.unpack('>I6', texts[i], alike + 1)
      if number < lowest then lowest = number end
      if number > highest then highest = number end
    end
    return start .. struct.pack('>I6', lowest), start .. struct.pack('>I6', highest)
  end

  -- The members from the lowest to the highest of these prefixes, in one command. Nil if there are many others between
  -- them.
  local function near(key, prefixes)
    local lowest, highest = bounds(prefixes)
    local most = 2 * #prefixes + 1000
    local found = call('ZRANGEBYLEX', key, '[' .. lowest, '[' .. highest .. HIGHEST, 'LIMIT', 0, most)
    return #found < most and found or nil
  end

  -- All members with one of these prefixes, and perhaps some others, as they are stored.
  function Store.members_near(key, prefixes)
    local by_length, all = {}, {}
    for i = 1, #prefixes do
      local length = #prefixes[i]
      local alike = by_length[length]
      if not alike then
        alike = {}
        by_length[length] = alike
      end
      alike[#alike + 1] = prefixes[i]
    end
    for _, alike in pairs(by_length) do
      local found = near(key, alike)
      for i = 1, found and #found or 0 do all[#all + 1] = found[i] end
      for i = 1, found and 0 or #alike do
        local own = call('ZRANGEBYLEX', key, '[' .. alike[i], '[' .. alike[i] .. HIGHEST)
        for j = 1, #own do all[#all + 1] = own[j] end
      end
    end
    return all
  end

  -- Read the members with each of these prefixes, which are equally long, in one command. It does nothing if there
  -- are many others between them.
  function Store.load_lists(key, prefixes)
    if #prefixes < 2 or not Store.any(key) then return end
    local known, missing = table_of(listed, key), {}
    for i = 1, #prefixes do
      if not known[prefixes[i]] then missing[#missing + 1] = prefixes[i] end
    end
    if #missing < 2 then return end
    local found = near(key, missing)
    if not found then return end
    local length = #missing[1]
    for i = 1, #missing do known[missing[i]] = {} end
    for i = 1, #found do
      local rests = known[sub(found[i], 1, length)]
      if rests then rests[#rests + 1] = found[i] end
    end
  end

  -- The prefixes under which this call has added or removed members.
  function Store.changed_prefixes(key)
    local prefixes = {}
    for prefix in pairs(ordered[key] or {}) do prefixes[#prefixes + 1] = prefix end
    sort(prefixes, Store.before)
    return prefixes
  end

  -- Whether no member has a prefix. Many of these are as quick as one: it goes on where it last looked.
  function Store.is_empty(key, prefix)
    if additions[key] and (additions[key][prefix] or 0) > 0 then return false end
    local changes = ordered[key] and ordered[key][prefix] or {}
    local cursors = table_of(looked, key)
    local cursor = cursors[prefix] or {at = 1, found = {}, from = '[' .. prefix}
    cursors[prefix] = cursor
    while true do
      while cursor.at <= #cursor.found do
        if changes[sub(cursor.found[cursor.at], #prefix + 1)] ~= false then return false end
        cursor.at = cursor.at + 1
      end
      if cursor.ended then return true end
      cursor.found = call('ZRANGEBYLEX', key, cursor.from, '[' .. prefix .. HIGHEST, 'LIMIT', 0, cursor.most or 1)
      cursor.at, cursor.most, cursor.ended = 1, 200, #cursor.found == 0
      cursor.from = '(' .. (cursor.found[#cursor.found] or '')
    end
  end

  -- Whether a set in the order of bytes may have members. It costs one command for each set and call.
  function Store.any(key)
    if ordered[key] then return true end
    if sizes[key] == nil then sizes[key] = call('EXISTS', key) == 1 end
    return sizes[key]
  end

  -- The order of bytes. `<` of Lua depends on the locale of the server.
  function Store.before(a, b)
    local length = math.min(#a, #b)
    for i = 1, length do
      local x, y = a:byte(i), b:byte(i)
      if x ~= y then return x < y end
    end
    return #a < #b
  end

  -- Writing -----------------------------------------------------------------------------------------------

  -- Send a command with many arguments, in portions. After the first write nothing may stop this call: a
  -- command that fails is sent once more at the end.
  local failed = {}

  local function send(name, key, values)
    for first = 1, #values, MOST do
      local last = math.min(first + MOST - 1, #values)
      local answer = pcall_redis(name, key, unpack(values, first, last))
      if type(answer) == 'table' and answer.err then failed[#failed + 1] = {name, key, unpack(values, first, last)} end
    end
  end

  local function flush_hashes()
    for key, names in pairs(written) do
      local sets, gone = {}, {}
      local known = fields[key]
      for name in pairs(names) do
        local value = known[name]
        if value then
          sets[#sets + 1] = name
          sets[#sets + 1] = value
        else
          gone[#gone + 1] = name
        end
      end
      if #sets > 0 then send('HSET', key, sets) end
      if #gone > 0 then send('HDEL', key, gone) end
    end
    for key, lists in pairs(dropped) do
      for i = 1, #lists do send('HDEL', key, lists[i]) end
    end
    for key, names in pairs(sums) do
      for name, amount in pairs(names) do
        if amount ~= 0 then send('HINCRBY', key, {name, amount}) end
      end
    end
  end

  local function flush_sets()
    for key, members in pairs(scores) do
      local added, gone = {}, {}
      for member, score in pairs(members) do
        if score then
          added[#added + 1] = string.format('%.17g', score)
          added[#added + 1] = member
        else
          gone[#gone + 1] = member
        end
      end
      if #added > 0 then send('ZADD', key, added) end
      if #gone > 0 then send('ZREM', key, gone) end
    end
    for key, prefixes in pairs(ordered) do
      local added, gone = {}, {}
      for prefix, rests in pairs(prefixes) do
        for rest, is_in in pairs(rests) do
          if is_in then
            added[#added + 1] = 0
            added[#added + 1] = prefix .. rest
          else
            gone[#gone + 1] = prefix .. rest
          end
        end
      end
      if #added > 0 then send('ZADD', key, added) end
      if #gone > 0 then send('ZREM', key, gone) end
    end
  end

  -- Modules that keep objects of their own put them into the store here. The last one comes first.
  Store.before_flush = {}

  -- Write all that this call has changed.
  function Store.flush()
    for i = #Store.before_flush, 1, -1 do Store.before_flush[i]() end
    for key, reserved in pairs(counters) do send('SET', key, {string.format('%d', reserved.at)}) end
    flush_hashes()
    flush_sets()
    for i = 1, #others do send(unpack(others[i])) end
    for i = 1, #failed do call(unpack(failed[i])) end
  end
end
