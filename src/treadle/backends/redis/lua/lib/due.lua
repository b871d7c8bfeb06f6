-- uses: clock store rows lines transitions
-- Due: rows whose time has come. Each in portions: the next claim does the rest.

local Due = {}

do
  local PORTION = 75
  local UNTIL = string.format('%.17g', now)

  -- The numbers of rows that are due, in the order in which they are.
  local function find()
    local owners = call('ZRANGEBYSCORE', K.due_first, '-inf', UNTIL, 'LIMIT', 0, PORTION)
    local left, found = PORTION, {}
    for i = 1, #owners do
      if left < 1 then break end
      local members = call('ZRANGEBYLEX', K.due, '[' .. owners[i], '[' .. owners[i] .. now8 .. '\255\255\255\255\255\255', 'LIMIT', 0, left)
      left = left - #members
      for j = 1, #members do
        found[#found + 1] = {at = struct.unpack('>d', members[j], 9), n = sub(members[j], 17)}
      end
    end
    sort(found, function(a, b)
      if a.at ~= b.at then return a.at < b.at end
      return struct.unpack('>I6', a.n) < struct.unpack('>I6', b.n)
    end)
    local numbers = {}
    for i = 1, #found do numbers[i] = found[i].n end
    return numbers
  end

  -- Scheduled rows that are due become ready. Returns them, and whether there may be more.
  function Due.make_ready()
    local numbers = find()
    Rows.load(numbers)
    local rows = {}
    for i = 1, #numbers do
      local row = Rows.get(numbers[i])
      Lines.remove_due(row)
      Transitions.make_ready(row, row.due_at)
      rows[i] = row
    end
    return rows, #numbers == PORTION
  end

  -- Rows whose deadline has come are doomed. Returns how many, and whether there may be more.
  function Due.expire()
    local numbers = call('ZRANGEBYSCORE', K.deadlines, '-inf', UNTIL, 'LIMIT', 0, PORTION)
    Rows.load(numbers)
    for i = 1, #numbers do
      local row = Rows.get(numbers[i])
      if row then
        Transitions.expire(row)
      else
        Store.score(K.deadlines, numbers[i])
      end
    end
    return #numbers, #numbers == PORTION
  end
end
