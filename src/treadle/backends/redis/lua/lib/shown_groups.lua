-- uses: store kinds rows groups raw_rows
-- Shown groups: what Python needs to read groups: see read.py.

local ShownGroups = {}

do
  local MOST_DEATHS = 10 -- SHOWN_DEATHS in treadle.store.rules.settlement

  -- Read in few commands what finding these groups takes.
  function ShownGroups.load(ids)
    Store.load(K.id, ids)
    Store.load(K.group_ids, ids)
    local numbers = {}
    for _, id in ipairs(ids) do
      local places = Store.get(K.id, id) or ''
      for at = 1, #places, 10 do numbers[#numbers + 1] = sub(places, at, at + 5) end
    end
    Rows.load(numbers)
    Store.load(K.groups, numbers)
  end

  local function last_numbers(key, g, most)
    local rests = Store.list(key, g, most)
    local numbers = {}
    for i = 1, #rests do numbers[i] = sub(rests[i], 9, 14) end
    return numbers
  end

  local function answer(group)
    local outer = group.outer and Groups.get(group.outer)
    return {
      Store.get(K.groups, group.g),
      RawRows.read(group.failed > 0 and last_numbers(K.deaths, group.g, MOST_DEATHS) or {}),
      RawRows.read(group.open == 0 and group.cancellations > 0 and last_numbers(K.cancels, group.g, 1) or {}),
      outer and outer.id or '',
      Groups.total(group),
    }
  end

  -- Groups: what is stored of each, its first deaths, a cancelled member, the id of the group around it. A root that
  -- is alone: its row. What is neither stays as it is.
  function ShownGroups.answers(found)
    local answers, alone, places = {}, {}, {}
    for i = 1, #found do
      local one = found[i]
      if type(one) == 'table' and one.n then
        alone[#alone + 1], places[#places + 1] = one.n, i
      else
        answers[i] = type(one) == 'table' and answer(one) or one
      end
    end
    local rows = RawRows.read(alone)
    for i = 1, #rows do answers[places[i]] = {rows[i]} end
    return answers
  end
end
