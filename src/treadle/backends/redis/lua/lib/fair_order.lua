-- uses: demand ring ring_types ring_levels ring_rows ring_changes
-- Fair order: which ready rows a claim takes next. lines.lua has the layout of the ring.
--
-- Queues are served in turn, tenants in turn within a queue, lanes in turn within a tenant. A claim of several
-- types serves their rings as if they were one: the turn of a name is the least that it has in any of them.

-- `members`: the beginning of the ring. `most`: how many rows will be taken at most.
local function fair_order(members, most)
  local MOST_KINDS = 45 -- that one call takes rows of: each costs more than a row

  local read_ring = ring_reader(members)
  local types, use_room = ring_types(read_ring)
  if #types == 0 then return nil end
  local Levels = ring_levels(types, read_ring, most + 1)
  local RingRows = ring_rows(Levels, most)
  local next_child, is_used_up, wait_again = Levels.next_child, Levels.is_used_up, Levels.wait_again
  local first_row = RingRows.first_row
  local top = Levels.new(1, '', nil)
  local services = 0
  local served = {} -- children
  local touched = {} -- kinds
  local RingChanges = ring_changes(Levels, RingRows.read_rows, touched, served)

  local function mark_served(child)
    if not child.served then served[#served + 1] = child end
    child.served = services
  end

  local order = {cut_short = false}

  -- Take up to `left` rows in order, and put them, and their kinds, into these lists. `cut_short` says whether
  -- there was too much to do.
  function order.take(left, rows, kinds)
    local level = top
    local count = 0
    local is_alone = false -- whether there are no other queues and tenants than those of the level
    while left > 0 do
      local child = next_child(level)
      if not child then
        if not level.above then return end
        level = level.above.level -- without the child that has nothing more
      elseif level.depth < 3 then
        if not child.below then child.below = Levels.new(level.depth + 1, level.path .. child.name, child) end
        level = child.below
        is_alone = level.depth == 3 and is_used_up(child.level) and is_used_up(child.level.above.level)
      else
        if not child.rows then
          if #touched >= MOST_KINDS then
            order.cut_short = true
            return
          end
          RingRows.find_kinds(level, child)
        end
        local turns = is_alone and is_used_up(level) and left or 1
        local before = count
        while turns > 0 do
          local row, kind = first_row(child)
          if not row then break end
          count = count + 1
          rows[count], kinds[count] = row, kind
          kind.at = kind.at + 1
          local type = kind.type
          if type.strict then type.strict[kind.strict_lane] = true end
          if kind.at == 2 then touched[#touched + 1] = kind end
          if type.left or type.shared then use_room(type, 1) end
          turns = turns - 1
        end
        if count > before then
          left = left - (count - before)
          services = services + 1
          local tenant = level.above
          local queue = tenant.level.above
          mark_served(child)
          mark_served(tenant)
          mark_served(queue)
          wait_again(child)
          if not is_alone or left < 1 then
            wait_again(tenant)
            wait_again(queue)
            level = top
          end
        end
      end
    end
  end

  -- A row was taken, and cannot be handed out.
  function order.give_back(kind)
    local type = kind.type
    use_room(type, -1)
    if type.strict then type.strict[kind.strict_lane] = nil end
  end

  -- Decide who has nothing more, and the turns of the others.
  function order.finish()
    RingChanges.decide(services)
  end

  order.write = RingChanges.write -- removes the rows that were taken from the set, too
  return order
end
