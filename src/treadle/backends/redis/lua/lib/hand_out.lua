-- uses: clock demand ring only_line fair_order
-- Hand out: lease ready rows to a worker, in the fair order, without reading them into tables. row_bytes.lua has
-- the formats. It decides all, then writes.

-- The functions are made when they are needed: an idle worker's claims need none.
local function new_hand_out()
  local HandOut = {
    items = {}, -- of the leases, in order: the item, as stored
    numbers = {}, -- likewise
    general = {}, -- for the leases whose row is not a plain one: their place in the list, state and extra
    extras = {}, -- of the other leases that have one: each different extra, and the places(2) of those that have it
    kinds = {}, -- k and row of each kind that a lease has
    tokens = 0, -- the number before that of the first lease
    cut_short = false, -- whether there was too much to do for one call
  }
  local MOST_EXPIRED = 500
  local BEGUN, OWNED, HOLDS_LANE = 1, 64, 128
  local NONE = '\0\0\0\0\0\0\0\0'

  local order
  local numbers, items, states, kinds = {}, {}, {}, {} -- of the rows to lease
  local expired, expired_states, expired_kinds = {}, {}, {} -- the numbers of rows that have expired, likewise
  local counts -- how many rows of the kinds are ready, and running

  -- The state of a row that is leased, and is not a plain one. See Transitions.lease.
  local function leased_state(state, item, n, type, token, worker)
    local holds = type.strict and HOLDS_LANE or 0
    local begun = type.letter == 'p'
    if not state then
      local queued = sub(item, 12, 19)
      return 'R' .. token .. string.char((begun and BEGUN or 0) + OWNED + holds) .. '\0\0'
        .. (begun and '\0\0\0\1' or '\0\0\0\0') .. NONE .. n .. queued .. queued .. now8 .. NONE .. NONE .. NONE
        .. worker .. '\0\0\0'
    end
    begun = begun and sub(state, 21, 22) == '\0\0' -- it was not lost before
    local attempt = struct.unpack('>I4', state, 13)
    local flags = bit.bor(bit.band(state:byte(10), 255 - BEGUN), begun and BEGUN or 0, OWNED, holds)
    return 'R' .. token .. string.char(flags) .. sub(state, 11, 12) .. struct.pack('>I4', attempt + (begun and 1 or 0))
      .. sub(state, 17, 46) .. now8 .. sub(state, 55, 78) .. worker .. sub(state, 80 + state:byte(79))
  end

  local function write_expired()
    local new, doomed, holders = {}, {}, {}
    for i = 1, #expired do
      local n, state, kind = expired[i], expired_states[i], expired_kinds[i]
      new[2 * i - 1], new[2 * i] = n, sub(state, 1, 10) .. '\1' .. sub(state, 12) -- EXPIRED, as in transitions.lua
      doomed[2 * i - 1], doomed[2 * i] = 0, kind.type.number .. kind.path .. n
      if state:byte(10) >= HOLDS_LANE then holders[#holders + 1] = n end
    end
    send('HSET', K.state, new)
    send('ZADD', K.doomed, doomed)
    send('ZREM', K.deadlines, expired)
    send('ZREM', K.lanes_ready, holders)
  end

  -- `number`: that of the worker.
  local function write_leases(number)
    local new, held, lanes, holders, counted = {}, {}, {}, {}, {}
    local general = HandOut.general
    local worker = string.char(#demand.worker) .. demand.worker
    local tokens, random = HandOut.tokens, demand.random
    local plain = random .. now8 .. worker
    local pack, byte, char = struct.pack, string.byte, string.char
    local next_general = 1
    local high -- all bytes of the number of a token but the last
    local last_k, last_keep, with_class -- of the last row without an extra: kind, `keep`, and its state after the number
    for i = 1, #numbers do
      local n, state, kind = numbers[i], states[i], kinds[i]
      local type, k = kind.type, kind.k
      local low = (tokens + i) % 256
      if low == 0 or not high then high = pack('>I4', (tokens + i - low) / 256) end
      new[2 * i - 1] = n
      if general[next_general] == i then
        local leased = leased_state(state, items[i], n, type, high .. char(low) .. random, worker)
        new[2 * i], general[next_general + 1] = leased, leased
        next_general = next_general + 3
        if state and byte(state, 10) >= HOLDS_LANE then holders[#holders + 1] = n end
        if type.strict then
          lanes[#lanes + 1] = type.number .. sub(kind.path, 5, 8) .. kind.lane
          lanes[#lanes + 1] = n
        end
      else
        local item, rest = items[i], plain
        if byte(item) % 2 == 0 then
          local keep = sub(item, 24, 31)
          if keep ~= last_keep or k ~= last_k then
            last_keep, last_k, with_class = keep, k, plain .. k .. keep
          end
          rest = with_class
        end
        new[2 * i] = type.letter .. high .. char(low) .. rest
      end
      held[2 * i - 1], held[2 * i] = n, number
      counted[k] = (counted[k] or 0) + 1
    end
    local sums = {}
    for i = 1, #HandOut.kinds, 2 do
      local k = HandOut.kinds[i]
      local at = 2 * i
      sums[at - 1], sums[at] = k .. 'r', string.format('%d', counts[i] - counted[k])
      sums[at + 1], sums[at + 2] = k .. 'R', string.format('%d', (counts[i + 1] or 0) + counted[k])
    end
    send('HSET', K.state, new)
    send('HSET', K.held, held)
    send('HSET', K.counts, sums)
    send('HSET', K.lanes, lanes)
    send('ZREM', K.lanes_ready, holders)
  end

  -- Take rows, and tell those that have expired from the others.
  local function take(left)
    while left > 0 and #expired < MOST_EXPIRED and not order.cut_short do
      local rows, row_kinds, found = {}, {}, {}
      order.take(left, rows, row_kinds)
      if #rows == 0 then break end
      for i = 1, #rows do found[i] = sub(rows[i], 15) end
      local found_items = call('HMGET', K.item, unpack(found))
      local found_states = call('HMGET', K.state, unpack(found))
      local at = #numbers
      for i = 1, #rows do
        local item, state = found_items[i], found_states[i]
        if state and sub(state, 71, 78) ~= NONE and struct.unpack('>d', state, 71) <= now then
          order.give_back(row_kinds[i])
          local last = #expired + 1
          expired[last], expired_states[last], expired_kinds[last] = found[i], state, row_kinds[i]
        elseif item then
          at = at + 1
          numbers[at], items[at], states[at], kinds[at] = found[i], item, state, row_kinds[i]
          left = left - 1
        else
          error(LOST)
        end
      end
    end
    HandOut.cut_short = order.cut_short or #expired >= MOST_EXPIRED
  end

  -- Put the extras of rows where they belong. The members of a group have the same one.
  local function read_extras(labelled, places, owners)
    local found, general, pack = call('HMGET', K.extra, unpack(labelled)), HandOut.general, struct.pack
    local owned, in_order = {}, {}
    for i = 1, #labelled do
      local extra = found[i] or error(LOST)
      if places[i] then
        general[places[i]] = extra
      else
        local own = owned[extra]
        if not own then
          own = {}
          owned[extra], in_order[#in_order + 1] = own, extra
        end
        own[#own + 1] = pack('>I2', owners[i])
      end
    end
    for i = 1, #in_order do
      HandOut.extras[2 * i - 1], HandOut.extras[2 * i] = in_order[i], concat(owned[in_order[i]])
    end
  end

  -- What the answer and the writes need besides.
  local function read_more()
    local seen, ks, fields, general = {}, {}, {}, HandOut.general
    local labelled, places = {}, {} -- rows with an extra; where it goes if the row is general, else false
    local owners = {} -- the places of those rows
    local byte = string.byte
    for i = 1, #numbers do
      local kind = kinds[i]
      if not seen[kind] then
        seen[kind] = true
        local k = kind.k
        ks[#ks + 1] = k
        fields[#fields + 1] = k .. 'r'
        fields[#fields + 1] = k .. 'R'
      end
      local at = false
      if states[i] or kind.type.strict then
        at = #general + 3
        general[at - 2], general[at - 1], general[at] = i, '', ''
      end
      if byte(items[i]) % 2 == 1 then
        local last = #labelled + 1
        labelled[last], places[last], owners[last] = numbers[i], at, i
      end
    end
    if #labelled > 0 then read_extras(labelled, places, owners) end
    counts = call('HMGET', K.counts, unpack(fields))
    local rows = call('HMGET', K.kinds, unpack(ks))
    for i = 1, #ks do
      if not rows[i] or not counts[2 * i - 1] then error(LOST) end
      HandOut.kinds[2 * i - 1], HandOut.kinds[2 * i] = ks[i], rows[i]
    end
  end

  -- Decide which rows to lease, up to `left`. `ring`: as `ready_ring` has read it. Writes nothing but counters.
  -- Reads what is stored: what this call has changed must have been flushed.
  function HandOut.decide(left, ring)
    if left < 1 then return end
    order = #ring > 0 and (only_line(ring) or fair_order(ring, left))
    if not order then return end
    take(left)
    if #numbers + #expired == 0 then return end
    if #numbers > 0 then read_more() end
    order.finish()
    if #numbers > 0 then HandOut.tokens = call('INCRBY', K.tokens, #numbers) - #numbers end
    HandOut.items, HandOut.numbers = items, numbers
  end

  -- Lease them to the worker with this number.
  function HandOut.write(number)
    if #numbers > 0 then write_leases(number) end
    if #expired > 0 then write_expired() end
    if #numbers + #expired > 0 then order.write() end
    resend()
  end

  -- Nothing is leased after all.
  function HandOut.forget()
    HandOut.items, HandOut.numbers, HandOut.general, HandOut.extras, HandOut.kinds = {}, {}, {}, {}, {}
  end

  -- How many rows a claim may hand out.
  function HandOut.limit()
    if not demand.room then return demand.limit end
    local sum = 0
    for _, left in pairs(demand.room) do sum = sum + math.max(left, 0) end
    return math.min(demand.limit, sum)
  end

  return HandOut
end
