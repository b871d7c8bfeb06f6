-- uses: store elsewhere
-- Kinds: items alike in tenant, queue, lane and type. Each kind, and each of these texts, has a number of
-- four bytes, so that nothing long is stored twice.
--
--   kind    tenant, queue, lane and type, with zero bytes between -> its number, and the numbers of these texts
--   kinds   number -> the numbers of the texts, then each text after its length
--   text    text -> its number          uses    text -> how many kinds have it
--   counts  number and the letter of a status -> how many items
--
-- A kind is a table: k (its number), tenant, queue, lane, type (numbers of the texts), line (queue, tenant
-- and lane together), names (the texts, by the same names), row (as stored: what Python reads).

local Kinds = {}

do
  local known = {} -- by number
  local by_name = {} -- by the texts

  local function text_number(text)
    local number = Store.get(K.text, text)
    if not number then
      number = struct.pack('>I4', Store.next(K.names))
      Store.set(K.text, text, number)
    end
    Store.set(K.uses, text, string.format('%d', (tonumber(Store.get(K.uses, text) or 0)) + 1))
    return number
  end

  local function read(k, row)
    local at = 17
    local texts = {}
    for i = 1, 4 do
      local length = struct.unpack('>I2', row, at)
      texts[i] = sub(row, at + 2, at + 1 + length)
      at = at + 2 + length
    end
    local kind = {
      k = k, row = row,
      tenant = sub(row, 1, 4), queue = sub(row, 5, 8), lane = sub(row, 9, 12), type = sub(row, 13, 16),
      line = sub(row, 5, 8) .. sub(row, 1, 4) .. sub(row, 9, 12),
      names = {tenant = texts[1], queue = texts[2], lane = texts[3], type = texts[4]},
    }
    known[k] = kind
    return kind
  end

  -- The kind with a number. It must exist.
  function Kinds.get(k)
    return known[k] or read(k, Store.get(K.kinds, k))
  end

  -- Read several kinds in one command.
  function Kinds.load(numbers)
    Store.load(K.kinds, numbers)
  end

  -- The kind with these texts. It is made if it does not exist.
  function Kinds.named(tenant, queue, lane, type)
    local name = tenant .. '\0' .. queue .. '\0' .. lane .. '\0' .. type
    local kind = by_name[name]
    if kind then return kind end
    local found = Store.get(K.kind, name)
    local k = found and sub(found, 1, 4)
    if not k then
      check_tenant(tenant)
      k = struct.pack('>I4', Store.next(K.names))
      local numbers, texts = {}, {tenant, queue, lane, type}
      for i = 1, 4 do numbers[i] = text_number(texts[i]) end
      local row = concat(numbers)
      for i = 1, 4 do row = row .. struct.pack('>I2', #texts[i]) .. texts[i] end
      Store.set(K.kind, name, k .. concat(numbers))
      Store.set(K.kinds, k, row)
    end
    kind = Kinds.get(k)
    by_name[name] = kind
    return kind
  end

  -- The kinds of a tenant, as they were before this call.
  function Kinds.of_tenant(name)
    local found, prefix = {}, name .. '\0'
    for _, texts in ipairs(call('HKEYS', K.kind)) do
      if sub(texts, 1, #prefix) == prefix then found[#found + 1] = Kinds.get(sub(Store.get(K.kind, texts), 1, 4)) end
    end
    return found
  end

  -- The number of a text that an item has, or false.
  function Kinds.text(text)
    return Store.get(K.text, text)
  end

  -- Count items of a kind in a status, by its letter.
  function Kinds.count(kind, letter, amount)
    Store.add(K.counts, kind.k .. letter, amount)
    kind.changed = (kind.changed or 0) + amount
  end

  -- Forget the kinds of a list of which no item is stored any more. Call it after all changes were made, and
  -- before the flush.
  function Kinds.forget_empty(kinds)
    for _, kind in pairs(kinds) do
      local total = kind.changed or 0
      local counts = call('HMGET', K.counts, kind.k .. 'b', kind.k .. 'w', kind.k .. 'r', kind.k .. 'R',
        kind.k .. 'S', kind.k .. 'D', kind.k .. 'C')
      for i = 1, 7 do total = total + tonumber(counts[i] or 0) end
      if total == 0 and not kind.forgotten then
        kind.forgotten = true
        local names = kind.names
        Store.set(K.kind, names.tenant .. '\0' .. names.queue .. '\0' .. names.lane .. '\0' .. names.type)
        Store.set(K.kinds, kind.k)
        Store.drop_sums(K.counts, kind.k, 'bwrRSDC')
        for _, text in pairs(names) do
          local uses = tonumber(Store.get(K.uses, text) or 0) - 1
          Store.set(K.uses, text, uses > 0 and string.format('%d', uses))
          if uses <= 0 then Store.set(K.text, text) end
        end
      end
    end
  end

  local left = {} -- kinds by number

  -- An item has left this kind for another. Forget it at the end if it was the last one.
  function Kinds.leave(kind)
    left[kind.k] = kind
  end

  Store.before_flush[#Store.before_flush + 1] = function() Kinds.forget_empty(left) end
end
