-- uses: store
-- Permits of `slots` limits: which worker holds how many, and which leases have one of their own.
--
--   slots          name of the limit -> how many permits all workers hold together
--   permits        number of the worker(4) name -> how many of these it holds
--   permit_leases  token(8) name -> n(6) of the row and number(4) of the worker of a lease with a permit
--   permit_index   'N' length(2) name / number       the workers that hold permits of a limit
--                  'W' number / name                 the limits of which a worker holds permits
--                  'L' length(2) name / token        the leases that have permits of a limit
--                  'X' number / token name           the leases of a worker that have permits
--   limit_names    name 0 algorithm                  the limits that are in use, or were: see limits.lua

local Permits = {}

do
  local function long(letter, name) return letter .. struct.pack('>I2', #name) .. name end

  -- How many permits of a limit all workers hold.
  function Permits.held(name)
    return tonumber(Store.get(K.slots, name) or 0)
  end

  local function set_held(name, count)
    Store.set(K.slots, name, count > 0 and string.format('%d', count))
    if count > 0 then
      Store.insert(K.limit_names, '', name .. '\0slots')
    else
      Store.remove(K.limit_names, '', name .. '\0slots')
    end
  end

  -- How many permits of a limit a worker holds.
  function Permits.of_worker(number, name)
    return tonumber(Store.get(K.permits, number .. name) or 0)
  end

  local function set_of_worker(number, name, count)
    Store.set(K.permits, number .. name, count > 0 and string.format('%d', count))
    local change = count > 0 and Store.insert or Store.remove
    change(K.permit_index, long('N', name), number)
    change(K.permit_index, 'W' .. number, name)
  end

  function Permits.give(number, name, count)
    set_held(name, Permits.held(name) + count)
    set_of_worker(number, name, Permits.of_worker(number, name) + count)
  end

  function Permits.take_back(number, name, count)
    if count > 0 then Permits.give(number, name, -count) end
  end

  -- Leases ------------------------------------------------------------------------------------------------

  -- Whether a lease has a permit of a limit: n and the number of its worker, or false.
  function Permits.of_lease(token, name)
    return Store.get(K.permit_leases, token .. name)
  end

  function Permits.give_to_lease(number, name, token, n)
    Store.set(K.permit_leases, token .. name, n .. number)
    Store.insert(K.permit_index, long('L', name), token)
    Store.insert(K.permit_index, 'X' .. number, token .. name)
  end

  function Permits.forget_lease(number, name, token)
    Store.set(K.permit_leases, token .. name)
    Store.remove(K.permit_index, long('L', name), token)
    Store.remove(K.permit_index, 'X' .. number, token .. name)
  end

  -- The tokens of the leases that have permits of a limit, in order.
  function Permits.leases(name)
    return Store.list(K.permit_index, long('L', name))
  end

  -- The numbers of the workers that hold permits of a limit.
  function Permits.workers(name)
    return Store.list(K.permit_index, long('N', name))
  end

  -- The limits of which a worker holds permits.
  function Permits.names(number)
    return Store.list(K.permit_index, 'W' .. number)
  end

  -- A worker is removed.
  function Permits.return_all(number)
    for _, lease in ipairs(Store.list(K.permit_index, 'X' .. number)) do
      Permits.forget_lease(number, sub(lease, 9), sub(lease, 1, 8))
    end
    for _, name in ipairs(Permits.names(number)) do
      Permits.take_back(number, name, Permits.of_worker(number, name))
    end
  end
end
