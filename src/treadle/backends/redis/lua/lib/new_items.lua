-- uses: clock store kinds rows
-- New items, as item_bytes.py sends them: `NewItems.read(at)` reads the arguments from a place on.
--
-- A new item is a table: id, names (the texts of its kind: tenant, queue, lane, type), priority, keep, keep_dead,
-- body, spec (all of it that plain items do not have; an empty table for a plain one). Its kind is made when it
-- is stored: a refused item leaves none behind.

local NewItems = {}

do
  local STORED = {'k', 'w', 'wt', 'p', 'a', 'n', 'd', 'g', 'c', 'x'} -- what `extra` keeps of a spec

  -- The new items whose arguments begin at a place, and the place after them.
  function NewItems.read(at)
    local names = {}
    local count = tonumber(ARGV[at])
    at = at + 1
    for i = 1, count do
      names[i] = {tenant = ARGV[at], queue = ARGV[at + 1], lane = ARGV[at + 2], type = ARGV[at + 3]}
      at = at + 4
    end
    local items = {}
    count = tonumber(ARGV[at])
    at = at + 1
    for i = 1, count do
      local kind, priority, keep, keep_dead, from = struct.unpack('>I2c4dd', ARGV[at])
      local spec = ARGV[at + 1]
      items[i] = {
        id = sub(ARGV[at], from), names = names[kind], priority = priority, keep = keep,
        keep_dead = keep_dead >= 0 and keep_dead or nil,
        spec = spec ~= '' and cmsgpack.unpack(spec) or {}, body = ARGV[at + 2],
      }
      at = at + 3
    end
    return items, at
  end

  -- The kind of a new item. It is made if it does not exist.
  function NewItems.kind(item)
    local names = item.names
    local kind = names.kind
    if not kind then
      kind = Kinds.named(names.tenant, names.queue, names.lane, names.type)
      names.kind = kind
    end
    return kind
  end

  -- Store a new item: blocked, in no line yet. `group`: the number of its group; its own if left out.
  function NewItems.insert(item, group)
    local spec, kind = item.spec, NewItems.kind(item)
    local n = struct.pack('>I6', Store.next(K.seq))
    local extra
    if next(spec) then
      for i = 1, #STORED do
        local name = STORED[i]
        if spec[name] ~= nil then
          extra = extra or {}
          extra[name] = spec[name]
        end
      end
    end
    local row = Rows.add(Rows.new(n, item, kind, group or n, now), extra)
    row.due_at = NewItems.due_at(spec, now)
    local tenant = kind.tenant
    if spec.p then
      local parent = Rows.find(tenant, spec.p)
      if parent and parent ~= row then
        row.parent = parent.n
        Store.insert(K.children, parent.n, n)
      end
    end
    return row
  end

  -- When it is due. An absolute time wins over a delay.
  function NewItems.due_at(spec, from)
    return spec.ra or from + (spec.dl or 0)
  end

  -- When it expires, or nil.
  function NewItems.deadline_at(spec)
    return spec.de or (spec.ei and now + spec.ei)
  end
end
