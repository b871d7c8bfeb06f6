-- uses: clock store
-- Audits: who changed what.
--
--   audits         number(6) -> at(8) count(4) and the note: flags(1: has a tenant, 2: of a bulk action, 4: has
--                  an `about`) length(2) tenant length(2) bulk, then the rest as Python packed it
--                  'first' -> the first number that was not pruned
--   audit_numbers  the last number

local Audits = {}

do
  local KEPT = 365 * 86400 -- KEPT_AUDIT in treadle.records
  local FIRST = 'first'
  local HAS_TENANT, HAS_BULK, HAS_ABOUT = 1, 2, 4

  local function key_of(number) return struct.pack('>I6', number) end

  local function has(flags, bit) return math.floor(flags / bit) % 2 == 1 end

  -- Store the entry of a change. `at`: the argument that is the note; it is empty if there is none. `entry`: the number
  -- of the entry of an earlier portion of this change, which gets the count too. Returns the number of the entry.
  function Audits.record(at, count, entry)
    return Audits.store(ARGV[at], count, entry)
  end

  function Audits.store(note, count, entry)
    if not note or note == '' then return '' end
    local number = tonumber(entry)
    local earlier = number and Store.get(K.audits, key_of(number))
    if earlier then
      count = count + struct.unpack('>I4', earlier, 9)
    else
      number = Store.next(K.audit_numbers)
    end
    local at = earlier and sub(earlier, 1, 8) or now8
    Store.set(K.audits, key_of(number), at .. struct.pack('>I4', count) .. note)
    return string.format('%d', number)
  end

  -- The number of the first entry that is stored, if any is.
  function Audits.first()
    return tonumber(Store.get(K.audits, FIRST) or 1)
  end

  -- Whether an entry is to be shown. Without a tenant or a bulk action: of all of them.
  function Audits.is_wanted(entry, tenant, bulk)
    local flags, length, at = struct.unpack('>BI2', entry, 13)
    if tenant and not (has(flags, HAS_TENANT) and sub(entry, at, at + length - 1) == tenant) then return false end
    if not bulk then return not has(flags, HAS_BULK) or (tenant and has(flags, HAS_ABOUT)) or false end
    at = at + length
    length, at = struct.unpack('>I2', entry, at)
    return has(flags, HAS_BULK) and sub(entry, at, at + length - 1) == bulk
  end

  -- Remove old entries, at most `limit`. The oldest come first.
  function Audits.prune(limit)
    local first, last = Audits.first(), Store.last(K.audit_numbers)
    local number = first
    while number <= last and number < first + limit do
      local entry = Store.get(K.audits, key_of(number))
      if entry and struct.unpack('>d', entry) >= now - KEPT then break end
      Store.set(K.audits, key_of(number))
      number = number + 1
    end
    if number > first then Store.set(K.audits, FIRST, string.format('%d', number)) end
  end
end
