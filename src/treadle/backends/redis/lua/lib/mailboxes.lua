-- uses: clock store
-- Mailboxes: signals that were sent to items.
--
--   recorded     n 'm' -> how many(4) signals no wait has taken yet, and number(6) length(2) name of each
--                n 'm' number(6) -> the value of a signal that has one
--   signal_keys  n / length(2) name key     of all signals with keys, also of those that were taken
--
-- Signals have their numbers from `step_numbers`.

local Mailboxes = {}

do
  local EMPTY = '\0\0\0\0'
  local new_keys = {} -- those that this call has stored

  local function box_of(n) return Store.get(K.recorded, n .. 'm') or EMPTY end

  local function key_of(name, key) return struct.pack('>I2', #name) .. name .. key end

  -- How many signals no wait has taken yet.
  function Mailboxes.unread(n)
    return (struct.unpack('>I4', box_of(n)))
  end

  -- Whether a signal with this key was stored.
  function Mailboxes.knows(n, name, key)
    local member = n .. key_of(name, key)
    return new_keys[member] or call('ZSCORE', K.signal_keys, member) and true or false
  end

  function Mailboxes.add_key(n, name, key)
    new_keys[n .. key_of(name, key)] = true
    Store.insert(K.signal_keys, n, key_of(name, key))
  end

  function Mailboxes.add(n, name, value)
    local box, number = box_of(n), struct.pack('>I6', Store.next(K.step_numbers))
    Store.set(K.recorded, n .. 'm', struct.pack('>I4', Mailboxes.unread(n) + 1) .. sub(box, 5)
      .. number .. struct.pack('>I2', #name) .. name)
    if value then Store.set(K.recorded, n .. 'm' .. number, value) end
  end

  -- Take the first signal of a name. Returns whether there was one, and its value or nil.
  function Mailboxes.take(n, name)
    local box, at = box_of(n), 5
    while at <= #box do
      local number, length, after = struct.unpack('>c6I2', box, at)
      if sub(box, after, after + length - 1) == name then
        local count = Mailboxes.unread(n) - 1
        local left = struct.pack('>I4', count) .. sub(box, 5, at - 1) .. sub(box, after + length)
        local value = Store.get(K.recorded, n .. 'm' .. number) or nil
        Store.set(K.recorded, n .. 'm', count > 0 and left)
        if value then Store.set(K.recorded, n .. 'm' .. number) end
        return true, value
      end
      at = after + length
    end
    return false
  end

  function Mailboxes.delete(n)
    local box, at, fields, members = box_of(n), 5, {n .. 'm'}, {}
    while at <= #box do
      local number, length, after = struct.unpack('>c6I2', box, at)
      fields[#fields + 1] = n .. 'm' .. number
      at = after + length
    end
    for i, rest in ipairs(Store.list(K.signal_keys, n)) do members[i] = n .. rest end
    Store.drop(K.recorded, fields)
    Store.write('ZREM', K.signal_keys, members)
  end
end
